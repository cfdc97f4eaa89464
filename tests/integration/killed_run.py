"""A run that is killed at one of its writes, in a process of its own; nothing is imported twice."""

import datetime as dt
import os
import signal
from pathlib import Path

import great_expectations  # noqa: F401 - imported before the fork, so that a killed run costs no import

import assets.runs
from schemas.config import Config


def run_and_die(config_json: str, day: dt.date, now: dt.datetime, kill_at: int) -> None:
    """Make a day's facts and publish them; SIGKILL comes in place of the `kill_at`th rename (0: never).

    Every write of the lake becomes visible by a rename: of a Parquet object, a publication, the catalog, the metadata.
    """
    replace, count = Path.replace, 0

    def killing(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = killing  # type: ignore[method-assign,assignment]
    config = Config.model_validate_json(config_json)
    clusters = [cluster.name for cluster in config.clusters]
    assets.runs.materialize(config, dates=[day], clusters=clusters, stage="transform", now=now, data_docs=False)
    (Path(config.lake) / "renames").write_text(str(count))
