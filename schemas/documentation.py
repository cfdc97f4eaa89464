"""What is made from the schemas: docs/tables.md and the JSON Schema of chargeback.yaml.

Run `python -m schemas.documentation` after a change in `schemas.tables` or `schemas.config`; a test compares.
"""

import json
from pathlib import Path

from schemas.config import json_schema
from schemas.tables import CHECKS_TABLE, FACT_TABLES, RAW_TABLES, SNAPSHOTS_TABLE, Table

TABLES_PAGE = Path(__file__).resolve().parent.parent / "docs" / "tables.md"
CONFIG_SCHEMA = Path(__file__).resolve().parent / "chargeback.schema.json"
_HEAD = """# Tables of the lake

Made from `schemas/tables.py` by `python -m schemas.documentation`. One partition is one Parquet object:
`<lake>/<table>/cluster=<name>/date=<YYYY-MM-DD>/part.parquet`. Instants are UTC, intervals half-open. Key columns are
marked; rows are sorted by their key. The columns of the FOCUS rows are in [focus.md](focus.md).
"""


def tables_markdown() -> str:
    """Every table with its columns, types, units and keys, as Markdown."""
    parts = [_HEAD]
    for heading, tables in (
        ("What was read", (*RAW_TABLES, SNAPSHOTS_TABLE)),
        ("What was made of it", FACT_TABLES),
        ("What was judged", (CHECKS_TABLE,)),
    ):
        parts.append(f"\n## {heading}\n")
        parts += [_table_markdown(table) for table in tables]
    return "".join(parts)


def _table_markdown(table: Table) -> str:
    description = " ".join((table.schema.__doc__ or "").split())
    key = set(table.schema.primary_key())
    rows = [
        "| {name}{key} | {type} | {unit} | {null} | {description} |".format(
            name=f"`{name}`",
            key=" (key)" if name in key else "",
            type=_type_name(str(column.dtype)),
            unit=(column.metadata or {}).get("unit", ""),
            null="null" if column.nullable else "",
            description=column.description or "",
        )
        for name, column in table.schema.columns().items()
    ]
    head = f"\n### {table.name}\n\n{description}\n\n"
    columns = "| column | type | unit | may be | what it is |\n|---|---|---|---|---|\n"
    return head + columns + "\n".join(rows) + "\n"


def _type_name(polars_type: str) -> str:
    return (
        polars_type.replace("Datetime(time_unit='ms', time_zone='UTC')", "timestamp, UTC")
        .replace("Decimal(precision=", "decimal(")
        .replace(", scale=", ",")
        .replace("String", "text")
        .replace("Int64", "integer")
        .replace("Boolean", "true or false")
        .replace("Date", "date")
    )


def config_schema_text() -> str:
    """The JSON Schema of chargeback.yaml as it is committed."""
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    TABLES_PAGE.write_text(tables_markdown())
    CONFIG_SCHEMA.write_text(config_schema_text())
