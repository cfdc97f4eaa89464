"""The worked cases of the accounting model, each through a real Prometheus and a Kubernetes API, to the last digit."""

import dataclasses
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assets.runs import materialize
from benchmarks.simulator import kubernetes_objects, write_openmetrics
from pipelines.extract.kubernetes import take_snapshot
from pipelines.load.lake import Lake
from schemas.config import Config
from schemas.tables import TABLES
from tests.golden.worlds import CASES, DAY, PRICE, at, over_midnight
from tests.services.kubernetes import KubernetesApi

NEXT_DAY = DAY + dt.timedelta(days=1)
pytestmark = pytest.mark.real_server


def configuration(lake: Path, url: str, api: KubernetesApi, names: list[str]) -> Config:
    clusters: list[dict[str, Any]] = []
    for name in names:
        prometheus = {"url": url, "matchers": {"cluster": name}, "replica_label": "prometheus_replica"}
        cluster: dict[str, Any] = {"name": name, "prometheus": prometheus}
        if "telemetry-only" not in name:
            cluster["kubernetes"] = {"server": api.server(name)}
        clusters.append(cluster)
    rates = [{"id": "h100", "model": "nvidia-h100-80gb-hbm3", "contracted": str(PRICE), "from": "2026-01-01"}]
    return Config.model_validate({"lake": str(lake), "clusters": clusters, "rates": rates})


@pytest.fixture(scope="module")
def lake(
    start_prometheus: Callable[..., str], kubernetes: KubernetesApi, tmp_path_factory: pytest.TempPathFactory
) -> Lake:
    """Every case is a cluster of one configuration; all are made in one go."""
    folder = tmp_path_factory.mktemp("golden")
    midnight = over_midnight()
    write_openmetrics(folder / "worlds.om", [*(case.world for case in CASES.values()), midnight])
    url = start_prometheus(folder / "worlds.om")
    config = configuration(folder / "lake", url, kubernetes, [*CASES, midnight.cluster])
    lake = Lake(folder / "lake")
    worlds = {world.cluster: world for world in (*(case.world for case in CASES.values()), midnight)}
    for cluster in config.clusters:
        if cluster.kubernetes is not None:
            world = worlds[cluster.name]
            for instant in (at("12:05"), at("13:05"), world.end):
                kubernetes.set_objects(cluster.name, kubernetes_objects(world, instant))
                lake.append_snapshot(cluster.name, take_snapshot(cluster, now=instant), instant)
    now = at("12:00") + dt.timedelta(days=3)
    materialize(config, dates=[DAY], clusters=list(CASES), now=now, data_docs=False)
    materialize(config, dates=[DAY, NEXT_DAY], clusters=[midnight.cluster], now=now, data_docs=False)
    return lake


def charged(lake: Lake, cluster: str, date: dt.date = DAY, hour: dt.datetime | None = None) -> pl.DataFrame:
    rows = lake.scan(TABLES["charges"], cluster, date, candidate=False)
    return rows.filter(pl.col("hour") == (hour or at("12:00"))).collect()


def told(rows: pl.DataFrame) -> tuple[tuple[str, str, str], ...]:
    summed = (
        rows.group_by("charge_kind", who=pl.coalesce("pod", "node"))
        .agg(pl.col("gpu_hours").sum())
        .sort("charge_kind", "who")
    )
    return tuple((kind, who, f"{quantity.normalize():f}") for kind, who, quantity in summed.iter_rows())


@pytest.mark.parametrize("name", CASES)
def test_lines_and_cost(lake: Lake, name: str) -> None:
    rows = charged(lake, name)
    assert told(rows) == CASES[name].lines
    assert rows["cost"].sum() == Decimal(CASES[name].cost)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.coverage])
def test_coverage(lake: Lake, name: str) -> None:
    rows = lake.scan(TABLES["occupancy"], name, DAY, candidate=False).collect()
    held = rows.filter((pl.col("hour") == at("12:00")) & (pl.col("charge_kind") == "held"))
    assert held["coverage"].to_list() == [Decimal(CASES[name].coverage or 0)]


