"""`run` and `snapshot`: which days, which clusters, and what a person sees meanwhile."""

import datetime as dt
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import typer

from schemas.errors import ChargebackError, UsageError

if TYPE_CHECKING:
    from schemas.config import Cluster, Config

Progress = Callable[[str, int, int], None]


def days_to_run(
    date: str | None, first: str | None, last: str | None, *, partial: bool, now: dt.datetime
) -> list[dt.date]:
    """The UTC days that a call means. Raises UsageError for one that is not over, or not a day."""
    today = now.date()
    if date and (first or last):
        raise UsageError("give --date, or --from and --to, not both")
    if bool(first) != bool(last):
        raise UsageError("--from and --to go together; for one day use --date")
    if first and last:
        start, end = _day(first, "--from"), _day(last, "--to")
        if start > end:
            raise UsageError(f"--from {start} lies after --to {end}")
    elif date:
        start = end = _day(date, "--date")
    elif partial:
        start = end = today
    else:
        start = end = today - dt.timedelta(days=1)
    if end > today:
        raise UsageError(f"{end} lies in the future (today is {today} UTC)")
    if end == today and not partial:
        raise UsageError(f"{end} is not over (UTC); --partial makes it up to now, to be made again tomorrow")
    if start < dt.date(2020, 1, 1):
        raise UsageError(f"{start}: days before 2020-01-01 are not kept")
    return [start + dt.timedelta(days=i) for i in range((end - start).days + 1)]


def _day(text: str, option: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option}: expected a day such as 2026-03-02, found {text!r}") from None


def clusters_to_run(config: "Config", name: str | None) -> list["Cluster"]:
    """All clusters, or the one named. Raises UsageError naming those that there are."""
    if name is None:
        return list(config.clusters)
    chosen = [cluster for cluster in config.clusters if cluster.name == name]
    if not chosen:
        known = ", ".join(cluster.name for cluster in config.clusters)
        raise UsageError(f"no cluster {name!r} in the configuration; there are: {known}")
    return chosen


def run_days(
    config: "Config", days: list[dt.date], cluster: str | None, stage: Literal["extract", "transform", "all"] | str
) -> None:
    """Make days and say what was published. Raises the first error; other partitions are still tried."""
    clusters = [each.name for each in clusters_to_run(config, cluster)]
    from assets.runs import Stage, materialize

    chosen: dict[str, Stage] = {"extract": "extract", "transform": "transform", "all": "all"}
    failures: list[tuple[str, ChargebackError]] = []
    done = "landed" if stage == "extract" else "published"
    with progress_bar() as progress:
        for day in days:
            for name in clusters:
                try:
                    report = materialize(config, dates=[day], clusters=[name], stage=chosen[stage], progress=progress)
                except ChargebackError as error:
                    failures.append((f"{name} {day}", error))
                    continue
                for warning in report.warnings:
                    typer.echo(f"warning: {warning}", err=True)
                typer.echo(f"{name} {day}: {done}")
    if failures:
        _raise_together(failures)


def _raise_together(failures: list[tuple[str, ChargebackError]]) -> None:
    """One error for all partitions that were not made; its class is the first one's, so is its exit code."""
    if len(failures) == 1:
        raise failures[0][1]
    first = failures[0][1]
    told = [str(error) if str(error).startswith(label) else f"{label}: {error}" for label, error in failures]
    together = ChargebackError(f"{len(failures)} days were not made\n" + "\n".join(told))
    together.exit_code = first.exit_code
    raise together


def take_snapshots(config: "Config", cluster: str | None) -> None:
    """Record the inventory of every cluster that has a Kubernetes API configured."""
    clusters = clusters_to_run(config, cluster)
    with_api = [each for each in clusters if each.kubernetes is not None]
    if not with_api:
        names = ", ".join(each.name for each in clusters)
        raise UsageError(f"no `kubernetes:` section for {names}: there is no API to read; kube-state-metrics is used")
    from pathlib import Path

    from pipelines.extract.kubernetes import take_snapshot
    from pipelines.load.lake import Lake

    lake = Lake(Path(config.lake))
    for each in with_api:
        now = dt.datetime.now(dt.UTC)
        frame = take_snapshot(each, now=now)
        typer.echo(f"{each.name}: {frame.height} objects, {lake.append_snapshot(each.name, frame, now)}")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on a terminal; nothing elsewhere, where every finished day is a line anyway."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=max(total, 1))
