"""Exact quantities: whole units of 1e-12 GPU-hour, fitted to a total by largest remainder.

The one mechanism of ACCOUNTING 4: device-hours are rounded here, segments are fitted to the device-hour, lines to their
segment. Everything is Int64 arithmetic; decimals appear only when a finished number of units is stored.
"""

from collections.abc import Sequence
from decimal import Decimal

import polars as pl

UNITS_PER_GPU_HOUR = 10**12
# ms x share -> units is x 10**12 / 3,600,000 = x 2,500,000 / 9: small enough that a thousand GPUs fit into Int64.
_UNITS_NUMERATOR = 2_500_000
_UNITS_DENOMINATOR = 9
# Two fractions a/b > c/d differ by at least 1/(b x d); scaled by more than b x d their floors differ too. Denominators
# here are 9 x (share denominator), so 10**9 orders fractions of shares down to 1/3,500 of a device without a float.
_FRACTION_SCALE = 10**9

# Who takes a residue unit first where fractions are equal (ACCOUNTING 4).
KIND_ORDER = {"idle": 0, "stranded": 1, "unattributed": 2, "held_unused": 3, "held": 4}


def rounded_units(ms: pl.Expr) -> pl.Expr:
    """Whole milliseconds of one device -> units of 1e-12 GPU-hour, half-even (an odd denominator: no ties arise)."""
    scaled = ms * _UNITS_NUMERATOR
    return scaled // _UNITS_DENOMINATOR + (scaled % _UNITS_DENOMINATOR > _UNITS_DENOMINATOR // 2).cast(pl.Int64)


def fitted_units(
    frame: pl.LazyFrame,
    *,
    ms: str,
    total_units: str,
    within: Sequence[str],
    order: Sequence[str],
    share_num: str | None = None,
    share_den: str | None = None,
) -> pl.LazyFrame:
    """Add the column `units`: each row's exact value fitted so that every group `within` sums to its `total_units`.

    Floor at 12 places; the residue units go by descending fraction, then by `order` (ascending). A row whose exact
    value is 0 receives nothing. In a group of several devices the total is a sum of rounded device-hours, so its
    residue may be negative or exceed the number of rows: then every row first takes an equal part of it.

    Args:
        frame: rows with Int64 `ms` (and shares), and `total_units`, constant within a group.
        ms, total_units, share_num, share_den: column names; no shares means whole devices.
        within: columns of the group.
        order: columns that decide between equal fractions.
    """
    numerator = pl.col(ms) * _UNITS_NUMERATOR
    denominator: pl.Expr = pl.lit(_UNITS_DENOMINATOR, dtype=pl.Int64)
    if share_num is not None and share_den is not None:
        numerator = numerator * pl.col(share_num)
        denominator = denominator * pl.col(share_den)
    group = list(within)
    return (
        frame.with_columns(
            _floor=numerator // denominator, _fraction=numerator % denominator * _FRACTION_SCALE // denominator
        )
        .with_columns(_takes=(pl.col(ms) != 0).cast(pl.Int64))
        .sort(
            [*group, "_takes", "_fraction", *order],
            descending=[*([False] * len(group)), True, True, *([False] * len(order))],
        )
        # Sorted groups are numbered: windows over a number are several times faster than over text and instants.
        .with_columns(_row=pl.int_range(pl.len(), dtype=pl.Int64), _group=_number_of_run(group))
        .with_columns(
            _residue=pl.col(total_units) - pl.col("_floor").sum().over("_group"),
            _takers=pl.col("_takes").sum().over("_group"),
            _rank=pl.col("_row") - pl.col("_row").min().over("_group"),
        )
        .with_columns(
            units=pl.col("_floor")
            + pl.when(pl.col("_takes") == 1)
            .then(
                pl.col("_residue") // pl.col("_takers")
                + (pl.col("_rank") < pl.col("_residue") % pl.col("_takers")).cast(pl.Int64)
            )
            .otherwise(0)
        )
        .drop("_floor", "_fraction", "_takes", "_row", "_group", "_residue", "_takers", "_rank")
    )


def _number_of_run(columns: Sequence[str]) -> pl.Expr:
    """0, 1, 2, … for each run of rows alike in `columns`, of rows sorted by them."""
    differs = [pl.col(column).ne_missing(pl.col(column).shift(1)) for column in columns]
    return pl.any_horizontal(differs).cum_sum()


def gpu_hours(units: pl.Expr) -> pl.Expr:
    """Units of 1e-12 GPU-hour (Int64) -> DECIMAL(18,12), exact."""
    one = pl.lit(Decimal("0.000000000001"), dtype=pl.Decimal(38, 12))
    return (units.cast(pl.Decimal(38, 12)) * one).cast(pl.Decimal(18, 12))
