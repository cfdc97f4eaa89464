"""A deterministic GPU cluster, as its exporters, kube-state-metrics and Kubernetes API would show it.

A World is written down in plain terms (nodes, cards, pods, gaps); `write_openmetrics` gives what Prometheus would have
scraped, for `promtool tsdb create-blocks-from openmetrics`; `kubernetes_objects` what the API would list at an instant;
`truth` who held what, worked out naively from the world itself and not from its telemetry. Whole devices only.
"""

import dataclasses
import datetime as dt
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Instant = dt.datetime
Window = tuple[Instant, Instant]
H100 = "NVIDIA H100 80GB HBM3"
HOUR = dt.timedelta(hours=1)


@dataclasses.dataclass(frozen=True)
class Node:
    """A node object: when it was there, how many GPUs it reported from when on, when its exporter was silent."""

    name: str
    created: Instant
    gone: Instant | None = None
    capacity: tuple[tuple[Instant, int], ...] = ()
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    exporter_gaps: tuple[Window, ...] = ()

    @property
    def uid(self) -> str:
        """UID of the object; a successor under the same name has another."""
        return f"node-{self.name}-{self.created:%Y%m%d%H%M%S}"


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU on a node, for as long as the node's exporter shows it: samples from `seen_from` to `seen_to`, included."""

    uuid: str
    node: str
    seen_from: Instant
    seen_to: Instant
    model: str = H100
    watts: int = 300


@dataclasses.dataclass(frozen=True, eq=False)
class Pod:
    """A pod: what it asks for, which cards it really gets, when it ran, what it carries."""

    namespace: str
    name: str
    node: str
    cards: tuple[str, ...]
    scheduled: Instant
    finished: Instant | None = None
    phase_at_end: str = "Succeeded"  # or Failed; Evicted is a Failed pod without container statuses
    evicted: bool = False
    running_from: Instant | None = None  # image pull until then
    object_gone: Instant | None = None  # when the API no longer lists it
    named_from: Instant | None = None  # when the exporter starts to name it; default: when it runs
    named_to: Instant | None = None  # stale labels: until when the exporter names it; default: until it finished
    containers: tuple[int, ...] | None = None  # GPUs per container; default: one container with all
    init_containers: tuple[tuple[int, bool], ...] = ()  # (GPUs, is a sidecar)
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    owner: tuple[str, str] | None = None  # ("Job", name) or ("Deployment", name), the latter through a ReplicaSet
    engine: float = 0.5
    memory_mib: int = 20_000

    @property
    def uid(self) -> str:
        """UID of the object: a pod of the same name that starts later has another."""
        return f"pod-{self.namespace}-{self.name}-{self.scheduled:%Y%m%d%H%M%S}"

    @property
    def asked(self) -> tuple[int, ...]:
        """GPUs per container."""
        return self.containers if self.containers is not None else (len(self.cards),)

    @property
    def last_there(self) -> Instant | None:
        """When the object was last listed; None: to the end of the world."""
        return self.object_gone


@dataclasses.dataclass(frozen=True)
class World:
    """A cluster from `start` to `end`. Scrapes happen every `interval`; each Prometheus replica has its own phase."""

    cluster: str
    start: Instant
    end: Instant
    nodes: tuple[Node, ...] = ()
    cards: tuple[Card, ...] = ()
    pods: tuple[Pod, ...] = ()
    interval: dt.timedelta = dt.timedelta(seconds=30)
    phase: dt.timedelta = dt.timedelta()
    replicas: tuple[tuple[str, dt.timedelta], ...] = (("", dt.timedelta()),)
    with_kube_state: bool = True
    with_pod_labels: bool = True  # kube-state-metrics' label allowlist
    kube_state_gaps: tuple[Window, ...] = ()
    new_names_from: Instant | None = None  # exporter 4.9.0: other names and units
    honor_labels: bool = True


# --- what Prometheus scraped ---------------------------------------------------------------------------------------

