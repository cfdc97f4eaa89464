"""What was made of a day: devices, holdings, the ledger, occupancy, charges. Landed as candidates, published later.

Each asset reads its inputs from the lake, calls one pure function, writes through the one writer, reports metadata.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
import polars as pl

from assets.graph_metadata import landed
from assets.partitions import cluster_and_date
from assets.raw import RAW_INVENTORY, RAW_TELEMETRY
from assets.settings import Settings
from pipelines.load.lake import Lake
from pipelines.transform.charges import charges as priced
from pipelines.transform.charges import price_changes
from pipelines.transform.charges import reconciliation as reconciled
from pipelines.transform.devices import devices as owned_devices
from pipelines.transform.findings import findings as day_findings
from pipelines.transform.gpu_hours import ledger
from pipelines.transform.holdings import holdings as held_devices
from pipelines.transform.labels import label_coverage as coverage_of_labels
from pipelines.transform.labels import labeled
from pipelines.transform.lifetimes import node_lives, pod_lives
from pipelines.transform.occupancy import occupancy as occupancy_of_lines
from pipelines.transform.scope import require_devices_for_holds, require_known_sharing
from pipelines.transform.sharing import sharing as sharing_of_nodes
from pipelines.transform.sharing import with_physical_capacity
from schemas.tables import TABLES


class _Day:
    """One partition as an asset sees it: reads raw and candidates, writes a candidate."""

    def __init__(self, context: dg.AssetExecutionContext, lake: Lake) -> None:
        self.cluster, self.date = cluster_and_date(context.partition_key)
        self.lake = lake

    def raw(self, name: str) -> pl.LazyFrame:
        return self.lake.scan(TABLES[f"raw/{name}"], self.cluster, self.date, candidate=False)

    def fact(self, name: str) -> pl.LazyFrame:
        return self.lake.scan(TABLES[name], self.cluster, self.date, candidate=True)

    def land(self, name: str, frame: pl.LazyFrame, **metadata: Any) -> dg.MaterializeResult[None]:
        stamped = frame.with_columns(cluster=pl.lit(self.cluster), date=pl.lit(self.date, dtype=pl.Date))
        table = TABLES[name]
        written = self.lake.write(table, stamped.collect(), self.cluster, self.date, candidate=True)
        return dg.MaterializeResult(metadata=landed(written, table, **metadata))


@dg.asset(deps=[RAW_INVENTORY, RAW_TELEMETRY], kinds={"polars", "parquet"}, group_name="facts")
def sharing(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """How each node shared its devices, and what says so."""
    day = _Day(context, lake)
    told = sharing_of_nodes(
        day.raw("node_sharing"),
        day.raw("telemetry"),
        day.raw("workload_telemetry"),
        window=settings.window(day.date),
        pools=settings.pools,
    ).collect()
    require_known_sharing(day.raw("telemetry"), day.raw("nodes"), day.raw("pods"), told.lazy())
    return day.land("sharing", told.lazy())


@dg.asset(deps=[sharing, RAW_INVENTORY, RAW_TELEMETRY], kinds={"polars", "parquet"}, group_name="facts")
def devices(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """Every device that was owned, by node and hour."""
    day = _Day(context, lake)
    owned = owned_devices(
        day.raw("telemetry"),
        with_physical_capacity(node_lives(day.raw("nodes")), day.fact("sharing")),
        pod_lives(day.raw("pods")),
        window=settings.window(day.date),
        bridge_ms=settings.bridge_ms,
        pools=settings.pools,
    )
    return day.land("devices", owned)


@dg.asset(deps=[devices, sharing, RAW_INVENTORY, RAW_TELEMETRY], kinds={"polars", "parquet"}, group_name="facts")
def holdings(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """Who held which device, from when to when."""
    day, window = _Day(context, lake), settings.window(cluster_and_date(context.partition_key)[1])
    lives = pod_lives(day.raw("pods"))
    held = held_devices(
        lives,
        day.raw("workload_telemetry"),
        day.fact("devices"),
        day.fact("sharing"),
        window=window,
        bridge_ms=settings.bridge_ms,
    )
    result = day.land("holdings", held)
    require_devices_for_holds(lives, day.fact("holdings"), window=window)
    return result


@dg.asset(deps=[devices, holdings, sharing, RAW_INVENTORY], kinds={"polars", "parquet"}, group_name="facts")
def gpu_hours(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """The ledger: held and idle lines of every device-hour, keyed by the label schema."""
    day = _Day(context, lake)
    lines = ledger(day.fact("devices"), day.fact("holdings"), day.fact("sharing"), price_changes(settings.rates))
    keyed = labeled(lines, day.raw("pod_labels"), dimensions=settings.dimensions, virtual_tags=settings.virtual_tags)
    return day.land("gpu_hours", keyed)


@dg.asset(deps=[gpu_hours, RAW_TELEMETRY], kinds={"polars", "parquet"}, group_name="facts")
def occupancy(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """How busy each line's device was: shown beside the bill, never billed."""
    day = _Day(context, lake)
    shown = occupancy_of_lines(
        day.fact("gpu_hours"), day.raw("telemetry"), day.raw("workload_telemetry"), bridge_ms=settings.bridge_ms
    )
    return day.land("occupancy", shown)


