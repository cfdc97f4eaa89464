"""dagster.yaml is one that Dagster accepts, and sends nothing anywhere."""

import shutil
from pathlib import Path

import dagster as dg
import pytest

ROOT = Path(__file__).parents[3]


def test_the_instance_settings_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "dagster.yaml", tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as instance:
        assert not instance.telemetry_enabled
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 2
