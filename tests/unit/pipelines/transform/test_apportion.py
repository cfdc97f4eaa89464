from decimal import Decimal
from fractions import Fraction

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.transform.apportion import UNITS_PER_GPU_HOUR, fitted_units, gpu_hours, rounded_units


def fit(rows: list[tuple[str, int, int, int]], total: int) -> dict[str, int]:
    frame = pl.LazyFrame(rows, schema=["key", "ms", "num", "den"], orient="row").with_columns(
        group=pl.lit("g"), total=pl.lit(total, dtype=pl.Int64)
    )
    fitted = fitted_units(
        frame, ms="ms", total_units="total", within=["group"], order=["key"], share_num="num", share_den="den"
    )
    return dict(fitted.select("key", "units").collect().rows())


def test_device_hours_are_rounded_half_even() -> None:
    ms = pl.DataFrame({"ms": [3_600_000, 2_505_000, 1_200_000, 2_400_000]})
    told = ms.select(q=gpu_hours(rounded_units(pl.col("ms"))))["q"].to_list()
    assert told == [Decimal(1), Decimal("0.695833333333"), Decimal("0.333333333333"), Decimal("0.666666666667")]


def test_seven_instances_of_one_card() -> None:
    told = fit([(f"k{i}", 3_600_000, 1, 7) for i in range(7)], UNITS_PER_GPU_HOUR)
    assert sorted(told.values()) == [142857142857] * 6 + [142857142858]
    assert told["k0"] == 142857142858


def test_a_line_of_nothing_receives_nothing() -> None:
    assert fit([("a", 0, 1, 1), ("b", 1_200_000, 1, 1)], 333333333334) == {"a": 0, "b": 333333333334}


def test_a_negative_residue_of_a_group_is_spread() -> None:
    told = fit([("a", 2_400_001, 1, 1), ("b", 2_400_001, 1, 1), ("c", 2_400_001, 1, 1)], 3 * 666666944444 - 2)
    assert sum(told.values()) == 3 * 666666944444 - 2
    assert max(told.values()) - min(told.values()) == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3_600_000), st.integers(1, 7), st.sampled_from([1, 4, 7, 8, 14, 48])),
        min_size=1,
        max_size=20,
    )
)
def test_lines_sum_exactly_and_stay_within_a_unit(parts: list[tuple[int, int, int]]) -> None:
    exact = [Fraction(ms * num, den) * UNITS_PER_GPU_HOUR / 3_600_000 for ms, num, den in parts]
    total = round(sum(exact))
    told = fit([(f"{i:02d}", ms, num, den) for i, (ms, num, den) in enumerate(parts)], total)
    assert sum(told.values()) == total
    assert all(abs(told[f"{i:02d}"] - value) <= 1 for i, value in enumerate(exact)) or len(parts) == 1
    # Whoever got more than its floor had no smaller fraction than whoever did not.
    ordered = [(value - value.__floor__(), told[f"{i:02d}"] - value.__floor__()) for i, value in enumerate(exact)]
    got = [fraction for fraction, extra in ordered if extra == 1]
    not_got = [fraction for fraction, extra in ordered if extra == 0]
    assert not got or not not_got or min(got) >= max(not_got)
