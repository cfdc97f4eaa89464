"""Docs are tests: the demo runs, every SQL block in the docs runs on it, the configuration examples validate."""

import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from pipelines.load.catalog import connect
from schemas.config_file import load_config

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SQL = [(page, sql) for page in PAGES for sql in re.findall(r"```sql\n(.*?)```", page.read_text(), re.S)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    lake = tmp_path_factory.mktemp("demo") / "lake"
    command = [sys.executable, "-c", "from cli.main import main; main()", "demo", "--lake", str(lake)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return lake, told.stdout


@pytest.fixture(scope="module")
def catalog(demo: tuple[Path, str]) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(demo[0]) as connection:
        yield connection


def test_the_demo_tells_who_held_what_and_that_it_adds_up(demo: tuple[Path, str]) -> None:
    lake, told = demo
    for expected in ("research", "search", "notebooks", "(idle)", "difference 0", str(lake / "chargeback.duckdb")):
        assert expected in told


def test_the_demo_sums_to_price_times_owned(catalog: duckdb.DuckDBPyConnection) -> None:
    sums = "sum(PricingQuantity), sum(BilledCost), sum(ListCost)"
    rows = catalog.execute(f"select {sums} from focus_cost_and_usage").fetchall()
    assert rows == [(Decimal(1248), Decimal(1248) * Decimal("5.191"), Decimal(1248) * Decimal("6.88"))]


def test_the_sample_has_what_it_should(catalog: duckdb.DuckDBPyConnection) -> None:
    def one(sql: str) -> int:
        return int(catalog.execute(sql).fetchall()[0][0])

    assert one("select count(distinct date) from devices") == 2
    assert one("select count(distinct x_Namespace) from focus_cost_and_usage") >= 3
    assert one("select count(*) from focus_cost_and_usage where x_ChargeKind = 'held' and x_CostCenter is null") > 0
    nodes = "select node from gpu_hours group by 1 having count(*) filter (charge_kind = 'held') = 0"
    assert one(f"select count(*) from ({nodes})") == 1
    size = sum(path.stat().st_size for path in (ROOT / "data" / "sample").rglob("*") if path.is_file())
    assert size < 3_000_000


@pytest.mark.parametrize(("page", "sql"), SQL, ids=[f"{page.stem}-{i}" for i, (page, _) in enumerate(SQL)])
def test_sql_in_the_docs_runs(catalog: duckdb.DuckDBPyConnection, page: Path, sql: str) -> None:
    assert catalog.execute(sql).fetchall()


@pytest.mark.parametrize("page", [ROOT / "docs" / "configuration.md", ROOT / "data" / "sample" / "chargeback.yaml"])
def test_configuration_examples_validate(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.S) if page.suffix == ".md" else [text]
    for example in examples:
        (tmp_path / "chargeback.yaml").write_text(example)
        assert load_config(tmp_path / "chargeback.yaml").clusters


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
