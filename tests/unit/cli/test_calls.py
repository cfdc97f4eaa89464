"""What a call means, and what a person sees when it is wrong; whole runs are in tests/integration."""

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli.output import trimmed
from cli.run import days_to_run
from cli.status import behind, strangers
from schemas.errors import UsageError

NOW = dt.datetime(2026, 3, 3, 1, 0, tzinfo=dt.UTC)
HEAVY = ("polars", "duckdb", "dagster", "pydantic", "great_expectations", "kubernetes", "pyarrow")


def call(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()", *arguments],
        capture_output=True, text=True, check=False, cwd=cwd, env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip


def test_help_imports_nothing_heavy() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, cli.main; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert not set(HEAVY) & set(told.stdout.split())


@pytest.mark.parametrize("command", ["demo", "init", "check", "snapshot", "run", "status", "query", "catalog"])
def test_every_command_has_help(command: str) -> None:
    told = call(command, "--help")
    assert told.returncode == 0
    assert "Usage:" in told.stdout


def test_yesterday_unless_told() -> None:
    assert days_to_run(None, None, None, partial=False, now=NOW) == [dt.date(2026, 3, 2)]
    assert days_to_run(None, "2026-02-27", "2026-03-01", partial=False, now=NOW) == [
        dt.date(2026, 2, 27), dt.date(2026, 2, 28), dt.date(2026, 3, 1),
    ]  # fmt: skip
    assert days_to_run("2026-03-03", None, None, partial=True, now=NOW) == [dt.date(2026, 3, 3)]


@pytest.mark.parametrize(
    ("date", "first", "last", "expected"),
    [
        ("2026-03-03", None, None, "is not over"),
        ("2026-03-09", None, None, "lies in the future"),
        ("yesterday", None, None, "expected a day such as"),
        ("2026-03-01", "2026-03-01", "2026-03-01", "not both"),
        (None, "2026-03-01", None, "go together"),
        (None, "2026-03-02", "2026-03-01", "lies after"),
    ],
)
def test_days_that_cannot_be_run(date: str | None, first: str | None, last: str | None, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        days_to_run(date, first, last, partial=False, now=NOW)


def test_init_check_and_what_is_there_already(tmp_path: Path) -> None:
    assert call("init", cwd=tmp_path).returncode == 0
    checked = call("check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert "price in force: NVIDIA H100 80GB HBM3 5.191 USD per GPU-hour" in checked.stdout
    again = call("init", cwd=tmp_path)
    assert (again.returncode, again.stderr) == (
        2, "gpu-chargeback: chargeback.yaml is there already; --force replaces it, --config names another\n"
    )  # fmt: skip


def test_a_wrong_configuration_ends_with_2_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "chargeback.yaml").write_text("clusters: 5\n")
    told = call("check", cwd=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("gpu-chargeback: chargeback.yaml: 2 problems\n")
    assert "Traceback" not in told.stderr


def test_options_stand_before_or_after_the_command(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("clusters: 5\n")
    for arguments in (("--config", "other.yaml", "check"), ("check", "--config", "other.yaml")):
        assert "other.yaml: 2 problems" in call(*arguments, cwd=tmp_path).stderr


def test_a_lake_without_a_catalog_says_what_makes_one(tmp_path: Path) -> None:
    for command in (("status",), ("query", "select 1")):
        told = call(*command, "--lake", str(tmp_path), cwd=tmp_path)
        assert told.returncode == 1
        assert "gpu-chargeback demo" in told.stderr


def test_queries_of_an_empty_lake(tmp_path: Path) -> None:
    assert call("catalog", "--root", str(tmp_path), cwd=tmp_path).returncode == 0
    ask = lambda sql, form: call("query", sql, "--format", form, "--lake", str(tmp_path), cwd=tmp_path)  # noqa: E731
    rows = ask("select 1.10::decimal(9,2) as a, null as b, 'x,\"y' as c", "csv")
    assert rows.stdout.splitlines() == ["a,b,c", '1.10,,"x,""y"']
    assert json.loads(ask("select 1.10::decimal(9,2) as a, null as b", "json").stdout) == [{"a": "1.10", "b": None}]
    for sql, expected in (
        ("select nope", "SQL: Binder Error"),
        ("drop view devices", "read-only, found DROP"),
        ("select 1; select 2", "expected one statement, found 2"),
    ):
        told = ask(sql, "table")
        assert told.returncode == 2
        assert expected in told.stderr


def test_numbers_keep_their_digits() -> None:
    from decimal import Decimal

    assert trimmed(Decimal("41.528000000000000000"), places=2) == "41.528"
    assert trimmed(Decimal("24.000000000000")) == "24"
    assert trimmed(Decimal("0E-12")) == "0"


def test_status_tells_configured_clusters_that_fell_behind_and_strangers() -> None:
    rows = [("a", dt.date(2026, 3, 1)), ("b", dt.date(2026, 2, 27)), ("demo", dt.date(2026, 3, 1))]
    told = behind(rows, ["a", "b", "c"], today=dt.date(2026, 3, 2))
    assert [line.split(";")[0] for line in told] == ["b: nothing since 2026-02-27", "c: no day is there yet"]
    assert "--from 2026-02-28 --to 2026-03-01 --cluster b" in told[0]
    [stranger] = strangers(rows, ["a", "b", "c"])
    assert stranger.startswith("demo: in this lake, not in the configuration")
    assert strangers(rows, None) == []
