"""kube-state-metrics history of one cluster and day -> sightings of pods, nodes and pod labels.

Only what concerns GPUs is asked for: first who requests them, then the rest by pod UID. How frames are read is in
kube_history, what sightings are made of them in kube_state_folds.
"""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import dataframely as dy
import polars as pl

from pipelines.extract import kube_state_folds as folds
from pipelines.extract.findings import Finding
from pipelines.extract.kube_history import Asked, KubeHistory, batches
from pipelines.extract.prometheus import PrometheusSource
from pipelines.extract.promql import equals, matching, not_empty, one_of
from pipelines.extract.windows import HOUR_MS, TileWindow, day_windows
from schemas.tables import NodeSharing, NodeSighting, PodLabels, PodSighting, polars_schema

_REQUESTS = ("kube_pod_container_resource_requests", "kube_pod_init_container_resource_requests")
_CAPACITY = "kube_node_status_capacity"
_NODE_FAMILIES = (_CAPACITY, "kube_node_info", "kube_node_created", "kube_node_labels")
_POD_FACTS = (
    "kube_pod_info",
    "kube_pod_owner",
    "kube_pod_init_container_info",
    "kube_pod_created",
    "kube_pod_status_scheduled_time",
    "kube_pod_completion_time",
    "kube_pod_deletion_timestamp",
)
_POD = ("uid", "namespace", "pod")
_OWNER = ("owner_kind", "owner_name", "owner_is_controller")
_PHASE = ("kube_pod_status_phase",)
_TERMINAL = ("Succeeded", "Failed")
_LABELS = ("kube_pod_labels",)
_GPU_RESOURCE = "nvidia_com_.*"


@dataclass(frozen=True, slots=True)
class KubeStateReading:
    """Rows of PodSighting, NodeSighting, NodeSharing and PodLabels of source `kube_state`, by key; and findings."""

    pods: pl.DataFrame
    nodes: pl.DataFrame
    node_sharing: pl.DataFrame
    pod_labels: pl.DataFrame
    findings: list[Finding]


def read_kube_state(source: PrometheusSource, *, cluster: str, day: dt.date, now: dt.datetime) -> KubeStateReading:
    """Read one day, and the hour before and after it (clipped to `now`).

    A cluster without kube-state-metrics gives empty frames and a finding: telemetry alone can be billed.

    Args:
        source: the cluster's Prometheus.
        cluster, day: the partition.
        now: nothing after it is asked for.

    Raises:
        SourceRefused, SourceUnavailable: naming the hour.
    """
    windows = day_windows(day, HOUR_MS, now)
    if not windows:
        return _reading(cluster, day, findings=[])
    history = KubeHistory(source, windows[0].start_ms, windows[-1].end_ms)
    history.tell_nodes_apart(source.selector((*_REQUESTS, *_NODE_FAMILIES), not_empty("exported_node")))
    by_hour = [(window, source.selector(_REQUESTS, matching("resource", _GPU_RESOURCE))) for window in windows]
    requests = history.intervals(by_hour, (*_POD, "node", "container", "resource"))
    told = _node_facts(history, windows)
    if requests.is_empty() and told.is_empty():
        return _reading(cluster, day, findings=[_nothing_found(history, cluster)])

    asked = _Pods(source, windows, requests)
    facts = history.facts(asked.selectors(_POD_FACTS), (*_POD, "node", "container", "restart_policy", *_OWNER))
    ended = history.ever_one(asked.selectors(_PHASE, one_of("phase", _TERMINAL)), _POD)
    phases = asked.only(ended).selectors(_PHASE, one_of("phase", _TERMINAL))
    terminal = history.folded(phases, _POD, folds.terminal)
    labels = history.intervals(asked.selectors(_LABELS), _POD, label_set=True)
    replica_sets = _replica_sets(history, facts, windows)
    scrapes = history.scrapes(windows)
    return _reading(
        cluster,
        day,
        pods=folds.pods(requests, facts, terminal, replica_sets, scrapes),
        nodes=folds.nodes(told, scrapes),
        node_sharing=folds.node_sharing(told),
        pod_labels=folds.pod_labels(labels),
        findings=_without_uid(requests),
    )


