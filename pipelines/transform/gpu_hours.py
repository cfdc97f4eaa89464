"""The ledger: hours of every owned device cut into segments, and every segment into lines that sum to it exactly.

Takes devices and holdings; gives the held and idle lines of `schemas.tables.GpuHours` without their labels. A segment
is an owned stretch of one device inside one hour, cut further wherever a rate or the node's way of sharing starts or
ends. A hold takes its share of the segment; idle is the exact rest, a fraction of a millisecond where need be. Where a
holder's device is unknown in an hour, all devices of that node and model are one reconciliation group for that hour
(ACCOUNTING 2). Prices are not known here, only the instants at which they change; labels come in `labels`, money in
`charges`.
"""

import polars as pl

from pipelines.transform.apportion import KIND_ORDER, fitted_units, gpu_hours, rounded_units
from pipelines.transform.intervals import computed, following
from pipelines.transform.model_names import model_key
from pipelines.transform.sharing import EXCLUSIVE


def ledger(
    devices: pl.LazyFrame, holdings: pl.LazyFrame, sharing: pl.LazyFrame, price_changes: pl.LazyFrame
) -> pl.LazyFrame:
    """Held and idle lines of every owned device-hour.

    Args:
        devices: rows of `Devices`.
        holdings: rows of `Holdings`.
        sharing: rows of `Sharing`.
        price_changes: `model_key`, `at`: instants at which a model's price may change; they cut segments.

    Returns:
        Rows of `GpuHours` less `dimensions` and `label_sources`. Per group and segment the quantities sum to the owned
        GPU-hours exactly. An idle line is negative where holders hold more than is owned: a check stops that day.
    """
    pieces = computed(_grouped_pieces(devices, holdings))
    segments = _device_segments(pieces, sharing, price_changes)
    group_segments = computed(_group_segments(segments))
    held = computed(_held_lines(holdings, group_segments))
    lines = pl.concat([held, _idle_lines(group_segments, held)], how="diagonal")
    return (
        lines.with_columns(kind_rank=pl.col("charge_kind").replace_strict(KIND_ORDER, return_dtype=pl.Int64))
        .pipe(
            fitted_units,
            ms="exact_ms",
            total_units="segment_units",
            within=("group_id", "segment_from"),
            order=("kind_rank", "line_key"),
            share_num="exact_num",
            share_den="exact_den",
        )
        .filter(pl.col("exact_ms") != 0)
        .with_columns(gpu_hours=gpu_hours(pl.col("units")))
        .drop("kind_rank", "units", "segment_units", "owned_ms", "exact_ms", "exact_num", "exact_den")
    )


def _grouped_pieces(devices: pl.LazyFrame, holdings: pl.LazyFrame) -> pl.LazyFrame:
    """Owned pieces with their reconciliation group: the device, or node and model if a holder's device is unknown."""
    unknown = (
        _by_hour(holdings.filter(pl.col("device_id").is_null()))
        .select("node", "hour", model_key=model_key(pl.col("model")), shared_group=pl.lit(True))
        .unique()
    )
    return (
        devices.with_columns(model_key=model_key(pl.col("model")))
        .join(unknown, on=["node", "hour", "model_key"], how="left")
        .with_columns(
            group_id=pl.when(pl.col("shared_group"))
            .then(pl.format("{}/{}", "node", "model_key"))
            .otherwise("device_id"),
            group_device=pl.when(pl.col("shared_group").is_null()).then("device_id"),
        )
        .drop("shared_group")
    )


def _device_segments(pieces: pl.LazyFrame, sharing: pl.LazyFrame, price_changes: pl.LazyFrame) -> pl.LazyFrame:
    """Pieces cut where prices and sharing change and, in a group, at every boundary in it; with mode and units."""
    # Hours of a group are numbered, to cut and join by a number.
    hours = computed(pieces.select("group_id", "hour").unique().with_row_index("group_hour"))
    numbered = computed(pieces.join(hours, on=["group_id", "hour"]))
    price_cuts = (
        numbered.select("group_hour", "model_key", "owned_from", "owned_to")
        .join(price_changes, on="model_key", how="inner")
        .filter((pl.col("at") > pl.col("owned_from")) & (pl.col("at") < pl.col("owned_to")))
        .select("group_hour", "at")
    )
    mode_cuts = (
        numbered.select("group_hour", "node", "owned_from", "owned_to")
        .join(sharing.select("node", at="shared_from"), on="node", how="inner")
        .filter((pl.col("at") > pl.col("owned_from")) & (pl.col("at") < pl.col("owned_to")))
        .select("group_hour", "at")
    )
    boundaries = pl.concat(
        [
            numbered.select("group_hour", at="owned_from"),
            numbered.select("group_hour", at="owned_to"),
            price_cuts,
            mode_cuts,
        ]
    ).unique()
    stretches = (
        boundaries.sort("group_hour", "at")
        .with_columns(segment_to=following("at", within="group_hour"))
        .filter(pl.col("segment_to").is_not_null())
        .rename({"at": "segment_from"})
    )
    modes = sharing.select("node", "sharing_mode", "replicas", segment_from="shared_from").sort("segment_from")
    return (
        numbered.join(stretches, on="group_hour", how="inner")
        .drop("group_hour")
        .sort("segment_from")
        .join_asof(modes, on="segment_from", by="node", strategy="backward", check_sortedness=False)
        # A node that no inventory shows has no sharing that could be known.
        .with_columns(pl.col("sharing_mode").fill_null(EXCLUSIVE), pl.col("replicas").fill_null(1))
        .filter((pl.col("segment_from") >= pl.col("owned_from")) & (pl.col("segment_to") <= pl.col("owned_to")))
        .with_columns(owned_ms=(pl.col("segment_to") - pl.col("segment_from")).dt.total_milliseconds())
        .with_columns(device_hour_units=rounded_units(pl.col("owned_ms").sum().over("device_id", "hour")))
        .pipe(
            fitted_units,
            ms="owned_ms",
            total_units="device_hour_units",
            within=("device_id", "hour"),
            order=("segment_from",),
        )
    )


