"""What a person should know of a day and what does not stop it: clips, unknown devices, gaps, doubtful capacity.

Takes the facts; gives rows of `schemas.tables.Findings`. What stops a day is in `pipelines.validate`.
"""

from collections.abc import Sequence

import polars as pl

from pipelines.transform.labels import Dimension

COVERAGE_TARGET_PERCENT = 90
_COLUMNS = ("code", "subject", "message", "affected")


def findings(
    devices: pl.LazyFrame,
    holdings: pl.LazyFrame,
    occupancy: pl.LazyFrame,
    coverage: pl.LazyFrame,
    *,
    nodes: pl.LazyFrame,
    pods: pl.LazyFrame,
    sharing: pl.LazyFrame,
    workloads: pl.LazyFrame,
    dimensions: Sequence[Dimension],
    coverage_target_percent: int,
) -> pl.LazyFrame:
    """Findings of one day, without `cluster` and `date`.

    Args:
        devices, holdings, occupancy, coverage: the day's facts (`coverage` is `LabelCoverage`).
        nodes, pods: rows of `pipelines.transform.lifetimes.node_lives` and `pod_lives`.
        sharing, workloads: rows of `Sharing` and `WorkloadTelemetry`.
        dimensions: the label schema.
        coverage_target_percent: target of label coverage.
    """
    return pl.concat(
        [
            _clips(holdings),
            _telemetry_only(holdings),
            _unknown_devices(holdings),
            _slots(devices),
            _over_capacity(devices),
            _strange_hosts(devices, nodes),
            impossible_times(pods),
            mixed_replicas(sharing, devices),
            device_figures(workloads, occupancy),
            _telemetry_gaps(occupancy),
            _label_gaps(coverage, dimensions, coverage_target_percent),
        ]
    )


def _clips(holdings: pl.LazyFrame) -> pl.LazyFrame:
    reason = (
        pl.when(pl.col("clip_reason") == "overlap")
        .then(pl.lit("another pod held the same device"))
        .otherwise(pl.lit("its device was not owned on that node then"))
    )
    return holdings.filter(pl.col("clipped_ms") > 0).select(
        code=pl.lit("clip"),
        subject=pl.col("hold_id"),
        message=pl.format(
            "{}/{} on node {}: {} ms of the hold were cut because {}.", "namespace", "pod", "node", "clipped_ms", reason
        ),
        affected="clipped_ms",
    )


def _telemetry_only(holdings: pl.LazyFrame) -> pl.LazyFrame:
    return (
        holdings.filter(pl.col("evidence") == "telemetry")
        .group_by("namespace", "pod")
        .agg(affected=pl.col("hold_id").n_unique().cast(pl.Int64))
        .select(
            code=pl.lit("telemetry_only"),
            subject=pl.format("{}/{}", "namespace", "pod"),
            message=pl.format(
                "{}/{}: only DCGM labels show this pod, so its hold runs from its first to its last sample.",
                "namespace",
                "pod",
            ),
            affected="affected",
        )
    )


def _unknown_devices(holdings: pl.LazyFrame) -> pl.LazyFrame:
    return (
        holdings.filter(pl.col("device_id").is_null())
        .group_by("node")
        .agg(affected=pl.col("hold_id").n_unique().cast(pl.Int64))
        .select(
            code=pl.lit("unknown_device"),
            subject="node",
            message=pl.format(
                "node {}: {} holds whose device cannot be told; they reconcile per node and model.", "node", "affected"
            ),
            affected="affected",
        )
    )


def _slots(devices: pl.LazyFrame) -> pl.LazyFrame:
    return (
        devices.filter(~pl.col("has_uuid"))
        .group_by("node")
        .agg(affected=pl.col("device_id").n_unique().cast(pl.Int64))
        .select(
            code=pl.lit("unseen_devices"),
            subject="node",
            message=pl.format(
                "node {}: {} of its GPUs are in no DCGM series (exporter down?); they are owned all the same.",
                "node",
                "affected",
            ),
            affected="affected",
        )
    )


def _over_capacity(devices: pl.LazyFrame) -> pl.LazyFrame:
    return (
        devices.filter(pl.col("has_uuid"))
        .group_by("node", "hour")
        .agg(pl.col("owned_ms").sum(), pl.col("node_capacity").max())
        .filter(pl.col("owned_ms") > pl.col("node_capacity") * 3_600_000)
        .group_by("node")
        .agg(pl.col("node_capacity").max(), affected=pl.len().cast(pl.Int64))
        .select(
            code=pl.lit("over_capacity"),
            subject="node",
            message=pl.format(
                "node {}: DCGM shows more devices at once than the {} that the node reports, in {} hours.",
                "node",
                "node_capacity",
                "affected",
            ),
            affected="affected",
        )
    )


