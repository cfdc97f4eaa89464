"""DCGM series of one cluster and day -> device and workload measurements, tile by tile, resumable.

A tile is one metric and one hour. What happens inside a tile is in tile_reduction, how tiles become a day in
telemetry_day; here they are asked for, and kept in a staging folder so that a run that died goes on where it was.
"""

import datetime as dt
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipelines.extract.dcgm_series import APART_POD_LABELS, Identity, SeriesBook
from pipelines.extract.findings import Finding
from pipelines.extract.prometheus import PrometheusSource, TileRequest
from pipelines.extract.promql import not_empty
from pipelines.extract.telemetry_day import joined_day
from pipelines.extract.tile_reduction import NO_DEVICE, reduce_tile
from pipelines.extract.tile_runs import NodeCuts
from pipelines.extract.tile_staging import TileStage
from pipelines.extract.windows import TileWindow, day_windows
from schemas.errors import NothingToBill
from schemas.metrics import Metric, label_aliases, metrics

DEFAULT_INTERVAL_MS = 30_000
_WORKLOAD = ("namespace", "pod", "pod_uid", "container", "replica")


@dataclass(frozen=True, slots=True)
class TelemetryReading:
    """A day: rows of DeviceTelemetry and of WorkloadTelemetry, sorted by key, and what a person should know."""

    device: pl.DataFrame
    workload: pl.DataFrame
    findings: list[Finding]


def read_telemetry(
    source: PrometheusSource,
    *,
    cluster: str,
    day: dt.date,
    cuts: pl.DataFrame,
    bridge_gap_ms: int,
    now: dt.datetime,
    staging: Path,
    on_tile: Callable[[int, int], None] | None = None,
    default_interval_ms: int = DEFAULT_INTERVAL_MS,
    read_metrics: Sequence[Metric] | None = None,
) -> TelemetryReading:
    """Read one day, and `bridge_gap_ms` before and after it (clipped to `now`): ownership looks over midnight.

    Rows of those edges carry the hour they belong to, outside the day.

    Args:
        source: the cluster's Prometheus.
        cluster, day: the partition.
        cuts: boundaries of pods' lives: node, at (UTC instant), kind (`start` or `end`).
        bridge_gap_ms: a longer gap parts a run.
        now: nothing after it is asked for.
        staging: folder for finished tiles; the caller deletes it after landing.
        on_tile: called with (tiles done, tiles in all).
        default_interval_ms: where no series of the day tells its scrape interval.
        read_metrics: default: all of data/reference/metric_aliases.csv.

    Raises:
        NothingToBill: not one DCGM series in the day.
        SourceRefused, SourceUnavailable: naming the tile; finished tiles stay for the next attempt.
    """
    wanted = tuple(read_metrics or metrics())
    names = [name.dcgm_name for metric in wanted for name in metric.names]
    tiles = [(metric, window) for metric in wanted for window in day_windows(day, bridge_gap_ms, now)]
    if not tiles:
        raise _nothing(source, day, names)
    apart_jobs = _apart_jobs(source, names, tiles[0][1].start_ms, tiles[-1][1].end_ms)
    cut_text = cuts.select("node", "at", "kind").sort("node", "at", "kind").write_csv()
    stage = TileStage(
        staging,
        read_with=(source.url, source.selector(names), cut_text, bridge_gap_ms, apart_jobs, source.replica_label),
    )
    todo = [tile for tile in tiles if not stage.has(_key(*tile))]
    done = len(tiles) - len(todo)
    report = on_tile or (lambda _done, _total: None)
    report(done, len(tiles))
    node_cuts, identity = NodeCuts.of(cuts), Identity(apart_jobs, source.replica_label)
    book = SeriesBook(wanted[0], identity)
    with closing(source.tiles(_request(source, *tile) for tile in todo)) as answers:
        for (metric, window), (_, series) in zip(todo, answers, strict=True):
            book = book if book.metric is metric else SeriesBook(metric, identity)
            reduction = reduce_tile(book, series, window=window, cuts=node_cuts, bridge_gap_ms=bridge_gap_ms)
            stage.put(_key(metric, window), reduction)
            done += 1
            report(done, len(tiles))

    staged = stage.load([_key(*tile) for tile in tiles])
    device, workload, findings = joined_day(staged, cluster=cluster, day=day, default_interval_ms=default_interval_ms)
    if device.filter(pl.col("hour").dt.date() == day).is_empty():
        stage.clear()  # what is not there yet may be there at the next attempt
        raise _nothing(source, day, names, unnamed=staged.dropped.filter(pl.col("reason") == NO_DEVICE).height)
    return TelemetryReading(device, workload, findings)


def merge_readings(old: pl.LazyFrame, new: pl.LazyFrame) -> pl.LazyFrame:
    """Rows to land when a day is read again: per series and hour those of the reading that saw more, else the new.

    Prometheus forgets; what was landed must not shrink with it.

    Args:
        old, new: rows of DeviceTelemetry, or of WorkloadTelemetry.
    """
    columns = new.collect_schema().names()
    workload = [name for name in _WORKLOAD if name in columns]
    key = ["metric", "device_id", "gpu_instance_id", "hour", *workload]
    seen = (
        old.group_by(key)
        .agg(old_instants=pl.col("instants").sum())
        .join(new.group_by(key).agg(new_instants=pl.col("instants").sum()), on=key, how="left")
    )
    kept = seen.filter(pl.col("old_instants") > pl.col("new_instants").fill_null(0)).select(key)
    rows = pl.concat([old.join(kept, on=key, how="semi").select(columns), new.join(kept, on=key, how="anti")])
    return rows.sort("metric", "device_id", "gpu_instance_id", "first_at", *workload)


def _apart_jobs(source: PrometheusSource, names: Sequence[str], start_ms: int, end_ms: int) -> list[str]:
    """Scrape jobs in which a workload's labels are not the scrape target's: known by any of the day's series.

    Asked once for the day: in an hour without workloads nothing else tells that `pod` is the exporter.
    """
    selectors = [source.selector(names, not_empty(label)) for label in sorted(APART_POD_LABELS)]
    return source.label_values("job", selectors, start_ms, end_ms)


def _key(metric: Metric, window: TileWindow) -> str:
    return f"{metric.canonical}-{window.start_ms}-{window.end_ms}"


def _request(source: PrometheusSource, metric: Metric, window: TileWindow) -> TileRequest:
    selector = source.selector([name.dcgm_name for name in metric.names])
    return TileRequest(f"{metric.canonical}, hour {window.name}", selector + window.range, window.end_ms)


def _nothing(source: PrometheusSource, day: dt.date, names: Sequence[str], *, unnamed: int = 0) -> NothingToBill:
    found = "found no series"
    if unnamed:
        found = f"found only series without a device label (expected one of {', '.join(label_aliases()['device_id'])})"
    return NothingToBill(
        f"nothing to bill in cluster {source.cluster}: {source.selector(names)} {found} from {day} 00:00 to 24:00 UTC. "
        "Is dcgm-exporter scraped into this Prometheus, do `prometheus.matchers` fit, does its retention reach back?"
    )
