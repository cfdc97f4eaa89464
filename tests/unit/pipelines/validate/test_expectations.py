"""A good small day passes every check; the same day, hurt in one way each, fails the check that is there for it."""

import dataclasses
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from pipelines.load.lake import Lake
from pipelines.transform.focus import focus_rows
from pipelines.validate.expectations import CheckOutcome, validate_facts, validate_focus
from schemas.config import Config
from schemas.focus import cost_and_usage, row_order
from schemas.tables import TABLES
from tests.unit.pipelines.transform.evidence import DAY, day, node, pod, series

CONFIG = Config.model_validate(
    {
        "clusters": [{"name": "c", "prometheus": {"url": "http://p:9090"}}],
        "labels": {"prefix": "acme.dev", "dimensions": [{"key": "tenant"}]},
        "rates": [{"model": "NVIDIA H100 80GB HBM3", "contracted": "5.191", "from": "2026-01-01"}],
    }
)
FACTS = ("devices", "holdings", "gpu_hours", "charges", "occupancy")
UNIT = pl.lit(Decimal("0.000000000001"), dtype=pl.Decimal(18, 12))
Hurt = Callable[[pl.DataFrame], pl.DataFrame]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet of a day's facts and FOCUS rows: two GPUs, two holders, 20 minutes among their holds."""
    told = day(
        [node("a", 2)],
        [pod("p", "a", scheduled="12:10", finished="12:30"), pod("q", "a", scheduled="03:00")],
        series("GPU-0", "a", value=500_000) + series("GPU-1", "a"),
        series("GPU-0", "a", "12:10", "12:30", pod="p") + series("GPU-1", "a", "03:00", "24:00", pod="q"),
    )
    lake = Lake(tmp_path_factory.mktemp("good"))
    frames = dataclasses.asdict(told) | {"gpu_hours": told.lines}
    for name in FACTS:
        lake.write(TABLES[name], frames[name], "c", DAY, candidate=False)
    rows = focus_rows(told.charges.lazy(), told.occupancy.lazy(), config=CONFIG, cluster=CONFIG.clusters[0])
    lake.write_focus_candidate(rows.collect(), cost_and_usage(["tenant"]), "c", DAY, row_order())
    return lake.root


def judged(root: Path, folder: Path, table: str = "", hurt: Hurt | None = None) -> list[CheckOutcome]:
    """Outcomes of both suites, one table of the day hurt."""
    lake = Lake(root)
    paths = {name: lake.path(name, "c", DAY) for name in FACTS}
    paths["focus"] = lake.candidate_path("focus/cost_and_usage", "c", DAY)
    if hurt is not None:
        changed = folder / f"{table}.parquet"
        hurt(pl.read_parquet(paths[table], hive_partitioning=False)).write_parquet(changed)
        paths[table] = changed
    if table != "focus" and hurt is not None:
        return validate_facts({name: paths[name] for name in FACTS}, docs_dir=None)
    focus = validate_focus(paths["focus"], paths["charges"], dimensions=["tenant"], docs_dir=None)
    return (
        focus if hurt is not None else [*validate_facts({name: paths[name] for name in FACTS}, docs_dir=None), *focus]
    )


def failed(outcomes: list[CheckOutcome]) -> set[str]:
    return {outcome.check for outcome in outcomes if outcome.blocking and not outcome.passed}


def where(column: str, value: pl.Expr, kind: str | None = None) -> Hurt:
    """Change a column of the first row (of a kind)."""

    def hurt(frame: pl.DataFrame) -> pl.DataFrame:
        kinds = frame.get_column("charge_kind" if "charge_kind" in frame.columns else "x_ChargeKind", default=None)
        row = 0 if kind is None or kinds is None else kinds.to_list().index(kind)
        changed = pl.when(pl.int_range(pl.len()) == row).then(value).otherwise(pl.col(column))
        return frame.with_columns(changed.cast(frame.schema[column]).alias(column))

    return hurt


def test_a_good_day_passes(good: Path, tmp_path: Path) -> None:
    outcomes = judged(good, tmp_path)
    assert failed(outcomes) == set()
    assert len(outcomes) > 40