_OLD_NAMES = {
    "engine": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "tensor": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "sm": "DCGM_FI_PROF_SM_ACTIVE",
    "dram": "DCGM_FI_PROF_DRAM_ACTIVE",
    "util": "DCGM_FI_DEV_GPU_UTIL",
    "memory": "DCGM_FI_DEV_FB_USED",
    "energy": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "xid": "DCGM_FI_DEV_XID_ERRORS",
}
_NEW_NAMES = {
    "engine": ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1),
    "tensor": ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", 1),
    "sm": ("DCGM_FI_PROF_SM_UTIL_RATIO", 1),
    "dram": ("DCGM_FI_PROF_DRAM_UTIL_RATIO", 1),
    "util": ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.01),
    "memory": ("DCGM_FI_DEV_FB_USED_BYTES", 1_048_576),
    "energy": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 0.001),
    "xid": ("DCGM_FI_DEV_XID_ERROR", 1),
}
Sample = tuple[int, float]  # ms since the epoch, value


def write_openmetrics(path: Path, worlds: Iterable[World]) -> int:
    """Write everything that was scraped in these worlds; gives the number of samples.

    Every series carries `cluster`, so one Prometheus can hold many worlds.
    """
    families: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    for world in worlds:
        for name, labels, samples in _series(world):
            if samples:
                families[name][_text({"cluster": world.cluster, **labels})] += samples
    total = 0
    with path.open("w") as file:
        for name in sorted(families):
            file.write(f"# TYPE {name} gauge\n")
            for labels, samples in families[name].items():
                prefix = f"{name}{labels} "
                lines = [f"{prefix}{_number(value)} {ms / 1000:.3f}\n" for ms, value in sorted(samples)]
                file.write("".join(lines))
                total += len(samples)
        file.write("# EOF\n")
    return total


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _text(labels: dict[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items() if value != "") + "}"


def _series(world: World) -> Iterator[tuple[str, dict[str, str], list[Sample]]]:
    for replica, phase in world.replicas:
        scraped_by = {"prometheus_replica": replica}
        for name, labels, samples in _dcgm(world, phase):
            yield name, {**labels, **scraped_by}, samples
        if world.with_kube_state:
            for name, labels, samples in _kube_state(world, phase):
                yield name, {**labels, "job": "kube-state-metrics", "instance": "10.0.0.9:8080", **scraped_by}, samples


def _scrapes(world: World, phase: dt.timedelta, since: Instant, until: Instant, gaps: Iterable[Window]) -> list[int]:
    """Scrape instants in [since, until], in ms, none in a gap (from, to)."""
    step = world.interval // dt.timedelta(milliseconds=1)
    origin = _ms(world.start + world.phase + phase)
    first = origin + -(-(max(_ms(since), origin) - origin) // step) * step
    silent = [(_ms(a), _ms(b)) for a, b in gaps]
    instants = range(first, min(_ms(until), _ms(world.end)) + 1, step)
    return [at for at in instants if not any(a < at < b for a, b in silent)] if silent else list(instants)


def _dcgm(world: World, phase: dt.timedelta) -> Iterator[tuple[str, dict[str, str], list[Sample]]]:
    nodes: dict[str, list[Node]] = defaultdict(list)
    for node in world.nodes:
        nodes[node.name].append(node)
    holders: dict[str, list[Pod]] = defaultdict(list)
    for pod in world.pods:
        for card in pod.cards:
            holders[card].append(pod)
    for number, card in enumerate(world.cards):
        gaps = [gap for node in nodes[card.node] for gap in node.exporter_gaps]
        instants = _scrapes(world, phase, card.seen_from, card.seen_to, gaps)
        index = number % 8
        device = {
            "gpu": str(index), "UUID": card.uuid, "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
            "device": f"nvidia{index}", "modelName": card.model, "Hostname": card.node,
        }  # fmt: skip
        scrape = {"job": "dcgm-exporter", "instance": f"{card.node}:9400"}
        runs: dict[Pod | None, list[int]] = defaultdict(list)
        pods = sorted((pod for pod in holders[card.uuid] if pod.node == card.node), key=lambda pod: pod.scheduled)
        named = [(pod, *_named(pod, world)) for pod in pods]
        for at in instants:
            runs[next((pod for pod, a, b in named if a <= at <= b), None)].append(at)
        for pod, at in runs.items():
            labels = {**device, **scrape, **_workload(pod, world.honor_labels)}
            for name, values in _values(card, pod, at, world).items():
                yield name, labels, values


def _named(pod: Pod, world: World) -> tuple[int, int]:
    """When the exporter names the pod beside its cards."""
    since = pod.named_from or pod.running_from or pod.scheduled
    until = pod.named_to or pod.finished or pod.object_gone
    return _ms(since), _ms(until) if until else _ms(world.end)


def _workload(pod: Pod | None, honor_labels: bool) -> dict[str, str]:
    if honor_labels:
        return {"container": "main", "namespace": pod.namespace, "pod": pod.name} if pod else {}
    exporter = {"container": "exporter", "namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}
    if pod is None:
        return exporter
    return {**exporter, "exported_container": "main", "exported_namespace": pod.namespace, "exported_pod": pod.name}


def _values(card: Card, pod: Pod | None, instants: list[int], world: World) -> dict[str, list[Sample]]:
    engine = pod.engine if pod else 0.0
    constant = {
        "engine": engine, "tensor": engine / 2, "sm": engine * 0.8, "dram": engine / 4, "util": round(100 * engine),
        "memory": float(pod.memory_mib if pod else 4), "xid": 0.0,
    }  # fmt: skip
    switch = _ms(world.new_names_from) if world.new_names_from else None
    started = _ms(world.start)
    result: dict[str, list[Sample]] = {}
    for metric, old in _OLD_NAMES.items():
        new, factor = _NEW_NAMES[metric]
        if metric == "energy":
            samples = [(at, float(card.watts * (at - started))) for at in instants]  # W x ms = mJ
        else:
            samples = [(at, constant[metric]) for at in instants]
        if switch is None:
            result[old] = samples
        else:
            result[old] = [(at, value) for at, value in samples if at <= switch]
            result[new] = [(at, value * factor) for at, value in samples if at > switch]
    return result


def _kube_state(world: World, phase: dt.timedelta) -> Iterator[tuple[str, dict[str, str], list[Sample]]]:
    def gauge(
        name: str, labels: dict[str, str], value: float, since: Instant, until: Instant | None
    ) -> tuple[str, dict[str, str], list[Sample]]:
        """Scraped from `since` to before `until`."""
        end = until - dt.timedelta(milliseconds=1) if until else world.end
        return name, labels, [(at, value) for at in _scrapes(world, phase, since, end, world.kube_state_gaps)]

    for node in world.nodes:
        labels = {"node": node.name}
        identity = {**labels, "system_uuid": node.uid, "provider_id": f"sim:///{node.name}"}
        yield gauge("kube_node_info", identity, 1, node.created, node.gone)
        yield gauge("kube_node_created", labels, node.created.timestamp(), node.created, node.gone)
        spelled = {f"label_{_snake(key)}": value for key, value in node.labels.items()}
        yield gauge("kube_node_labels", {**labels, **spelled}, 1, node.created, node.gone)
        for (since, count), following in zip(node.capacity, (*node.capacity[1:], None), strict=True):
            until = following[0] if following else node.gone
            for name in ("kube_node_status_capacity", "kube_node_status_allocatable"):
                resource = {**labels, "resource": "nvidia_com_gpu", "unit": "integer"}
                yield gauge(name, resource, count, since, until)
    for pod in world.pods:
        yield from _kube_state_of_pod(world, pod, gauge)


def _kube_state_of_pod(world: World, pod: Pod, gauge: Any) -> Iterator[tuple[str, dict[str, str], list[Sample]]]:
    key = {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}
    there = (pod.scheduled, pod.last_there)
    kind, name = _direct_owner(pod) or ("<none>", "<none>")
    info = {**key, "node": pod.node, "created_by_kind": kind, "created_by_name": name}
    yield gauge("kube_pod_info", info, 1, *there)
    yield gauge("kube_pod_created", key, pod.scheduled.timestamp(), *there)
    yield gauge("kube_pod_status_scheduled_time", key, pod.scheduled.timestamp(), *there)
    yield gauge(
        "kube_pod_owner", {**key, "owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}, 1, *there
    )
    if pod.owner and pod.owner[0] == "Deployment":
        owned = {"namespace": pod.namespace, "replicaset": name, "owner_kind": "Deployment", "owner_name": pod.owner[1]}
        yield gauge("kube_replicaset_owner", {**owned, "owner_is_controller": "true"}, 1, *there)
    if world.with_pod_labels:
        spelled = {f"label_{_snake(label)}": value for label, value in pod.labels.items()}
        yield gauge("kube_pod_labels", {**key, **spelled}, 1, *there)
    resource = {"node": pod.node, "resource": "nvidia_com_gpu", "unit": "integer"}
    for i, count in enumerate(pod.asked):
        if count:
            labels = {**key, "container": f"c{i}", **resource}
            yield gauge("kube_pod_container_resource_requests", labels, count, *there)
    for i, (count, sidecar) in enumerate(pod.init_containers):
        labels = {**key, "container": f"i{i}"}
        policy = {"restart_policy": "Always"} if sidecar else {}
        yield gauge("kube_pod_init_container_info", {**labels, **policy}, 1, *there)
        if count:
            yield gauge("kube_pod_init_container_resource_requests", {**labels, **resource}, count, *there)
    running = pod.running_from or pod.scheduled
    phases = {
        "Pending": (pod.scheduled, running),
        "Running": (running, pod.finished or pod.last_there),
        pod.phase_at_end: (pod.finished, pod.last_there) if pod.finished else None,
    }
    for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
        window = phases.get(phase)
        if window is not None:
            yield gauge("kube_pod_status_phase", {**key, "phase": phase}, 1, *window)
            # The same series is 0 before and after.
            if window[0] > pod.scheduled:
                yield gauge("kube_pod_status_phase", {**key, "phase": phase}, 0, pod.scheduled, window[0])
            if window[1] is not None and window[1] != pod.last_there:
                yield gauge("kube_pod_status_phase", {**key, "phase": phase}, 0, window[1], pod.last_there)
        else:
            yield gauge("kube_pod_status_phase", {**key, "phase": phase}, 0, *there)
    if pod.finished and not pod.evicted:
        yield gauge("kube_pod_completion_time", key, pod.finished.timestamp(), pod.finished, pod.last_there)


def _direct_owner(pod: Pod) -> tuple[str, str] | None:
    if pod.owner is None:
        return None
    kind, name = pod.owner
    return ("ReplicaSet", f"{name}-6b7f9") if kind == "Deployment" else (kind, name)


def _snake(key: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in key)


def _ms(instant: Instant) -> int:
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)


# --- what the Kubernetes API lists ---------------------------------------------------------------------------------


def kubernetes_objects(world: World, at: Instant) -> dict[str, list[dict[str, Any]]]:
    """Objects by kind as the API would list them at an instant; environment variables included, secrets among them."""
    pods = [pod for pod in world.pods if pod.scheduled <= at and (pod.last_there is None or at < pod.last_there)]
    nodes = [node for node in world.nodes if node.created <= at and (node.gone is None or at < node.gone)]
    controllers = {owner: pod for pod in pods if (owner := _direct_owner(pod))}
    return {
        "Pod": [_pod_object(pod, at) for pod in pods],
        "Node": [_node_object(node, at) for node in nodes],
        "Namespace": [
            {"metadata": {"name": name, "uid": f"namespace-{name}"}} for name in sorted({pod.namespace for pod in pods})
        ],
        "ReplicaSet": [
            {
                "metadata": {
                    "name": name, "uid": _owner_uid(pod), "namespace": pod.namespace,
                    "ownerReferences": [
                        {"kind": "Deployment", "name": pod.owner[1], "uid": f"of-{pod.owner[1]}", "controller": True}
                    ],
                }
            }
            for (kind, name), pod in controllers.items() if kind == "ReplicaSet" and pod.owner
        ],
        "Job": [
            {"metadata": {"name": name, "uid": _owner_uid(pod), "namespace": pod.namespace}}
            for (kind, name), pod in controllers.items() if kind == "Job"
        ],
    }  # fmt: skip


def _owner_uid(pod: Pod) -> str:
    kind, name = _direct_owner(pod) or ("", "")
    return f"{kind.lower()}-{pod.namespace}-{name}"


def _pod_object(pod: Pod, at: Instant) -> dict[str, Any]:
    ended = pod.finished is not None and at >= pod.finished
    running = pod.running_from or pod.scheduled
    phase = pod.phase_at_end if ended else "Running" if at >= running else "Pending"
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _rfc3339(pod.scheduled)}
    status: dict[str, Any] = {"phase": phase, "startTime": _rfc3339(pod.scheduled), "conditions": [scheduled]}
    state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
    if ended:
        state = {
            "terminated": {"startedAt": _rfc3339(running), "finishedAt": _rfc3339(pod.finished), "reason": "Completed"}
        }
        moved = {"type": "Ready", "status": "False", "lastTransitionTime": _rfc3339(pod.finished)}
        status["conditions"].append(moved)
    elif phase == "Running":
        state = {"running": {"startedAt": _rfc3339(running)}}
    if pod.evicted and ended:
        status["reason"] = "Evicted"
    else:
        status["containerStatuses"] = [{"name": f"c{i}", "state": state} for i in range(len(pod.asked))]
    owner = _direct_owner(pod)
    references = [{"kind": owner[0], "name": owner[1], "uid": _owner_uid(pod), "controller": True}] if owner else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "labels": pod.labels,
            "creationTimestamp": _rfc3339(pod.scheduled), "ownerReferences": references,
            "annotations": {"example.com/note": "not-for-the-lake"},
        },
        "spec": {
            "nodeName": pod.node,
            "containers": [_container(f"c{i}", count) for i, count in enumerate(pod.asked)],
            "initContainers": [
                {**_container(f"i{i}", count), **({"restartPolicy": "Always"} if sidecar else {})}
                for i, (count, sidecar) in enumerate(pod.init_containers)
            ],
        },
        "status": status,
    }  # fmt: skip


