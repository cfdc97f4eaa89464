"""The rules of reading DCGM series: hours, sources, runs, weights, blanks, names (design: ACCOUNTING 2 and 5)."""

import datetime as dt
import itertools
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.extract.prometheus import PrometheusSource
from pipelines.extract.telemetry import TelemetryReading, merge_readings, read_telemetry
from schemas.errors import NothingToBill, SourceUnavailable
from schemas.metrics import PRESENCE, metrics
from tests.unit.pipelines.extract.recorded import DAY, LATER, MIDNIGHT, Dcgm, Sample, at, every, instant

ENGINE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
UTIL_RATIO = "DCGM_FI_DEV_GPU_UTIL_RATIO"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
ENERGY_JOULES = "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL"
MEMORY = "DCGM_FI_DEV_FB_USED"
MEMORY_BYTES = "DCGM_FI_DEV_FB_USED_BYTES"
POD = {"exported_namespace": "research", "exported_pod": "train-0", "exported_container": "main"}
EXPORTER = {"namespace": "gpu-operator", "pod": "dcgm-1", "container": "nvidia-dcgm-exporter"}


EARLY = instant("4:00")  # few tiles, quick tests


def read(
    source: PrometheusSource,
    staging: Path,
    *,
    metric: str = "engine_active",
    cuts: Iterable[tuple[str, str, str]] = (),
    now: dt.datetime = EARLY,
    bridge_gap_ms: int = 600_000,
) -> TelemetryReading:
    frame = pl.DataFrame(
        [(node, instant(clock), kind) for node, clock, kind in cuts],
        schema={"node": pl.String, "at": pl.Datetime("ms", "UTC"), "kind": pl.String},
        orient="row",
    )
    return read_telemetry(
        source,
        cluster="prod",
        day=DAY,
        cuts=frame,
        bridge_gap_ms=bridge_gap_ms,
        now=now,
        staging=staging,
        read_metrics=[one for one in metrics() if one.canonical == metric],
    )


@pytest.fixture
def source() -> Dcgm:
    return Dcgm()


def hours(frame: pl.DataFrame, column: str) -> dict[int, int]:
    """Sum of a column per hour of the day."""
    summed = frame.group_by("hour").agg(pl.col(column).sum()).sort("hour")
    return {(hour - MIDNIGHT) // dt.timedelta(hours=1): value for hour, value in summed.iter_rows()}


def test_a_sample_on_the_hour_belongs_to_the_hour_that_it_covers(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "3:00"))
    device = read(source, tmp_path).device
    assert hours(device, "instants") == {1: 120, 2: 120}
    assert hours(device, "measured_ms") == {1: 3_600_000, 2: 3_600_000}


def test_the_first_sample_of_an_hour_covers_only_the_time_since_the_one_before(source: Dcgm, tmp_path: Path) -> None:
    late = [(moment + 12, 0.5) for moment, _ in every(30, "2:00", "3:00")]
    source.add(ENGINE, [*every(30, "1:00:30", "2:00"), *late])
    device = read(source, tmp_path).device
    # 2:00:12 covers 12 s, though the interval is 30 s.
    assert hours(device, "measured_ms")[2] == 12_000 + 119 * 30_000


def test_values_become_integers_weighted_by_the_time_they_cover(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, [*every(60, "1:01", "1:30", 0.25), *every(60, "1:31", "2:00", 1)])
    row = read(source, tmp_path).device.row(0, named=True)
    assert (row["interval_ms"], row["instants"], row["measured_ms"]) == (60_000, 60, 3_600_000)
    assert row["weighted_sum"] == 1_800_000 * 250_000 + 1_800_000 * 1_000_000
    assert (row["value_min"], row["value_max"]) == (250_000, 1_000_000)
    assert (row["value_first"], row["value_last"]) == (250_000, 1_000_000)
    assert row["increase"] is None
    assert (row["node"], row["model"], row["device_id"]) == ("node-a", "NVIDIA H100", "GPU-1")


def test_a_missing_scrape_is_not_measured(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, [sample for sample in every(30, "1:00:30", "2:00") if sample[0] != at("1:20")])
    row = read(source, tmp_path).device.row(0, named=True)
    assert (row["instants"], row["measured_ms"], row["largest_gap_ms"]) == (119, 119 * 30_000, 60_000)


