"""Two exclusive holds on one device at one time: a short overlap is clipped and told, a long one is left to the group.

Stale labels and force deletes make two pods seem to hold one device for seconds. Longer overlaps mean that nobody knows
who held it: the device becomes null for those hours, so that they reconcile per node and model (ACCOUNTING 2).
"""

import polars as pl

from pipelines.transform.intervals import computed, per_hour

# Scrapes are 30 s apart unless measured; what an inventory cannot see between two readings is its own interval.
_LEAST_DOUBT_MS = 30_000
_BY_START = ["held_from", "held_to", "hold_id"]


def without_overlaps(held: pl.LazyFrame) -> pl.LazyFrame:
    """Clip short overlaps of exclusive holds on one device; give up the device where the overlap is long.

    Args:
        held: device_id, held_from, held_to, hold_id, end_known, end_interval_ms, clipped_ms, clip_reason and the rest.

    Returns:
        The same less end_known and end_interval_ms; contested holds come in hourly pieces with `device_id` null.
    """
    known = held.filter(pl.col("device_id").is_not_null())
    next_from = pl.col("held_from").shift(-1).over("device_id", order_by=_BY_START)
    doubt_ms = (
        pl.when("end_known")
        .then(_LEAST_DOUBT_MS)
        .otherwise(pl.max_horizontal(pl.col("end_interval_ms").fill_null(_LEAST_DOUBT_MS), _LEAST_DOUBT_MS))
    )
    overlap_ms = (pl.col("held_to") - next_from).dt.total_milliseconds()
    clipped = (
        known.with_columns(_next=next_from, _overlap_ms=overlap_ms)
        .with_columns(_short=(pl.col("_overlap_ms") > 0) & (pl.col("_overlap_ms") < 2 * doubt_ms))
        .with_columns(
            held_to=pl.when("_short").then(pl.max_horizontal("_next", "held_from")).otherwise("held_to"),
            clipped_ms=pl.col("clipped_ms") + pl.when("_short").then("_overlap_ms").otherwise(0),
            clip_reason=pl.when("_short").then(pl.lit("overlap")).otherwise("clip_reason"),
        )
        .drop("_next", "_overlap_ms", "_short")
    )
    clipped = computed(clipped)
    contested = computed(_contested_hours(clipped))
    pieces = per_hour(
        clipped.join(contested.select("device_id").unique(), on="device_id", how="semi"),
        start="held_from",
        end="held_to",
    ).join(contested, on=["device_id", "hour"], how="left")
    settled = clipped.join(contested.select("device_id").unique(), on="device_id", how="anti")
    given_up = pieces.with_columns(
        device_id=pl.when(pl.col("contested").is_null()).then("device_id"),
        device_evidence=pl.when(pl.col("contested").is_null()).then("device_evidence"),
    ).drop("hour", "contested")
    return pl.concat([settled, given_up, held.filter(pl.col("device_id").is_null())], how="diagonal").drop(
        "end_known", "end_interval_ms"
    )


def _contested_hours(clipped: pl.LazyFrame) -> pl.LazyFrame:
    """Hours of a device in which two holds still overlap."""
    earlier_to = pl.col("held_to").cum_max().shift(1).over("device_id", order_by=_BY_START)
    overlapping = (
        clipped.with_columns(_earlier_to=earlier_to)
        .filter(pl.col("_earlier_to") > pl.col("held_from"))
        .select("device_id", held_from="held_from", held_to=pl.min_horizontal("held_to", "_earlier_to"))
    )
    return (
        per_hour(overlapping, start="held_from", end="held_to")
        .select("device_id", "hour", contested=pl.lit(True))
        .unique()
    )
