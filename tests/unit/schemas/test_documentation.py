from schemas.documentation import CONFIG_SCHEMA, TABLES_PAGE, config_schema_text, tables_markdown
from schemas.tables import SNAPSHOTS_TABLE, TABLES


def test_the_tables_page_is_current() -> None:
    assert TABLES_PAGE.read_text() == tables_markdown(), "run `python -m schemas.documentation`"


def test_the_schema_of_the_configuration_is_current() -> None:
    assert CONFIG_SCHEMA.read_text() == config_schema_text(), "run `python -m schemas.documentation`"


def test_every_column_says_what_it_is() -> None:
    silent = [
        f"{table.name}.{name}"
        for table in (*TABLES.values(), SNAPSHOTS_TABLE)
        for name, column in table.schema.columns().items()
        if not column.description
    ]
    assert not silent
