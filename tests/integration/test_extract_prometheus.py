"""Extraction from a real Prometheus: what it reads of a known world is what the same world in memory says."""

import dataclasses
import datetime as dt
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from pipelines.extract.kube_state import read_kube_state
from pipelines.extract.prometheus import PrometheusSource, TileRequest
from pipelines.extract.telemetry import TelemetryReading, read_telemetry
from schemas.config import PrometheusConfig
from schemas.errors import NothingToBill, SourceRefused
from schemas.metrics import PRESENCE
from tests.unit.pipelines.extract.recorded import DAY, LATER, Cluster, Dcgm, Recorded, at, every, instant

pytestmark = pytest.mark.real_server

ENGINE, NEW_ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"
MEMORY, NEW_MEMORY = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES"
ENERGY, NEW_ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"
EXPORTER = {"namespace": "gpu-operator", "pod": "dcgm-1", "container": "exporter", "service": "dcgm"}
POD = {"exported_namespace": "research", "exported_pod": "train-0", "exported_container": "main"}
CUTS = pl.DataFrame(
    {"node": ["node-a", "node-a"], "at": [instant("1:00:10"), instant("2:00")], "kind": ["start", "end"]}
).cast({"at": pl.Datetime("ms", "UTC")})


def world() -> Recorded:
    """Five devices and two pods: an HA pair, a gap, an upgrade, blanks, labels that honorLabels moved away."""
    dcgm = Dcgm()
    # GPU-1: a pod from 1:00 to 2:00, seen by two replicas in different phases; an hour without any pod before it.
    for replica, phase in (("a", 0.0), ("b", 15.0)):
        target = EXPORTER | {"prometheus_replica": replica}
        for first, last, labels in (("0:00:30", "1:00", {}), ("1:00:30", "2:00", POD), ("2:00:30", "4:00", {})):
            for name, value in ((ENGINE, 0.25), (MEMORY, 1000)):
                dcgm.add(name, [(t + phase, value) for t, _ in every(30, first, last)], **target | labels)
    # GPU-2: the exporter is down from 1:20 to 1:40.
    gap = [*every(15, "0:10:15", "1:20", 0.5), *every(15, "1:40:15", "2:00", 0.5)]
    dcgm.add(ENGINE, gap, UUID="GPU-2", Hostname="node-c")
    # GPU-3: upgraded at 1:30, names and units change.
    three = {"UUID": "GPU-3", "Hostname": "node-b", "instance": "b:9400"}
    new = three | {"Hostname": "", "hostname": "node-b"}
    for name, labels, first, last, value in (
        (ENGINE, three, "1:00:30", "1:30", 0.5),
        (NEW_ENGINE, new, "1:30:30", "2:00", 0.75),
        (MEMORY, three, "1:00:30", "1:30", 2048.0),
        (NEW_MEMORY, new, "1:30:30", "2:00", 4096.0 * 1_048_576),
    ):
        dcgm.add(name, every(30, first, last, value), **labels)
    dcgm.add(ENERGY, [(t, 7e12 + 1000 * step) for step, (t, _) in enumerate(every(30, "1:00:30", "1:30"))], **three)
    dcgm.add(NEW_ENERGY, [(t, 9e6 + step) for step, (t, _) in enumerate(every(30, "1:30:30", "2:00"))], **new)
    # GPU-4: lost at 1:30. GPU-5: over midnight, both ways.
    dcgm.add(MEMORY, [*every(30, "1:00:30", "1:30", 5), *every(30, "1:30:30", "2:00", "NaN")], UUID="GPU-4")
    dcgm.add(ENGINE, [*every(30, "-1:55", "0:05"), *every(30, "23:55", "24:20")], UUID="GPU-5")

    cluster = Cluster()
    cluster.node("node-a", "0:00:30", "4:00", labels={"label_nvidia_com_gpu_product": "NVIDIA-H100"})
    cluster.pod("train-0", "1:00:30", "2:30", gpus=2, scheduled="1:00:10", ended="2:00", seen_ended="2:00:30",
                owner=("ReplicaSet", "train-1"), labels={"label_team": "nlp"})  # fmt: skip
    cluster.pod("train-1", "1:10:30", "1:40")
    owner = {"owner_kind": "Deployment", "owner_name": "train", "owner_is_controller": "true"}
    cluster.add_seen("kube_replicaset_owner", "1:00:30", "2:30", namespace="research", replicaset="train-1", **owner)
    cluster.add("up", every(30, "0:00:30", "4:00", 1), **cluster.target)
    dcgm.series += cluster.series
    return dcgm


def openmetrics(series: Recorded, path: Path) -> Path:
    lines = []
    for labels, samples in series.series:
        own = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items() if name != "__name__")
        lines += [f"{labels['__name__']}{{{own}}} {value} {moment:.3f}" for moment, value in samples]
    path.write_text("\n".join([*lines, "# EOF", ""]))
    return path


