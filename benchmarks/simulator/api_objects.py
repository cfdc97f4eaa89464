"""What the Kubernetes API lists at an instant."""

from typing import Any

from benchmarks.simulator.world import Instant, Node, Pod, World

IMAGE = "registry.example/workload:1"
SECRET = "not-for-the-lake"  # stands in every pod object where a real one has secrets


def kubernetes_objects(world: World, at: Instant) -> dict[str, list[dict[str, Any]]]:
    """Objects by kind as the API would list them at an instant; environment variables included, secrets among them."""
    pods = [pod for pod in world.pods if pod.since <= at and (pod.object_gone is None or at < pod.object_gone)]
    nodes = [node for node in world.nodes if node.created <= at and (node.gone is None or at < node.gone)]
    owned = {(pod.namespace, *controller): pod for pod in pods if (controller := pod.controller)}
    # Deployments stay when a rollout takes their pods away.
    deployments = {(pod.namespace, pod.owner[1]) for pod in pods if pod.owner and pod.owner[0] == "Deployment"}
    namespaces = {pod.namespace for pod in world.pods} | world.namespace_labels.keys()
    return {
        "Pod": [_pod_object(pod, at) for pod in pods],
        "Node": [_node_object(node, at) for node in nodes],
        "Namespace": [
            {"metadata": {"name": name, "uid": f"namespace-{name}", "labels": world.namespace_labels.get(name, {})}}
            for name in sorted(namespaces)
        ],
        "ReplicaSet": [
            {"metadata": _owned(pod) | {"ownerReferences": [_reference("Deployment", namespace, pod.owner[1])]}}
            for (namespace, kind, _), pod in owned.items() if kind == "ReplicaSet" and pod.owner
        ],
        "Deployment": [
            {"metadata": {"name": name, "namespace": namespace, "uid": f"deployment-{namespace}-{name}"}}
            for namespace, name in sorted(deployments)
        ],
        "Job": [{"metadata": _owned(pod)} for (_, kind, _), pod in owned.items() if kind == "Job"],
    }  # fmt: skip


def _reference(kind: str, namespace: str, name: str) -> dict[str, Any]:
    uid = f"{kind.lower()}-{namespace}-{name}"
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": True}


def _owned(pod: Pod) -> dict[str, Any]:
    """Metadata of a pod's controller."""
    kind, name = pod.controller or ("", "")
    return {"name": name, "namespace": pod.namespace, "uid": _reference(kind, pod.namespace, name)["uid"]}


def _pod_object(pod: Pod, at: Instant) -> dict[str, Any]:
    controller = pod.controller
    metadata: dict[str, Any] = {
        "name": pod.name, "namespace": pod.namespace, "uid": pod.uid, "labels": pod.labels_at(at),
        "creationTimestamp": _rfc3339(pod.since), "annotations": {"example.com/note": SECRET},
        "ownerReferences": [_reference(controller[0], pod.namespace, controller[1])] if controller else [],
    }  # fmt: skip
    if pod.deletion_asked and at >= pod.deletion_asked:
        metadata["deletionTimestamp"] = _rfc3339(pod.deletion)
        metadata["deletionGracePeriodSeconds"] = int(pod.grace.total_seconds())
    init_containers = [
        {**_container(f"i{i}", count), **({"restartPolicy": "Always"} if is_sidecar else {})}
        for i, (count, is_sidecar) in enumerate(pod.init_containers)
    ]
    names = pod.container_names
    spec: dict[str, Any] = {
        "containers": [_container(name, count) for name, count in zip(names, pod.asked, strict=True)],
        "initContainers": init_containers,
    }
    if pod.scheduled and at >= pod.scheduled:
        spec["nodeName"] = pod.node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": _pod_status(pod, at)}


def _pod_status(pod: Pod, at: Instant) -> dict[str, Any]:
    if pod.scheduled is None or at < pod.scheduled:
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return {"phase": "Pending", "conditions": [unscheduled | {"lastTransitionTime": _rfc3339(pod.since)}]}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _rfc3339(pod.scheduled)}
    status: dict[str, Any] = {"startTime": _rfc3339(pod.scheduled), "conditions": [scheduled]}
    running, ended = pod.runs_from, pod.finished is not None and at >= pod.finished
    status["phase"] = pod.phase_at_end if ended else "Running" if at >= running else "Pending"
    if ended:
        moved = {"type": "Ready", "status": "False", "lastTransitionTime": _rfc3339(pod.finished)}
        status["conditions"].append(moved)
        if pod.evicted:
            return status | {"reason": "Evicted"}
    states = {
        "Pending": {"waiting": {"reason": "PodInitializing" if pod.init_containers else "ContainerCreating"}},
        "Running": {"running": {"startedAt": _rfc3339(running)}},
        "Succeeded": _terminated(running, pod.finished, 0),
        "Failed": _terminated(running, pod.finished, 1),
    }
    began = {"running": {"startedAt": _rfc3339(pod.scheduled)}}
    done = _terminated(pod.scheduled, running, 0) if at >= running else began
    sidecar = states[status["phase"]] if ended else began
    seen = {"image": IMAGE, "imageID": IMAGE, "ready": status["phase"] == "Running", "restartCount": 0}
    status["containerStatuses"] = [
        seen | {"name": name, "state": states[status["phase"]]} for name in pod.container_names
    ]
    status["initContainerStatuses"] = [
        seen | {"name": f"i{i}", "state": sidecar if is_sidecar else done}
        for i, (_, is_sidecar) in enumerate(pod.init_containers)
    ]
    return status


def _terminated(started: Instant, finished: Instant | None, code: int) -> dict[str, Any]:
    end = {"exitCode": code, "reason": "Error" if code else "Completed"}
    return {"terminated": end | {"startedAt": _rfc3339(started), "finishedAt": _rfc3339(finished)}}


def _container(name: str, gpus: int) -> dict[str, Any]:
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    return {"name": name, "image": IMAGE, "env": [{"name": "API_KEY", "value": SECRET}], "resources": resources}


_NODE_INFO = (
    "architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion",
    "machineID", "operatingSystem", "osImage", "systemUUID",
)  # fmt: skip


def _node_object(node: Node, at: Instant) -> dict[str, Any]:
    def reported(history: tuple[tuple[Instant, int], ...]) -> dict[str, str]:
        counts = [count for since, count in history if since <= at]
        return {"cpu": "96"} | ({"nvidia.com/gpu": str(counts[-1])} if counts else {})

    silent = next((since for since, until in node.not_ready if since <= at < until), None)
    changed = max((until for _, until in node.not_ready if until <= at), default=node.created)
    ready = {"status": "Unknown" if silent else "True", "lastTransitionTime": _rfc3339(silent or changed)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name, "uid": node.uid, "creationTimestamp": _rfc3339(node.created),
            "labels": node.labels_at(at),
        },
        "spec": {"providerID": f"sim:///{node.name}"},
        "status": {
            "capacity": reported(node.capacity),
            "allocatable": reported(node.capacity if node.allocatable is None else node.allocatable),
            "conditions": [{"type": "Ready"} | ready],
            "nodeInfo": dict.fromkeys(_NODE_INFO, "") | {"systemUUID": node.system_uuid},
        },
    }  # fmt: skip


def _rfc3339(instant: Instant | None) -> str:
    return f"{instant:%Y-%m-%dT%H:%M:%SZ}" if instant else ""