class _Pods:
    """The pods of each hour that ask for GPUs, as selectors of what else is to be known of them."""

    def __init__(self, source: PrometheusSource, windows: Sequence[TileWindow], pods: pl.DataFrame) -> None:
        self._source, self._windows = source, windows
        self._pods = pods.select("hour", "uid", "pod", "has_uid").unique().sort("hour", "uid")

    def only(self, pods: pl.DataFrame) -> "_Pods":
        """Those of some hour and uid."""
        return _Pods(self._source, self._windows, self._pods.join(pods, on=["hour", "uid"], how="semi"))

    def selectors(self, names: Sequence[str], *matchers: str) -> Iterator[Asked]:
        """Selectors of metrics of the pods of each hour; a pod without UID is asked for by name."""
        for window in self._windows:
            pods = self._pods.filter(pl.col("hour").dt.timestamp("ms") == window.hour_ms)
            nameless = pods.filter(~pl.col("has_uid"))["pod"].unique(maintain_order=True).to_list()
            wanted = {
                "uid": pods.filter("has_uid")["uid"].to_list(),
                "pod": nameless,
                "exported_pod": nameless,
            }
            for label, values in wanted.items():
                for batch in batches(values):
                    yield window, self._source.selector(names, one_of(label, batch), *matchers)


def _node_facts(history: KubeHistory, windows: Sequence[TileWindow]) -> pl.DataFrame:
    """Rows of `folds.node_tile` for the nodes that have GPUs at any time."""
    # Nodes have other resources too, and other families have no resource at all.
    of_gpus = matching("resource", f"({_GPU_RESOURCE})?")
    asked: list[Asked] = []
    # Where the scrape target has a node of its own, the object's is under exported_node.
    for label, others in (("node", (equals("exported_node", ""),)), ("exported_node", ())):
        with_gpus = history.source.selector([_CAPACITY], matching("resource", _GPU_RESOURCE), *others)
        for batch in batches(history.label_values(label, with_gpus)):
            nodes = history.source.selector(_NODE_FAMILIES, one_of(label, batch), of_gpus, *others)
            asked += [(window, nodes) for window in windows]
    labels = ("node", "resource", "system_uuid", "provider_id")
    return history.folded(asked, labels, folds.node_tile, label_set=True)


def _replica_sets(history: KubeHistory, facts: pl.DataFrame, windows: Sequence[TileWindow]) -> pl.DataFrame:
    """Owners of the ReplicaSets that own pods: namespace, replicaset, owner_kind, owner_name, owner_is_controller."""
    names = facts.filter(pl.col("owner_kind") == "ReplicaSet")["owner_name"].unique().sort().to_list()
    whole = TileWindow(windows[0].hour_ms, windows[0].start_ms, windows[-1].end_ms)
    selectors = (
        history.source.selector(["kube_replicaset_owner"], one_of("replicaset", batch)) for batch in batches(names)
    )
    return history.facts([(whole, selector) for selector in selectors], ("namespace", "replicaset", *_OWNER))


def _reading(
    cluster: str,
    day: dt.date,
    *,
    findings: list[Finding],
    pods: pl.DataFrame | None = None,
    nodes: pl.DataFrame | None = None,
    node_sharing: pl.DataFrame | None = None,
    pod_labels: pl.DataFrame | None = None,
) -> KubeStateReading:
    def rows(frame: pl.DataFrame | None, schema: type[dy.Schema]) -> pl.DataFrame:
        if frame is None:
            return pl.DataFrame(schema=polars_schema(schema))
        partition = frame.with_columns(cluster=pl.lit(cluster), date=pl.lit(day))
        return schema.validate(partition.select(schema.column_names()).sort(schema.primary_key()), cast=True)

    return KubeStateReading(
        rows(pods, PodSighting),
        rows(nodes, NodeSighting),
        rows(node_sharing, NodeSharing),
        rows(pod_labels, PodLabels),
        findings,
    )


def _nothing_found(history: KubeHistory, cluster: str) -> Finding:
    if history.exists("kube_pod_info", "kube_node_info"):
        message = (
            "kube-state-metrics shows no pod that asks for a GPU and no node that has one (resource nvidia_com_*);"
            " holds are known from snapshots and DCGM labels only."
        )
        return Finding("kube_state_no_gpus", cluster, message, 0)
    message = (
        f"no kube-state-metrics series in {history.source.url} that `prometheus.matchers` fit; holds are known from"
        " snapshots and DCGM labels only."
    )
    return Finding("kube_state_missing", cluster, message, 0)


def _without_uid(requests: pl.DataFrame) -> list[Finding]:
    pods = requests.filter(~pl.col("has_uid"))["uid"].n_unique()
    message = (
        f"{pods} pods have no uid label (kube-state-metrics before 2.0); each is known by namespace/name, so pods of"
        " one name in one day are taken for one. Update kube-state-metrics."
    )
    return [Finding("pod_without_uid", "kube-state-metrics", message, pods)] if pods else []
