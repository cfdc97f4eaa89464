"""gpu-chargeback: the command line. Commands are thin; what they do is in assets and pipelines, imported when needed.

Nothing heavy is imported here, so that --help answers at once. Exit codes: 0 done; 1 something was not published or a
check failed; 2 the call or the configuration is wrong; 3 a source could not be reached.
"""

import dataclasses
import datetime as dt
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from schemas.errors import ChargebackError, UsageError

if TYPE_CHECKING:
    from schemas.config import Config

DEFAULT_CONFIG = "chargeback.yaml"
DEFAULT_LAKE = "data/lake"

app = typer.Typer(
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="GPU chargeback for Kubernetes: who held which GPU, how busy it was, what it cost.",
)


class Stage(StrEnum):
    """Which part of the night to run."""

    extract = "extract"
    transform = "transform"
    all = "all"


class Format(StrEnum):
    """How a result is written."""

    table = "table"
    csv = "csv"
    json = "json"


ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help=f"Configuration; default {DEFAULT_CONFIG}.")
]
LakeOption = Annotated[Path | None, typer.Option("--lake", metavar="DIR", help="Lake, instead of the configuration's.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]
ClusterOption = Annotated[str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster.")]
DayOption = Annotated[str | None, typer.Option(metavar="YYYY-MM-DD")]


@dataclasses.dataclass
class Call:
    """The options that may stand before or after the command."""

    config_path: Path | None = None
    lake_path: Path | None = None
    debug: bool = False

    def told(self, config: Path | None = None, lake: Path | None = None, debug: bool = False) -> "Call":
        """Take what a command was told itself; it wins over what stands before it."""
        self.config_path = config or self.config_path
        self.lake_path = lake or self.lake_path
        self.debug = debug or self.debug
        return self

    @property
    def config_file(self) -> Path:
        """The configuration's path: told, else of the environment, else the default."""
        return self.config_path or Path(os.environ.get("GPU_CHARGEBACK_CONFIG", DEFAULT_CONFIG))

    def config(self) -> "Config":
        """The validated configuration, its lake replaced where --lake says so."""
        from schemas.config_file import load_config

        config = load_config(self.config_file)
        return config.model_copy(update={"lake": str(self.lake_path.absolute())}) if self.lake_path else config

    def lake(self) -> Path:
        """The lake: told, else the configuration's, else the default. Needs no configuration."""
        if self.lake_path:
            return self.lake_path.absolute()
        return Path(self.config().lake) if self.has_config else Path(DEFAULT_LAKE).absolute()

    @property
    def has_config(self) -> bool:
        """Whether a configuration was told, or lies where the default is."""
        return bool(self.config_path) or "GPU_CHARGEBACK_CONFIG" in os.environ or self.config_file.exists()

    def clusters(self) -> list[str] | None:
        """Names of the configured clusters; None without a configuration."""
        return [cluster.name for cluster in self.config().clusters] if self.has_config else None


_call = Call()


@app.callback()
def options(config: ConfigOption = None, lake: LakeOption = None, debug: DebugOption = False) -> None:
    """GPU chargeback for Kubernetes: who held which GPU, how busy it was, what it cost."""
    _call.told(config, lake, debug)


@app.command()
def demo(lake: LakeOption = None, debug: DebugOption = False) -> None:
    """Run the main job on the embedded cluster and print who held what."""
    call = _call.told(lake=lake, debug=debug)
    from cli.demo import run_demo

    run_demo((call.lake_path or Path(DEFAULT_LAKE)).absolute())


@app.command()
def init(
    config: ConfigOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a commented chargeback.yaml."""
    call = _call.told(config, debug=debug)
    from cli.init import write_config

    write_config(call.config_file, force=force)


@app.command()
def check(config: ConfigOption = None, debug: DebugOption = False) -> None:
    """Validate the configuration: every problem at once."""
    call = _call.told(config, debug=debug)
    from cli.check import told_config

    for line in told_config(call.config_file, call.config(), today=dt.datetime.now(dt.UTC)):
        typer.echo(line)


@app.command()
def snapshot(
    cluster: ClusterOption = None, config: ConfigOption = None, lake: LakeOption = None, debug: DebugOption = False
) -> None:
    """Record the Kubernetes inventory now."""
    call = _call.told(config, lake, debug)
    from cli.run import take_snapshots

    take_snapshots(call.config(), cluster)


@app.command()
def run(
    date: DayOption = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="YYYY-MM-DD", help="First day of several.")] = None,
    to: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="Last day of several, included.")] = None,
    cluster: ClusterOption = None,
    stage: Annotated[Stage, typer.Option(help="Part of the night to run.")] = Stage.all,
    partial: Annotated[bool, typer.Option("--partial", help="Allow today, which is not over.")] = False,
    config: ConfigOption = None,
    lake: LakeOption = None,
    debug: DebugOption = False,
) -> None:
    """Make and publish days: extract, transform, check. Without a date: yesterday (UTC)."""
    call = _call.told(config, lake, debug)
    from cli.run import days_to_run, run_days

    days = days_to_run(date, from_, to, partial=partial, now=dt.datetime.now(dt.UTC))
    run_days(call.config(), days, cluster, stage.value)


@app.command()
def status(config: ConfigOption = None, lake: LakeOption = None, debug: DebugOption = False) -> None:
    """Days landed, their totals, checks, coverage and age; and the gaps."""
    call = _call.told(config, lake, debug)
    from cli.status import print_status

    print_status(call.lake(), clusters=call.clusters(), today=dt.datetime.now(dt.UTC).date())


@app.command()
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL")],
    format_: Annotated[Format, typer.Option("--format", help="How to write the rows.")] = Format.table,
    config: ConfigOption = None,
    lake: LakeOption = None,
    debug: DebugOption = False,
) -> None:
    """Ask the catalog in SQL (DuckDB), read-only."""
    call = _call.told(config, lake, debug)
    from cli.query import print_query

    print_query(call.lake(), sql, format_.value)


@app.command()
def catalog(
    root: Annotated[str | None, typer.Option(metavar="PATH", help="Where the lake lies now, if it was moved.")] = None,
    config: ConfigOption = None,
    lake: LakeOption = None,
    debug: DebugOption = False,
) -> None:
    """Rebuild the DuckDB catalog."""
    call = _call.told(config, lake, debug)
    if root is not None and "://" in root:
        raise UsageError(f"--root {root}: object stores are not supported by this version; give a path")
    from pipelines.load.catalog import rebuild

    lake_root = Path(root).absolute() if root is not None else call.lake()
    if not lake_root.is_dir():
        raise UsageError(f"{lake_root}: no lake there; `gpu-chargeback run` makes one")
    typer.echo(f"catalog: {rebuild(lake_root)}")


def main() -> NoReturn:
    """Entry point: runs a command and turns what went wrong into a sentence and an exit code."""
    try:
        app()
    except ChargebackError as error:
        if _call.debug:
            raise
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted; what was landed stays, run again to go on", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if _call.debug:
            raise
        first_line = (str(error).splitlines() or [""])[0]
        _fail(f"unexpected {type(error).__name__}: {first_line}; run again with --debug", 1)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"gpu-chargeback: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
