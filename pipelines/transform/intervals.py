"""Half-open intervals in columns: join what a gap does not part, cut at the hour, keep inside a window."""

from collections.abc import Sequence

import polars as pl


def computed(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The frame worked out once: for a step that several later ones read, whose plan would else be carried by each."""
    return frame.collect().lazy()


def merged(intervals: pl.LazyFrame, *, by: Sequence[str], start: str, end: str, bridge_ms: int = 0) -> pl.LazyFrame:
    """Join intervals of one key that overlap, touch, or lie at most `bridge_ms` apart.

    Returns:
        One row per joined interval: the key columns, `start`, `end`.
    """
    keys = list(by)
    reach = pl.col(end).dt.offset_by(f"{bridge_ms}ms")
    return (
        # Of intervals that start together the longest stands for all: telemetry has one per metric.
        intervals.group_by(*keys, start)
        .agg(pl.col(end).max())
        .sort(*keys, start)
        .with_columns(_reach=reach.cum_max().shift(1).over(keys))
        .with_columns(_run=(pl.col(start) > pl.col("_reach")).fill_null(False).cum_sum().over(keys))
        .group_by(*keys, "_run")
        .agg(pl.col(start).min(), pl.col(end).max())
        .drop("_run")
    )


def per_hour(intervals: pl.LazyFrame, *, start: str, end: str) -> pl.LazyFrame:
    """Cut intervals at full hours; adds `hour`, the start of the hour that each piece lies in."""
    hours = pl.datetime_ranges(
        pl.col(start).dt.truncate("1h"),
        (pl.col(end).dt.offset_by("-1ms")).dt.truncate("1h"),
        interval="1h",
        time_unit="ms",
        time_zone="UTC",
    )
    return (
        intervals.filter(pl.col(end) > pl.col(start))
        .with_columns(hour=hours)
        .explode("hour")
        .with_columns(
            pl.max_horizontal(start, "hour").alias(start),
            pl.min_horizontal(end, pl.col("hour").dt.offset_by("1h")).alias(end),
        )
    )


def previous(column: str, *, within: str) -> pl.Expr:
    """The column in the row before, of the same group; null in a group's first row. Rows are sorted by `within` first.

    The same as a shift over the group, at a tenth of its time.
    """
    return pl.when(pl.col(within) == pl.col(within).shift(1)).then(pl.col(column).shift(1))


def following(column: str, *, within: str) -> pl.Expr:
    """The column in the row after, of the same group; null in a group's last row. Rows are sorted by `within` first."""
    return pl.when(pl.col(within) == pl.col(within).shift(-1)).then(pl.col(column).shift(-1))


def duration_ms(start: str, end: str) -> pl.Expr:
    """Length of an interval in whole milliseconds."""
    return (pl.col(end) - pl.col(start)).dt.total_milliseconds()
