"""What others read: FOCUS rows as a candidate, the publication that the checks guard, and the catalog."""

import datetime as dt
import importlib.metadata

import dagster as dg

from assets.facts import FACTS, charges, occupancy
from assets.graph_metadata import landed
from assets.partitions import cluster_and_date
from assets.settings import Settings
from pipelines.load import catalog as catalog_file
from pipelines.load.lake import Lake
from pipelines.transform.focus import focus_metadata, focus_rows
from schemas.focus import cost_and_usage, row_order
from schemas.tables import TABLES


@dg.asset(key=["focus", "candidate"], deps=[charges, occupancy], kinds={"polars", "parquet"}, group_name="focus")
def focus_candidate(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """FOCUS 1.4 CostAndUsage rows that nobody reads yet."""
    cluster, date = cluster_and_date(context.partition_key)
    rows = focus_rows(
        lake.scan(TABLES["charges"], cluster, date, candidate=True),
        lake.scan(TABLES["occupancy"], cluster, date, candidate=True),
        config=settings.config,
        cluster=settings.cluster(cluster),
    )
    schema = cost_and_usage([dimension.key for dimension in settings.dimensions])
    # Half of the columns are constants, which the in-memory engine keeps as one value each.
    written = lake.write_focus_candidate(rows.collect(engine="in-memory"), schema, cluster, date, row_order())
    return dg.MaterializeResult(metadata=landed(written))


@dg.asset(key=["focus", "cost_and_usage"], deps=[focus_candidate, *FACTS], kinds={"parquet"}, group_name="focus")
def focus_cost_and_usage(
    context: dg.AssetExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.MaterializeResult[None]:
    """The published day: facts and FOCUS rows take their places, after every blocking check has passed."""
    cluster, date = cluster_and_date(context.partition_key)
    published = lake.publish(cluster, date)
    lake.write_focus_metadata(
        focus_metadata(
            settings.config,
            published=lake.focus_days(),
            updated_at=dt.datetime.now(dt.UTC),
            generator_version=importlib.metadata.version("gpu-chargeback"),
            previous=lake.focus_metadata(),
        )
    )
    return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(str(published[-1])), "objects": len(published)})


@dg.asset(deps=[focus_cost_and_usage], kinds={"duckdb"}, group_name="focus")
def catalog(lake: dg.ResourceParam[Lake]) -> dg.MaterializeResult[None]:
    """The DuckDB file with a view for every table: written new and renamed."""
    return dg.MaterializeResult(metadata={"path": dg.MetadataValue.path(str(catalog_file.rebuild(lake.root)))})


PUBLISHED = (focus_candidate, focus_cost_and_usage, catalog)
