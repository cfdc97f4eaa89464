"""How busy each line's device was: shown beside the bill, never billed (ACCOUNTING 5).

Takes lines and device telemetry; gives one row per line (`schemas.tables.Occupancy`). A device's figure is a holder's
own only while that holder had the whole device for the whole averaged time. Not measured is null, never 0.
"""

from decimal import Decimal

import polars as pl

from pipelines.transform.apportion import gpu_hours, rounded_units
from pipelines.transform.intervals import computed, previous

LINE = ("group_id", "segment_from", "charge_kind", "line_key")
_RATIOS = {
    "engine_active_ratio": "engine_active",
    "tensor_active_ratio": "tensor_active",
    "sm_active_ratio": "sm_active",
    "dram_active_ratio": "dram_active",
}
_METRICS = (*_RATIOS.values(), "gpu_util", "memory_used", "energy")
_OWN_FIGURES = (
    *_RATIOS,
    *("engine_active_gpu_hours", "measured_gpu_hours", "memory_used_gib_mean", "memory_used_gib_max"),
    "memory_gib_hours",
)
_LINE = "line"
_MILLIJOULES_PER_KWH = 3_600_000_000
_MIB_PER_GIB = 1024


def occupancy(lines: pl.LazyFrame, telemetry: pl.LazyFrame, workloads: pl.LazyFrame, *, bridge_ms: int) -> pl.LazyFrame:
    """Occupancy of every line of the ledger.

    A sample at ts covers (ts - interval, ts], so a holder's samples are those with start + interval <= ts <= end.

    Args:
        lines: rows of `GpuHours`.
        telemetry: rows of `DeviceTelemetry`, edges around the day included.
        workloads: rows of `WorkloadTelemetry`: what the exporter tells of single pods.
        bridge_ms: longest gap over which a counter's difference is taken.

    Returns:
        Rows of `Occupancy`.
    """
    # Lines are numbered: their key is four columns of text and instants, too long to group millions of runs by.
    numbered = computed(lines.with_row_index(_LINE))
    runs = telemetry.filter(pl.col("metric").is_in(_METRICS)).select(
        *("device_id", "hour", "metric", "first_at", "last_at", "interval_ms", "instants", "measured_ms"),
        *("weighted_sum", "value_max"),
    )
    known = pl.col("device_id").is_not_null()
    # A device's figure is a holder's own only where the holder has the whole device.
    whole = known & (pl.col("sharing_mode") == "exclusive")
    on_device = (
        numbered.filter(known)
        .with_columns(whole=whole)
        .select(
            *(
                _LINE,
                "charge_kind",
                "device_id",
                "hour",
                "segment_from",
                "segment_to",
                "hold_start",
                "hold_end",
                "line_ms",
            ),
            *("whole", "share_num", "share_den", "namespace", "pod"),
        )
    )
    in_segment = computed(
        on_device.join(runs, on=["device_id", "hour"], how="inner")
        .filter((pl.col("last_at") > pl.col("segment_from")) & (pl.col("last_at") <= pl.col("segment_to")))
        .select(
            *(_LINE, "line_ms", "metric", "interval_ms", "instants", "measured_ms", "weighted_sum", "value_max"),
            own=_is_held() & _is_holders_own(),
        )
    )
    own = _measured(in_segment.filter("own"))
    device = in_segment.group_by(_LINE).agg(device_engine_active_ratio=_ratio("engine_active"))
    return (
        numbered.select(
            *("cluster", "date", _LINE, *LINE, "hour", "dimensions", "label_sources"),
            held=known & _is_held(),
            alone=whole & _is_held(),
        )
        .join(own, on=_LINE, how="left")
        .join(device, on=_LINE, how="left")
        .join(_energy(on_device, telemetry, bridge_ms), on=_LINE, how="left")
        .join(_process_sm(on_device, workloads, telemetry), on=_LINE, how="left")
        .with_columns(
            # Of a shared device nobody knows whose the figure is; it stands in device_engine_active_ratio only.
            *(pl.when("alone").then(name).alias(name) for name in _OWN_FIGURES),
            attribution_scope=pl.when(pl.col("process_sm_ratio").is_not_null())
            .then(pl.lit("process"))
            .when(pl.col("held") & pl.col("coverage").is_not_null())
            .then(pl.lit("device"))
            .otherwise(pl.lit("none")),
            coverage=pl.when("held").then(pl.col("coverage").fill_null(Decimal("0.000000"))),
        )
        .drop("held", "alone", _LINE)
    )


def _is_held() -> pl.Expr:
    return pl.col("charge_kind") == "held"


