"""The catalog: one DuckDB file with a view for every published table, and one for people.

It holds no data, only views over the Parquet by absolute path. It is written new and renamed, so a BI tool that has the
old one open neither blocks nor breaks it, and in a storage version that DuckDB 1.x opens.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.load.lake import FOCUS_DATASET
from schemas.errors import PartitionMissing, PartitionUnreadable

CATALOG = "chargeback.duckdb"
STORAGE_VERSION = "v1.0.0"  # the oldest that DuckDB 1.x reads
FOCUS_VIEW = "focus_cost_and_usage"
PEOPLE_VIEW = "chargeback"
_DIMENSIONS = (
    ("cost_center", "x_CostCenter"),
    ("workload_kind", "x_WorkloadKind"),
    ("model", "x_Model"),
    ("tenant", "x_Tenant"),
)


def rebuild(lake: Path) -> Path:
    """Write the catalog of a lake anew, its views pointing to where the lake is now. Returns its path.

    Raises:
        PartitionUnreadable: a published Parquet object is truncated or of another schema; names it.
    """
    lake = lake.absolute()
    path = lake / CATALOG
    lake.mkdir(parents=True, exist_ok=True)
    beside = lake / f".{CATALOG}.{os.getpid()}.writing"
    beside.unlink(missing_ok=True)
    try:
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            connection.execute(f"attach '{_quoted(beside)}' as catalog (storage_version '{STORAGE_VERSION}')")
            connection.execute("use catalog")
            try:
                _create_views(connection, lake)
            except duckdb.Error:
                require_readable(lake)
                raise
            connection.execute("use memory")
            connection.execute("detach catalog")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path


@contextlib.contextmanager
def connect(lake: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A read-only connection to the catalog, times in UTC. Raises PartitionMissing where there is no catalog."""
    path = lake / CATALOG
    if not path.exists():
        raise PartitionMissing(
            f"{lake}: no catalog ({CATALOG}) there; `gpu-chargeback demo` or `gpu-chargeback run` makes one,"
            " --lake names another lake"
        )
    try:
        connection = duckdb.connect(str(path), read_only=True)
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        remedy = "`gpu-chargeback catalog` rebuilds it"
        if "lock" in reason.lower():
            remedy = "another program has it open for writing; open it read-only there, or close it"
        raise PartitionUnreadable(f"{path}: cannot be opened ({reason}); {remedy}") from None
    with connection:
        connection.execute("set timezone = 'UTC'")
        _require_its_place(connection, lake)
        yield connection


def _require_its_place(connection: duckdb.DuckDBPyConnection, lake: Path) -> None:
    """Raise PartitionUnreadable for a catalog that came with a copied lake: its views still read the other one."""
    views = connection.execute("select sql from duckdb_views() where not internal").fetchall()
    read = [place for (sql,) in views for place in re.findall(r"read_parquet\('(.*?)/[^/]+/[^/]+=\*", sql)]
    folders = {Path(place.replace("''", "'").removesuffix("/focus")) for place in read}
    if any(folder.resolve() != lake.resolve() for folder in folders):
        raise PartitionUnreadable(
            f"{lake / CATALOG}: made where the lake was before, and reads it there;"
            f" `gpu-chargeback catalog --root {lake}` makes it anew"
        )


def require_readable(lake: Path) -> None:
    """Raise PartitionUnreadable for the first published object that is truncated or lacks columns of its table."""
    from schemas.tables import CHECKS_TABLE, FACT_TABLES

    for table in (*FACT_TABLES, CHECKS_TABLE):
        for path in sorted((lake / table.name).glob("cluster=*/date=*/part.parquet")):
            _require_columns(path, table.schema.columns(), path.parent.name.removeprefix("date="))
    for path in sorted((lake / "focus" / FOCUS_DATASET).glob("billing_period=*/cluster=*/*.parquet")):
        _require_columns(path, {}, path.stem)


def _require_columns(path: Path, expected: Mapping[str, object], day: str) -> None:
    cluster = next(part for part in path.parts if part.startswith("cluster=")).removeprefix("cluster=")
    rebuild_it = f"rebuild it with `gpu-chargeback run --date {day} --cluster {cluster}`"
    try:
        found = set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PartitionUnreadable(f"{path}: not a whole Parquet file ({reason}); {rebuild_it}") from None
    missing = sorted(set(expected) - found)
    if missing:
        raise PartitionUnreadable(f"{path}: written by another version, without {', '.join(missing)}; {rebuild_it}")


