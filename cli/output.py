"""How rows are written for people and programs: a plain table, CSV, JSON. Decimals keep every digit."""

import csv
import datetime as dt
import json
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import typer


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, right: Sequence[str] = ()) -> None:
    """A table: drawn on a terminal, aligned with spaces elsewhere. `right` names right-aligned columns."""
    texts = [[shown(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name in columns:
            table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
        for row in texts:
            table.add_row(*(Text(text) for text in row))
        Console().print(table)
        return
    widths = [max(len(name), *(len(row[i]) for row in texts), 0) for i, name in enumerate(columns)]
    for row in [list(columns), *texts]:
        cells = [
            text.rjust(width) if name in right else text.ljust(width)
            for text, width, name in zip(row, widths, columns, strict=True)
        ]
        typer.echo("  ".join(cells).rstrip())


def print_csv(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """RFC 4180 with a header; null is empty."""
    writer = csv.writer(sys.stdout, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([[shown(value) for value in row] for row in rows])


def print_json(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A list of objects. Decimals are strings: a JSON number would lose digits in most readers."""
    objects = [dict(zip(columns, (_plain(value) for value in row), strict=True)) for row in rows]
    typer.echo(json.dumps(objects, indent=2, ensure_ascii=False))


def shown(value: Any) -> str:
    """A value as text: nothing for null, decimals without an exponent, instants in UTC."""
    if value is None:
        return ""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dt.datetime):
        return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}" if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S}"
    return str(value)


def money(value: Decimal | None) -> str:
    """An amount without the zeros at its end, at least two places."""
    return "" if value is None else trimmed(value, places=2)


def trimmed(value: Decimal | None, places: int = 0) -> str:
    """A decimal without the zeros at its end, but with at least `places` places; every other digit stays."""
    if value is None:
        return ""
    whole, _, fraction = f"{value:f}".partition(".")
    fraction = fraction.rstrip("0").ljust(places, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return shown(value) if isinstance(value, Decimal) else str(value)
