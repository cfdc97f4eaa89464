"""Where everything is put together: partitions, owners, policies, resources, checks, jobs, schedules."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from assets.checks import CHECKS
from assets.facts import FACTS
from assets.jobs import JOBS, SCHEDULES
from assets.partitions import day_by_cluster
from assets.published import PUBLISHED
from assets.raw import raw_assets
from assets.settings import Settings
from pipelines.load.lake import Lake
from schemas.config import Config

OWNERS = ["team:platform"]
EXTRACT_RETRIES = dg.RetryPolicy(max_retries=3, delay=60, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)


def build_definitions(config: Config, *, overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """Everything that Dagster knows of this project, for one configuration.

    Args:
        config: a validated configuration.
        overrides: resources that replace ours (`lake`, `settings`, `tile_progress`), for tests and the command line.
    """
    return dg.Definitions(
        assets=build_assets(config),
        asset_checks=list(CHECKS),
        jobs=list(JOBS),
        schedules=list(SCHEDULES),
        resources=build_resources(config) | dict(overrides or {}),
    )


def build_assets(config: Config, *, retries: dg.RetryPolicy | None = EXTRACT_RETRIES) -> list[dg.AssetsDefinition]:
    """The assets with their partitions, owners and policies, applied here once."""
    partitions = day_by_cluster([cluster.name for cluster in config.clusters])
    assets = dg.map_asset_specs(
        lambda spec: spec.replace_attributes(partitions_def=partitions, owners=OWNERS),
        [*raw_assets(retries=retries), *FACTS, *PUBLISHED],
    )
    return list(assets)


def build_resources(config: Config) -> dict[str, Any]:
    """The lake, the settings, and a progress callback that says nothing."""

    def no_progress(done: int, total: int) -> None:
        del done, total

    silent: Callable[[int, int], None] = no_progress
    return {"lake": Lake(Path(config.lake)), "settings": Settings(config), "tile_progress": silent}
