"""Materializing partitions in this process, for a person at a terminal: through Dagster, checks included.

The command line, the demo and the tests come through here; the schedules run the same assets and checks on a daemon.
"""

import dataclasses
import datetime as dt
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import dagster as dg
from dagster._core.errors import DagsterAssetCheckFailedError  # not exported; its message names no check

from assets.assembly import build_assets, build_resources
from assets.checks import CHECKS
from assets.partitions import partition_key
from assets.settings import Settings
from pipelines.load.catalog import rebuild
from pipelines.load.lake import Lake
from schemas.config import Config
from schemas.config_file import load_config
from schemas.errors import CheckFailed
from schemas.tables import CHECKS_TABLE, TABLES

# Dagster's event log is for its own pages; at a terminal our errors speak.
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}

SAMPLE_CONFIG = Path(__file__).resolve().parent.parent / "data" / "sample" / "chargeback.yaml"
Stage = Literal["extract", "transform", "all"]
Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class RunReport:
    """What a run published, and the warnings that it recorded."""

    published: list[tuple[str, dt.date]]
    warnings: list[str]


def materialize(
    config: Config,
    *,
    dates: Sequence[dt.date],
    clusters: Sequence[str],
    stage: Stage = "all",
    now: dt.datetime | None = None,
    data_docs: bool = True,
    progress: Progress | None = None,
) -> RunReport:
    """Make every partition of `dates` x `clusters`, in order.

    Args:
        config: a validated configuration.
        dates: UTC days.
        clusters: cluster names of the configuration.
        stage: the raw layer only, everything after it, or all.
        now: the instant beyond which nothing is known; default: now.
        data_docs: whether the checks write their pages.
        progress: told (what, done, total) as work goes on.

    Raises:
        ChargebackError: the first partition that could not be made; those before it stay published. CheckFailed names
            every blocking check that did not hold.
    """
    settings = Settings(config, now or dt.datetime.now(dt.UTC), data_docs)
    assets = build_assets(config, retries=None)
    published: list[tuple[str, dt.date]] = []
    warnings: list[str] = []
    total = len(dates) * len(clusters)
    tell = progress or _say_nothing
    with _instance() as instance:
        for date in dates:
            for cluster in clusters:
                settings.cluster(cluster)
                label = f"{cluster} {date}"
                tell(label, len(published), total)
                lake = Lake(Path(config.lake))
                resources = build_resources(config) | {
                    "settings": settings,
                    "lake": lake,
                    "tile_progress": functools.partial(tell, f"{label} extract"),
                }
                with lake.writing(cluster, date):
                    lake.finish_publications()
                    try:
                        dg.materialize(
                            [*assets, *CHECKS],
                            selection=_selection(stage),
                            partition_key=partition_key(cluster, date),
                            resources=resources,
                            instance=instance,
                            run_config=_QUIET,
                        )
                    except DagsterAssetCheckFailedError:
                        # The catalog shows what failed, beside what was published before.
                        rebuild(lake.root)
                        raise _failed_checks(lake, cluster, date) from None
                    if stage != "extract":
                        warnings += _warnings(lake, cluster, date)
                published.append((cluster, date))
                tell(label, len(published), total)
    return RunReport(published, warnings)


def demo(lake: Path, *, progress: Progress | None = None) -> RunReport:
    """The main job on the embedded cluster: its raw layer is in data/sample, everything after it is made in `lake`."""
    config = load_config(SAMPLE_CONFIG).model_copy(update={"lake": str(lake)})
    sample = Lake(SAMPLE_CONFIG.parent / "lake")
    clusters = [cluster.name for cluster in config.clusters]
    target = Lake(lake)
    dates: set[dt.date] = set()
    for cluster in clusters:
        for date in sample.dates(TABLES["raw/telemetry"], cluster):
            sample.copy_raw(cluster, date, to=target)
            dates.add(date)
    return materialize(config, dates=sorted(dates), clusters=clusters, stage="transform", progress=progress)


def _selection(stage: Stage) -> dg.AssetSelection:
    raw = dg.AssetSelection.groups("raw")
    everything = dg.AssetSelection.all()
    return {"extract": raw, "transform": everything - raw, "all": everything}[stage]


def _failed_checks(lake: Lake, cluster: str, date: dt.date) -> CheckFailed:
    """What the blocking checks that did not hold expected and found: the assets behind them were not made."""
    outcomes = lake.scan(CHECKS_TABLE, cluster, date, candidate=False).collect()
    failed = outcomes.filter(outcomes["blocking"] & ~outcomes["passed"])
    told = "\n".join(f"  {row['check']}: {row['detail']}" for row in failed.iter_rows(named=True))
    count = "1 blocking check" if failed.height == 1 else f"{failed.height} blocking checks"
    return CheckFailed(
        f"{cluster} {date}: not published, {count} failed; what was published stays.\n{told}\n"
        f"Data Docs: {lake.data_docs_path(cluster, date)}"
    )


def _warnings(lake: Lake, cluster: str, date: dt.date) -> list[str]:
    findings = lake.scan(TABLES["findings"], cluster, date, candidate=False).collect()
    checks = lake.scan(CHECKS_TABLE, cluster, date, candidate=False).collect()
    doubtful = checks.filter(~checks["passed"])
    return [f"{cluster} {date}: {text}" for text in (*findings["message"], *doubtful["detail"])]


def _instance() -> dg.DagsterInstance:
    """The instance of DAGSTER_HOME, so that a person's runs show on its pages; else one that leaves nothing behind."""
    os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "yes")
    return dg.DagsterInstance.get() if os.environ.get("DAGSTER_HOME") else dg.DagsterInstance.ephemeral()


def _say_nothing(what: str, done: int, total: int) -> None:
    del what, done, total
