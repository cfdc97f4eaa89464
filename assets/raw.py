"""What was read: kube-state-metrics and snapshots folded to sightings, DCGM series reduced to runs. Landed before use.

A re-extraction replaces what is there only where it saw at least as much, so a day survives Prometheus' retention.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import polars as pl

from assets.graph_metadata import landed
from assets.partitions import cluster_and_date
from assets.settings import Settings
from pipelines.extract.findings import Finding, findings_frame
from pipelines.extract.kube_state import read_kube_state
from pipelines.extract.prometheus import PrometheusSource
from pipelines.extract.sightings import sightings
from pipelines.extract.telemetry import merge_readings, read_telemetry
from pipelines.load.lake import Lake, Written, snapshot_instant
from pipelines.transform.lifetimes import pod_boundaries, pod_lives
from schemas.errors import NothingToBill
from schemas.tables import TABLES, SnapshotObject, polars_schema

RAW_INVENTORY = dg.AssetKey(["raw", "inventory"])
RAW_TELEMETRY = dg.AssetKey(["raw", "telemetry"])
PROMETHEUS_POOL = "prometheus"
# Inventory is read this far beyond the day: a pod that ended just before midnight explains labels that linger after it.
INVENTORY_EDGE = dt.timedelta(hours=1)


def raw_inventory(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """Pods, nodes and labels: kube-state-metrics history of the day, and every snapshot since."""
    cluster, date = cluster_and_date(context.partition_key)
    connection = settings.cluster(cluster)
    window = settings.window(date)
    paths = lake.snapshots(cluster, since=window.start - INVENTORY_EDGE)
    snapshots = (
        pl.scan_parquet(paths, hive_partitioning=False) if paths else pl.LazyFrame(schema=polars_schema(SnapshotObject))
    )
    from_api = sightings(snapshots, [snapshot_instant(path) for path in paths], cluster=cluster, day=date)
    with PrometheusSource(connection.prometheus, cluster) as source:
        from_history = read_kube_state(source, cluster=cluster, day=date, now=settings.now)
    written = {
        name: _land(lake, f"raw/{name}", pl.concat([a, b]), cluster, date, keep=_keep_forgotten(name))
        for name, a, b in (
            ("pods", from_api.pods, from_history.pods),
            ("nodes", from_api.nodes, from_history.nodes),
            ("node_sharing", from_api.node_sharing, from_history.node_sharing),
            ("pod_labels", from_api.pod_labels, from_history.pod_labels),
        )
    }
    told = findings_frame([*from_api.findings, *from_history.findings], cluster, date)
    _land(lake, "raw/inventory_findings", told, cluster, date)
    rows = {name: result.rows for name, result in written.items()}
    return dg.MaterializeResult(metadata=landed(written["pods"], TABLES["raw/pods"], snapshots=len(paths), **rows))


def raw_telemetry(
    context: dg.AssetExecutionContext,
    lake: dg.ResourceParam[Lake],
    settings: dg.ResourceParam[Settings],
    tile_progress: dg.ResourceParam[Callable[[int, int], None]],
) -> dg.MaterializeResult[None]:
    """DCGM series of the day as runs of samples, cut where pods on the node start and end."""
    cluster, date = cluster_and_date(context.partition_key)
    pods = lake.scan(TABLES["raw/pods"], cluster, date, candidate=False)
    try:
        with PrometheusSource(settings.cluster(cluster).prometheus, cluster) as source:
            reading = read_telemetry(
                source,
                cluster=cluster,
                day=date,
                cuts=pod_boundaries(pod_lives(pods)).collect(),
                bridge_gap_ms=settings.bridge_ms,
                now=settings.now,
                staging=lake.staging_path(cluster, date),
                on_tile=tile_progress,
            )
    except NothingToBill as nothing:
        return _what_was_landed_before(lake, cluster, date, nothing)
    device = _land(lake, "raw/telemetry", reading.device, cluster, date, keep=merge_readings)
    workload = _land(lake, "raw/workload_telemetry", reading.workload, cluster, date, keep=merge_readings)
    _land(lake, "raw/telemetry_findings", findings_frame(reading.findings, cluster, date), cluster, date)
    lake.clear_staging(cluster, date)
    return dg.MaterializeResult(metadata=landed(device, TABLES["raw/telemetry"], workload_rows=workload.rows))


def _what_was_landed_before(
    lake: Lake, cluster: str, date: dt.date, nothing: NothingToBill
) -> dg.MaterializeResult[None]:
    """Prometheus has forgotten the day: what was landed stands, and is told; without it there is nothing to bill."""
    if not lake.has(TABLES["raw/telemetry"], cluster, date):
        raise nothing
    kept = lake.scan(TABLES["raw/telemetry"], cluster, date, candidate=False).collect()
    finding = Finding("telemetry_forgotten", cluster, f"{nothing} What was landed before stands.", kept.height)
    _land(lake, "raw/telemetry_findings", findings_frame([finding], cluster, date), cluster, date)
    return dg.MaterializeResult(metadata={"kept_rows": kept.height})


Keep = Callable[[pl.LazyFrame, pl.LazyFrame], pl.LazyFrame]


def _land(
    lake: Lake, name: str, frame: pl.DataFrame, cluster: str, date: dt.date, *, keep: Keep | None = None
) -> Written:
    """Land a raw partition, keeping of the one before what the new reading does not show as well."""
    table = TABLES[name]
    if keep is not None and lake.has(table, cluster, date):
        frame = keep(lake.scan(table, cluster, date, candidate=False), frame.lazy()).collect()
    return lake.write(table, frame, cluster, date, candidate=False)


def _keep_forgotten(name: str) -> Keep:
    """Of an earlier reading keep the rows whose key the new one does not have."""
    key: Sequence[str] = TABLES[f"raw/{name}"].schema.primary_key()

    def merge(old: pl.LazyFrame, new: pl.LazyFrame) -> pl.LazyFrame:
        return pl.concat([new, old.join(new, on=key, how="anti")])

    return merge


def raw_assets(*, retries: dg.RetryPolicy | None) -> list[dg.AssetsDefinition]:
    """The extract assets: bounded by the pool `prometheus`, retried by `retries` (a terminal wants none)."""
    policy: dict[str, Any] = {"pool": PROMETHEUS_POOL, "retry_policy": retries, "group_name": "raw"}
    inventory = dg.asset(key=RAW_INVENTORY, kinds={"kubernetes", "prometheus", "parquet"}, **policy)(raw_inventory)
    telemetry = dg.asset(key=RAW_TELEMETRY, deps=[inventory], kinds={"prometheus", "parquet"}, **policy)(raw_telemetry)
    return [inventory, telemetry]
