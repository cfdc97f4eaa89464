"""What the snapshots of the Kubernetes API say together: pods, nodes and labels, with when each was seen.

Takes snapshot objects of many instants; gives rows of PodSighting, NodeSighting and PodLabels. Objects' own timestamps
count: a pod that was seen only after its day still tells when it ran. Who held which device is worked out in
pipelines.transform.
"""

import dataclasses
import datetime as dt
import itertools
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import polars as pl
from kubernetes.utils import parse_quantity

from pipelines.extract.findings import Finding
from pipelines.extract.kubernetes_objects import GPU_PREFIX, Container, Labeled, Node, Object, Pod
from pipelines.extract.sharing_periods import SHAREABLE, SHARING, sharing_periods
from schemas.tables import NodeSharing, NodeSighting, PodLabels, PodSighting, polars_schema

SOURCE = "snapshot"
DEFAULT_INTERVAL_MS = 300_000  # the snapshot schedule
EDGE = dt.timedelta(hours=1)
_DAY = dt.timedelta(days=1)
_TERMINAL = ("Succeeded", "Failed")
_INSTANT = pl.Datetime("ms", "UTC")
_KINDS: dict[str, type[Object]] = {"Pod": Pod, "Node": Node, "ReplicaSet": Object, "Job": Labeled}


@dataclasses.dataclass(frozen=True)
class Sightings:
    """Rows of PodSighting, NodeSighting, NodeSharing and PodLabels, and what a person should know."""

    pods: pl.DataFrame
    nodes: pl.DataFrame
    node_sharing: pl.DataFrame
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

    Pods and nodes count that were created before the day's end; of pods, those that did not finish more than an hour
    before its start. Later snapshots tell when a pod ran, but not what a node had on the day: it is described by its
    sightings on the day, else by those nearest to it.

    Args:
        snapshots: rows of `SnapshotObject`, of any instants.
        instants: every instant at which a snapshot was taken, those that saw nothing too.
        cluster, day: the partition.
        default_interval_ms: time between two snapshots where there are fewer than two.
    """
    start = dt.datetime.combine(day, dt.time(), tzinfo=dt.UTC)
    runs, versions = _runs(snapshots)
    readings = pl.DataFrame({"absent_at": sorted(set(instants))}, schema={"absent_at": _INSTANT})
    pod_versions, label_versions, findings = _decoded_pods(versions, start - EDGE, start + _DAY)
    pods = _pods(runs.join(pod_versions, on=["uid", "version"]), readings)
    node_runs = runs.join(_decoded_nodes(versions, start + _DAY), on=["uid", "version"])
    nodes = _nodes(node_runs, readings, start)
    labels = _pod_labels(runs.join(label_versions, on=["uid", "version"]))
    stamp = {
        "cluster": pl.lit(cluster),
        "date": pl.lit(day, dtype=pl.Date),
        "source": pl.lit(SOURCE),
        "interval_ms": pl.lit(_interval_ms(instants, default_interval_ms), dtype=pl.Int64),
    }
    return Sightings(
        pods=_as(PodSighting, pods.with_columns(**stamp)),
        nodes=_as(NodeSighting, nodes.with_columns(**stamp)),
        node_sharing=_as(NodeSharing, _node_sharing(node_runs).with_columns(**stamp)),
        pod_labels=_as(PodLabels, labels.with_columns(**stamp)),
        findings=findings,
    )


def _interval_ms(instants: Sequence[dt.datetime], default_ms: int) -> int:
    ordered = sorted(set(instants))
    gaps = [(b - a) // dt.timedelta(milliseconds=1) for a, b in itertools.pairwise(ordered)]
    return int(statistics.median_low(gaps)) if gaps else default_ms


def _as(schema: Any, frame: pl.DataFrame) -> pl.DataFrame:
    """Columns, types and rules of a table, sorted by its key."""
    checked: pl.DataFrame = schema.validate(frame.select(polars_schema(schema).names()), cast=True)
    return checked.sort(schema.primary_key())


# --- from sightings to runs of one version ---------------------------------------------------------------------------


def _runs(snapshots: pl.LazyFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Consecutive sightings of one version of an object as one row; and the versions, each once.

    Most objects do not change from one snapshot to the next, and their JSON is nearly all of a snapshot: sightings
    carry its hash (64 bits, compared within one uid), so that a day of snapshots is never in memory.

    Returns:
        runs: uid, version, first_at, last_at, sorted by uid and time.
        versions: kind, uid, version, object, sorted.
    """
    kept = snapshots.filter(pl.col("kind").is_in(list(_KINDS))).with_columns(version=pl.col("object").hash())
    versions = kept.select("kind", "uid", "version", "object").unique(["kind", "uid", "version"]).collect()
    seen = kept.select("uid", "version", at=pl.col("observed_at").cast(_INSTANT)).collect()
    runs = (
        seen.sort("uid", "at")
        .with_columns(run=pl.struct("uid", "version").rle_id())
        .group_by("run", maintain_order=True)
        .agg(pl.col("uid", "version").first(), first_at=pl.col("at").min(), last_at=pl.col("at").max())
        .drop("run")
    )
    return runs, versions.sort("kind", "uid", "object")


