"""The ledger with its price: cost = unit price x quantity, exact to 18 places, never rounded (ACCOUNTING 4, 6, 7).

Takes labeled lines and the rate card; gives `schemas.tables.Charges`. A model without a price in force is an error that
names the row to add, never a price of 0. Quantities are settled before this module and never change in it.
"""

import dataclasses
import datetime as dt
from collections.abc import Sequence
from decimal import Decimal

import polars as pl

from pipelines.transform.model_names import model_key
from schemas.errors import MissingPrice

_EXACT = pl.Decimal(38, 18)
_EVER = dt.datetime(9999, 12, 31, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True)
class Rate:
    """A row of the rate card: price per GPU-hour of a model, in force from (inclusive) to (exclusive), UTC."""

    model_key: str
    list_price: Decimal
    contracted_price: Decimal
    category: str
    valid_from: dt.datetime
    valid_to: dt.datetime | None = None
    rate_id: str | None = None


_RATE_SCHEMA = pl.Schema(
    {
        "model_key": pl.String(),
        "list_unit_price": pl.Decimal(18, 6),
        "contracted_unit_price": pl.Decimal(18, 6),
        "pricing_category": pl.String(),
        "valid_from": pl.Datetime("ms", "UTC"),
        "valid_to": pl.Datetime("ms", "UTC"),
        "rate_id": pl.String(),
    }
)


def rate_table(rates: Sequence[Rate]) -> pl.LazyFrame:
    """The rate card as a frame; a row without an end is in force for good."""
    rows = [
        (r.model_key, r.list_price, r.contracted_price, r.category, r.valid_from, r.valid_to or _EVER, r.rate_id)
        for r in rates
    ]
    return pl.LazyFrame(rows, schema=_RATE_SCHEMA, orient="row")


def price_changes(rates: Sequence[Rate]) -> pl.LazyFrame:
    """`model_key`, `at`: the instants at which a price starts or ends, which cut segments."""
    table = rate_table(rates)
    return pl.concat([table.select("model_key", at="valid_from"), table.select("model_key", at="valid_to")]).unique()


def charges(lines: pl.LazyFrame, rates: Sequence[Rate], *, currency: str) -> pl.LazyFrame:
    """Lines with their price and cost. Raises MissingPrice when collected if a line has no price in force.

    Args:
        lines: rows of `GpuHours`.
        rates: the rate card; rows of one model do not overlap (the configuration sees to it).
        currency: named in the error.
    """
    priced = (
        lines.with_columns(model_key=model_key(pl.col("model")))
        .join(rate_table(rates), on="model_key", how="left")
        .with_columns(
            in_force=(pl.col("segment_from") >= pl.col("valid_from")) & (pl.col("segment_from") < pl.col("valid_to"))
        )
    )
    line = ["group_id", "segment_from", "charge_kind", "line_key"]
    found = priced.filter(pl.col("in_force"))
    missing = lines.join(found.select(line), on=line, how="anti")

    def stop_if_any(frame: pl.DataFrame) -> pl.DataFrame:
        if frame.height:
            raise MissingPrice(_missing_price_message(frame, currency))
        return frame

    checked = missing.map_batches(stop_if_any, schema=None)
    quantity = pl.col("gpu_hours").cast(_EXACT)
    return (
        pl.concat([found, checked], how="diagonal")
        .with_columns(
            list_cost=pl.col("list_unit_price").cast(_EXACT) * quantity,
            cost=pl.col("contracted_unit_price").cast(_EXACT) * quantity,
            allocation_model=pl.lit("held"),
            allocation_reason=pl.lit(None, dtype=pl.String),
            idle_policy=pl.when(pl.col("charge_kind") == "idle").then(pl.lit("platform")),
        )
        .drop("model_key", "valid_from", "valid_to", "in_force")
    )


def _missing_price_message(lines: pl.DataFrame, currency: str) -> str:
    gaps = (
        lines.group_by("model")
        .agg(pl.col("segment_from").min(), pl.col("segment_to").max(), pl.col("node").min())
        .sort("model")
    )
    told = []
    for row in gaps.iter_rows(named=True):
        model, since = row["model"], row["segment_from"]
        rate = f"{{id: NAME, model: {model}, contracted: PRICE, category: Standard, from: {since:%Y-%m-%d}}}"
        told.append(
            f"no price in force for model {model!r} (node {row['node']}) at {since:%Y-%m-%d %H:%M} UTC; add under"
            f" `rates:` a row like {rate}, the price in {currency} per GPU-hour"
        )
    return "\n".join(told)


def reconciliation(devices: pl.LazyFrame, priced: pl.LazyFrame) -> pl.LazyFrame:
    """Owned against the lines, per group and hour (`schemas.tables.Reconciliation`).

    Owned comes from `devices`, not from the lines.
    """
    lines = priced.group_by("cluster", "date", "group_id", "hour").agg(
        pl.col("node", "model").min(),
        held_gpu_hours=pl.col("gpu_hours").filter(pl.col("charge_kind") == "held").sum(),
        idle_gpu_hours=pl.col("gpu_hours").filter(pl.col("charge_kind") == "idle").sum(),
        lines_gpu_hours=pl.col("gpu_hours").sum(),
        cost=pl.col("cost").sum(),
        prices=pl.col("contracted_unit_price").n_unique(),
        price=pl.col("contracted_unit_price").first(),
    )
    node_model = pl.format("{}/{}", "node", model_key(pl.col("model")))
    groups = lines.select("group_id", "hour")
    owned = (
        pl.concat(
            [
                devices.with_columns(group_id=pl.col("device_id")).join(groups, on=["group_id", "hour"], how="semi"),
                devices.with_columns(group_id=node_model).join(groups, on=["group_id", "hour"], how="semi"),
            ]
        )
        .group_by("group_id", "hour")
        .agg(owned_gpu_hours=pl.col("owned_gpu_hours").sum())
    )
    return (
        lines.join(owned, on=["group_id", "hour"], how="left")
        .with_columns(pl.col("owned_gpu_hours").fill_null(Decimal(0)))
        .with_columns(
            # A price that changes inside the hour has no single product with the hour: the checks prove it by segment.
            owned_cost=pl.when(pl.col("prices") == 1)
            .then(pl.col("price").cast(_EXACT) * pl.col("owned_gpu_hours").cast(_EXACT))
            .otherwise("cost"),
        )
        .with_columns(
            difference_gpu_hours=pl.col("owned_gpu_hours") - pl.col("lines_gpu_hours"),
            difference_cost=pl.col("owned_cost") - pl.col("cost"),
        )
        .drop("lines_gpu_hours", "prices", "price")
    )
