"""SQLAlchemy's view of DuckDB as great-expectations needs it.

great-expectations reads a result after SQLAlchemy has ended the transaction, and DuckDB drops a pending result then
("list index out of range"). These checks only read, so transactions are left alone.
"""

from typing import Any

from duckdb_engine import Dialect
from sqlalchemy.dialects import registry

NAME = "duckdb_readonly"


class ReadingDialect(Dialect):
    """DuckDB's dialect without transactions."""

    name = "duckdb"
    supports_statement_cache = False

    def do_begin(self, connection: Any) -> None:
        """Leave the connection as it is."""

    def do_commit(self, connection: Any) -> None:
        """Leave the connection as it is."""

    def do_rollback(self, connection: Any) -> None:
        """Leave the connection as it is."""


def register() -> str:
    """Make the dialect known to SQLAlchemy; gives the scheme of its connection strings."""
    registry.register(NAME, __name__, "ReadingDialect")
    return NAME