def between_co_holders(frame: pl.DataFrame) -> pl.DataFrame:
    """A unit from the idle line to the held one of the same hour: sums stay."""
    hour = frame.filter(pl.col("pod") == "p")["hour"][0]
    same = (pl.col("hour") == hour) & (pl.col("device_id") == "GPU-0")
    moved = pl.when(same & (pl.col("charge_kind") == "held")).then(UNIT).when(same).then(-UNIT).otherwise(UNIT - UNIT)
    return frame.with_columns((pl.col("gpu_hours") + moved).cast(pl.Decimal(18, 12)).alias("gpu_hours"))


@pytest.mark.parametrize(
    ("table", "hurt", "check"),
    [
        ("gpu_hours", where("gpu_hours", pl.col("gpu_hours") + UNIT), "1_lines_sum_to_owned"),
        ("gpu_hours", between_co_holders, "6_lines_recomputed"),
        ("gpu_hours", lambda frame: frame[1:], "1_lines_sum_to_owned"),
        ("gpu_hours", lambda frame: pl.concat([frame, frame[:1]]), "5_gpu_hours_keys_unique"),
        ("gpu_hours", lambda frame: frame.clear(), "5_gpu_hours_not_empty"),
        ("gpu_hours", where("gpu_hours", pl.lit(Decimal(3)), "held"), "4_not_held_above_owned"),
        ("charges", where("cost", pl.col("cost") + pl.lit(Decimal("1e-18"))), "2_cost_is_price_times_quantity"),
        ("charges", where("contracted_unit_price", pl.lit(Decimal(5))), "2_cost_is_price_times_quantity"),
        ("charges", where("contracted_unit_price", pl.lit(None)), "7_every_line_has_a_price"),
        ("charges", where("gpu_hours", -pl.col("gpu_hours")), "4_nothing_negative"),
        ("charges", lambda frame: frame[1:], "2_charges_are_the_ledger"),
        ("devices", lambda frame: frame.filter(pl.col("device_id") != "GPU-1"), "1_lines_sum_to_owned"),
        ("devices", where("owned_gpu_hours", pl.col("owned_gpu_hours") - UNIT), "1_owned_is_exact"),
        ("devices", lambda frame: pl.concat([frame, frame[:1].with_columns(node=pl.lit("b"))]), "5_owned_once"),
        ("devices", lambda frame: frame.with_columns(node_capacity=pl.lit(1)), "4_not_held_above_capacity"),
        ("holdings", lambda frame: frame[1:], "6_lines_recomputed"),
    ],
)  # fmt: skip
def test_facts_hurt_in_one_way(good: Path, tmp_path: Path, table: str, hurt: Hurt, check: str) -> None:
    assert check in failed(judged(good, tmp_path, table, hurt))


@pytest.mark.parametrize(
    ("hurt", "check"),
    [
        (where("PricingUnit", pl.lit("gpu_hours")), "7_focus_unit_format"),
        (where("BilledCost", pl.col("BilledCost") + pl.lit(Decimal("1e-18"))), "2_focus_cost_identities"),
        (lambda frame: frame[1:], "2_focus_sums_to_charges"),
        (lambda frame: frame.drop("SkuMeter"), "7_focus_columns"),
        (lambda frame: frame.with_columns(Extra=pl.lit(1)), "7_focus_columns"),
        (lambda frame: frame.with_columns(pl.col("ChargePeriodStart").dt.replace_time_zone(None)), "7_focus_columns"),
        (where("ServiceName", pl.lit("")), "7_focus_no_empty_text"),
        (where("SkuPriceId", pl.lit(None)), "7_focus_null_cascade"),
        (where("SkuId", pl.lit("another")), "7_focus_sku_price_has_one_sku"),
        (where("ServiceCategory", pl.lit("Storage")), "7_focus_service_has_one_category"),
        (where("ChargeCategory", pl.lit("Refund")), "7_focus_ChargeCategory_allowed"),
        (where("BillingAccountId", pl.lit(None)), "7_focus_never_null"),
        (where("Tags", pl.lit('{"a": {"b": 1}}')), "7_focus_json"),
        (where("Tags", pl.lit("{")), "7_focus_json"),
        (where("ChargePeriodEnd", pl.col("ChargePeriodEnd").dt.offset_by("2h")), "7_focus_periods"),
        (lambda frame: frame.clear(), "5_focus_not_empty"),
    ],
)  # fmt: skip
def test_focus_rows_hurt_in_one_way(good: Path, tmp_path: Path, hurt: Hurt, check: str) -> None:
    assert check in failed(judged(good, tmp_path, "focus", hurt))