def _is_holders_own() -> pl.Expr:
    """Whether a run's samples were all taken while the hold had lasted an interval, and before it ended."""
    after_start = pl.col("first_at") >= pl.col("hold_start") + pl.duration(milliseconds="interval_ms")
    return after_start & (pl.col("hold_end").is_null() | (pl.col("last_at") <= pl.col("hold_end")))


def _measured(runs: pl.LazyFrame) -> pl.LazyFrame:
    """A line's own figures, out of the runs that are its own."""
    engine_ms = _sum("engine_active", "measured_ms")
    engine_instants = _sum("engine_active", "instants")
    # Where the exporter gives no PROF series the device was still seen: by the metric that saw it most.
    any_instants = pl.max_horizontal(*(_sum(metric, "instants") for metric in ("gpu_util", "memory_used", "energy")))
    seen = pl.when(engine_instants > 0).then(engine_instants).otherwise(any_instants)
    expected = pl.max_horizontal(pl.lit(1), pl.col("line_ms").first() // pl.col("interval_ms").min())
    memory_ms = _sum("memory_used", "measured_ms")
    memory = _sum("memory_used", "weighted_sum")
    return runs.group_by(_LINE).agg(
        coverage=_millionths(pl.min_horizontal(pl.lit(1_000_000), _rounded_quotient(seen * 1_000_000, expected))),
        **{name: _ratio(metric) for name, metric in _RATIOS.items()},
        engine_active_gpu_hours=pl.when(engine_ms > 0).then(
            # ppm x ms -> units of 1e-12 GPU-hour: x 10**12 / (10**6 x 3,600,000) = x 5 / 18
            gpu_hours(_rounded_quotient(_sum("engine_active", "weighted_sum") * 5, pl.lit(18, dtype=pl.Int64)))
        ),
        measured_gpu_hours=pl.when(engine_ms > 0).then(gpu_hours(rounded_units(engine_ms))),
        memory_used_gib_mean=pl.when(memory_ms > 0).then(
            _millionths(_rounded_quotient(memory * 1_000_000, memory_ms * _MIB_PER_GIB), pl.Decimal(18, 6))
        ),
        memory_used_gib_max=_millionths(
            pl.col("value_max").filter(pl.col("metric") == "memory_used").max() * 1_000_000 // _MIB_PER_GIB,
            pl.Decimal(18, 6),
        ),
        memory_gib_hours=pl.when(memory_ms > 0).then(
            # MiB x ms -> 1e-6 GiB-hours: x 10**6 / (1024 x 3,600,000)
            _millionths(_rounded_quotient(memory * 10, pl.lit(1024 * 36, dtype=pl.Int64)), pl.Decimal(18, 6))
        ),
    )


def _energy(on_device: pl.LazyFrame, telemetry: pl.LazyFrame, bridge_ms: int) -> pl.LazyFrame:
    """Board energy once per board: each difference goes to the lines of the device at its end by their shares.

    Idle takes what is left of it.

    Differences are our own: none over a gap longer than the bridging limit, none across a change of the metric's name
    (units and identity change with it), and a counter that falls restarted from 0.
    """
    counters = (
        telemetry.filter((pl.col("metric") == "energy") & (pl.col("gpu_instance_id") == ""))
        .select("device_id", "hour", "first_at", "last_at", "value_first", "value_last", "increase", "metric_name")
        .sort("device_id", "first_at")
        .with_columns(
            previous=previous("value_last", within="device_id"),
            since_ms=(pl.col("first_at") - previous("last_at", within="device_id")).dt.total_milliseconds(),
            same_name=pl.col("metric_name") == previous("metric_name", within="device_id"),
        )
        .with_columns(
            joined=pl.when(pl.col("same_name") & (pl.col("since_ms") <= bridge_ms))
            .then(
                pl.when(pl.col("value_first") >= pl.col("previous"))
                .then(pl.col("value_first") - pl.col("previous"))
                .otherwise("value_first")
            )
            .otherwise(0)
        )
        .select("device_id", "hour", "last_at", millijoules=pl.col("increase").fill_null(0) + pl.col("joined"))
    )
    in_segment = counters.join(on_device, on=["device_id", "hour"], how="inner").filter(
        (pl.col("last_at") > pl.col("segment_from")) & (pl.col("last_at") <= pl.col("segment_to"))
    )
    held = in_segment.filter(
        _is_held()
        & (pl.col("last_at") > pl.col("hold_start"))
        & (pl.col("hold_end").is_null() | (pl.col("last_at") <= pl.col("hold_end")))
    )
    held = held.with_columns(millijoules=pl.col("millijoules") * pl.col("share_num") // pl.col("share_den"))
    reading = ["device_id", "hour", "last_at"]
    idle = (
        in_segment.filter(pl.col("charge_kind") == "idle")
        .join(
            held.group_by(reading).agg(taken=pl.col("millijoules").sum(), parts=_taken_parts()), on=reading, how="left"
        )
        .filter(pl.col("parts").fill_null(0) < _WHOLE)
        .with_columns(millijoules=pl.col("millijoules") - pl.col("taken").fill_null(0))
        .drop("taken", "parts")
    )
    kwh = pl.col("millijoules").sum().cast(pl.Decimal(38, 9)) / pl.lit(Decimal(_MILLIJOULES_PER_KWH))
    return pl.concat([held, idle]).group_by(_LINE).agg(energy_kwh=kwh.cast(pl.Decimal(18, 9)))


_WHOLE = 1_000_000


def _taken_parts() -> pl.Expr:
    """Millionths of a device that holds take together, each rounded up: enough to tell all from less."""
    return (-(-pl.col("share_num") * _WHOLE // pl.col("share_den"))).sum()


def _process_sm(on_device: pl.LazyFrame, workloads: pl.LazyFrame, telemetry: pl.LazyFrame) -> pl.LazyFrame:
    """A pod's own SM time on a shared device, where the data themselves show that it is the pod's (ACCOUNTING 5).

    Per device and hour: not if all pods show the same, if all show nothing while the device was busy, or if the only
    pod shows what the device does: those are device figures under a pod's name, whatever the exporter's version.
    """
    utilized = pl.col("metric") == "gpu_util"
    device_hour = ["device_id", "hour"]
    pod_hour = [*device_hour, "namespace", "pod"]
    # A pod with several replicas or containers has its value in each: once is enough.
    of_pods = computed(
        workloads.filter(utilized & (pl.col("gpu_instance_id") == ""))
        .group_by(*pod_hour, "first_at", "last_at")
        .agg(pl.col("weighted_sum", "measured_ms", "interval_ms").max())
    )
    whole = telemetry.filter(utilized).group_by(device_hour).agg(device_sum=pl.col("weighted_sum").sum())
    told = (
        of_pods.group_by(pod_hour)
        .agg(pl.col("weighted_sum").sum())
        .group_by(device_hour)
        .agg(
            pods=pl.len(),
            different=pl.col("weighted_sum").n_unique(),
            most=pl.col("weighted_sum").max(),
        )
        .join(whole, on=device_hour, how="left")
        .filter((pl.col("different") > 1) | ((pl.col("pods") == 1) & (pl.col("most") < pl.col("device_sum"))))
        .filter((pl.col("most") > 0) | (pl.col("device_sum") == 0))
        .select(device_hour)
    )
    return (
        on_device.filter(_is_held() & ~pl.col("whole"))
        .join(of_pods.join(told, on=device_hour, how="semi"), on=pod_hour)
        .filter((pl.col("last_at") > pl.col("segment_from")) & (pl.col("last_at") <= pl.col("segment_to")))
        .filter(_is_holders_own())
        .group_by(_LINE)
        .agg(pl.col("weighted_sum", "measured_ms").sum())
        .filter(pl.col("measured_ms") > 0)
        .select(_LINE, process_sm_ratio=_millionths(_rounded_quotient(pl.col("weighted_sum"), pl.col("measured_ms"))))
    )


def _sum(metric: str, column: str) -> pl.Expr:
    return pl.col(column).filter(pl.col("metric") == metric).sum()


def _ratio(metric: str) -> pl.Expr:
    """Time-weighted mean of a metric kept in millionths; null where it was never measured."""
    covered = _sum(metric, "measured_ms")
    return pl.when(covered > 0).then(_millionths(_rounded_quotient(_sum(metric, "weighted_sum"), covered)))


def _rounded_quotient(numerator: pl.Expr, denominator: pl.Expr) -> pl.Expr:
    """Whole quotient of whole numbers, half-even."""
    quotient, rest = numerator // denominator, numerator % denominator
    up = (2 * rest > denominator) | ((2 * rest == denominator) & (quotient % 2 == 1))
    return quotient + up.cast(pl.Int64)


def _millionths(value: pl.Expr, dtype: pl.Decimal | None = None) -> pl.Expr:
    """Whole millionths -> a decimal with six places, exact."""
    one = pl.lit(Decimal("0.000001"), dtype=pl.Decimal(38, 6))
    return (value.cast(pl.Decimal(38, 6)) * one).cast(dtype or pl.Decimal(9, 6))
