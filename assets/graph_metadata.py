"""What Dagster shows of a landed table: rows, columns with their descriptions, path, and a day's reconciliation."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from pipelines.load.lake import Written
from schemas.tables import Table


def column_schema(table: Table) -> dg.TableSchema:
    """Columns of a table as Dagster shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name,
                type=str(column.dtype),
                description=column.description or "",
                constraints=dg.TableColumnConstraints(nullable=column.nullable),
            )
            for name, column in table.schema.columns().items()
        ]
    )


def landed(written: Written, table: Table | None = None, **more: Any) -> Mapping[str, Any]:
    """Metadata of one landed object."""
    schema = {"dagster/column_schema": column_schema(table)} if table else {}
    return {
        "dagster/row_count": written.rows,
        "path": dg.MetadataValue.path(str(written.path)),
        **schema,
        **more,
    }
