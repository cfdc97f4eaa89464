"""What the snapshots of the Kubernetes API say together: pods, nodes and labels, with when each was seen.

Takes snapshot objects of many instants; gives rows of PodSighting, NodeSighting and PodLabels. Objects' own timestamps
count: a pod that was seen only after its day still tells when it ran. Who held which device is worked out in
pipelines.transform.
"""

import dataclasses
import datetime as dt
import itertools
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import polars as pl

from pipelines.extract.findings import Finding
from pipelines.extract.kubernetes import GPU_PREFIX, Container, ContainerStatus, MetadataOnly, Node, Pod
from schemas.tables import NodeSighting, PodLabels, PodSighting, polars_schema

SOURCE = "snapshot"
DEFAULT_INTERVAL_MS = 300_000  # the snapshot schedule
EDGE = dt.timedelta(hours=1)
_TERMINAL = ("Succeeded", "Failed")
_INSTANT = pl.Datetime("ms", "UTC")


@dataclasses.dataclass(frozen=True)
class Sightings:
    """Rows of PodSighting, NodeSighting and PodLabels, and what a person should know."""

    pods: pl.DataFrame
    nodes: pl.DataFrame
    pod_labels: pl.DataFrame
    findings: list[Finding]


def sightings(
    snapshots: pl.LazyFrame,
    instants: Sequence[dt.datetime],
    *,
    cluster: str,
    day: dt.date,
    default_interval_ms: int = DEFAULT_INTERVAL_MS,
) -> Sightings:
    """Fold snapshots to sightings that matter for a day.

    Args:
        snapshots: rows of `SnapshotObject`, of any instants.
        instants: every instant at which a snapshot was taken, those that saw nothing too.
        cluster, day: the partition.
        default_interval_ms: time between two snapshots where there are fewer than two.
    """
    seen = (
        snapshots.select("kind", "uid", "object", pl.col("observed_at").cast(_INSTANT))
        # Most objects do not change from one snapshot to the next: each version is decoded once.
        .with_columns(version=pl.col("object").cast(pl.Categorical).to_physical())
        .collect()
    )
    versions = seen.select("kind", "uid", "version", "object").unique(["kind", "uid", "version"], maintain_order=True)
    decoded = _Decoded(versions, day)
    readings = pl.DataFrame({"read_at": sorted(set(instants))}, schema={"read_at": _INSTANT})
    stamp = {
        "cluster": pl.lit(cluster),
        "date": pl.lit(day, dtype=pl.Date),
        "source": pl.lit(SOURCE),
        "interval_ms": pl.lit(_interval_ms(instants, default_interval_ms), dtype=pl.Int64),
    }
    sighted = seen.drop("object")
    pods = _pods(sighted.join(decoded.pods, on=["uid", "version"]), readings).with_columns(**stamp)
    nodes = _nodes(sighted.join(decoded.nodes, on=["uid", "version"]), readings).with_columns(**stamp)
    labels = _pod_labels(sighted.join(decoded.labels, on=["uid", "version"])).with_columns(**stamp)
    return Sightings(
        pods=_as(PodSighting, pods),
        nodes=_as(NodeSighting, nodes),
        pod_labels=_as(PodLabels, labels),
        findings=decoded.findings,
    )


