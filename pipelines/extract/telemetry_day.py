"""From the tiles of a day to its rows: what only the whole day can tell.

The interval of a series too short to show it, what the first sample of a run covers, and which names a device must not
be read by. What happens inside a tile is in tile_reduction.
"""

import datetime as dt

import dataframely as dy
import polars as pl

from pipelines.extract.findings import Finding
from pipelines.extract.tile_reduction import NO_DEVICE, PERCENTAGE, Reduction
from schemas.metrics import PRESENCE, label_aliases
from schemas.tables import DeviceTelemetry, WorkloadTelemetry

_SERIES = ["metric", "device_id", "gpu_instance_id"]
_MEASURED = ("measured_ms", "weighted_sum", "value_min", "value_max", "value_first", "value_last")


def joined_day(
    tiles: Reduction, *, cluster: str, day: dt.date, default_interval_ms: int
) -> tuple[pl.DataFrame, pl.DataFrame, list[Finding]]:
    """Rows of DeviceTelemetry and WorkloadTelemetry, sorted by key, and findings.

    Args:
        tiles: of all metrics, hours and edges.
        cluster, day: the partition.
        default_interval_ms: for series when none of the day tells its scrape interval.
    """
    percentages = tiles.dropped.filter(pl.col("reason") == PERCENTAGE)
    as_read = _presence_of(_with_instants(tiles.device), percentages)
    device = _with_first_samples(
        _with_intervals(as_read, as_read, default_interval_ms)
        .sort(*_SERIES, "first_at", "metric_name", "last_at")
        .with_columns(pl.coalesce("previous_at", pl.col("last_at").shift(1).over(_SERIES)))
    )
    # A workload's first sample in a tile covers the time since its device's last one in the tile before.
    workload = _with_first_samples(
        _with_intervals(_with_instants(tiles.workload), as_read, default_interval_ms)
        .join(percentages, on=[*_SERIES, "metric_name"], how="anti")
        .sort("first_at")
        .join_asof(
            device.select(*_SERIES, device_last_at="last_at").sort("device_last_at"),
            left_on="first_at",
            right_on="device_last_at",
            by=_SERIES,
            allow_exact_matches=False,
            coalesce=False,
            check_sortedness=False,
        )
        .with_columns(pl.coalesce("previous_at", "device_last_at"))
    )
    return (
        _rows(_once_present(device), DeviceTelemetry, cluster, day),
        _rows(workload, WorkloadTelemetry, cluster, day),
        [*_dropped_series(tiles.dropped), *_unknown_interval(as_read, cluster, default_interval_ms)],
    )


def _with_instants(runs: pl.DataFrame) -> pl.DataFrame:
    """Instants for milliseconds, null for what is not known."""
    instant = pl.Datetime("ms", "UTC")
    return runs.with_columns(
        pl.col("hour", "first_at", "last_at").cast(instant),
        pl.when(pl.col("previous_at") >= 0).then("previous_at").cast(instant),
        pl.when(pl.col("interval_ms") > 0).then("interval_ms"),
    )


def _presence_of(device: pl.DataFrame, percentages: pl.DataFrame) -> pl.DataFrame:
    """Device runs, those under a name that was a percentage at any time of the day turned to mere presence.

    An idle hour of such a series looks like a ratio: it is the day that tells.
    """
    marked = device.join(
        percentages.select(*_SERIES, "metric_name", is_percentage=pl.lit(True)).unique(),
        on=[*_SERIES, "metric_name"],
        how="left",
    )
    dropped = pl.col("is_percentage").is_not_null()
    return marked.with_columns(
        pl.when(dropped).then(pl.lit(PRESENCE)).otherwise("metric").alias("metric"),
        *(pl.when(dropped).then(0).otherwise(name).alias(name) for name in _MEASURED),
    ).drop("is_percentage")


def _with_intervals(runs: pl.DataFrame, device: pl.DataFrame, default_interval_ms: int) -> pl.DataFrame:
    """Runs whose series was too short to show its interval take the day's of their source, else of any source."""
    median = pl.col("interval_ms").quantile(0.5, interpolation="lower").cast(pl.Int64)
    known = device.drop_nulls("interval_ms")
    of_source = known.group_by("source").agg(source_interval_ms=median)
    of_day = known.select(day_interval_ms=median)
    return (
        runs.join(of_source, on="source", how="left")
        .join(of_day, how="cross")
        .with_columns(pl.coalesce("interval_ms", "source_interval_ms", "day_interval_ms", pl.lit(default_interval_ms)))
    )


def _with_first_samples(runs: pl.DataFrame) -> pl.DataFrame:
    """Add what each run's first sample covers: min(interval, time since the sample before)."""
    since = (pl.col("first_at") - pl.col("previous_at")).dt.total_milliseconds()
    first_ms = pl.min_horizontal("interval_ms", since)
    is_gauge = pl.col("increase").is_null()
    is_measured = pl.col("metric") != PRESENCE
    return runs.with_columns(
        measured_ms=pl.when(is_measured).then(pl.col("measured_ms") + first_ms).otherwise(0),
        weighted_sum=pl.when(is_measured & is_gauge)
        .then(pl.col("weighted_sum") + first_ms * pl.col("value_first"))
        .otherwise(0),
    )


def _once_present(device: pl.DataFrame) -> pl.DataFrame:
    """Several metrics may show the same bare presence: the longest run stands for them."""
    is_presence = pl.col("metric") == PRESENCE
    key = [*_SERIES, "first_at"]
    presence = device.filter(is_presence).sort(*key, "last_at", "metric_name", descending=[False] * 4 + [True, False])
    return pl.concat([device.filter(~is_presence), presence.unique(key, keep="first", maintain_order=True)])


def _rows(runs: pl.DataFrame, schema: type[dy.Schema], cluster: str, day: dt.date) -> pl.DataFrame:
    partition = runs.with_columns(cluster=pl.lit(cluster), date=pl.lit(day))
    rows = partition.select(schema.column_names()).sort(schema.primary_key())
    return schema.validate(rows, cast=True)


def _dropped_series(dropped: pl.DataFrame) -> list[Finding]:
    """One finding per device read as a percentage, one per node whose series name no device."""
    percentages = (
        dropped.filter(pl.col("reason") == PERCENTAGE)
        .group_by("node", "device_id", "metric_name")
        .agg(affected=pl.len())
        .sort("node", "device_id", "metric_name")
    )
    nameless = dropped.filter(pl.col("reason") == NO_DEVICE).group_by("node").agg(affected=pl.len()).sort("node")
    labels = ", ".join(label_aliases()["device_id"])
    return [
        *(
            Finding(
                "ratio_is_percentage",
                f"{device_id} {metric_name}",
                f"node {node}, device {device_id}: {metric_name} has values above 1.5, so it is not the ratio that its"
                " name says (before DCGM 4.7 this name is the 0..100 percentage); its values were left out. Give the"
                " exporter's counters file the old name, or update the exporter.",
                affected,
            )
            for node, device_id, metric_name, affected in percentages.iter_rows()
        ),
        *(
            Finding(
                "device_unnamed",
                node,
                f"node {node}: DCGM series without a device label (expected one of {labels}) were left out.",
                affected,
            )
            for node, affected in nameless.iter_rows()
        ),
    ]


def _unknown_interval(device: pl.DataFrame, cluster: str, default_interval_ms: int) -> list[Finding]:
    if device.is_empty() or device["interval_ms"].is_not_null().any():
        return []
    message = (
        f"no DCGM series is long enough to show its scrape interval; {default_interval_ms} ms were assumed for all."
    )
    return [Finding("interval_unknown", cluster, message, device.height)]