@pytest.mark.parametrize(("gap_end", "runs"), [("1:20", 1), ("1:20:30", 2)])
def test_a_gap_longer_than_the_limit_parts_a_run(source: Dcgm, tmp_path: Path, gap_end: str, runs: int) -> None:
    source.add(ENGINE, [*every(30, "1:00:30", "1:10"), *every(30, gap_end, "1:40")])
    assert read(source, tmp_path).device.height == runs


def test_two_prometheus_replicas_count_as_one(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00", 0.4), prometheus_replica="a", **POD)
    source.add(ENGINE, every(30, "1:00:15", "1:59:45", 0.6), prometheus_replica="b", **POD)
    reading = read(source, tmp_path)
    for frame in (reading.device, reading.workload):
        assert hours(frame, "instants") == {1: 120}
        assert hours(frame, "measured_ms") == {1: 3_600_000}
        assert frame["value_max"].max() == 400_000


def test_the_configured_replica_label_names_a_source(tmp_path: Path) -> None:
    source = Dcgm(replica_label="shard")
    source.add(ENGINE, every(30, "1:00:30", "2:00"), shard="1")
    source.add(ENGINE, every(30, "1:00:15", "1:59:45"), shard="2")
    device = read(source, tmp_path).device
    assert (device["instants"].sum(), device["source"].to_list()) == (120, ["job=dcgm,instance=a:9400,shard=1"])


def test_a_second_source_counts_where_the_first_is_silent(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, [*every(30, "1:00:30", "1:20"), *every(30, "1:30", "2:00")], replica="a")
    source.add(ENGINE, every(30, "1:00:15", "1:59:45"), replica="b")
    # b has all 120 instants and is the primary; a adds nothing.
    assert read(source, tmp_path / "b").device["instants"].to_list() == [120]
    source.series[1] = (source.series[1][0], every(30, "1:10:15", "1:50:15"))
    device = read(source, tmp_path / "a").device
    # a is the primary now: b counts only between 1:20 and 1:30, and no time is counted twice.
    assert hours(device, "measured_ms") == {1: 3_600_000}
    assert device["source"].str.ends_with("replica=b").to_list() == [False, True, False]
    assert device.filter(pl.col("source").str.ends_with("replica=b"))["first_at"].item() == instant("1:20:15")
    assert device.filter(pl.col("source").str.ends_with("replica=b"))["last_at"].item() == instant("1:29:45")


def test_an_exporter_restart_loses_nothing(source: Dcgm, tmp_path: Path) -> None:
    for pod, instance, samples in (
        ("dcgm-1", "10.0.0.1:9400", every(30, "1:00:30", "1:20")),
        ("dcgm-2", "10.0.0.2:9400", every(30, "1:20:30", "2:00")),
    ):
        source.add(ENGINE, samples, instance=instance, **POD | EXPORTER | {"pod": pod})
    reading = read(source, tmp_path)
    assert hours(reading.device, "measured_ms") == {1: 3_600_000}
    assert hours(reading.workload, "measured_ms") == {1: 3_600_000}


def test_copies_of_one_source_never_add_up(source: Dcgm, tmp_path: Path) -> None:
    for pod in ("a", "b", "c"):
        source.add(ENGINE, every(30, "1:00:30", "2:00", 0.7), exported_pod=pod, exported_namespace="n", vgpu=pod)
    reading = read(source, tmp_path)
    assert hours(reading.device, "instants") == {1: 120}
    assert reading.device["value_max"].to_list() == [700_000]
    assert reading.workload["pod"].to_list() == ["a", "b", "c"]
    assert reading.workload["replica"].to_list() == ["a", "b", "c"]


def test_a_workload_of_several_rows_counts_once(source: Dcgm, tmp_path: Path) -> None:
    # dcgm-exporter #725; err_code stands for whatever else tells the rows apart.
    for code in ("1", "2"):
        source.add(ENGINE, every(30, "1:00:30", "2:00", float(code) / 10), err_code=code, **POD)
    assert read(source, tmp_path).workload.select("instants", "value_max").rows() == [(120, 200_000)]


def test_a_run_ends_where_the_pod_changes(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "1:20"), **POD)
    source.add(ENGINE, every(30, "1:20:30", "1:40"))
    source.add(ENGINE, every(30, "1:40:30", "2:00"), **POD | {"exported_pod": "train-1"})
    reading = read(source, tmp_path)
    assert reading.device["instants"].to_list() == [40, 40, 40]
    assert reading.device["measured_ms"].to_list() == [1_200_000] * 3
    assert reading.workload.select("pod", "instants").rows() == [("train-0", 40), ("train-1", 40)]


