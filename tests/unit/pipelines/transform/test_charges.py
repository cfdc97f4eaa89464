import datetime as dt
from decimal import Decimal

import polars as pl
import pytest

from pipelines.transform.charges import Rate
from pipelines.transform.model_names import model_key
from schemas.errors import MissingPrice
from tests.unit.pipelines.transform.evidence import at, day, node, pod, series

BEFORE = at("00:00") - dt.timedelta(days=30)
H100 = "nvidia-h100-80gb-hbm3"


def rate(price: str, start: dt.datetime = BEFORE, end: dt.datetime | None = None) -> Rate:
    return Rate(H100, Decimal(price), Decimal(price), "Standard", start, end, f"r-{price}")


def test_a_model_without_a_price_names_the_row_to_add() -> None:
    with pytest.raises(MissingPrice, match=r"no price in force for model 'NVIDIA L4' \(node a\).*contracted: PRICE"):
        day([node("a", 1)], [], series("GPU-x", "a", model="NVIDIA L4"), rates=[rate("5.191")])


def test_a_price_that_starts_too_late_is_no_price() -> None:
    with pytest.raises(MissingPrice, match="at 2026-03-02 00:00 UTC"):
        day([node("a", 1)], [], series("GPU-x", "a"), rates=[rate("5.191", at("06:00"))])


def test_case_19_a_price_that_changes_inside_an_hour_cuts_it() -> None:
    rates = [rate("5.191", end=at("12:20")), rate("4.8", at("12:20"))]
    told = day([node("a", 1)], [pod("p", "a", scheduled="12:10")], series("GPU-x", "a"), rates=rates)
    lines = (
        told.charges.filter(pl.col("hour") == at("12:00"))
        .sort("segment_from", "charge_kind")
        .select("segment_from", "charge_kind", "gpu_hours", "rate_id")
    )
    assert lines.rows() == [
        (at("12:00"), "held", Decimal("0.166666666666"), "r-5.191"),
        (at("12:00"), "idle", Decimal("0.166666666667"), "r-5.191"),
        (at("12:20"), "held", Decimal("0.666666666667"), "r-4.8"),
    ]
    assert told.cost() == Decimal("4.930333333333203")


def test_every_spelling_of_a_model_is_one() -> None:
    spellings = [
        "NVIDIA H100 80GB HBM3",
        "NVIDIA-H100-80GB-HBM3-SHARED",
        "nvidia_h100_80gb_hbm3",
        "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb",
    ]
    assert pl.Series("m", spellings).to_frame().select(k=model_key(pl.col("m")))["k"].unique().to_list() == [H100]
