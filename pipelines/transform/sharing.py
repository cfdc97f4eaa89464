"""How each node shares its devices, from when to when, and what says so (ACCOUNTING 3: time-slicing and MPS).

Takes what was seen of node configurations, series and configured pools; gives the rows of `schemas.tables.Sharing`. The
count that a node advertises is never the count that it has: four replicas of one card are one card. Who held a replica
is not known here. MIG is refused in `scope`.
"""

import datetime as dt
from collections.abc import Sequence

import polars as pl

from pipelines.transform.devices import NodePool, Window, selected
from pipelines.transform.intervals import computed

EXCLUSIVE, TIME_SLICING, MPS = "exclusive", "time_slicing", "mps"
SHAREABLE = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
_EVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
_NEVER = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def sharing(
    periods: pl.LazyFrame,
    telemetry: pl.LazyFrame,
    workloads: pl.LazyFrame,
    *,
    window: Window,
    pools: Sequence[NodePool] = (),
) -> pl.LazyFrame:
    """One row per node and time of one sharing mode and number of replicas, inside the day.

    The first configuration that was seen also holds before it was, the last one after it.

    Args:
        periods: rows of `NodeSharing`. Of several sources the one that sees sharing labels counts.
        telemetry, workloads: rows of `DeviceTelemetry` and `WorkloadTelemetry`: how many devices a node shows, and
            whether the exporter names replicas.
        window: the day.
        pools: configured node pools; `replicas` of a pool is the best evidence.

    Returns:
        Rows of `Sharing` less `cluster` and `date`; `replicas` is null where a node shares its devices and nothing says
        in how many parts.
    """
    cards = telemetry.group_by("node").agg(cards=pl.col("device_id").n_unique().cast(pl.Int64))
    named = workloads.filter(pl.col("replica") != "").select("node", names_replicas=pl.lit(True)).unique()
    told = (
        _of_best_source(periods)
        .join(cards, on="node", how="left")
        .join(named, on="node", how="left")
        .with_columns(
            configured=pl.coalesce(
                *(pl.when(selected(pool)).then(pl.lit(pool.replicas, dtype=pl.Int64)) for pool in pools),
                pl.lit(None, dtype=pl.Int64),
            ),
            per_card=pl.when((pl.col("cards") > 0) & (pl.col("capacity") % pl.col("cards") == 0)).then(
                pl.col("capacity") // pl.col("cards")
            ),
        )
    )
    # A label that says 0 says nothing.
    labeled = (pl.col("replicas") >= 1).fill_null(False) & (pl.col("sharing_strategy").fill_null("") != "none")
    strategy = pl.col("sharing_strategy").is_in(["time-slicing", "mps"])
    resource = pl.col("resource") == "nvidia.com/gpu.shared"
    product = pl.col("product").str.ends_with("-SHARED")
    evidence = (
        pl.when(pl.col("configured").is_not_null()).then(pl.lit("config"))
        .when(labeled).then(pl.lit("node label"))
        .when(strategy).then(pl.lit("strategy label"))
        .when(resource).then(pl.lit("resource name"))
        .when(product).then(pl.lit("product name"))
        .when(pl.col("names_replicas")).then(pl.lit("replica labels"))
        .otherwise(pl.lit("none"))
    )  # fmt: skip
    decided = told.with_columns(sharing_evidence=evidence).with_columns(
        replicas=pl.when(pl.col("sharing_evidence") == "config").then("configured")
        .when(pl.col("sharing_evidence") == "node label").then("replicas")
        .when(pl.col("sharing_evidence") == "none").then(1)
        .otherwise("per_card"),
    )  # fmt: skip
    mode = (
        pl.when(pl.col("replicas") == 1)
        .then(pl.lit(EXCLUSIVE))
        .when(pl.col("sharing_strategy") == "mps")
        .then(pl.lit(MPS))
        .otherwise(pl.lit(TIME_SLICING))
    )
    same = ("node", "sharing_mode", "replicas")
    runs = (
        decided.with_columns(sharing_mode=mode, physical=pl.col("capacity") // pl.col("replicas"))
        .sort("node", "first_seen_at")
        .with_columns(_run=pl.struct(same).rle_id())
        .group_by("_run", *same)
        .agg(
            shared_from=pl.col("first_seen_at").min(),
            node_capacity=pl.col("physical").max(),
            sharing_evidence=pl.col("sharing_evidence").last(),
        )
        .sort("node", "shared_from")
    )
    next_from = pl.when(pl.col("node") == pl.col("node").shift(-1)).then(pl.col("shared_from").shift(-1))
    is_first = (pl.col("node") != pl.col("node").shift(1)).fill_null(True)
    return (
        runs.with_columns(
            shared_to=next_from.fill_null(_EVER),
            shared_from=pl.when(is_first).then(pl.lit(_NEVER)).otherwise("shared_from"),
        )
        .with_columns(
            shared_from=pl.max_horizontal("shared_from", pl.lit(window.start).dt.cast_time_unit("ms")),
            shared_to=pl.min_horizontal("shared_to", pl.lit(window.end).dt.cast_time_unit("ms")),
        )
        .filter(pl.col("shared_to") > pl.col("shared_from"))
        .drop("_run")
    )


def shared_nodes(sharing: pl.LazyFrame) -> pl.LazyFrame:
    """`node` of the nodes that share their devices at any time of the day."""
    return sharing.filter(pl.col("sharing_mode") != EXCLUSIVE).select("node").unique()


def with_physical_capacity(lives: pl.LazyFrame, sharing: pl.LazyFrame) -> pl.LazyFrame:
    """Node lives whose `capacity` is devices, not the replicas that a sharing node advertises."""
    physical = (
        sharing.join(shared_nodes(sharing), on="node", how="semi")
        .group_by("node")
        .agg(physical=pl.col("node_capacity").max())
    )
    return (
        lives.join(physical, on="node", how="left")
        .with_columns(capacity=pl.coalesce("physical", "capacity"))
        .drop("physical")
    )


def with_shares(held: pl.LazyFrame, sharing: pl.LazyFrame) -> pl.LazyFrame:
    """Holds with `sharing_mode`, `share_num` and `share_den`, cut where their node's sharing changes.

    Args:
        held: node, held_from, held_to, `replicas_held` and the rest.
        sharing: rows of `Sharing`.

    Returns:
        The same less `replicas_held`. On a node that shares nothing a hold is one whole device.
    """
    nodes = computed(shared_nodes(sharing))
    whole = held.join(nodes, on="node", how="anti").with_columns(
        sharing_mode=pl.lit(EXCLUSIVE), share_num=pl.lit(1, dtype=pl.Int64), share_den=pl.lit(1, dtype=pl.Int64)
    )
    shared = (
        held.join(nodes, on="node", how="semi")
        .join(sharing.select("node", "shared_from", "shared_to", "sharing_mode", "replicas"), on="node")
        .with_columns(
            held_from=pl.max_horizontal("held_from", "shared_from"),
            held_to=pl.min_horizontal("held_to", "shared_to"),
            share_num="replicas_held",
            share_den="replicas",
        )
        .filter(pl.col("held_to") > pl.col("held_from"))
        .drop("shared_from", "shared_to", "replicas")
    )
    return pl.concat([whole, shared], how="diagonal").drop("replicas_held")


def _of_best_source(periods: pl.LazyFrame) -> pl.LazyFrame:
    """Per node the periods of one source, of one resource each: kube-state-metrics where it has the labels."""
    labels = pl.col("replicas").is_not_null() | pl.col("sharing_strategy").is_not_null()
    sources = (
        periods.group_by("node", "source")
        .agg(has_labels=labels.any())
        .sort("node", "has_labels", "source", descending=[False, True, False])
        .group_by("node", maintain_order=True)
        .first()
        .select("node", "source")
    )
    return (
        periods.join(sources, on=["node", "source"], how="semi")
        .sort("node", "first_seen_at", "capacity", "resource")
        .group_by("node", "first_seen_at", maintain_order=True)
        .last()
    )