def test_a_run_ends_at_the_boundaries_of_a_pods_life(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00"))
    source.add(ENGINE, every(30, "1:00:30", "2:00"), UUID="GPU-2", Hostname="node-b", instance="b:9400")
    cuts = [("node-a", "1:10:10", "start"), ("node-a", "1:40", "end"), ("node-c", "1:15", "start")]
    device = read(source, tmp_path, cuts=cuts).device
    cut = device.filter(pl.col("device_id") == "GPU-1")
    # (…, 1:10:10], (1:10:10, 1:10:10 + 30 s - 1 ms]: not wholly the pod's, (…, 1:40], (1:40, …
    assert cut.select("first_at", "last_at").rows() == [
        (instant("1:00:30"), instant("1:10")),
        (instant("1:10:30"), instant("1:10:30")),
        (instant("1:11"), instant("1:40")),
        (instant("1:40:30"), instant("2:00")),
    ]
    assert cut["measured_ms"].sum() == 3_600_000
    assert device.filter(pl.col("device_id") == "GPU-2").height == 1


def test_a_pod_scheduled_on_a_sample_owns_the_next_one(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00"))
    device = read(source, tmp_path, cuts=[("node-a", "1:10", "start"), ("node-a", "0:59:45", "start")]).device
    # Own samples have start + interval <= ts: from 1:10:30; the earlier pod's from 1:00:15, so 1:00:30 is its own.
    assert device["first_at"].to_list() == [instant("1:00:30"), instant("1:10:30")]


def test_an_upgrade_gives_one_figure_and_no_difference_across_it(source: Dcgm, tmp_path: Path) -> None:
    source.add(MEMORY, every(30, "1:00:30", "1:30", 1024))
    source.add(MEMORY_BYTES, every(30, "1:30:30", "2:00", 1024 * 1_048_576), Hostname="", hostname="node-a")
    memory = read(source, tmp_path, metric="memory_used").device
    assert memory.select("metric_name", "value_max", "node", "instants").rows() == [
        (MEMORY, 1024, "node-a", 60),
        (MEMORY_BYTES, 1024, "node-a", 60),
    ]
    source.add(
        ENERGY, [(moment, 1_000_000 + step * 1000) for step, (moment, _) in enumerate(every(30, "1:00:30", "1:30"))]
    )
    source.add(ENERGY_JOULES, [(moment, 5000 + step) for step, (moment, _) in enumerate(every(30, "1:30:30", "2:00"))])
    energy = read(source, tmp_path, metric="energy").device
    assert energy.select("value_first", "increase", "weighted_sum").rows() == [
        (1_000_000, 59_000, 0),
        (5_000_000, 59_000, 0),
    ]


def test_of_two_names_at_one_instant_the_older_counts(source: Dcgm, tmp_path: Path) -> None:
    source.add(UTIL, every(30, "1:00:30", "2:00", 1))
    source.add(UTIL_RATIO, every(30, "1:00:30", "2:00", 1))  # the old percentage under the new name
    assert read(source, tmp_path, metric="gpu_util").device.select("metric_name", "value_max").rows() == [
        (UTIL, 10_000)
    ]


def test_a_percentage_under_a_ratios_name_is_left_out_for_the_whole_day(source: Dcgm, tmp_path: Path) -> None:
    source.add(UTIL_RATIO, [*every(30, "1:00:30", "2:00", 0), *every(30, "2:00:30", "3:00", 97)], **POD)
    source.add(UTIL_RATIO, every(30, "1:00:30", "3:00", 0.97), UUID="GPU-2")
    reading = read(source, tmp_path, metric="gpu_util")
    values = reading.device.filter(pl.col("metric") == "gpu_util")
    assert values["device_id"].unique().to_list() == ["GPU-2"]
    assert reading.workload.is_empty()
    # The device is there all the same.
    presence = reading.device.filter(pl.col("metric") == PRESENCE)
    assert presence["device_id"].unique().to_list() == ["GPU-1"]
    assert hours(presence, "instants") == {1: 120, 2: 120}
    [finding] = reading.findings
    assert finding.code == "ratio_is_percentage"
    assert "node-a" in finding.message and "GPU-1" in finding.message


@pytest.mark.parametrize("blank", ["NaN", "+Inf", "9223372036854775794", "2147483632", "140737488355328", "-1"])
def test_a_blank_is_no_measurement_but_shows_the_device(source: Dcgm, tmp_path: Path, blank: str) -> None:
    source.add(MEMORY, [*every(30, "1:00:30", "1:20", 10), *every(30, "1:20:30", "2:00", blank)], **POD)
    reading = read(source, tmp_path, metric="memory_used")
    measured = reading.device.filter(pl.col("metric") == "memory_used")
    assert measured.select("instants", "measured_ms", "value_max").rows() == [(40, 1_200_000, 10)]
    presence = reading.device.filter(pl.col("metric") == PRESENCE)
    assert presence.select("instants", "measured_ms", "value_max").rows() == [(80, 0, 0)]
    assert presence.select("first_at", "last_at").rows() == [(instant("1:20:30"), instant("2:00"))]
    assert reading.workload["instants"].to_list() == [40]


@pytest.mark.parametrize(("name", "metric", "value"), [(ENGINE, "engine_active", "42"), (MEMORY, "memory_used", "3e6")])
def test_a_value_that_no_device_can_have_is_no_measurement(
    source: Dcgm, tmp_path: Path, name: str, metric: str, value: str
) -> None:
    source.add(name, [*every(30, "1:00:30", "1:20", 1), *every(30, "1:20:30", "2:00", value)])
    device = read(source, tmp_path, metric=metric).device
    assert device.filter(pl.col("metric") == metric)["instants"].sum() == 40
    assert device.filter(pl.col("metric") == PRESENCE)["instants"].sum() == 80


def test_a_counter_that_falls_restarted_from_zero(source: Dcgm, tmp_path: Path) -> None:
    values = [100, 250, 50, 70]
    source.add(ENERGY, [(at("1:10") + 30 * step, value) for step, value in enumerate(values)])
    row = read(source, tmp_path, metric="energy").device.row(0, named=True)
    assert row["increase"] == 150 + 50 + 20
    assert (row["value_first"], row["value_last"]) == (100, 70)


def test_exported_labels_are_the_workload_and_plain_ones_the_exporter(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00"), **EXPORTER | POD)
    # The same job in an hour without a workload: nothing there says that `pod` is the exporter.
    source.add(ENGINE, every(30, "2:00:30", "3:00"), **EXPORTER | {"container": "exporter", "pod": "gpu-metrics-7"})
    reading = read(source, tmp_path)
    assert reading.workload.select("namespace", "pod", "container").rows() == [("research", "train-0", "main")]
    assert "pod=dcgm-1" in reading.device["source"][0]


def test_plain_labels_are_the_workload_unless_they_name_the_exporter(source: Dcgm, tmp_path: Path) -> None:
    # honorLabels: an idle device gets the scrape target's pod (dcgm-exporter #27, #85).
    source.add(ENGINE, every(30, "1:00:30", "2:00"), namespace="research", pod="train-0", container="main")
    source.add(ENGINE, every(30, "2:00:30", "3:00"), **EXPORTER)
    source.add(ENGINE, every(30, "3:00:30", "4:00"), **EXPORTER | {"container": "metrics", "service": "metrics"})
    reading = read(source, tmp_path)
    assert reading.workload["pod"].to_list() == ["train-0"]
    assert hours(reading.device, "instants") == {1: 120, 2: 120, 3: 120}


def test_the_old_namespace_labels_are_the_workload(source: Dcgm, tmp_path: Path) -> None:
    labels = {"pod_name": "train-0", "pod_namespace": "research", "container_name": "main", "UUID": "", "uuid": "GPU-9"}
    source.add(ENGINE, every(30, "1:00:30", "2:00"), **EXPORTER | labels)
    workload = read(source, tmp_path).workload
    assert workload.select("device_id", "namespace", "pod", "container").rows() == [
        ("GPU-9", "research", "train-0", "main")
    ]


def test_a_bare_second_exporter_does_not_unname_the_workload(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "1:50"), **POD)
    source.add(ENGINE, every(15, "1:00:15", "2:00"), job="bare", instance="a:9500")
    reading = read(source, tmp_path)
    assert set(reading.device["source"]) == {"job=bare,instance=a:9500"}
    assert reading.workload.select("instants", "interval_ms").rows() == [(100, 30_000)]


def test_mig_instances_are_devices_of_their_own(source: Dcgm, tmp_path: Path) -> None:
    for instance in ("1", "2"):
        source.add(ENGINE, every(30, "1:00:30", "2:00"), GPU_I_ID=instance, GPU_I_PROFILE="3g.40gb")
    device = read(source, tmp_path).device
    assert device.select("gpu_instance_id", "mig_profile").rows() == [("1", "3g.40gb"), ("2", "3g.40gb")]


def test_a_device_that_moves_is_seen_on_both_nodes(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "1:24"))
    source.add(ENGINE, every(30, "1:24:30", "2:00"), Hostname="node-b", instance="b:9400")
    assert read(source, tmp_path).device.select("node", "instants").rows() == [("node-a", 48), ("node-b", 72)]


def test_a_series_too_short_takes_the_interval_of_its_source(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(15, "1:00:15", "2:00"))
    source.add(ENGINE, every(15, "1:59:45", "2:00"), UUID="GPU-2")
    device = read(source, tmp_path).device.filter(pl.col("device_id") == "GPU-2")
    assert device.select("instants", "interval_ms", "measured_ms").rows() == [(2, 15_000, 30_000)]


def test_a_source_too_short_takes_the_interval_of_the_day(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, [*every(15, "1:59:45", "2:00"), *every(15, "2:00:15", "3:00")])
    device = read(source, tmp_path).device
    assert hours(device, "measured_ms") == {1: 30_000, 2: 3_600_000}
    assert device["interval_ms"].unique().to_list() == [15_000]


def test_without_any_interval_the_default_counts_and_is_told(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(15, "1:59:45", "2:00"))
    reading = read(source, tmp_path)
    assert reading.device["interval_ms"].unique().to_list() == [30_000]
    assert reading.device["measured_ms"].sum() == 30_000 + 15_000
    assert [finding.code for finding in reading.findings] == ["interval_unknown"]


def test_the_edges_of_the_day_are_read_under_their_own_hours(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "-2:00", "26:00"))
    device = read(source, tmp_path, now=LATER).device
    assert hours(device, "instants") == {-1: 20} | dict.fromkeys(range(24), 120) | {24: 20}
    assert set(device["date"]) == {DAY}


