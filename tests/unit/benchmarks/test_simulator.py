"""The simulated cluster: what its series, objects and truth say of situations that are written down by hand."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulator import (
    METRICS,
    SECRET,
    Card,
    Node,
    Pod,
    Series,
    World,
    generated_world,
    kubernetes_objects,
    scraped,
    truth,
    write_openmetrics,
)
from tests.golden.worlds import CASES

START = dt.datetime(2026, 3, 2, 10, tzinfo=dt.UTC)
ENGINE, ENERGY = METRICS["engine"], METRICS["energy"]


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def ms(minutes: float) -> int:
    return round(at(minutes).timestamp() * 1000)


def pod(name: str = "p", *, scheduled: float | None = 0, finished: float | None = None, **more: object) -> Pod:
    """A pod of team that holds GPU-0."""
    times = [None if minutes is None else at(minutes) for minutes in (scheduled, finished)]
    return Pod("team", name, "a", ("GPU-0",), *times, **more)  # type: ignore[arg-type]


def world(*pods: Pod, node: Node | None = None, card: Card | None = None, **more: object) -> World:
    """One GPU on one node for an hour."""
    nodes = (node or Node("a", START, capacity=((START, 1),)),)
    return World("c", START, at(60), nodes, (card or Card("GPU-0", "a", START, at(60)),), pods, **more)  # type: ignore[arg-type]


def found(world: World, name: str, **labels: str) -> list[Series]:
    """Series of a name that carry these labels; an empty value: do not have the label."""
    return [
        series
        for series in scraped(world)
        if series.name == name and all(series.labels.get(label, "") == value for label, value in labels.items())
    ]


def span(series: list[Series]) -> tuple[int, int, int]:
    """First and last instant and the number of samples of series taken together."""
    instants = np.concatenate([one.at for one in series])
    return int(instants.min()), int(instants.max()), len(instants)


# --- DCGM ----------------------------------------------------------------------------------------------------------


def test_a_pod_is_named_while_it_runs_and_the_card_is_busy_then() -> None:
    told = world(pod(scheduled=10, running_from=at(20), finished=40, engine=0.25))
    [named] = found(told, ENGINE.old, pod="p")
    assert span([named]) == (ms(20), ms(40), 41)
    assert set(named.values) == {0.25}
    [idle] = found(told, ENGINE.old, pod="")
    assert (len(idle.at), set(idle.values)) == (121 - 41, {0.0})


def test_stale_labels_name_a_pod_beside_what_its_successor_does() -> None:
    told = world(pod(finished=20, named_to=at(50), engine=0.25), pod("q", scheduled=30, engine=0.75))
    [stale] = found(told, ENGINE.old, pod="p")
    assert stale.at[-1] == ms(50)
    assert stale.values[stale.at == ms(20)] == 0.25
    assert stale.values[stale.at == ms(25)] == 0
    assert stale.values[stale.at == ms(40)] == 0.75
    assert span(found(told, ENGINE.old, pod="q")) == (ms(50.5), ms(60), 20)


def test_a_card_that_the_exporter_does_not_connect_with_its_pod() -> None:
    assert found(world(pod(named_cards=())), ENGINE.old, pod="p") == []


def test_an_exporter_gap_loses_what_lies_within() -> None:
    node = Node("a", START, exporter_gaps=((at(10), at(20)),), scrape_phase=dt.timedelta(seconds=7))
    [series] = found(world(node=node), ENGINE.old)
    assert series.at[0] == ms(0) + 7000
    assert len(series.at) == 120 - 20


@pytest.mark.parametrize(
    ("settings", "workload", "idle"),
    [
        ({}, {"pod": "p", "namespace": "team", "container": "main"}, {"pod": ""}),
        ({"with_pod_uid": True}, {"pod_uid": "pod-team-p-20260302103000"}, {"pod_uid": ""}),
        ({"idle_shows_exporter": True}, {"pod": "p"}, {"pod": "nvidia-dcgm-exporter-a-0", "exported_pod": ""}),
        (
            {"honor_labels": False},
            {
                "exported_pod": "p",
                "exported_namespace": "team",
                "exported_container": "main",
                "namespace": "gpu-operator",
            },
            {"exported_pod": "", "pod": "nvidia-dcgm-exporter-a-0"},
        ),
        ({"lowercase_hostname": True}, {"hostname": "a", "Hostname": ""}, {}),
    ],
)
def test_labels_are_as_the_exporter_and_the_scrape_are_set(
    settings: dict[str, Any], workload: dict[str, str], idle: dict[str, str]
) -> None:
    told = world(pod(scheduled=30), **settings)
    assert span(found(told, ENGINE.old, UUID="GPU-0", **workload))[2] >= 61
    if idle:
        assert span(found(told, ENGINE.old, UUID="GPU-0", **idle))[2] == 60


def test_an_upgraded_exporter_changes_names_units_and_the_hostname() -> None:
    told = world(pod(memory_mib=3, util_percent=100), new_names_from=at(30))
    for name, old, new in (("memory", 3, 3 * 1_048_576), ("util", 100, 1), ("engine", 0.5, 0.5)):
        [before] = found(told, METRICS[name].old, Hostname="a")
        [after] = found(told, METRICS[name].new, hostname="a", Hostname="")
        assert (set(before.values), set(after.values)) == ({old}, {new})
        assert before.at[-1] < after.at[0]
    [joules] = found(told, ENERGY.new)
    assert joules.values[-1] == 300 * 3600


def test_energy_is_what_was_drawn_since_the_driver_was_loaded() -> None:
    card = Card("GPU-0", "a", START, at(60), watts=100, driver_reloads=(at(50),), xids=((at(55), 79),))
    told = world(pod(scheduled=10, finished=20, watts=700), card=card)
    drawn = np.concatenate([series.values for series in found(told, ENERGY.old)])
    instants = np.concatenate([series.at for series in found(told, ENERGY.old)])
    expected = {10: 60_000, 20: 60_000 + 420_000, 49: 480_000 + 174_000, 60: 60_000}  # joules
    assert {minute: drawn[instants == ms(minute)][0] / 1000 for minute in expected} == expected
    assert {code for series in found(told, METRICS["xid"].old) for code in series.values[series.at >= ms(55)]} == {79}


def test_the_engine_swings_about_its_mean() -> None:
    [series] = found(world(pod(engine=0.5, wobble=0.4)), ENGINE.old)
    assert (series.values.min(), series.values.max()) == (0.3, 0.7)
    assert series.values[:120].mean() == pytest.approx(0.5)


def test_replicas_exporters_and_restarts_are_series_of_their_own() -> None:
    seconds = dt.timedelta(seconds=1)
    node = Node("a", START, exporter_restarts=(at(30),))
    told = world(
        node=node,
        honor_labels=False,
        replicas=(("one", 0 * seconds), ("two", 13 * seconds)),
        exporters=(("dcgm", 0 * seconds), ("gpu-operator", 5 * seconds)),
    )
    series = found(told, ENGINE.old)
    firsts = {(one.labels["prometheus_replica"], one.labels["job"]): one.at[0] for one in reversed(series)}
    assert {key: (first - ms(0)) // 1000 for key, first in firsts.items()} == {
        ("one", "dcgm"): 0, ("one", "gpu-operator"): 5, ("two", "dcgm"): 13, ("two", "gpu-operator"): 18,
    }  # fmt: skip
    assert {one.labels["pod"] for one in series} == {"nvidia-dcgm-exporter-a-0", "nvidia-dcgm-exporter-a-1"}


# --- kube-state-metrics --------------------------------------------------------------------------------------------


def test_a_pod_through_its_life() -> None:
    told = world(
        pod(created=START, scheduled=10, running_from=at(15), finished=40, deletion_asked=at(39), object_gone=at(50)),
    )
    requests = "kube_pod_container_resource_requests"
    assert span(found(told, requests, node="")) == (ms(0), ms(9.5), 20)
    assert span(found(told, requests, node="a")) == (ms(10), ms(49.5), 80)
    assert span(found(told, "kube_pod_status_scheduled_time"))[0] == ms(10)
    [completion] = found(told, "kube_pod_completion_time")
    assert (completion.at[0], completion.values[0]) == (ms(40), at(40).timestamp())
    [deletion] = found(told, "kube_pod_deletion_timestamp")
    assert (deletion.at[0], deletion.values[0]) == (ms(39), at(39.5).timestamp())
    ones = {
        phase: sum(int(series.values.sum()) for series in found(told, "kube_pod_status_phase", phase=phase))
        for phase in ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    }
    assert ones == {"Pending": 30, "Running": 50, "Succeeded": 20, "Failed": 0, "Unknown": 0}


def test_a_pod_that_is_never_scheduled_has_no_node() -> None:
    told = world(pod(created=START, scheduled=None))
    assert span(found(told, "kube_pod_info", node=""))[2] == 121
    assert found(told, "kube_pod_status_scheduled_time") == found(told, ENGINE.old, pod="p") == []
    assert truth(told, START.date())[START, "GPU-0"] == {"": 3_600_000}


def test_init_containers_owners_and_labels() -> None:
    told = world(
        pod(
            init_containers=((2, False), (1, True)), containers=(1, 0), owner=("Deployment", "serve"),
            labels={"acme.dev/team": "a"}, relabels=((at(30), {"acme.dev/team": "b"}),),
        ),
        namespace_labels={"team": {"owner": "x"}},
    )  # fmt: skip
    asked = found(told, "kube_pod_init_container_resource_requests")
    assert [(one.labels["container"], one.values[0]) for one in asked] == [("i0", 2), ("i1", 1)]
    assert [one.labels["restart_policy"] for one in found(told, "kube_pod_init_container_info")] == ["", "Always"]
    assert len(found(told, "kube_pod_container_resource_requests")) == 1
    assert len(found(told, "kube_pod_owner", owner_kind="ReplicaSet", owner_name="serve-6b7f9")) == 1
    assert len(found(told, "kube_replicaset_owner", replicaset="serve-6b7f9", owner_name="serve")) == 1
    assert len(found(told, "kube_namespace_labels", namespace="team", label_owner="x")) == 1
    assert span(found(told, "kube_pod_labels", label_acme_dev_team="b")) == (ms(30), ms(60), 61)


def test_without_honor_labels_the_pods_of_kube_state_metrics_are_exported() -> None:
    told = world(pod(), kube_state_honor_labels=False)
    assert len(found(told, "kube_pod_info", exported_pod="p", pod="kube-state-metrics-0", node="a")) == 1
    assert len(found(told, "kube_node_info", pod="kube-state-metrics-0", node="a")) == 1


def test_a_node_reports_what_it_has_at_the_time() -> None:
    node = Node("a", at(5), at(50), capacity=((at(10), 1),), allocatable=((at(10), 1), (at(20), 0), (at(23), 1)))
    told = world(node=node, kube_state_gaps=((at(30), at(40)),))
    capacity = found(told, "kube_node_status_capacity", resource="nvidia_com_gpu")
    assert (span(capacity), {value for one in capacity for value in one.values}) == ((ms(10), ms(49.5), 80 - 19), {1})
    allocatable = found(told, "kube_node_status_allocatable", resource="nvidia_com_gpu")
    assert [(one.at[0], one.values[0]) for one in allocatable] == [(ms(10), 1), (ms(20), 0), (ms(23), 1)]
    assert span(found(told, "kube_node_info"))[0] == ms(5)


def test_sources_can_be_absent() -> None:
    assert not any(one.name.startswith("kube") for one in scraped(world(pod(), with_kube_state=False)))
    assert not any(one.name.startswith("DCGM") for one in scraped(world(pod(), exporters=())))


# --- the file ------------------------------------------------------------------------------------------------------


def test_the_file_is_openmetrics_and_the_same_every_time(tmp_path: Path) -> None:
    quoted = pod(owner=("Deployment", "serve"), labels={"note": 'a "quoted\\" one'})
    told = world(quoted, pod("q", scheduled=20, owner=("Deployment", "serve")), phase=dt.timedelta(milliseconds=7))
    samples = write_openmetrics(tmp_path / "a.om", [told])
    assert write_openmetrics(tmp_path / "b.om", [told]) == samples
    assert (tmp_path / "a.om").read_bytes() == (tmp_path / "b.om").read_bytes()
    lines = (tmp_path / "a.om").read_text().splitlines()
    assert lines[-1] == "# EOF"
    assert r'label_note="a \"quoted\\\" one"' in (tmp_path / "a.om").read_text()
    written: dict[str, list[float]] = {}
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    for line in lines:
        if not line.startswith("#"):
            series, _, seconds = line.rsplit(" ", 2)
            assert 'cluster="c"' in series
            written.setdefault(series, []).append(float(seconds))
    assert sum(map(len, written.values())) == samples
    # Both pods show the owner of their ReplicaSet; in the file it is one series, and time runs forward.
    assert all(times == sorted(set(times)) for times in written.values())
    assert types == sorted({series.partition("{")[0] for series in written})
    assert min(map(min, written.values())) == START.timestamp() + 0.007


# --- the Kubernetes API --------------------------------------------------------------------------------------------


def test_a_pod_object_at_successive_instants() -> None:
    told = world(
        pod(
            created=START, scheduled=10, running_from=at(15), finished=40, deletion_asked=at(39), object_gone=at(45),
            init_containers=((0, False), (0, True)), relabels=((at(20), {"a": "b"}),),
        ),
    )  # fmt: skip

    def seen(minutes: float) -> dict[str, object]:
        [only] = kubernetes_objects(told, at(minutes))["Pod"]
        statuses = [*only["status"].get("containerStatuses", []), *only["status"].get("initContainerStatuses", [])]
        return {
            "phase": only["status"]["phase"],
            "node": only["spec"].get("nodeName"),
            "states": [next(iter(status["state"])) for status in statuses],
            "deletion": only["metadata"].get("deletionTimestamp"),
            "labels": only["metadata"]["labels"],
        }

    pending: dict[str, object] = {"phase": "Pending", "node": None, "states": [], "deletion": None, "labels": {}}
    assert seen(5) == pending
    assert seen(12) == pending | {"node": "a", "states": ["waiting", "running", "running"]}
    running = pending | {"phase": "Running", "node": "a", "states": ["running", "terminated", "running"]}
    assert seen(16) == running
    terminating = running | {"labels": {"a": "b"}, "deletion": "2026-03-02T10:39:30Z"}
    assert seen(39.5) == terminating
    assert seen(40) == terminating | {"phase": "Succeeded", "states": ["terminated"] * 3}
    assert kubernetes_objects(told, at(45))["Pod"] == []
    [ended] = kubernetes_objects(told, at(41))["Pod"]
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] == "2026-03-02T10:40:00Z"
    assert json.dumps(ended).count(SECRET) == 4


def test_an_evicted_pod_has_no_container_statuses() -> None:
    told = world(pod(finished=20, phase_at_end="Failed", evicted=True))
    [only] = kubernetes_objects(told, at(30))["Pod"]
    assert (only["status"]["phase"], only["status"]["reason"]) == ("Failed", "Evicted")
    assert "containerStatuses" not in only["status"]
    assert found(told, "kube_pod_completion_time") == []


def test_node_objects_come_change_and_go() -> None:
    node = Node("a", at(5), at(50), capacity=((at(10), 8), (at(40), 0)), not_ready=((at(20), at(30)),))
    told = world(node=node)

    def seen(minutes: float) -> list[tuple[str | None, str]]:
        return [
            (each["status"]["capacity"].get("nvidia.com/gpu"), each["status"]["conditions"][0]["status"])
            for each in kubernetes_objects(told, at(minutes))["Node"]
        ]

    assert [seen(minutes) for minutes in (4, 5, 10, 20, 30, 40, 50)] == [
        [], [(None, "True")], [("8", "True")], [("8", "Unknown")], [("8", "True")], [("0", "True")], [],
    ]  # fmt: skip


# --- truth ---------------------------------------------------------------------------------------------------------


def test_truth_of_a_card_that_moves() -> None:
    told = World(
        "c", START, at(60), (Node("a", START), Node("b", START)),
        (
            Card("GPU-0", "a", START, at(23.5), owned_to=at(24)),
            Card("GPU-0", "b", at(24), at(60), owned_from=at(24)),
        ),
        (Pod("team", "p", "b", ("GPU-0",), at(30)),),
    )  # fmt: skip
    assert truth(told, START.date()) == {(START, "GPU-0"): {"": 3_600_000, told.pods[0].uid: 1_800_000}}


@pytest.mark.parametrize(
    # The others are about what is known of an end, or have no node.
    "name",
    [
        name
        for name, case in CASES.items()
        if name not in ("case-22", "case-31", "case-32", "case-33", "case-35-telemetry-only")
        # The naive truth knows whole devices only.
        and not any("nvidia.com/gpu.replicas" in node.labels for node in case.world.nodes)
    ],
)
def test_truth_agrees_with_the_worked_cases(name: str) -> None:
    hour = dt.datetime(2026, 3, 2, 12, tzinfo=dt.UTC)
    names = {pod.uid: pod.name for pod in CASES[name].world.pods}
    told: dict[tuple[str, str], int] = {}
    for (since, _), device in truth(CASES[name].world, hour.date()).items():
        if since == hour:
            held = {uid: ms for uid, ms in device.items() if uid}
            told["idle", "a"] = told.get(("idle", "a"), 0) + device[""] - sum(held.values())
            for uid, held_ms in held.items():
                told["held", names[uid]] = told.get(("held", names[uid]), 0) + held_ms
    expected = {(kind, who): Decimal(hours) for kind, who, hours in CASES[name].lines}
    assert {key for key, ms in told.items() if ms} == expected.keys()
    for key, hours in expected.items():
        assert abs(Decimal(told[key]) / 3_600_000 - hours) < Decimal("1e-11")


def test_generated_pods_never_overlap_and_some_nodes_are_idle() -> None:
    told = generated_world("c", START, 2, nodes=3, gpus_per_node=4)
    assert repr(told) == repr(generated_world("c", START, 2, nodes=3, gpus_per_node=4))
    device_hours = truth(told, START.date() + dt.timedelta(days=1))
    assert len(device_hours) == 12 * 24
    assert {device.pop("") for device in device_hours.values()} == {3_600_000}
    assert max(sum(device.values()) for device in device_hours.values()) == 3_600_000
    assert {pod.node for pod in told.pods} == {"gpu-0000", "gpu-0001"}
    assert {len(pod.cards) for pod in told.pods} == {2, 4}
    assert any(not pod.labels for pod in told.pods)


# --- worlds that cannot be -----------------------------------------------------------------------------------------


def test_a_pod_on_a_card_of_another_node_is_refused() -> None:
    with pytest.raises(ValueError, match="c: pod team/p holds GPU-9, which node a does not have"):
        world(Pod("team", "p", "a", ("GPU-9",), START))


def test_times_of_kubernetes_are_whole_seconds() -> None:
    with pytest.raises(ValueError, match="whole seconds"):
        world(pod(finished=10.0001))


def test_a_pod_needs_a_beginning() -> None:
    with pytest.raises(ValueError, match="expected `created` or `scheduled`"):
        world(pod(scheduled=None))