def test_case_1_shows_the_ratio_beside_the_bill(lake: Lake) -> None:
    rows = lake.scan(TABLES["occupancy"], "case-1", DAY, candidate=False).collect()
    assert rows.filter(pl.col("hour") == at("12:00"))["engine_active_ratio"].to_list() == [Decimal("0.04")]


def test_case_15_a_whole_day_of_idle(lake: Lake) -> None:
    rows = lake.scan(TABLES["charges"], "case-15", DAY, candidate=False).collect()
    assert set(rows["charge_kind"]) == {"idle"}
    per_gpu = rows.group_by("device_id").agg(pl.col("gpu_hours", "cost").sum()).sort("device_id")
    assert per_gpu["gpu_hours"].to_list() == [Decimal(24)] * 2
    assert per_gpu["cost"].to_list() == [Decimal("124.584")] * 2


def test_case_32_reports_one_clip(lake: Lake) -> None:
    findings = lake.scan(TABLES["findings"], "case-32", DAY, candidate=False).collect()
    assert findings.filter(pl.col("code") == "clip").height == CASES["case-32"].clips


def test_case_33_newcomers_own_the_slots_from_the_instant_the_old_ones_end(lake: Lake) -> None:
    devices = lake.scan(TABLES["devices"], "case-33", DAY, candidate=False).collect()
    ends = devices.filter(pl.col("device_id").str.starts_with("GPU-old"))["owned_to"].max()
    starts = devices.filter(pl.col("device_id").str.starts_with("GPU-new"))["owned_from"].min()
    assert (ends, starts) == (at("12:10:30"), at("12:10:30"))


def test_case_35_over_midnight(lake: Lake) -> None:
    midnight = at("20:00") + dt.timedelta(hours=4)
    before = charged(lake, "over-midnight", DAY, midnight - dt.timedelta(hours=1))
    after = charged(lake, "over-midnight", NEXT_DAY, midnight)
    assert told(before) == told(after) == (("held", "p", "0.5"), ("idle", "a", "0.5"))


def test_every_case_sums_to_owned_exactly(lake: Lake) -> None:
    for name in CASES:
        rows = lake.scan(TABLES["reconciliation"], name, DAY, candidate=False).collect()
        assert rows.height > 0
        assert rows["difference_gpu_hours"].abs().sum() == 0
        assert rows["difference_cost"].abs().sum() == 0


def test_cases_are_the_law() -> None:
    assert {name.split("-")[1] for name in CASES} == {
        "1", "2", "3", "4", "5", "6", "11", "12", "13", "15", "16", "18", "21", "22", "24", "30", "31", "32", "33",
        "35",
    }  # fmt: skip
    assert all(dataclasses.is_dataclass(case) for case in CASES.values())


def shown(lake: Lake, name: str) -> pl.DataFrame:
    rows = lake.scan(TABLES["occupancy"], name, DAY, candidate=False).collect()
    return rows.filter((pl.col("hour") == at("12:00")) & (pl.col("charge_kind") == "held")).sort("line_key")


@pytest.mark.parametrize("name", ["case-4", "case-4-one-name"])
def test_case_4_a_shared_devices_figure_is_nobodys_own(lake: Lake, name: str) -> None:
    rows = shown(lake, name)
    assert set(rows["attribution_scope"]) == {"device"}
    assert rows["engine_active_ratio"].null_count() == rows.height == 3
    assert set(rows["device_engine_active_ratio"]) == {Decimal("0.714")}


def test_case_5_process_values_once_per_pod(lake: Lake) -> None:
    rows = shown(lake, "case-5")
    assert rows["process_sm_ratio"].to_list() == [Decimal("0.4"), Decimal("0.3"), Decimal("0.2")]
    assert set(rows["attribution_scope"]) == {"process"}


def test_case_6_device_figures_under_pod_names_are_told(lake: Lake) -> None:
    rows = shown(lake, "case-6")
    assert set(rows["attribution_scope"]) == {"device"}
    assert rows["process_sm_ratio"].null_count() == rows.height
    for name, told in (("case-6", ["a"]), ("case-4", ["a"]), ("case-5", [])):
        findings = lake.scan(TABLES["findings"], name, DAY, candidate=False).collect()
        assert findings.filter(pl.col("code") == "device_figures")["subject"].to_list() == told
