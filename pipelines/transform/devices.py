"""Which devices were owned, on which node, from when to when: capacity, whoever used it (ACCOUNTING 1).

Takes device telemetry, node lives and pod lives; gives one row per device, node and owned piece of an hour
(`schemas.tables.Devices`). Who held a device is not known here.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable

import polars as pl

from pipelines.transform.apportion import fitted_units, gpu_hours, rounded_units
from pipelines.transform.card_changes import owned_through_card_changes
from pipelines.transform.intervals import computed, duration_ms, following, merged, per_hour, previous
from pipelines.transform.label_values import label_value

_EARLIEST = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
POOL_LABELS = (
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "agentpool",
    "kubernetes.azure.com/agentpool",
)


@dataclasses.dataclass(frozen=True)
class Window:
    """The part of a day that is told: [start, end), UTC; the end is earlier than midnight only for a partial day."""

    start: dt.datetime
    end: dt.datetime


@dataclasses.dataclass(frozen=True)
class NodePool:
    """A configured node pool: its name, the node labels that select it, and in how many parts it shares its devices."""

    name: str
    selector: dict[str, str]
    replicas: int | None = None


def selected(pool: NodePool) -> pl.Expr:
    """Whether a node's `labels` meet a pool's selector."""
    return pl.all_horizontal(label_value(pl.col("labels"), key) == value for key, value in pool.selector.items())


def devices(
    telemetry: pl.LazyFrame,
    nodes: pl.LazyFrame,
    pods: pl.LazyFrame,
    *,
    window: Window,
    bridge_ms: int,
    pools: Iterable[NodePool] = (),
) -> pl.LazyFrame:
    """Every owned device by node and hour.

    Args:
        telemetry: rows of `DeviceTelemetry`, edges around the day included.
        nodes: rows of `pipelines.transform.lifetimes.node_lives`.
        pods: rows of `pipelines.transform.lifetimes.pod_lives`: a pod on a node shows that the node was there.
        window: the day.
        bridge_ms: longest gap that is bridged without a node object.
        pools: configured node pools; else the providers' node labels name the pool.

    Returns:
        Rows of `Devices` less `cluster` and `date`.
    """
    lives = computed(_lives_on_node(nodes, pods))
    stints = computed(_stints(telemetry, bridge_ms))
    owned = pl.concat([_shown_devices(stints, lives), _slots(stints, lives)], how="diagonal")
    pieces = (
        owned.with_columns(
            owned_from=pl.max_horizontal("owned_from", pl.lit(window.start).dt.cast_time_unit("ms")),
            owned_to=pl.min_horizontal("owned_to", pl.lit(window.end).dt.cast_time_unit("ms")),
        )
        .pipe(merged_pieces)
        .pipe(per_hour, start="owned_from", end="owned_to")
        .with_columns(owned_ms=duration_ms("owned_from", "owned_to"))
        .with_columns(device_hour_units=rounded_units(pl.col("owned_ms").sum().over("device_id", "hour")))
        .pipe(
            fitted_units,
            ms="owned_ms",
            total_units="device_hour_units",
            within=("device_id", "hour"),
            order=("owned_from", "node"),
        )
        .with_columns(owned_gpu_hours=gpu_hours(pl.col("units")))
        .drop("units", "device_hour_units")
    )
    return _described(pieces, telemetry, lives, list(pools))


def merged_pieces(owned: pl.LazyFrame) -> pl.LazyFrame:
    """Owned stretches of one device on one node that touch or overlap, as one; empty ones are gone."""
    return merged(
        owned.filter(pl.col("owned_to") > pl.col("owned_from")),
        by=["device_id", "node", "has_uuid", "evidence"],
        start="owned_from",
        end="owned_to",
    )


def _lives_on_node(nodes: pl.LazyFrame, pods: pl.LazyFrame) -> pl.LazyFrame:
    """Node lives; a node that only its pods show is there while they are, and tells no capacity."""
    by_pods = (
        pods.filter(pl.col("resource") == "nvidia.com/gpu")
        .group_by("node")
        .agg(life_start=pl.col("hold_start").min(), life_end=pl.col("hold_end").max())
        .join(nodes.select("node").unique(), on="node", how="anti")
    )
    return pl.concat([nodes, by_pods], how="diagonal").with_columns(
        life=pl.format("{}@{}", "node", pl.col("life_start").dt.epoch("ms"))
    )


def _stints(telemetry: pl.LazyFrame, bridge_ms: int) -> pl.LazyFrame:
    """When the series showed a device on a node, short gaps closed; a stint ends where it shows elsewhere."""
    # Every metric has a run of its own; of those that start together one stands for all.
    runs = computed(
        telemetry.group_by("device_id", "node", seen_from="first_at").agg(
            pl.col("interval_ms").median(),
            seen_to=(pl.col("last_at") + pl.duration(milliseconds="interval_ms")).max(),
        )
    )
    seen = merged(runs, by=["device_id", "node"], start="seen_from", end="seen_to", bridge_ms=bridge_ms)
    intervals = runs.group_by("device_id", "node").agg(pl.col("interval_ms").median().cast(pl.Int64))
    return (
        seen.join(intervals, on=["device_id", "node"])
        .sort("device_id", "seen_from", "node")
        .with_columns(
            moved_here=(pl.col("node") != previous("node", within="device_id")).fill_null(False),
            left_at=previous("seen_to", within="device_id"),
        )
        .with_columns(moves_away=following("moved_here", within="device_id").fill_null(False))
        .with_columns(left_at=pl.when("moved_here").then("left_at"))
    )


def _shown_devices(stints: pl.LazyFrame, lives: pl.LazyFrame) -> pl.LazyFrame:
    """Devices that a series shows: owned through their node's life, or as their cards came and went, or as seen."""
    on_life = computed(
        stints.join(lives, on="node", how="inner")
        .filter((pl.col("seen_from") < pl.col("life_end")) & (pl.col("seen_to") > pl.col("life_start")))
        .with_columns(
            shown=pl.col("device_id").n_unique().over("life"),
            changes=(pl.col("moved_here") | pl.col("moves_away")).any().over("life"),
        )
        .with_columns(known_capacity=pl.col("capacity").fill_null(0) > 0)
    )
    settled = ~pl.col("changes") & pl.col("known_capacity") & (pl.col("shown") <= pl.col("capacity"))
    whole_life = on_life.filter(settled).select(
        "device_id",
        "node",
        owned_from=pl.min_horizontal("life_start", "seen_from"),
        owned_to=_end_on_life(),
        evidence=pl.lit("inventory+telemetry"),
    )
    by_change = owned_through_card_changes(on_life.filter(~settled).with_columns(life_end=_end_on_life())).with_columns(
        evidence=pl.lit("inventory+telemetry")
    )
    as_seen = stints.join(
        on_life.select("device_id", "node", "seen_from"), on=["device_id", "node", "seen_from"], how="anti"
    ).select("device_id", "node", owned_from="seen_from", owned_to="seen_to", evidence=pl.lit("telemetry"))
    return pl.concat([whole_life, by_change, as_seen]).with_columns(has_uuid=pl.lit(True))