def test_nothing_after_now_is_asked_for(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "-1:50", "26:00"))
    device = read(source, tmp_path, now=instant("2:20:10")).device
    assert hours(device, "instants") == {-1: 20, 0: 120, 1: 120, 2: 40}
    assert max(source.asked) == "engine_active, hour 2026-11-03T02:00Z"


def test_a_run_resumes_at_the_tile_that_failed(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "0:00:30", "24:00"))
    whole = read(source, tmp_path / "whole", now=LATER)
    source.fails_at, source.asked = "T05:00", []
    with pytest.raises(SourceUnavailable, match="engine_active, hour 2026-11-03T05:00Z: gone"):
        read(source, tmp_path / "broken", now=LATER)
    source.fails_at, source.asked = None, []
    resumed = read(source, tmp_path / "broken", now=LATER)
    assert min(source.asked) == "engine_active, hour 2026-11-03T05:00Z"
    assert resumed.device.equals(whole.device)
    assert resumed.workload.equals(whole.workload)


def test_tiles_that_were_cut_otherwise_are_read_again(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00"))
    assert read(source, tmp_path).device.height == 1
    assert read(source, tmp_path, cuts=[("node-a", "1:30", "end")]).device.height == 2


def test_progress_counts_tiles(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00"))
    told: list[tuple[int, int]] = []
    nothing = pl.DataFrame(schema={"node": pl.String, "at": pl.Datetime("ms", "UTC"), "kind": pl.String})
    read_telemetry(
        source,
        cluster="prod",
        day=DAY,
        cuts=nothing,
        bridge_gap_ms=600_000,
        now=LATER,
        staging=tmp_path,
        on_tile=lambda done, total: told.append((done, total)),
        read_metrics=metrics()[:1],
    )
    assert told == [(done, 26) for done in range(27)]


def test_an_empty_day_is_an_error_that_names_the_selector(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "-1:55", "-1:59"))
    with pytest.raises(NothingToBill, match=r"cluster prod.*DCGM_FI_PROF_GR_ENGINE_ACTIVE.*2026-11-03"):
        read(source, tmp_path)
    # What was empty may be there at the next attempt.
    source.add(ENGINE, every(30, "1:00:30", "2:00"))
    assert read(source, tmp_path).device.height > 0


def test_series_without_a_device_label_are_told(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "2:00"), UUID="")
    with pytest.raises(NothingToBill, match="without a device label"):
        read(source, tmp_path)
    source.add(ENGINE, every(30, "1:00:30", "2:00"), UUID="GPU-2")
    assert [finding.code for finding in read(source, tmp_path).findings] == ["device_unnamed"]


