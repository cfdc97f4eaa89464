"""During which times a source saw one sharing configuration of a node, whichever the source."""

import polars as pl

# Resources of the device plugin that may stand for shares of a device; `.shared` where it renames them.
SHAREABLE = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
SHARING = ("product", "sharing_strategy", "replicas", "mig_strategy")


def sharing_periods(described: pl.DataFrame, capacity: pl.DataFrame, *, key: list[str]) -> pl.DataFrame:
    """Times of one sharing configuration, with the capacity that was seen for longest meanwhile.

    Args:
        described: key, first_at, last_at, labels and the columns of SHARING, in pieces.
        capacity: key, resource, first_at, last_at, capacity, in pieces.

    Returns:
        key, resource, first_seen_at, last_seen_at, capacity, labels and the columns of SHARING.
    """
    periods = (
        described.sort(*key, "first_at", "last_at", "labels")
        .with_columns(_period=pl.struct(*key, *SHARING).rle_id())
        .group_by("_period", *key)
        .agg(
            pl.col(*SHARING, "labels").last(),
            first_seen_at=pl.col("first_at").min(),
            last_seen_at=pl.col("last_at").max(),
        )
    )
    overlap = pl.min_horizontal("last_at", "last_seen_at") - pl.max_horizontal("first_at", "first_seen_at")
    return (
        periods.join(capacity, on=key)
        .with_columns(_overlap=overlap)
        .filter(pl.col("_overlap") >= pl.duration(milliseconds=0))
        .group_by("_period", *key, *SHARING, "labels", "first_seen_at", "last_seen_at", "resource", "capacity")
        .agg(pl.col("_overlap").sum())
        .sort("_period", "resource", "_overlap", "capacity")
        .group_by("_period", "resource", maintain_order=True)
        .last()
        .drop("_period", "_overlap")
    )
