"""The great-expectations suites that judge a day: its landed facts, and its candidate FOCUS rows.

They run on DuckDB over the Parquet itself. The proofs are SQL in `proofs` and `focus_rules`; keys, nulls and allowed
values come from the schemas. A suite on nothing fails: an empty day is never a success.
"""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import dataframely as dy
import duckdb

from pipelines.validate.focus_rules import focus_proofs
from pipelines.validate.proofs import FACT_PROOFS, PIECES, Proof
from schemas.focus import cost_and_usage, focus_columns

_SHOWN = 3
_NOT_EMPTY = ("devices", "gpu_hours", "charges", "occupancy")


@dataclasses.dataclass(frozen=True)
class CheckOutcome:
    """One check: whether it held, whether its failure stops publication, what was expected and found."""

    check: str
    passed: bool
    blocking: bool
    detail: str


@dataclasses.dataclass(frozen=True)
class _Check:
    """An expectation on one view, with the words for it."""

    name: str
    view: str
    says: str
    blocking: bool
    expectation: Any


def validate_facts(paths: Mapping[str, Path], *, docs_dir: Path | None) -> list[CheckOutcome]:
    """Judge the facts of one day.

    Args:
        paths: Parquet of each fact table, by its name.
        docs_dir: folder for the Data Docs (static HTML); None writes none.

    Returns:
        One outcome per check, in a fixed order.
    """
    import great_expectations.expectations as gxe

    checks = [_not_empty(name) for name in _NOT_EMPTY]
    checks.append(
        _Check(
            "7_every_line_has_a_price", "charges", "every line has a price", True,
            gxe.ExpectColumnValuesToNotBeNull(column="contracted_unit_price"),
        )
    )  # fmt: skip
    checks += [_of_proof(proof) for proof in FACT_PROOFS]
    with _views(paths) as database:
        examples = _work_out(database, FACT_PROOFS, first=PIECES)
        return _judged(database, "facts", checks, examples, docs_dir)


def validate_focus(
    candidate: Path, charges: Path, *, dimensions: Sequence[str], docs_dir: Path | None
) -> list[CheckOutcome]:
    """Judge a candidate partition of CostAndUsage against FOCUS 1.4 and against the charges that it shows.

    Args:
        candidate, charges: Parquet of the FOCUS rows and of the charges.
        dimensions: keys of the label schema.
        docs_dir: folder for the Data Docs; None writes none.
    """
    import great_expectations.expectations as gxe

    schema = cost_and_usage(list(dimensions))
    with _views({"focus": candidate, "charges": charges}) as database:
        found = _columns(database, "focus")
        wrong = _wrong_columns(schema, found)
        if wrong:
            # Nothing else can be asked of rows whose columns are not the ones agreed.
            told = f"expected the columns and types of FOCUS 1.4 and ours; {'; '.join(wrong[:_SHOWN])}"
            return [CheckOutcome("7_focus_columns", False, True, told)]
        checks = [_not_empty("focus")]
        for specified in focus_columns():
            if specified.allowed:
                among = gxe.ExpectColumnValuesToBeInSet(column=specified.name, value_set=list(specified.allowed))
                says = f"{specified.name} is one of FOCUS' values"
                checks.append(_Check(f"7_focus_{specified.name}_allowed", "focus", says, True, among))
        text_columns = [name for name, kind in found.items() if kind == "VARCHAR"]
        never_null = [name for name, column in schema.columns().items() if not column.nullable]
        proofs = focus_proofs(text_columns, never_null)
        examples = _work_out(database, proofs)
        checks += [_of_proof(proof) for proof in proofs]
        columns = CheckOutcome("7_focus_columns", True, True, "columns and types of FOCUS 1.4 and ours")
        return [columns, *_judged(database, "focus", checks, examples, docs_dir)]


def _not_empty(view: str) -> _Check:
    import great_expectations.expectations as gxe

    some = gxe.ExpectTableRowCountToBeBetween(min_value=1)
    return _Check(
        f"5_{view}_not_empty", view, f"there are rows in {view}: a day without GPUs is nothing to bill", True, some
    )


def _of_proof(proof: Proof) -> _Check:
    import great_expectations.expectations as gxe

    # great-expectations asks a query several times; a proof is worked out once, as a table of what breaks it.
    # Asked of the table that it is about, so that one page of Data Docs tells all of a table.
    rows = f"select * from {_broken(proof)} where exists (select 1 from {{batch}})"
    broken = gxe.UnexpectedRowsExpectation(unexpected_rows_query=rows, description=proof.says)
    return _Check(proof.name, proof.table, proof.says, proof.blocking, broken)


def _broken(proof: Proof) -> str:
    return f'"broken_{proof.name}"'


# --- running -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _views(paths: Mapping[str, Path]) -> Iterator[Path]:
    """A throw-away DuckDB file with a view per Parquet object."""
    with tempfile.TemporaryDirectory(prefix="gpu-chargeback-checks-") as folder:
        database = Path(folder) / "checks.duckdb"
        with duckdb.connect(str(database)) as connection:
            for name, path in paths.items():
                source = str(path).replace("'", "''")
                connection.execute(
                    f"create view {name} as select * from read_parquet('{source}', hive_partitioning = false)"
                )
        yield database