def _interval_ms(instants: Sequence[dt.datetime], default_ms: int) -> int:
    ordered = sorted(set(instants))
    gaps = [(b - a) // dt.timedelta(milliseconds=1) for a, b in itertools.pairwise(ordered)]
    return int(statistics.median_low(gaps)) if gaps else default_ms


def _as(schema: Any, frame: pl.DataFrame) -> pl.DataFrame:
    """Columns and types of a table, sorted by its key."""
    expected = polars_schema(schema)
    return frame.select(expected.names()).cast(expected).sort(schema.primary_key())


# --- decoding: one pass over the distinct versions -----------------------------------------------------------------


class _Decoded:
    """What each version of an object says, one row per version (and resource)."""

    def __init__(self, versions: pl.DataFrame, day: dt.date) -> None:
        self.findings: list[Finding] = []
        start = dt.datetime.combine(day, dt.time(), tzinfo=dt.UTC)
        objects = {
            kind: list(versions.filter(pl.col("kind") == kind).select("uid", "version", "object").iter_rows())
            for kind in ("Pod", "Node", "ReplicaSet", "Job")
        }
        controllers = _controllers((*objects["ReplicaSet"], *objects["Job"]))
        pod_rows: list[dict[str, Any]] = []
        label_rows: list[dict[str, Any]] = []
        decoder = msgspec.json.Decoder(Pod)
        for uid, version, text in objects["Pod"]:
            pod = decoder.decode(text)
            if not _matters(pod, start - EDGE, start + dt.timedelta(days=1)):
                continue
            key = {"uid": uid, "version": version}
            label_rows.append(key | {"labels": json.dumps(pod.metadata.labels, sort_keys=True)})
            asked = requests(pod)
            if not asked and pod.spec.resource_claims:
                self.findings.append(_claims_not_covered(pod))
            pod_rows += [
                key | _pod_row(pod, controllers) | {"resource": name, "requested": n} for name, n in asked.items()
            ]
        self.pods = pl.DataFrame(pod_rows, schema=_POD_VERSION)
        self.labels = pl.DataFrame(label_rows, schema={"uid": pl.String, "version": pl.UInt32, "labels": pl.String})
        node_decoder = msgspec.json.Decoder(Node)
        node_rows = [
            {"uid": uid, "version": version} | row
            for uid, version, text in objects["Node"]
            for row in _node_rows(node_decoder.decode(text))
        ]
        self.nodes = pl.DataFrame(node_rows, schema=_NODE_VERSION)


_POD_VERSION: dict[str, Any] = {
    "uid": pl.String, "version": pl.UInt32, "namespace": pl.String, "pod": pl.String, "node": pl.String,
    "phase": pl.String, "created_at": _INSTANT, "scheduled_at": _INSTANT, "finished_at": _INSTANT,
    "deletion_at": _INSTANT, "owner_kind": pl.String, "owner_name": pl.String, "resource": pl.String,
    "requested": pl.Int64,
}  # fmt: skip
_NODE_VERSION: dict[str, Any] = {
    "uid": pl.String, "version": pl.UInt32, "node": pl.String, "resource": pl.String, "capacity": pl.Int64,
    "created_at": _INSTANT, "model": pl.String, "sharing_strategy": pl.String, "replicas": pl.Int64,
    "mig_strategy": pl.String, "zone": pl.String, "provider_id": pl.String, "labels": pl.String,
}  # fmt: skip


def _matters(pod: Pod, since: dt.datetime, until: dt.datetime) -> bool:
    created, finished = _instant(pod.metadata.creation_timestamp), _finished(pod)
    return (created is None or created < until) and (finished is None or finished >= since)


def _pod_row(pod: Pod, controllers: dict[str, tuple[str, str]]) -> dict[str, Any]:
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    kind, name = controllers.get(owner.uid, (owner.kind, owner.name)) if owner else (None, None)
    return {
        "namespace": pod.metadata.namespace or "",
        "pod": pod.metadata.name,
        "node": pod.spec.node_name,
        "phase": pod.status.phase,
        "created_at": _instant(pod.metadata.creation_timestamp),
        "scheduled_at": _scheduled(pod),
        "finished_at": _finished(pod),
        "deletion_at": _instant(pod.metadata.deletion_timestamp),
        "owner_kind": kind,
        "owner_name": name,
    }


def requests(pod: Pod) -> dict[str, int]:
    """nvidia.com/* resources that a pod holds for its whole life.

    max(over init containers: that one + the sidecars started before it; sum of containers + all sidecars). Extended
    resources take their limits where requests are absent.
    """
    sidecars: dict[str, int] = {}
    most: dict[str, int] = {}
    for container in pod.spec.init_containers:
        asked = _asked(container)
        if container.restart_policy == "Always":
            sidecars = _added(sidecars, asked)
        else:
            most = _largest(most, _added(sidecars, asked))
    together = sidecars
    for container in pod.spec.containers:
        together = _added(together, _asked(container))
    return {name: count for name, count in sorted(_largest(most, together).items()) if count > 0}


def _asked(container: Container) -> dict[str, int]:
    asked = {**container.resources.limits, **container.resources.requests}
    return {name: int(str(count)) for name, count in asked.items() if name.startswith(GPU_PREFIX)}


def _added(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {*a, *b}}


def _largest(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {*a, *b}}


def _scheduled(pod: Pod) -> dt.datetime | None:
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "True":
            return _instant(condition.last_transition_time)
    return _instant(pod.status.start_time) if pod.spec.node_name else None


def _finished(pod: Pod) -> dt.datetime | None:
    """When a finished pod's last container finished; an evicted pod without any ended when its status last moved."""
    if pod.status.phase not in _TERMINAL:
        return None
    statuses: Iterable[ContainerStatus] = (
        *(pod.status.container_statuses or ()),
        *(pod.status.init_container_statuses or ()),
    )
    ends = [_instant(each.state.terminated.finished_at) for each in statuses if each.state.terminated is not None]
    told = [end for end in ends if end is not None]
    if not told:
        moved = [_instant(condition.last_transition_time) for condition in pod.status.conditions or ()]
        told = [each for each in (*moved, _instant(pod.status.start_time)) if each is not None]
    return max(told, default=None)


def _controllers(objects: Iterable[tuple[str, int, str]]) -> dict[str, tuple[str, str]]:
    """uid of a ReplicaSet or Job -> what controls it (Deployment, CronJob, JobSet)."""
    decoder = msgspec.json.Decoder(MetadataOnly)
    found = {}
    for uid, _, text in objects:
        for reference in decoder.decode(text).metadata.owner_references:
            if reference.controller:
                found[uid] = (reference.kind, reference.name)
    return found


def _node_rows(node: Node) -> list[dict[str, Any]]:
    labels = node.metadata.labels
    capacity = {
        name: int(str(count)) for name, count in node.status.capacity.items() if name.startswith(GPU_PREFIX)
    } or {"": 0}
    replicas = labels.get("nvidia.com/gpu.replicas", "")
    return [
        {
            "node": node.metadata.name,
            "resource": resource,
            "capacity": count,
            "created_at": _instant(node.metadata.creation_timestamp),
            "model": labels.get("nvidia.com/gpu.product"),
            "sharing_strategy": labels.get("nvidia.com/gpu.sharing-strategy"),
            "replicas": int(replicas) if replicas.isdigit() else None,
            "mig_strategy": labels.get("nvidia.com/mig.strategy"),
            "zone": labels.get("topology.kubernetes.io/zone"),
            "provider_id": node.spec.provider_id,
            "labels": json.dumps(labels, sort_keys=True),
        }
        for resource, count in sorted(capacity.items())
    ]


def _claims_not_covered(pod: Pod) -> Finding:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return Finding(
        "claims_not_covered", name, f"{name} holds devices through ResourceClaims, which this version does not bill.", 1
    )


def _instant(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


# --- folding: versions and when they were seen ---------------------------------------------------------------------


def _pods(seen: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    terminal = pl.col("phase").is_in(_TERMINAL)
    latest = ("namespace", "pod", "node", "created_at", "scheduled_at", "finished_at", "deletion_at")
    folded = (
        seen.sort("uid", "resource", "observed_at")
        .group_by("uid", "resource", maintain_order=True)
        .agg(
            *(pl.col(name).drop_nulls().last() for name in (*latest, "owner_kind", "owner_name")),
            pl.col("requested").max(),
            terminal_seen_at=pl.col("observed_at").filter(terminal).min(),
            first_seen_at=pl.col("observed_at").min(),
            last_alive_at=pl.col("observed_at").filter(~terminal).max(),
            last_seen_at=pl.col("observed_at").max(),
        )
        .rename({"uid": "pod_uid"})
    )
    return _with_absence(folded, readings)


def _nodes(seen: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    described = ("model", "sharing_strategy", "replicas", "mig_strategy", "zone", "provider_id", "labels", "created_at")
    folded = (
        seen.sort("uid", "resource", "observed_at")
        .group_by("node", "uid", "resource", maintain_order=True)
        .agg(
            *(pl.col(name).drop_nulls().last() for name in described),
            pl.col("capacity").max(),
            first_seen_at=pl.col("observed_at").min(),
            last_seen_at=pl.col("observed_at").max(),
        )
        .rename({"uid": "node_uid"})
    )
    return _with_absence(folded, readings)


def _with_absence(folded: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    """Add `absent_at`: the first reading after the last sighting."""
    return (
        folded.with_columns(after=pl.col("last_seen_at") + pl.duration(milliseconds=1))
        .sort("after")
        .join_asof(readings.sort("read_at"), left_on="after", right_on="read_at", strategy="forward")
        .rename({"read_at": "absent_at"})
        .drop("after")
    )


def _pod_labels(seen: pl.DataFrame) -> pl.DataFrame:
    """Consecutive sightings of one label set as one row."""
    return (
        seen.sort("uid", "observed_at")
        .with_columns(
            run=(pl.col("labels") != pl.col("labels").shift(1).over("uid")).fill_null(True).cum_sum().over("uid")
        )
        .group_by("uid", "run", maintain_order=True)
        .agg(
            pl.col("labels").first(),
            first_seen_at=pl.col("observed_at").min(),
            last_seen_at=pl.col("observed_at").max(),
        )
        .rename({"uid": "pod_uid"})
    )