def _group_segments(segments: pl.LazyFrame) -> pl.LazyFrame:
    """One row per group and segment: what is owned there, in milliseconds and in units."""
    return segments.group_by("group_id", "segment_from").agg(
        pl.col("segment_to", "hour", "node", "node_pool", "zone").first(),
        pl.col("cluster", "date").first(),
        # A group holds spellings of one model; the least makes the choice independent of order.
        pl.col("model").min(),
        pl.col("group_device").first(),
        pl.col("evidence").min(),
        pl.col("sharing_mode", "replicas").first(),
        pl.col("owned_ms").sum(),
        segment_units=pl.col("units").sum(),
    )


def _held_lines(holdings: pl.LazyFrame, group_segments: pl.LazyFrame) -> pl.LazyFrame:
    """One line per hold and segment, with the exact milliseconds held."""
    by_hour = _by_hour(holdings).with_columns(model_key=model_key(pl.col("model")))
    segment_keys = group_segments.with_columns(model_key=model_key(pl.col("model")))
    on_device = by_hour.join(
        segment_keys.filter(pl.col("group_device").is_not_null()),
        left_on=["device_id", "node", "hour"],
        right_on=["group_device", "node", "hour"],
        how="inner",
        suffix="_segment",
    )
    on_group = by_hour.join(
        segment_keys.filter(pl.col("group_device").is_null()),
        on=["node", "model_key", "hour"],
        how="inner",
        suffix="_segment",
    ).drop("group_device")
    overlap = (
        pl.min_horizontal("held_to", "segment_to") - pl.max_horizontal("held_from", "segment_from")
    ).dt.total_milliseconds()
    return (
        pl.concat([on_device, on_group], how="diagonal")
        .with_columns(line_ms=overlap)
        .filter(pl.col("line_ms") > 0)
        # A hold that was cut in pieces is one line of its segment; its pieces differ in their times only.
        .with_columns(line_ms=pl.col("line_ms").sum().over("group_id", "segment_from", "hold_id"))
        .filter(pl.struct("group_id", "segment_from", "hold_id").is_first_distinct())
        .select(
            *("group_id", "segment_from", "hold_id", "line_ms", "replicas"),
            *("cluster", "date", "segment_to", "hour", "segment_units", "owned_ms", "node", "node_pool", "zone"),
            *("device_id", "share_num", "share_den", "sharing_mode", "hold_start", "hold_end"),
            *("namespace", "pod", "pod_uid", "owner_kind", "owner_name", "evidence"),
            exact_ms="line_ms",
            exact_num="share_num",
            exact_den="share_den",
            model="model_segment",
            charge_kind=pl.lit("held"),
            line_key=pl.col("hold_id"),
        )
    )


def _idle_lines(group_segments: pl.LazyFrame, held: pl.LazyFrame) -> pl.LazyFrame:
    """What is owned and nobody holds: from capacity, never from a series without a pod."""
    segment = ["group_id", "segment_from"]
    # Over the product of the holds' denominators every share is whole; a segment has one or two of them.
    common = held.group_by(segment).agg(common_den=pl.col("share_den").unique().product())
    parts = pl.col("line_ms") * pl.col("share_num") * (pl.col("common_den") // pl.col("share_den"))
    taken = (
        held.join(common, on=segment)
        .group_by(segment)
        .agg(pl.col("common_den").first(), held_parts=parts.sum())
        .rename({"common_den": "exact_den"})
    )
    return (
        group_segments.join(taken, on=segment, how="left")
        .with_columns(pl.col("exact_den").fill_null(1))
        .with_columns(exact_ms=pl.col("owned_ms") * pl.col("exact_den") - pl.col("held_parts").fill_null(0))
        .with_columns(
            charge_kind=pl.lit("idle"),
            line_key=pl.col("group_id"),
            line_ms=pl.col("exact_ms") // pl.col("exact_den"),
            exact_num=pl.lit(1, dtype=pl.Int64),
            share_num=pl.lit(1, dtype=pl.Int64),
            share_den=pl.lit(1, dtype=pl.Int64),
        )
        .rename({"group_device": "device_id"})
        .drop("held_parts")
    )


def _by_hour(holdings: pl.LazyFrame) -> pl.LazyFrame:
    """Holdings once per hour that they touch."""
    last = (pl.col("held_to") - pl.duration(milliseconds=1)).dt.truncate("1h")
    return holdings.with_columns(
        hour=pl.datetime_ranges(
            pl.col("held_from").dt.truncate("1h"), last, interval="1h", time_unit="ms", time_zone="UTC"
        )
    ).explode("hour")