def _work_out(database: Path, proofs: Sequence[Proof], *, first: str = "") -> dict[str, list[str]]:
    """For each proof a table of what breaks it; gives the first few by the proof's name."""
    examples = {}
    with duckdb.connect(str(database)) as connection:
        connection.execute("set timezone = 'UTC'")
        if first:
            connection.execute(first)
        for proof in proofs:
            connection.execute(f"create table {_broken(proof)} as {proof.sql}")
            told = connection.execute(f"select told from {_broken(proof)} order by told limit {_SHOWN}")
            examples[proof.name] = [str(row[0]) for row in told.fetchall()]
    return examples


def _columns(database: Path, view: str) -> dict[str, str]:
    with duckdb.connect(str(database)) as connection:
        return {row[0]: row[1] for row in connection.execute(f"describe {view}").fetchall()}


def _wrong_columns(schema: type[dy.Schema], found: Mapping[str, str]) -> list[str]:
    """What differs between a view's columns and a schema's."""
    expected = {name: _duckdb_type(str(column.dtype)) for name, column in schema.columns().items()}
    return [
        f"{name}: expected {expected.get(name, 'no such column')}, found {found.get(name, 'none')}"
        for name in [*expected, *(name for name in found if name not in expected)]
        if expected.get(name) != found.get(name)
    ]


def _duckdb_type(polars_type: str) -> str:
    if polars_type.startswith("Decimal"):
        digits = [part.split("=")[1].rstrip(")") for part in polars_type.split(",")]
        return f"DECIMAL({digits[0]},{digits[1]})"
    if polars_type.startswith("Datetime"):
        return "TIMESTAMP WITH TIME ZONE"
    return {"String": "VARCHAR", "Int64": "BIGINT"}[polars_type]


def _judged(
    database: Path,
    suite_name: str,
    checks: Sequence[_Check],
    examples: Mapping[str, Sequence[str]],
    docs_dir: Path | None,
) -> list[CheckOutcome]:
    """Run the checks, one suite per view, and write the Data Docs."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    from pipelines.validate.duckdb_dialect import register

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_sql("lake", connection_string=f"{register()}:///{database}")
    if docs_dir is not None:
        store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs_dir)}
        index = {"class_name": "DefaultSiteIndexBuilder"}
        # The pages of results tell what was expected too; pages of the suites alone would say it twice.
        sections = {"expectations": "None", "profiling": "None"}
        site: Any = {
            "class_name": "SiteBuilder",
            "site_index_builder": index,
            "store_backend": store,
            "site_section_builders": sections,
        }
        context.add_data_docs_site(site_name="local", site_config=site)
    outcomes: dict[str, CheckOutcome] = {}
    definitions = []
    for view in dict.fromkeys(check.view for check in checks):
        name = f"{suite_name}_{view}"
        batch = source.add_query_asset(name, query=f"select * from {view}").add_batch_definition("day")
        # A suite that already has its expectations is stored once, not again for each.
        suite = gx.ExpectationSuite(name=name, expectations=_named(checks, view))
        suite = context.suites.add(suite)
        definition = gx.ValidationDefinition(name=name, data=batch, suite=suite)
        definitions.append(context.validation_definitions.add(definition))
    by_name = {check.name: check for check in checks}
    try:
        for definition in definitions:
            for result in definition.run(result_format="BASIC").results:
                check = by_name[_check_name(result)]
                outcomes[check.name] = _outcome(check, result, examples.get(check.name, ()))
        if docs_dir is not None:
            context.build_data_docs()
    finally:
        source.get_engine().dispose()
    return [outcomes[check.name] for check in checks]


def _named(checks: Sequence[_Check], view: str) -> list[Any]:
    """The expectations on one view, each with its check's name, by which its result is found."""
    asked = [check for check in checks if check.view == view]
    for check in asked:
        check.expectation.meta = {"check": check.name}
    return [check.expectation for check in asked]


def _check_name(result: Any) -> str:
    return str(result.expectation_config.meta["check"])


def _outcome(check: _Check, result: Any, examples: Sequence[str]) -> CheckOutcome:
    if result.success:
        return CheckOutcome(check.name, True, check.blocking, check.says)
    return CheckOutcome(
        check.name, False, check.blocking, f"expected that {check.says}; found {_found(result, examples)}"
    )


def _found(result: Any, examples: Sequence[str]) -> str:
    """What was seen instead, in a few words."""
    trouble = [info["exception_message"] for info in _exceptions(result.exception_info)]
    if trouble:
        return f"the check itself failed: {trouble[0]}"
    seen = result.result.get("observed_value")
    if examples:
        return f"{seen}: {'; '.join(examples)}"
    unexpected = result.result.get("partial_unexpected_list")
    return f"{result.result.get('unexpected_count')}: {unexpected}"[:300] if unexpected else str(seen)


def _exceptions(info: Any) -> Iterator[Mapping[str, Any]]:
    """Exceptions in a result, whichever of its two shapes great-expectations gave."""
    candidates = [info] if isinstance(info, Mapping) and "raised_exception" in info else list((info or {}).values())
    yield from (each for each in candidates if isinstance(each, Mapping) and each.get("raised_exception"))
