"""What kube-state-metrics shows of nodes and pods."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from benchmarks.simulator.world import Instant, Pod, World

T = TypeVar("T")
KUBE_STATE = {"job": "kube-state-metrics", "instance": "10.0.0.9:8080"}
KUBE_STATE_POD = {"namespace": "monitoring", "pod": "kube-state-metrics-0", "container": "kube-state-metrics"}


class Fact(NamedTuple):
    """A series of one value that kube-state-metrics shows from `since` to before `until` (None: to the end)."""

    name: str
    labels: dict[str, str]
    value: float
    since: Instant
    until: Instant | None


def kube_state(world: World) -> Iterator[Fact]:
    for namespace in sorted({pod.namespace for pod in world.pods} | world.namespace_labels.keys()):
        labels = {"namespace": namespace, **_label_labels(world.namespace_labels.get(namespace, {}))}
        yield Fact("kube_namespace_labels", labels, 1, world.start, None)
    for node in world.nodes:
        labels, there = {"node": node.name}, (node.created, node.gone)
        identity = labels | {"system_uuid": node.system_uuid, "provider_id": f"sim:///{node.name}"}
        yield Fact("kube_node_info", identity, 1, *there)
        yield Fact("kube_node_created", labels, node.created.timestamp(), *there)
        for since, own, until in _lasting([(node.created, node.labels), *node.relabels], node.gone):
            yield Fact("kube_node_labels", labels | _label_labels(own), 1, since, until)
        allocatable = node.capacity if node.allocatable is None else node.allocatable
        for what, history in ("capacity", node.capacity), ("allocatable", allocatable):
            name = f"kube_node_status_{what}"
            yield Fact(name, labels | {"resource": "cpu", "unit": "core"}, 96, *there)
            gpus = labels | {"resource": "nvidia_com_gpu", "unit": "integer"}
            for since, count, until in _lasting(history, node.gone):
                yield Fact(name, gpus, count, since, until)
    for pod in world.pods:
        yield from _kube_state_of_pod(world, pod)


def _kube_state_of_pod(world: World, pod: Pod) -> Iterator[Fact]:
    key = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
    kind, name = pod.controller or ("", "")
    controller = {"owner_is_controller": "true"}
    owner = {"owner_kind": kind, "owner_name": name} | (controller if pod.owner else {})
    yield Fact("kube_pod_created", key, pod.since.timestamp(), pod.since, pod.object_gone)
    yield Fact("kube_pod_owner", key | owner, 1, pod.since, pod.object_gone)
    if pod.owner and pod.owner[0] == "Deployment":
        owned = {"namespace": pod.namespace, "replicaset": name, "owner_kind": "Deployment", "owner_name": pod.owner[1]}
        yield Fact("kube_replicaset_owner", owned | controller, 1, pod.since, pod.object_gone)
    # Until it is scheduled it has no node, and with one it is another series.
    if pod.scheduled is None or pod.since < pod.scheduled:
        yield from _requests(pod, key | {"node": ""}, pod.since, pod.scheduled or pod.object_gone)
    if pod.scheduled:
        yield from _requests(pod, key | {"node": pod.node}, pod.scheduled, pod.object_gone)
        scheduled_s = pod.scheduled.timestamp()
        yield Fact("kube_pod_status_scheduled_time", key, scheduled_s, pod.scheduled, pod.object_gone)
        for i, (_, is_sidecar) in enumerate(pod.init_containers):
            labels = key | {"container": f"i{i}", "restart_policy": "Always" if is_sidecar else ""}
            yield Fact("kube_pod_init_container_info", labels, 1, pod.scheduled, pod.object_gone)
    if pod.deletion_asked and pod.deletion:
        yield Fact("kube_pod_deletion_timestamp", key, pod.deletion.timestamp(), pod.deletion_asked, pod.object_gone)
    if pod.finished and not pod.evicted:
        yield Fact("kube_pod_completion_time", key, pod.finished.timestamp(), pod.finished, pod.object_gone)
    if world.with_pod_labels:
        for since, own, until in _lasting([(pod.since, pod.labels), *pod.relabels], pod.object_gone):
            yield Fact("kube_pod_labels", key | _label_labels(own), 1, since, until)
    yield from _phases(pod, key)


def _requests(pod: Pod, placed: dict[str, str], since: Instant, until: Instant | None) -> Iterator[Fact]:
    """The series that tell the pod's node."""
    kind, name = pod.controller or ("", "")
    created_by = {"created_by_kind": kind, "created_by_name": name, "host_network": "false"}
    yield Fact("kube_pod_info", placed | created_by, 1, since, until)
    counts = [("container", name, count) for name, count in zip(pod.container_names, pod.asked, strict=True)]
    counts += [("init_container", f"i{i}", count) for i, (count, _) in enumerate(pod.init_containers)]
    for what, container, count in counts:
        if count:
            labels = placed | {"container": container, "resource": "nvidia_com_gpu", "unit": "integer"}
            yield Fact(f"kube_pod_{what}_resource_requests", labels, count, since, until)


def _phases(pod: Pod, key: dict[str, str]) -> Iterator[Fact]:
    """One series a phase, 1 while the pod is in it, else 0."""
    entered = [(pod.since, "Pending"), *([(pod.runs_from, "Running")] if pod.scheduled else [])]
    if pod.finished and pod.finished == pod.stopped:
        entered.append((pod.finished, pod.phase_at_end))
    for since, current, until in _lasting(entered, pod.object_gone):
        for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
            yield Fact("kube_pod_status_phase", key | {"phase": phase}, float(phase == current), since, until)


def _lasting(history: Sequence[tuple[Instant, T]], end: Instant | None) -> Iterator[tuple[Instant, T, Instant | None]]:
    """What held since when, and until when."""
    ends = [*(since for since, _ in history[1:]), end]
    for (since, what), until in zip(history, ends, strict=False):
        yield since, what, until


def _label_labels(labels: dict[str, str]) -> dict[str, str]:
    """acme.dev/cost-center -> label_acme_dev_cost_center."""
    return {"label_" + "".join(char if char.isalnum() else "_" for char in key): value for key, value in labels.items()}