def _objects(versions: pl.DataFrame, kind: str) -> Iterable[tuple[dict[str, Any], Any]]:
    """Key (uid, version) and decoded object of each version of a kind."""
    decoder = msgspec.json.Decoder(_KINDS[kind])
    of_kind = versions.filter(pl.col("kind") == kind)
    for uid, version, text in of_kind.select("uid", "version", "object").iter_rows():
        yield {"uid": uid, "version": version}, decoder.decode(text)


# --- what each version of a pod says ---------------------------------------------------------------------------------

_VERSION: dict[str, Any] = {"uid": pl.String, "version": pl.UInt64}
_POD_VERSION: dict[str, Any] = _VERSION | {
    "namespace": pl.String, "pod": pl.String, "node": pl.String, "is_terminal": pl.Boolean,
    "created_at": _INSTANT, "scheduled_at": _INSTANT, "finished_at": _INSTANT, "deletion_at": _INSTANT,
    "owner_kind": pl.String, "owner_name": pl.String, "resource": pl.String, "requested": pl.Int64,
}  # fmt: skip
_LABEL_VERSION: dict[str, Any] = _VERSION | {"labels": pl.String}


def _decoded_pods(
    versions: pl.DataFrame, since: dt.datetime, until: dt.datetime
) -> tuple[pl.DataFrame, pl.DataFrame, list[Finding]]:
    """Pods that lived in [since, until): rows per version and resource, label sets per version, findings."""
    controllers = _controllers(versions)
    pod_rows: list[dict[str, Any]] = []
    label_rows: list[dict[str, Any]] = []
    findings: dict[str, Finding] = {}
    ended_before: set[str] = set()
    for key, pod in _objects(versions, "Pod"):
        facts = _pod_facts(pod, controllers)
        if facts["created_at"] is not None and facts["created_at"] >= until:
            continue
        if facts["finished_at"] is not None and facts["finished_at"] < since:
            ended_before.add(key["uid"])
        asked = requests(pod)
        if pod.spec.resource_claims or (pod.status.extended_resource_claim_status is not None and not asked):
            findings[key["uid"]] = _claims_not_covered(pod)
        pod_rows += [key | facts | {"resource": name, "requested": count} for name, count in asked.items()]
        label_rows.append(key | {"labels": _json(pod.metadata.labels)})
    lived = ~pl.col("uid").is_in(ended_before)
    return (
        pl.DataFrame(pod_rows, schema=_POD_VERSION).filter(lived),
        pl.DataFrame(label_rows, schema=_LABEL_VERSION).filter(lived),
        [finding for uid, finding in sorted(findings.items()) if uid not in ended_before],
    )