def _strange_hosts(devices: pl.LazyFrame, nodes: pl.LazyFrame) -> pl.LazyFrame:
    """Hosts of the exporter that the inventory does not know, while it knows nodes that no series shows."""
    shown = devices.filter(pl.col("has_uuid")).select("node").unique()
    strange = shown.join(nodes.select("node").unique(), on="node", how="anti")
    unseen = devices.filter(~pl.col("has_uuid")).select(dark=pl.col("node").n_unique().cast(pl.Int64))
    return (
        strange.join(unseen, how="cross")
        .filter(pl.col("dark") > 0)
        .select(
            code=pl.lit("strange_host"),
            subject="node",
            message=pl.format(
                "DCGM host {} is no node of the inventory, and {} nodes have GPUs that no series shows: if these are "
                "the same machines, they are owned twice; give the series a `node` label.",
                "node",
                "dark",
            ),
            affected="dark",
        )
    )


def mixed_replicas(sharing: pl.LazyFrame, devices: pl.LazyFrame) -> pl.LazyFrame:
    """Pools whose nodes share their devices in different numbers of parts: no one price for a replica fits both."""
    pools = devices.filter(pl.col("node_pool").is_not_null()).select("node", "node_pool").unique()
    return (
        sharing.join(pools, on="node")
        .group_by("node_pool")
        .agg(counts=pl.col("replicas").unique().sort(), affected=pl.col("node").n_unique().cast(pl.Int64))
        .filter(pl.col("counts").list.len() > 1)
        .select(
            code=pl.lit("mixed_replicas"),
            subject="node_pool",
            message=pl.format(
                "node pool {}: its nodes share their GPUs in {} parts; a replica is not the same on all of them.",
                "node_pool",
                pl.col("counts").cast(pl.List(pl.String)).list.join(" and "),
            ),
            affected="affected",
        )
    )


def device_figures(workloads: pl.LazyFrame, occupancy: pl.LazyFrame) -> pl.LazyFrame:
    """Shared devices whose own figures stand under the names of pods: shown by the exporter, told by no line."""
    named = workloads.filter((pl.col("metric") == "gpu_util") & (pl.col("replica") != ""))
    proven = occupancy.filter(pl.col("attribution_scope") == "process").select(device_id="group_id").unique()
    return (
        named.join(proven, on="device_id", how="anti")
        .group_by("node")
        .agg(affected=pl.col("device_id").n_unique().cast(pl.Int64))
        .select(
            code=pl.lit("device_figures"),
            subject="node",
            message=pl.format(
                "node {}: {} shared GPUs show their own figures, or none, under the names of pods; no pod's line has "
                "them. Own figures want dcgm-exporter 4.5.3-4.8.2 or later with hostPID.",
                "node",
                "affected",
            ),
            affected="affected",
        )
    )


def impossible_times(pods: pl.LazyFrame) -> pl.LazyFrame:
    """Pods that ended before they were scheduled, by what they say of themselves: they hold no time."""
    return pods.filter(pl.col("hold_end") < pl.col("hold_start")).select(
        code=pl.lit("impossible_times"),
        subject=pl.col("pod_uid"),
        message=pl.format(
            "{}/{} on node {}: scheduled at {} and ended at {}, before that; it is billed for no time. Are the clocks "
            "of the cluster right?",
            *("namespace", "pod", "node"),
            *(pl.col(name).dt.strftime("%Y-%m-%d %H:%M:%S UTC") for name in ("hold_start", "hold_end")),
        ),
        affected=(pl.col("hold_start") - pl.col("hold_end")).dt.total_milliseconds(),
    )


def _telemetry_gaps(occupancy: pl.LazyFrame) -> pl.LazyFrame:
    below = (pl.col("coverage") * 100 < COVERAGE_TARGET_PERCENT).fill_null(False)
    return (
        occupancy.filter(pl.col("charge_kind") == "held")
        .select(affected=below.sum().cast(pl.Int64), lines=pl.len())
        .filter(pl.col("affected") > 0)
        .select(
            code=pl.lit("telemetry_coverage"),
            subject=pl.lit("held lines"),
            message=pl.format(
                "{} of {} held lines were measured for less than "
                + f"{COVERAGE_TARGET_PERCENT} % of their time; their "
                "hours are billed, their occupancy is incomplete.",
                "affected",
                "lines",
            ),
            affected="affected",
        )
    )


def _label_gaps(coverage: pl.LazyFrame, dimensions: Sequence[Dimension], target_percent: int) -> pl.LazyFrame:
    required = [dimension.key for dimension in dimensions if dimension.required]
    valid = ~pl.col("label_source").is_in(["missing", "invalid"])
    return (
        coverage.filter(pl.col("dimension").is_in(required))
        .group_by("dimension")
        .agg(
            valid=pl.col("gpu_hours").filter(valid).sum().cast(pl.Decimal(38, 12)),
            held=pl.col("held_gpu_hours").max().cast(pl.Decimal(38, 12)),
            affected=valid.not_().sum().cast(pl.Int64),
        )
        .filter(pl.col("valid") * 100 < pl.col("held") * target_percent)
        .select(
            code=pl.lit("label_coverage"),
            subject="dimension",
            message=pl.format(
                "label {}: {} of {} held GPU-hours carry a valid value; the target is " + f"{target_percent} %.",
                "dimension",
                "valid",
                "held",
            ),
            affected="affected",
        )
    )