def _create_views(connection: duckdb.DuckDBPyConnection, lake: Path) -> None:
    from schemas.focus import DEFAULT_DIMENSIONS, cost_and_usage
    from schemas.tables import CHECKS_TABLE, FACT_TABLES

    for table in (*FACT_TABLES, CHECKS_TABLE):
        columns = {name: str(column.dtype) for name, column in table.schema.columns().items()}
        pattern = f"{table.name}/cluster=*/date=*/part.parquet"
        _create_view(connection, table.name, columns, pattern, lake)
        described = " ".join((table.schema.__doc__ or "").split())
        _comment(connection, table.name, described, {n: c.description or "" for n, c in table.schema.columns().items()})
    schema = cost_and_usage(DEFAULT_DIMENSIONS)
    pattern = f"focus/{FOCUS_DATASET}/billing_period=*/cluster=*/*.parquet"
    columns = {name: str(column.dtype) for name, column in schema.columns().items()}
    _create_view(connection, FOCUS_VIEW, columns, pattern, lake, by_name=True)
    there = [row[0] for row in connection.execute(f"describe {FOCUS_VIEW}").fetchall()]
    told = {name: column.description or "" for name, column in schema.columns().items() if name in there}
    _comment(connection, FOCUS_VIEW, "FOCUS 1.4 CostAndUsage, instance chargeback.", told)
    connection.execute(_people_view(there))
    _comment(connection, PEOPLE_VIEW, "GPU-hours, occupancy and cost per day, cost center, workload and namespace.", {})


def _create_view(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    columns: Mapping[str, str],
    pattern: str,
    lake: Path,
    *,
    by_name: bool = False,
) -> None:
    """A view over a table's Parquet; typed and empty while there is none."""
    if next(lake.glob(pattern), None) is None:
        typed = ", ".join(f'null::{_duckdb_type(kind)} as "{column}"' for column, kind in columns.items())
        connection.execute(f"create view {name} as select {typed} where false")
        return
    options = "hive_partitioning = false" + (", union_by_name = true" if by_name else "")
    chosen = "*" if by_name else ", ".join(f'"{column}"' for column in columns)
    source = f"read_parquet('{_quoted(lake / pattern)}', {options})"
    connection.execute(f"create view {name} as select {chosen} from {source}")


def _people_view(focus_columns: Sequence[str]) -> str:
    """One row per day, cluster, the four usual dimensions and namespace; idle is on rows without a namespace."""
    columns = {name: f'"{column}"' if column in focus_columns else "null::varchar" for name, column in _DIMENSIONS}
    dimensions = ", ".join(f"{source} as {name}" for name, source in columns.items())
    held, idle = "x_ChargeKind = 'held'", "x_ChargeKind = 'idle'"
    return f"""
    create view {PEOPLE_VIEW} as
    select *, engine_active_gpu_hours / nullif(measured_gpu_hours, 0) as engine_active_ratio
    from (
        select cast(ChargePeriodStart at time zone 'UTC' as date) as date, x_Cluster as cluster,
               {dimensions}, x_Namespace as namespace,
               coalesce(sum(PricingQuantity) filter ({held}), 0) as held_gpu_hours,
               coalesce(sum(PricingQuantity) filter ({idle}), 0) as idle_gpu_hours,
               sum(x_EngineActiveGpuHours) as engine_active_gpu_hours,
               sum(x_MeasuredGpuHours) as measured_gpu_hours,
               sum(x_EnergyKwh) as energy_kwh,
               sum(BilledCost) as cost, sum(ListCost) as list_cost, any_value(BillingCurrency) as currency
        from {FOCUS_VIEW}
        group by all
    )
    """


def _comment(connection: duckdb.DuckDBPyConnection, view: str, description: str, columns: Mapping[str, str]) -> None:
    connection.execute(f"comment on view {view} is '{_quoted(description)}'")
    for name, told in columns.items():
        connection.execute(f"comment on column {view}.\"{name}\" is '{_quoted(told)}'")


def _duckdb_type(polars_type: str) -> str:
    if polars_type.startswith("Decimal"):
        digits = [part.split("=")[1].rstrip(")") for part in polars_type.split(",")]
        return f"decimal({digits[0]}, {digits[1]})"
    if polars_type.startswith("Datetime"):
        return "timestamptz"
    return {"String": "varchar", "Int64": "bigint", "Boolean": "boolean", "Date": "date"}[polars_type]


def _quoted(text: object) -> str:
    return str(text).replace("'", "''")