def test_the_rows_are_sorted_by_their_key_and_independent_of_the_order_of_series(tmp_path: Path) -> None:
    frames = []
    for order in (1, -1):
        source = Dcgm()
        for number in range(6)[::order]:
            source.add(ENGINE, every(30, "1:00:30", "2:30"), UUID=f"GPU-{number}", Hostname=f"n{number % 2}", **POD)
        frames.append(read(source, tmp_path / str(order)))
    first, second = frames
    assert first.device.equals(second.device)
    assert first.workload.equals(second.workload)


def test_a_second_reading_replaces_only_what_it_saw_as_well(source: Dcgm, tmp_path: Path) -> None:
    source.add(ENGINE, every(30, "1:00:30", "3:00", 0.1), **POD)
    old = read(source, tmp_path / "old")
    source.series[0] = (source.series[0][0], every(30, "1:30", "3:00", 0.9))
    source.add(ENGINE, every(30, "1:00:30", "2:00", 0.9), UUID="GPU-2")
    new = read(source, tmp_path / "new")
    merged = merge_readings(old.device.lazy(), new.device.lazy()).collect()
    assert merged.select("device_id", "hour", "value_max").rows() == [
        ("GPU-1", instant("1:00"), 100_000),
        ("GPU-1", instant("2:00"), 900_000),
        ("GPU-2", instant("1:00"), 900_000),
    ]
    assert merged.columns == new.device.columns
    workload = merge_readings(old.workload.lazy(), new.workload.lazy()).collect()
    assert workload.select("hour", "value_max").rows() == [(instant("1:00"), 100_000), (instant("2:00"), 900_000)]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 7_200_000), min_size=1, max_size=60, unique=True), st.integers(0, 3))
def test_every_instant_counts_once_whatever_the_copies(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int], copies: int
) -> None:
    source = Dcgm()
    samples: list[Sample] = [(at("0:00") + offset / 1000, 0.5) for offset in offsets]
    for copy in range(copies + 1):
        source.add(ENGINE, samples, exported_pod=f"p{copy}", exported_namespace="n")
    reading = read(source, tmp_path_factory.mktemp("stage"), now=instant("2:00"))
    assert reading.device["instants"].sum() == len(offsets)
    assert reading.workload["instants"].sum() == len(offsets) * (copies + 1)
    ordered = sorted(offsets)
    steps = [None, *(after - before for before, after in itertools.pairwise(ordered))]
    intervals = dict(reading.device.select("hour", "interval_ms").unique("hour").iter_rows())
    expected = 0
    for offset, step in zip(ordered, steps, strict=True):
        interval = intervals[instant("0:00") if offset <= 3_600_000 else instant("1:00")]
        expected += interval if step is None else min(interval, step)
    assert reading.device["measured_ms"].sum() == expected
