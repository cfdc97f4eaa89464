"""The Kubernetes inventory as it is now: pods that hold GPUs, nodes that have them, and what explains them.

How lists are read is in `kubernetes_api`, what is kept of an object in `kubernetes_objects`; what several readings say
together is in `sightings`.
"""

import datetime as dt
from collections.abc import Sequence

import msgspec
import polars as pl

from pipelines.extract.kubernetes_api import KubernetesApi
from pipelines.extract.kubernetes_objects import GPU_PREFIX, Labeled, Node, Object, Pod, Whole
from schemas.config import Cluster
from schemas.tables import SnapshotObject, polars_schema


def take_snapshot(cluster: Cluster, *, now: dt.datetime | None = None) -> pl.DataFrame:
    """Read the inventory once.

    Kept are pods that ask for nvidia.com/* or carry claims, the nodes that have such devices or run such a pod, all
    ResourceClaims and ResourceSlices, and the namespaces and controllers of those pods and claims.

    Returns:
        Rows of `SnapshotObject`, one per object, all observed at the instant the reading started.

    Raises:
        ConfigError: no kubeconfig, context or service-account token there.
        SourceRefused: credentials, permissions or TLS refused; names the verb and resource.
        SourceUnavailable: not reachable, too slow, a partial answer, or failing after retries.
    """
    started = (now or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
    with KubernetesApi(cluster) as api:
        pods = api.objects("v1", "pods", Pod, _holds_gpus)
        on_nodes = {pod.spec.node_name for pod in pods}
        nodes = api.objects("v1", "nodes", Node, lambda node: _has_gpus(node) or node.metadata.name in on_nodes)
        dra = api.claims_version()
        claims = api.objects(dra, "resourceclaims", Whole) if dra else []
        slices = api.objects(dra, "resourceslices", Whole) if dra else []
        used = {each.metadata.namespace for each in (*pods, *claims)}
        namespaces = api.objects("v1", "namespaces", Labeled, lambda each: each.metadata.name in used)
        owners = {reference.uid for pod in pods for reference in pod.metadata.owner_references}
        replica_sets = api.objects("apps/v1", "replicasets", Object, lambda each: each.metadata.uid in owners)
        jobs = api.objects("batch/v1", "jobs", Labeled, lambda each: each.metadata.uid in owners)
    read: list[tuple[str, str, Sequence[Object]]] = [
        ("Pod", "v1", pods),
        ("Node", "v1", nodes),
        ("Namespace", "v1", namespaces),
        ("ReplicaSet", "apps/v1", replica_sets),
        ("Job", "batch/v1", jobs),
        ("ResourceClaim", dra or "", claims),
        ("ResourceSlice", dra or "", slices),
    ]
    rows = [
        {
            "cluster": cluster.name,
            # Whole milliseconds: the lake names the snapshot by them.
            "observed_at": started.replace(microsecond=started.microsecond // 1000 * 1000),
            "kind": kind,
            "api_version": api_version,
            "uid": each.metadata.uid,
            "namespace": each.metadata.namespace,
            "name": each.metadata.name,
            "object": msgspec.json.encode(each, order="sorted").decode(),
        }
        for kind, api_version, objects in read
        for each in objects
    ]
    return SnapshotObject.validate(pl.DataFrame(rows, schema=polars_schema(SnapshotObject)).sort("kind", "uid"))


def _holds_gpus(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    asks = any(
        name.startswith(GPU_PREFIX)
        for container in containers
        for name in (*container.resources.requests, *container.resources.limits)
    )
    return asks or bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def _has_gpus(node: Node) -> bool:
    named = {"nvidia.com/gpu.present", "nvidia.com/gpu.product"} & node.metadata.labels.keys()
    return bool(named) or any(name.startswith(GPU_PREFIX) for name in (*node.status.capacity, *node.status.allocatable))