def _container(name: str, gpus: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {"name": name, "env": [{"name": "API_KEY", "value": "not-for-the-lake"}], "resources": resources}


def _node_object(node: Node, at: Instant) -> dict[str, Any]:
    counts = [count for since, count in node.capacity if since <= at]
    capacity = {"nvidia.com/gpu": str(counts[-1])} if counts and counts[-1] else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name, "uid": node.uid, "creationTimestamp": _rfc3339(node.created), "labels": node.labels,
        },
        "spec": {"providerID": f"sim:///{node.name}"},
        "status": {"capacity": capacity, "allocatable": capacity, "nodeInfo": {"systemUUID": node.uid}},
    }  # fmt: skip


def _rfc3339(instant: Instant | None) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}" if instant else ""


# --- what is true --------------------------------------------------------------------------------------------------


def truth(world: World, day: dt.date) -> dict[tuple[Instant, str], dict[str, int]]:
    """(hour, card) -> {"": owned ms, pod uid: held ms}, in whole milliseconds.

    For worlds whose cards stay on one node for the node's whole life, and whose pods do not overlap on a card.
    """
    start = dt.datetime.combine(day, dt.time(), tzinfo=dt.UTC)
    lives = {node.name: (node.created, node.gone or world.end) for node in world.nodes}
    told: dict[tuple[Instant, str], dict[str, int]] = {}
    for card in world.cards:
        for i in range(24):
            hour = (start + i * HOUR, start + (i + 1) * HOUR)
            owned = _overlap(hour, lives[card.node])
            if owned:
                told[hour[0], card.uuid] = {"": owned}
    for pod in world.pods:
        for uuid in pod.cards:
            for i in range(24):
                hour = (start + i * HOUR, start + (i + 1) * HOUR)
                held = _overlap(hour, (pod.scheduled, pod.finished or pod.object_gone or world.end))
                if held:
                    told[hour[0], uuid][pod.uid] = held
    return told