def _pod_facts(pod: Pod, controllers: dict[str, tuple[str, str]]) -> dict[str, Any]:
    owner = next((each for each in pod.metadata.owner_references if each.controller), None)
    kind, name = controllers.get(owner.uid, (owner.kind, owner.name)) if owner else (None, None)
    return {
        "namespace": pod.metadata.namespace or "",
        "pod": pod.metadata.name,
        "node": pod.spec.node_name,
        "is_terminal": pod.status.phase in _TERMINAL,
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
    return _gpus({**container.resources.limits, **container.resources.requests})


def _added(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {*a, *b}}


def _largest(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: max(a.get(name, 0), b.get(name, 0)) for name in {*a, *b}}


def _gpus(quantities: dict[str, str | int | float]) -> dict[str, int]:
    # The API server writes 1000 as "1k".
    return {name: int(parse_quantity(n)) for name, n in quantities.items() if name.startswith(GPU_PREFIX)}


def _scheduled(pod: Pod) -> dt.datetime | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True" and condition.last_transition_time:
            return _instant(condition.last_transition_time)
    return _instant(pod.status.start_time) if pod.spec.node_name else None


def _finished(pod: Pod) -> dt.datetime | None:
    """When a finished pod's last container finished.

    Where the status cannot say so (evicted before any container ran; node lost, so that a container of a Failed pod
    still reads `running` or has no end), it is the latest time that the status shows: never beyond it.
    """
    if pod.status.phase not in _TERMINAL:
        return None
    states = [each.state for each in (*pod.status.container_statuses, *pod.status.init_container_statuses)]
    ended = [state.terminated.finished_at if state.terminated else None for state in states]
    open_ended = any(
        end is None and (state.running or state.terminated) for state, end in zip(states, ended, strict=True)
    )
    told = [end for end in ended if end]
    if open_ended or not told:
        told += [each.last_transition_time for each in pod.status.conditions if each.last_transition_time]
        told += [pod.status.start_time] if pod.status.start_time else []
    return max((dt.datetime.fromisoformat(each) for each in told), default=None)


def _controllers(versions: pl.DataFrame) -> dict[str, tuple[str, str]]:
    """uid of a ReplicaSet or Job -> kind and name of what controls it (Deployment, CronJob, JobSet)."""
    return {
        key["uid"]: (reference.kind, reference.name)
        for kind in ("ReplicaSet", "Job")
        for key, each in _objects(versions, kind)
        for reference in each.metadata.owner_references
        if reference.controller
    }


def _claims_not_covered(pod: Pod) -> Finding:
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return Finding(
        "claims_not_covered", name, f"{name} holds devices through ResourceClaims, which this version does not bill.", 1
    )


# --- what each version of a node says --------------------------------------------------------------------------------

_NODE_VERSION: dict[str, Any] = _VERSION | {
    "node": pl.String, "resource": pl.String, "capacity": pl.Int64, "created_at": _INSTANT, "model": pl.String,
    "sharing_strategy": pl.String, "replicas": pl.Int64, "mig_strategy": pl.String, "zone": pl.String,
    "provider_id": pl.String, "labels": pl.String,
}  # fmt: skip


def _decoded_nodes(versions: pl.DataFrame, until: dt.datetime) -> pl.DataFrame:
    """Nodes that were created before `until`: one row per version and resource; resource '' where there is none."""
    rows = [key | row for key, node in _objects(versions, "Node") for row in _node_facts(node)]
    # A later node under the same name would lend its creation time to the one of the day.
    return pl.DataFrame(rows, schema=_NODE_VERSION).filter((pl.col("created_at") < until).fill_null(True))


def _node_facts(node: Node) -> list[dict[str, Any]]:
    labels = node.metadata.labels
    replicas = labels.get("nvidia.com/gpu.replicas", "")
    facts = {
        "node": node.metadata.name,
        "created_at": _instant(node.metadata.creation_timestamp),
        "model": labels.get("nvidia.com/gpu.product"),
        "sharing_strategy": labels.get("nvidia.com/gpu.sharing-strategy"),
        "replicas": int(replicas) if replicas.isdecimal() else None,
        "mig_strategy": labels.get("nvidia.com/mig.strategy"),
        "zone": labels.get("topology.kubernetes.io/zone"),
        "provider_id": node.spec.provider_id,
        "labels": _json(labels),
    }
    capacity = _gpus({**node.status.allocatable, **node.status.capacity}) or {"": 0}
    return [facts | {"resource": name, "capacity": count} for name, count in sorted(capacity.items())]


def _instant(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def _json(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels, order="sorted").decode()


# --- folding: runs and what was said during each ---------------------------------------------------------------------


def _pods(runs: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    is_terminal = pl.col("is_terminal")
    latest = ("namespace", "pod", "node", "created_at", "finished_at", "deletion_at", "owner_kind", "owner_name")
    folded = (
        runs.sort("uid", "resource", "first_at")
        .group_by("uid", "resource", maintain_order=True)
        .agg(
            *(pl.col(name).drop_nulls().last() for name in latest),
            pl.col("scheduled_at").min(),
            pl.col("requested").max(),
            terminal_seen_at=pl.col("first_at").filter(is_terminal).min(),
            first_seen_at=pl.col("first_at").min(),
            last_alive_at=pl.col("last_at").filter(~is_terminal).max(),
            last_seen_at=pl.col("last_at").max(),
        )
        .rename({"uid": "pod_uid"})
    )
    return _with_absence(folded, readings)


def _nodes(runs: pl.DataFrame, readings: pl.DataFrame, start: dt.datetime) -> pl.DataFrame:
    last_ms = start + _DAY - dt.timedelta(milliseconds=1)
    # A node that was reconfigured next week had another capacity on the day.
    from_day = pl.max_horizontal(
        pl.lit(start) - pl.col("last_at"), pl.col("first_at") - pl.lit(last_ms), pl.lit(dt.timedelta())
    )
    described = ("sharing_strategy", "replicas", "mig_strategy", "zone", "provider_id", "labels", "created_at")
    folded = (
        runs.with_columns(
            first_seen_at=pl.col("first_at").min().over("uid"),
            last_seen_at=pl.col("last_at").max().over("uid"),
            from_day=from_day,
        )
        .filter(pl.col("from_day") == pl.col("from_day").min().over("uid"))
        # Before its device plugin has registered, a node has no GPU resource.
        .filter((pl.col("resource") != "") | (pl.col("resource") == "").all().over("uid"))
        .sort("uid", "resource", "first_at")
        .group_by("node", "uid", "resource", maintain_order=True)
        .agg(
            *(pl.col(name).last() for name in (*described, "first_seen_at", "last_seen_at")),
            # Feature discovery takes its labels away for a while when it restarts; the card stays.
            pl.col("model").drop_nulls().last(),
            pl.col("capacity").max(),
        )
        .rename({"uid": "node_uid"})
    )
    return _with_absence(folded, readings)


def _node_sharing(runs: pl.DataFrame) -> pl.DataFrame:
    key = ["node", "node_uid"]
    pieces = runs.rename({"uid": "node_uid", "model": "product"})
    described = pieces.select(*key, "first_at", "last_at", *SHARING, "labels").unique()
    capacity = pieces.filter(pl.col("resource").is_in(SHAREABLE)).select(
        *key, "resource", "first_at", "last_at", "capacity"
    )
    return sharing_periods(described, capacity, key=key)


def _with_absence(folded: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    """Add `absent_at`: the first reading after the last sighting."""
    return folded.sort("last_seen_at").join_asof(
        readings, left_on="last_seen_at", right_on="absent_at",
        strategy="forward", allow_exact_matches=False, coalesce=False,
    )  # fmt: skip


def _pod_labels(runs: pl.DataFrame) -> pl.DataFrame:
    """Consecutive sightings of one label set as one row."""
    return (
        runs.sort("uid", "first_at")
        .with_columns(run=pl.struct("uid", "labels").rle_id())
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("labels").first(),
            pod_uid=pl.col("uid").first(),
            first_seen_at=pl.col("first_at").min(),
            last_seen_at=pl.col("last_at").max(),
        )
    )