def _end_on_life() -> pl.Expr:
    """Where ownership ends on a node's life.

    A node's end is known only to the interval of the source that saw it last; where the device's own series ends within
    two of those, the last sample + interval is the better witness (a spot node that went away, ACCOUNTING case 22).
    """
    last_seen = pl.col("seen_to").max().over("life", "device_id")
    doubt = pl.duration(milliseconds=2 * pl.col("seen_interval_ms").fill_null(0))
    ends_together = (pl.col("life_end") - last_seen).abs() <= doubt
    return pl.when(ends_together).then(last_seen).otherwise(pl.max_horizontal("life_end", last_seen))


def _slots(stints: pl.LazyFrame, lives: pl.LazyFrame) -> pl.LazyFrame:
    """Devices that the node has and no series shows (exporter down): `<node>#<n>`, owned for the node's life.

    A device that moved away took its slot along until a newcomer shows.
    """
    shown = (
        stints.join(lives.select("node", "life", "life_start", "life_end"), on="node", how="inner")
        .filter((pl.col("seen_from") < pl.col("life_end")) & (pl.col("seen_to") > pl.col("life_start")))
        .group_by("life")
        .agg(shown=pl.col("device_id").n_unique().cast(pl.Int64))
    )
    return (
        lives.filter(pl.col("capacity").fill_null(0) > 0)
        .join(shown, on="life", how="left")
        .with_columns(
            slot=pl.int_ranges(
                pl.col("shown").fill_null(0), pl.max_horizontal("capacity", pl.col("shown").fill_null(0))
            )
        )
        .explode("slot", empty_as_null=True)
        .filter(pl.col("slot").is_not_null())
        .select(
            device_id=pl.format("{}#{}", "node", "slot"),
            node="node",
            owned_from="life_start",
            owned_to="life_end",
            evidence=pl.lit("inventory"),
            has_uuid=pl.lit(False),
        )
    )


def _described(
    pieces: pl.LazyFrame, telemetry: pl.LazyFrame, lives: pl.LazyFrame, pools: list[NodePool]
) -> pl.LazyFrame:
    """Add the model, node pool, zone and node identity."""
    shown = computed(telemetry.group_by("device_id", "node", "model").agg(pl.col("instants").sum()))
    shown_models = _most_shown(shown, "device_id").rename({"model": "shown_model"})
    node_models = _most_shown(shown, "node").rename({"model": "node_model"})
    about_node = (
        lives.select(
            *("node", "life_start", "node_uid", "zone", "product"), node_capacity="capacity", node_pool=_pool(pools)
        )
        # What is told of a node's first life also holds for a device that was seen before it.
        .with_columns(
            life_start=pl.when(pl.col("life_start") == pl.col("life_start").min().over("node"))
            .then(pl.lit(_EARLIEST))
            .otherwise("life_start")
        )
        .sort("life_start")
    )
    described = pieces.sort("owned_from").join_asof(
        about_node, left_on="owned_from", right_on="life_start", by="node", strategy="backward", check_sortedness=False
    )
    return (
        described.join(shown_models, on="device_id", how="left")
        .join(node_models, on="node", how="left")
        .with_columns(model=pl.coalesce("shown_model", "node_model", "product").fill_null("unknown"))
        .drop("shown_model", "node_model", "product", "life_start", strict=False)
    )


def _most_shown(shown: pl.LazyFrame, key: str) -> pl.LazyFrame:
    """Of several spellings of a model the one seen most; `key`, `model`."""
    return (
        shown.filter(pl.col("model") != "")
        .group_by(key, "model")
        .agg(pl.col("instants").sum())
        .sort(key, "instants", "model", descending=[False, True, False])
        .group_by(key)
        .agg(pl.col("model").first())
    )


def _pool(pools: list[NodePool]) -> pl.Expr:
    """First configured pool whose selector the node's labels meet, else the provider's own label."""
    labels = pl.col("labels")
    configured = [pl.when(selected(pool)).then(pl.lit(pool.name)) for pool in pools]
    return pl.coalesce(*configured, *(label_value(labels, key) for key in POOL_LABELS))