def _overlap(a: Window, b: Window) -> int:
    return max((min(a[1], b[1]) - max(a[0], b[0])) // dt.timedelta(milliseconds=1), 0)


# --- worlds of any size --------------------------------------------------------------------------------------------

NAMESPACES = {
    "research": {
        "acme.dev/cost-center": "ml-research", "acme.dev/workload-kind": "training", "acme.dev/tenant": "internal",
    },
    "search": {
        "acme.dev/cost-center": "search", "acme.dev/workload-kind": "inference", "acme.dev/model": "ranker-7b",
        "acme.dev/tenant": "customer-dedicated",
    },
    "notebooks": {"acme.dev/workload-kind": "interactive", "acme.dev/tenant": "internal"},
}  # fmt: skip
_ENGINE = {"research": 0.83, "search": 0.31, "notebooks": 0.04}


def generated_world(
    cluster: str, start: Instant, days: int, *, nodes: int, gpus_per_node: int = 8, idle_nodes: int = 1, seed: int = 1
) -> World:
    """A world of whole-device pods that never overlap: long trainings, serving replicas, short notebooks.

    The last `idle_nodes` nodes run nothing, one pod in nine has no labels, pods on the first node hold all of it.
    """
    rng = random.Random(seed)
    end = start + dt.timedelta(days=days)
    before = start - dt.timedelta(hours=2)
    after = end + dt.timedelta(hours=2)
    made_nodes, cards, pods = [], [], []
    for n in range(nodes):
        name = f"gpu-{n:04d}"
        labels = {"nvidia.com/gpu.product": H100.replace(" ", "-"), "karpenter.sh/nodepool": "h100"}
        labels["topology.kubernetes.io/zone"] = f"us-east-1{'abc'[n % 3]}"
        made_nodes.append(Node(name, before, capacity=((before, gpus_per_node),), labels=labels))
        uuids = [f"GPU-{seed:08x}-{n:04x}-4000-8000-{g:012x}" for g in range(gpus_per_node)]
        cards += [Card(uuid, name, before, after, watts=120 + 10 * g) for g, uuid in enumerate(uuids)]
        if n >= nodes - idle_nodes:
            continue
        groups = [tuple(uuids)] if n == 0 else [tuple(uuids[i : i + 2]) for i in range(0, gpus_per_node, 2)]
        for g, group in enumerate(groups):
            pods += _pods_on(rng, name, group, start, end, serial=n * gpus_per_node + g)
    return World(cluster, before, after, tuple(made_nodes), tuple(cards), tuple(pods), phase=dt.timedelta(seconds=7))


def _pods_on(
    rng: random.Random, node: str, cards: tuple[str, ...], start: Instant, end: Instant, *, serial: int
) -> Iterator[Pod]:
    """Pods one after another on the same cards, with pauses."""
    at = start + dt.timedelta(seconds=rng.randrange(0, 4 * 3600))
    number = 0
    while at < end - HOUR:
        namespace = sorted(NAMESPACES)[(serial + number) % len(NAMESPACES)]
        hours = {"research": 9, "search": 14, "notebooks": 2}[namespace]
        lasts = dt.timedelta(seconds=rng.randrange(hours * 1800, hours * 5400))
        finished = min(at + lasts, end - dt.timedelta(minutes=5))
        labels = {} if (serial + number) % 9 == 4 else NAMESPACES[namespace]
        name = f"{namespace}-{serial}-{number}"
        owner = ("Deployment", f"{namespace}-{serial}") if namespace == "search" else ("Job", name)
        yield Pod(
            namespace, name, node, cards, at, finished,
            running_from=at + dt.timedelta(seconds=rng.randrange(10, 240)), labels=labels, owner=owner,
            engine=round(_ENGINE[namespace] * rng.uniform(0.7, 1.1), 3), memory_mib=rng.randrange(4_000, 70_000),
        )  # fmt: skip
        at = finished + dt.timedelta(seconds=rng.randrange(60, 5400))
        number += 1
