"""`query`: one read-only statement over the catalog."""

from pathlib import Path
from typing import Literal

from cli.output import print_csv, print_json, print_table
from schemas.errors import UsageError

_READING = {"SELECT", "EXPLAIN", "PRAGMA", "RELATION", "CALL"}


def print_query(lake: Path, sql: str, form: Literal["table", "csv", "json"] | str) -> None:
    """Run a statement and write its rows. Raises UsageError for SQL that is wrong or would write."""
    import duckdb

    from pipelines.load.catalog import connect

    with connect(lake) as connection:
        try:
            statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise UsageError(f"SQL: {_first_line(error)}") from None
        if len(statements) != 1:
            raise UsageError(f"SQL: expected one statement, found {len(statements)}")
        kind = statements[0].type.name
        if kind not in _READING:
            raise UsageError(f"SQL: the catalog is read-only, found {kind}; write to a database of your own")
        try:
            cursor = connection.execute(statements[0])
            columns = [description[0] for description in cursor.description or []]
            rows = cursor.fetchall()
            numeric = [d[0] for d in cursor.description or [] if _is_number(str(d[1]))]
        except duckdb.Error as error:
            raise UsageError(f"SQL: {_first_line(error)}") from None
    if form == "csv":
        print_csv(columns, rows)
    elif form == "json":
        print_json(columns, rows)
    else:
        print_table(columns, rows, right=numeric)


def _is_number(type_name: str) -> bool:
    return any(word in type_name.upper() for word in ("DECIMAL", "INT", "DOUBLE", "FLOAT", "NUMBER"))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