@dg.asset(deps=[gpu_hours], kinds={"polars", "parquet"}, group_name="facts")
def charges(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """The ledger with its price: cost = price x quantity, exact."""
    day = _Day(context, lake)
    lines = priced(day.fact("gpu_hours"), settings.rates, currency=settings.config.currency)
    return day.land("charges", lines)


@dg.asset(deps=[gpu_hours], kinds={"polars", "parquet"}, group_name="facts")
def label_coverage(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """Share of held GPU-hours by dimension and by where its value came from."""
    day = _Day(context, lake)
    return day.land("label_coverage", coverage_of_labels(day.fact("gpu_hours"), dimensions=settings.dimensions))


@dg.asset(deps=[devices, charges], kinds={"polars", "parquet"}, group_name="facts")
def reconciliation(context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake]) -> dg.MaterializeResult[None]:
    """Owned against the lines, per group and hour."""
    day = _Day(context, lake)
    result = day.land("reconciliation", reconciled(day.fact("devices"), day.fact("charges")))
    return dg.MaterializeResult(metadata={**(result.metadata or {}), **_figures(day.fact("reconciliation"))})


def _figures(frame: pl.LazyFrame) -> Mapping[str, str]:
    sums = frame.select(
        pl.col("owned_gpu_hours", "held_gpu_hours", "idle_gpu_hours", "difference_gpu_hours")
        .cast(pl.Decimal(38, 12))
        .sum(),
        pl.col("cost", "difference_cost").sum(),
    ).collect()
    return {name: str(value) for name, value in sums.row(0, named=True).items()}


@dg.asset(
    deps=[sharing, devices, holdings, occupancy, label_coverage, RAW_INVENTORY, RAW_TELEMETRY],
    kinds={"polars", "parquet"},
    group_name="facts",
)
def findings(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """What a person should know of the day and what does not stop it."""
    day = _Day(context, lake)
    told = day_findings(
        day.fact("devices"),
        day.fact("holdings"),
        day.fact("occupancy"),
        day.fact("label_coverage"),
        nodes=node_lives(day.raw("nodes")),
        pods=pod_lives(day.raw("pods")),
        sharing=day.fact("sharing"),
        workloads=day.raw("workload_telemetry"),
        dimensions=settings.dimensions,
        coverage_target_percent=round(settings.config.labels.coverage_target * 100),
    )
    read = [day.raw("inventory_findings"), day.raw("telemetry_findings")]
    columns = ("code", "subject", "message", "affected")
    return day.land("findings", pl.concat([told.select(columns), *(frame.select(columns) for frame in read)]))


FACTS = (sharing, devices, holdings, gpu_hours, occupancy, charges, label_coverage, reconciliation, findings)