@dataclasses.dataclass(frozen=True)
class Server:
    url: str
    recorded: Recorded

    def source(self, **config: object) -> PrometheusSource:
        return PrometheusSource(PrometheusConfig(url=self.url, **config), "prod", backoff_s=0.05)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(start_prometheus: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    recorded = world()
    path = openmetrics(recorded, tmp_path_factory.mktemp("world") / "world.om")
    yield Server(start_prometheus(path, "--query.max-samples=3000"), recorded)


def telemetry(source: PrometheusSource, staging: Path, *, day: dt.date = DAY) -> TelemetryReading:
    return read_telemetry(source, cluster="prod", day=day, cuts=CUTS, bridge_gap_ms=600_000, now=LATER, staging=staging)


def test_telemetry_is_what_the_world_says(server: Server, tmp_path: Path) -> None:
    with server.source() as source:
        read = telemetry(source, tmp_path / "real")
    expected = telemetry(server.recorded, tmp_path / "memory")
    assert_frame_equal(read.device, expected.device)
    assert_frame_equal(read.workload, expected.workload)
    assert read.findings == []

    engine = read.device.filter(pl.col("metric") == "engine_active")
    one = engine.filter((pl.col("device_id") == "GPU-1") & (pl.col("hour") == instant("1:00")))
    assert one.select(pl.col("instants", "measured_ms").sum()).row(0) == (120, 3_600_000)
    two = engine.filter((pl.col("device_id") == "GPU-2") & (pl.col("hour") == instant("1:00")))
    assert (two.height, two["measured_ms"].sum()) == (2, 2_400_000)
    three = engine.filter(pl.col("device_id") == "GPU-3")
    assert three.select("metric_name", "value_max").rows() == [(ENGINE, 500_000), (NEW_ENGINE, 750_000)]
    assert read.device.filter(pl.col("metric") == "energy")["increase"].to_list() == [59_000, 59_000]
    lost = read.device.filter(pl.col("metric") == PRESENCE)
    assert lost.select("device_id", "instants").rows() == [("GPU-4", 60)]
    over_midnight = engine.filter(pl.col("device_id") == "GPU-5")["hour"].to_list()
    assert over_midnight == [instant(clock) for clock in ("-1:00", "0:00", "23:00", "24:00")]
    held = read.workload.filter(pl.col("metric") == "engine_active")
    assert held["pod"].unique().to_list() == ["train-0"]
    assert held["instants"].sum() == 120


def test_kube_state_is_what_the_world_says(server: Server) -> None:
    with server.source() as source:
        read = read_kube_state(source, cluster="prod", day=DAY, now=LATER)
    expected = read_kube_state(server.recorded, cluster="prod", day=DAY, now=LATER)
    for name in ("pods", "nodes", "pod_labels"):
        assert_frame_equal(getattr(read, name), getattr(expected, name))
    assert read.findings == []
    assert read.pods.select("pod", "requested", "owner_name", "terminal_seen_at", "absent_at").rows() == [
        ("train-0", 2, "train", instant("2:00:30"), instant("2:30:30")),
        ("train-1", 1, "train", None, instant("1:40:30")),
    ]


def test_matchers_choose_a_cluster(server: Server, tmp_path: Path) -> None:
    with server.source(matchers={"instance": "b:9400"}) as source:
        assert telemetry(source, tmp_path).device["device_id"].unique().to_list() == ["GPU-3"]
    with server.source(matchers={"cluster": "other"}) as source:
        with pytest.raises(NothingToBill, match='cluster="other"'):
            telemetry(source, tmp_path)
        assert [one.code for one in read_kube_state(source, cluster="prod", day=DAY, now=LATER).findings] == [
            "kube_state_missing"
        ]


def test_a_day_that_prometheus_does_not_have(server: Server, tmp_path: Path) -> None:
    with server.source() as source, pytest.raises(NothingToBill, match="2026-10-01"):
        telemetry(source, tmp_path, day=dt.date(2026, 10, 1))


def test_a_killed_run_resumes(server: Server, tmp_path: Path) -> None:
    # spawn: a fork would take this process's threads and connections along.
    process = multiprocessing.get_context("spawn").Process(target=_read_slowly, args=(server.url, tmp_path / "killed"))
    process.start()
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("killed/*/*.device.parquet"))) < 30:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    staged = {path: path.stat().st_mtime_ns for path in tmp_path.glob("killed/*/*.device.parquet")}
    with server.source() as source:
        resumed = telemetry(source, tmp_path / "killed")
        whole = telemetry(source, tmp_path / "whole")
    assert_frame_equal(resumed.device, whole.device)
    assert_frame_equal(resumed.workload, whole.workload)
    assert {path: path.stat().st_mtime_ns for path in staged} == staged


def _read_slowly(url: str, staging: Path) -> None:
    with PrometheusSource(PrometheusConfig(url=url), "prod") as source:
        read_telemetry(
            source, cluster="prod", day=DAY, cuts=CUTS, bridge_gap_ms=600_000, now=LATER, staging=staging,
            on_tile=lambda _done, _total: time.sleep(0.01),
        )  # fmt: skip


def test_a_query_over_the_servers_limit_is_refused_in_its_words(server: Server) -> None:
    whole = f'{{__name__=~".+"}}[{26 * 3600}s]'
    with server.source() as source, pytest.raises(SourceRefused, match=r"everything: .*too many samples"):
        list(source.tiles([TileRequest("everything", whole, round(at("25:00") * 1000))]))
