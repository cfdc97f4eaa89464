"""The rules by which snapshots become sightings (design: ACCOUNTING 1 and 2)."""

import datetime as dt
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import polars as pl
import pytest

from pipelines.extract.kubernetes_objects import Pod
from pipelines.extract.sightings import Sightings, requests, sightings
from schemas.tables import NodeSighting, PodLabels, PodSighting, SnapshotObject, polars_schema

DAY = dt.date(2026, 11, 3)
MIDNIGHT = dt.datetime(2026, 11, 3, tzinfo=dt.UTC)
Served = tuple[str, dict[str, Any]]


def at(clock: str, *, days: int = 0) -> dt.datetime:
    """A time of the day, or of a day beside it."""
    hours, minutes, *seconds = (int(part) for part in clock.split(":"))
    return MIDNIGHT + dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=sum(seconds))


def iso(clock: str, *, days: int = 0) -> str:
    return f"{at(clock, days=days):%Y-%m-%dT%H:%M:%SZ}"


def gpus(count: object, name: str = "nvidia.com/gpu", *, of: str = "requests", **more: Any) -> dict[str, Any]:
    """A container that asks for devices."""
    return {"name": "c", "resources": {of: {name: count}}, **more}


def pod(uid: str = "pod-1", **parts: Any) -> Served:
    """A running pod of one GPU; `metadata`, `spec` and `status` replace single fields."""
    metadata = {"name": "train-0", "namespace": "research", "uid": uid, "creationTimestamp": iso("12:00")}
    spec = {"nodeName": "node-a", "containers": [gpus("1")]}
    status = {"phase": "Running"}
    return "Pod", {
        "metadata": metadata | parts.get("metadata", {}),
        "spec": spec | parts.get("spec", {}),
        "status": status | parts.get("status", {}),
    }


def node(uid: str = "node-1", *, capacity: dict[str, Any] | None = None, **labels: str) -> Served:
    """A node of eight GPUs; labels are nvidia.com/<name with _ as . or ->."""
    own = {f"nvidia.com/{name.replace('__', '-').replace('_', '.')}": value for name, value in labels.items()}
    return "Node", {
        "metadata": {"name": "node-a", "uid": uid, "labels": own, "creationTimestamp": iso("6:00")},
        "status": {"capacity": {"nvidia.com/gpu": "8"} if capacity is None else capacity},
    }


def owned(kind: str, uid: str, owner: str | None = None) -> Served:
    return kind, {"metadata": {"name": uid, "uid": uid, "ownerReferences": by(owner)}}


def by(owner: str | None, *, controller: bool = True) -> list[dict[str, Any]]:
    """Owner references to `Kind/name`, whose uid is its name."""
    kind, _, name = (owner or "").partition("/")
    return [{"kind": kind, "name": name, "uid": name, "controller": controller}] if owner else []


def seen(when: dt.datetime, *objects: Served) -> list[dict[str, Any]]:
    """The rows of one snapshot."""
    return [
        {
            "cluster": "prod",
            "observed_at": when,
            "kind": kind,
            "api_version": "v1",
            "uid": each["metadata"]["uid"],
            "namespace": each["metadata"].get("namespace"),
            "name": each["metadata"]["name"],
            "object": json.dumps(each),
        }
        for kind, each in objects
    ]


def fold(*snapshots: list[dict[str, Any]], also: Iterable[dt.datetime] = (), day: dt.date = DAY) -> Sightings:
    """Sightings of snapshots; `also` are instants at which nothing was there."""
    rows = [row for snapshot in snapshots for row in snapshot]
    frame = pl.DataFrame(rows, schema=polars_schema(SnapshotObject))
    return sightings(frame.lazy(), [*(row["observed_at"] for row in rows), *also], cluster="prod", day=day)


def only(frame: pl.DataFrame) -> dict[str, Any]:
    assert frame.height == 1, frame
    return frame.row(0, named=True)


def a_pod(*snapshots: list[dict[str, Any]], also: Iterable[dt.datetime] = ()) -> dict[str, Any]:
    return only(fold(*snapshots, also=also).pods)


# --- when a pod was seen -------------------------------------------------------------------------------------------


def test_a_pod_is_seen_from_first_to_last_and_then_absent() -> None:
    told = a_pod(seen(at("12:05"), pod()), seen(at("12:10"), pod()), also=[at("12:00"), at("12:15"), at("12:20")])
    assert told["first_seen_at"] == at("12:05")
    assert told["last_alive_at"] == at("12:10")
    assert told["absent_at"] == at("12:15")
    assert told["interval_ms"] == 300_000
    assert (told["cluster"], told["date"], told["source"]) == ("prod", DAY, "snapshot")
    assert (told["namespace"], told["pod"], told["node"], told["requested"]) == ("research", "train-0", "node-a", 1)


def test_a_pod_in_the_last_snapshot_is_not_absent() -> None:
    assert a_pod(seen(at("12:05"), pod()))["absent_at"] is None


def test_a_pod_recreated_under_its_name_is_two() -> None:
    folded = fold(seen(at("12:05"), pod("a")), seen(at("12:10"), pod("b"))).pods
    assert folded.select("pod_uid", "absent_at").rows() == [("a", at("12:10")), ("b", None)]


@pytest.mark.parametrize(
    ("instants", "interval_ms"),
    [(["12:05"], 300_000), (["12:00", "12:10"], 600_000), (["12:00", "12:01", "12:02", "13:00"], 60_000)],
)
def test_the_interval_is_the_median_distance_of_snapshots(instants: Sequence[str], interval_ms: int) -> None:
    told = a_pod(*(seen(at(instant), pod()) for instant in instants))
    assert told["interval_ms"] == interval_ms


# --- what its object says ------------------------------------------------------------------------------------------


def condition(kind: str, clock: str | None, status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": clock and iso(clock)}


def terminated(clock: str | None) -> dict[str, Any]:
    return {"state": {"terminated": {"finishedAt": clock and iso(clock), "reason": "Completed"}}}


@pytest.mark.parametrize(
    ("status", "spec", "scheduled"),
    [
        ({"conditions": [condition("PodScheduled", "12:01")], "startTime": iso("12:02")}, {}, "12:01"),
        ({"conditions": [condition("PodScheduled", None)], "startTime": iso("12:02")}, {}, "12:02"),
        ({"startTime": iso("12:02")}, {}, "12:02"),
        ({"conditions": [condition("PodScheduled", "12:01", "False")]}, {"nodeName": None}, None),
        ({"startTime": iso("12:02")}, {"nodeName": None}, None),
    ],
)
def test_a_pod_was_scheduled_when_it_was_bound(
    status: dict[str, Any], spec: dict[str, Any], scheduled: str | None
) -> None:
    told = a_pod(seen(at("12:05"), pod(status=status, spec=spec)))
    assert told["scheduled_at"] == (scheduled and at(scheduled))


def test_a_scheduling_time_that_moves_counts_from_the_first() -> None:
    told = a_pod(
        seen(at("12:05"), pod(status={"conditions": [condition("PodScheduled", "12:01")]})),
        seen(at("12:10"), pod(status={"conditions": [condition("PodScheduled", "12:08")]})),
    )
    assert told["scheduled_at"] == at("12:01")


def test_a_pod_ends_with_its_last_container() -> None:
    ended = {
        "phase": "Succeeded",
        "containerStatuses": [terminated("12:41"), terminated("12:43")],
        "initContainerStatuses": [terminated("12:44")],  # a sidecar ends after the containers
        "conditions": [condition("Ready", "12:50", "False")],
    }
    told = a_pod(seen(at("12:40"), pod()), seen(at("12:45"), pod(status=ended)))
    assert told["finished_at"] == at("12:44")
    assert told["terminal_seen_at"] == at("12:45")
    assert told["last_alive_at"] == at("12:40")


def test_a_container_that_ended_in_a_running_pod_does_not_end_it() -> None:
    running = {"containerStatuses": [terminated("12:41"), {"state": {"running": {"startedAt": iso("12:01")}}}]}
    told = a_pod(seen(at("12:45"), pod(status=running)))
    assert told["finished_at"] is None
    assert told["terminal_seen_at"] is None


@pytest.mark.parametrize(
    "statuses",
    [
        [],  # evicted before any container ran
        [{"state": {"running": {"startedAt": iso("12:01")}}}],  # node lost: the kubelet never told
        [terminated("12:10"), {"state": {"running": {"startedAt": iso("12:01")}}}],
        [terminated(None)],  # ContainerStatusUnknown
    ],
)
def test_a_failed_pod_whose_containers_do_not_tell_ended_when_its_status_last_moved(statuses: list[Any]) -> None:
    failed = {
        "phase": "Failed",
        "startTime": iso("12:01"),
        "conditions": [condition("PodScheduled", "12:00"), condition("DisruptionTarget", "12:30")],
        "containerStatuses": statuses,
    }
    told = a_pod(seen(at("14:00"), pod(status=failed)))
    assert told["finished_at"] == at("12:30")
    assert told["last_alive_at"] is None


def test_a_container_that_never_started_does_not_prolong_a_failed_pod() -> None:
    failed = {
        "phase": "Failed",
        "conditions": [condition("Ready", "12:30", "False")],
        "initContainerStatuses": [terminated("12:20")],
        "containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    assert a_pod(seen(at("14:00"), pod(status=failed)))["finished_at"] == at("12:20")


def test_a_deletion_under_way_is_told() -> None:
    told = a_pod(seen(at("12:05"), pod(metadata={"deletionTimestamp": iso("12:06")})))
    assert told["deletion_at"] == at("12:06")


def test_a_pod_scheduled_between_two_snapshots_has_its_node() -> None:
    told = a_pod(seen(at("12:05"), pod(spec={"nodeName": None})), seen(at("12:10"), pod()))
    assert (told["node"], told["first_seen_at"]) == ("node-a", at("12:05"))


# --- which pods matter ---------------------------------------------------------------------------------------------


def test_a_pod_seen_only_after_its_day_still_tells() -> None:
    ended = {"phase": "Succeeded", "containerStatuses": [terminated("13:00")]}
    told = a_pod(seen(at("4:00", days=2), pod(status=ended)))
    assert (told["date"], told["finished_at"]) == (DAY, at("13:00"))


def test_a_pod_created_after_the_day_is_left_out() -> None:
    late = {"creationTimestamp": iso("0:00", days=1)}
    folded = fold(seen(at("1:00", days=1), pod(metadata=late)))
    assert folded.pods.is_empty()
    assert folded.pod_labels.is_empty()


def test_a_pod_that_finished_over_an_hour_before_the_day_is_left_out_alive_sightings_too() -> None:
    early = {"creationTimestamp": iso("12:00", days=-1)}
    ended = {
        "phase": "Succeeded",
        "containerStatuses": [{"state": {"terminated": {"finishedAt": iso("22:59", days=-1)}}}],
    }
    # Its status came late: the first snapshot still saw it running.
    folded = fold(
        seen(at("23:01", days=-1), pod(metadata=early)), seen(at("23:06", days=-1), pod(metadata=early, status=ended))
    )
    assert folded.pods.is_empty()
    assert folded.pod_labels.is_empty()


def test_a_pod_that_finished_in_the_hour_before_the_day_counts() -> None:
    ended = {
        "phase": "Succeeded",
        "containerStatuses": [{"state": {"terminated": {"finishedAt": iso("23:00", days=-1)}}}],
    }
    early = {"creationTimestamp": iso("12:00", days=-1)}
    assert fold(seen(at("0:05"), pod(metadata=early, status=ended))).pods.height == 1


def test_claims_are_not_billed_but_told_once() -> None:
    claims = {"containers": [{"name": "c"}], "resourceClaims": [{"name": "gpu"}]}
    changed = pod(spec=claims, metadata={"labels": {"a": "b"}})
    folded = fold(seen(at("12:05"), pod(spec=claims)), seen(at("12:10"), changed))
    assert folded.pods.is_empty()
    assert [(each.code, each.subject) for each in folded.findings] == [("claims_not_covered", "research/train-0")]


def test_claims_beside_a_gpu_request_are_told_too() -> None:
    folded = fold(seen(at("12:05"), pod(spec={"resourceClaims": [{"name": "gpu"}]})))
    assert folded.pods.height == 1
    assert len(folded.findings) == 1


def test_an_extended_resource_backed_by_a_claim_counts_once() -> None:
    folded = fold(seen(at("12:05"), pod(status={"extendedResourceClaimStatus": {"resourceClaimName": "x"}})))
    assert only(folded.pods)["requested"] == 1
    assert folded.findings == []


# --- how much a pod asks for ---------------------------------------------------------------------------------------


def asked(init: list[dict[str, Any]], *containers: dict[str, Any]) -> dict[str, int]:
    _, served = pod(spec={"initContainers": init, "containers": list(containers)})
    return requests(msgspec.json.decode(json.dumps(served), type=Pod))


def sidecar(count: str) -> dict[str, Any]:
    return gpus(count, restartPolicy="Always")


@pytest.mark.parametrize(
    ("init", "containers", "expected"),
    [
        ([], [gpus("1"), gpus("2")], 3),
        ([gpus("2")], [gpus("1")], 2),  # ACCOUNTING case 30
        ([gpus("2"), gpus("3")], [gpus("1")], 3),
        ([sidecar("1")], [gpus("1")], 2),
        ([sidecar("1"), gpus("4")], [gpus("1")], 5),  # beside the sidecar that runs already
        ([gpus("4"), sidecar("1")], [gpus("1")], 4),  # the sidecar starts after it
        ([], [gpus("2", of="limits")], 2),
        ([], [gpus(2)], 2),
        ([], [gpus("1k")], 1000),
    ],
)
def test_requests_of_a_pod(init: list[dict[str, Any]], containers: list[dict[str, Any]], expected: int) -> None:
    assert asked(init, *containers) == {"nvidia.com/gpu": expected}


def test_each_resource_counts_for_itself() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    assert asked([gpus("2", mig)], gpus("1"), gpus("1", mig)) == {"nvidia.com/gpu": 1, mig: 2}


def test_other_resources_and_zero_do_not_count() -> None:
    assert asked([], gpus("1", "amd.com/gpu"), gpus("8", "cpu"), gpus("0")) == {}


# --- who owns a pod ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "between", "expected"),
    [
        ("ReplicaSet/rs", [owned("ReplicaSet", "rs", "Deployment/web")], ("Deployment", "web")),
        ("ReplicaSet/rs", [owned("ReplicaSet", "rs")], ("ReplicaSet", "rs")),
        ("ReplicaSet/rs", [], ("ReplicaSet", "rs")),
        ("Job/j", [owned("Job", "j", "CronJob/nightly")], ("CronJob", "nightly")),
        ("Job/j", [owned("Job", "j", "JobSet/big")], ("JobSet", "big")),
        ("Job/j", [owned("Job", "j")], ("Job", "j")),
        ("StatefulSet/db", [], ("StatefulSet", "db")),
        ("Node/node-a", [], ("Node", "node-a")),  # static pods
        (None, [], (None, None)),
    ],
)
def test_the_owner_is_the_topmost_controller_known(
    owner: str | None, between: list[Served], expected: tuple[str | None, str | None]
) -> None:
    told = a_pod(seen(at("12:05"), pod(metadata={"ownerReferences": by(owner)}), *between))
    assert (told["owner_kind"], told["owner_name"]) == expected


def test_an_owner_that_does_not_control_is_none() -> None:
    references = by("ConfigMap/x", controller=False)
    assert a_pod(seen(at("12:05"), pod(metadata={"ownerReferences": references})))["owner_kind"] is None


def test_an_owner_of_a_job_that_does_not_control_it_is_not_its_controller() -> None:
    job = "Job", {"metadata": {"name": "j", "uid": "j", "ownerReferences": by("Queue/q", controller=False)}}
    told = a_pod(seen(at("12:05"), pod(metadata={"ownerReferences": by("Job/j")}), job))
    assert (told["owner_kind"], told["owner_name"]) == ("Job", "j")


# --- labels --------------------------------------------------------------------------------------------------------


def test_consecutive_sightings_of_a_label_set_are_one_row_and_a_return_is_another() -> None:
    def labeled(value: str, phase: str = "Running") -> Served:
        return pod(metadata={"labels": {"team": value, "app": "ü"}}, status={"phase": phase})

    folded = fold(
        seen(at("12:00"), labeled("a", "Pending")),
        seen(at("12:05"), labeled("a")),
        seen(at("12:10"), labeled("b")),
        seen(at("12:15"), labeled("a")),
    ).pod_labels
    assert folded.sort("first_seen_at").select("labels", "first_seen_at", "last_seen_at").rows() == [
        ('{"app":"ü","team":"a"}', at("12:00"), at("12:05")),
        ('{"app":"ü","team":"b"}', at("12:10"), at("12:10")),
        ('{"app":"ü","team":"a"}', at("12:15"), at("12:15")),
    ]


def test_sightings_out_of_order_do_not_join_two_spans_of_a_label_set() -> None:
    def labeled(value: str) -> Served:
        return pod(metadata={"labels": {"team": value}})

    folded = fold(
        seen(at("12:00"), labeled("a")), seen(at("12:10"), labeled("a")), seen(at("12:05"), labeled("b"))
    ).pod_labels
    assert folded.sort("first_seen_at").select("first_seen_at", "last_seen_at").rows() == [
        (at(clock), at(clock)) for clock in ("12:00", "12:05", "12:10")
    ]


# --- nodes ---------------------------------------------------------------------------------------------------------


def a_node(*snapshots: list[dict[str, Any]], also: Iterable[dt.datetime] = ()) -> dict[str, Any]:
    return only(fold(*snapshots, also=also).nodes)


def test_a_node_tells_capacity_model_and_sharing() -> None:
    kind, served = node(
        gpu_product="NVIDIA-H100", gpu_sharing__strategy="none", gpu_replicas="1", mig_strategy="single"
    )
    served["metadata"]["labels"]["topology.kubernetes.io/zone"] = "a"
    served["spec"] = {"providerID": "aws:///i-1"}
    told = a_node(seen(at("12:05"), (kind, served)), also=[at("12:10")])
    assert (told["node"], told["node_uid"], told["resource"], told["capacity"]) == (
        "node-a",
        "node-1",
        "nvidia.com/gpu",
        8,
    )
    assert (told["model"], told["sharing_strategy"], told["replicas"]) == ("NVIDIA-H100", "none", 1)
    assert (told["mig_strategy"], told["zone"], told["provider_id"]) == ("single", "a", "aws:///i-1")
    assert (told["created_at"], told["first_seen_at"], told["last_seen_at"], told["absent_at"]) == (
        at("6:00"),
        at("12:05"),
        at("12:05"),
        at("12:10"),
    )
    assert json.loads(told["labels"])["nvidia.com/gpu.product"] == "NVIDIA-H100"


def test_a_node_replaced_under_its_name_is_two() -> None:
    folded = fold(seen(at("12:05"), node("a")), seen(at("12:10"), node("b"))).nodes
    assert folded.select("node", "node_uid", "absent_at").rows() == [
        ("node-a", "a", at("12:10")),
        ("node-a", "b", None),
    ]


def test_capacity_is_the_most_seen_on_the_day_and_labels_are_the_last() -> None:
    told = a_node(
        seen(at("12:05"), node(gpu_replicas="1")),
        seen(at("12:10"), node(capacity={"nvidia.com/gpu": "7"}, gpu_replicas="2")),
    )
    assert (told["capacity"], told["replicas"]) == (8, 2)


def test_a_model_label_that_is_gone_for_a_while_is_remembered() -> None:
    assert a_node(seen(at("12:05"), node(gpu_product="H100")), seen(at("12:10"), node()))["model"] == "H100"


def test_a_later_reconfiguration_does_not_change_the_day() -> None:
    told = a_node(
        seen(at("12:05"), node(gpu_sharing__strategy="none")),
        seen(at("1:00", days=3), node(capacity={"nvidia.com/gpu": "80"}, gpu_sharing__strategy="time-slicing")),
    )
    assert (told["capacity"], told["sharing_strategy"]) == (8, "none")
    assert told["last_seen_at"] == at("1:00", days=3)


def test_a_node_seen_only_beside_the_day_is_described_by_the_nearest_sighting() -> None:
    told = a_node(
        seen(at("23:30", days=-1), node(capacity={"nvidia.com/gpu": "80"})),
        seen(at("0:01", days=1), node(capacity={"nvidia.com/gpu": "7"})),
        seen(at("0:06", days=1), node(capacity={"nvidia.com/gpu": "80"})),
    )
    assert told["capacity"] == 7


def test_a_node_that_did_not_change_describes_the_day_between_its_sightings() -> None:
    assert a_node(seen(at("23:30", days=-1), node()), seen(at("1:00", days=1), node()))["capacity"] == 8


def test_a_node_created_after_the_day_is_left_out() -> None:
    kind, later = node("later")
    later["metadata"]["creationTimestamp"] = iso("0:00", days=1)
    folded = fold(seen(at("12:05"), node()), seen(at("1:00", days=1), (kind, later))).nodes
    assert only(folded)["node_uid"] == "node-1"


def test_a_node_whose_creation_is_not_told_counts() -> None:
    kind, served = node()
    del served["metadata"]["creationTimestamp"]
    assert a_node(seen(at("12:05"), (kind, served)))["created_at"] is None


def test_a_node_whose_plugin_registers_later_has_no_row_without_resource() -> None:
    told = a_node(seen(at("6:05"), node(capacity={})), seen(at("6:10"), node()))
    assert (told["resource"], told["first_seen_at"]) == ("nvidia.com/gpu", at("6:05"))


def test_a_node_without_gpu_resources_has_an_empty_one() -> None:
    told = a_node(seen(at("12:05"), node(capacity={"cpu": "8"}, gpu_present="true")))
    assert (told["resource"], told["capacity"]) == ("", 0)


def test_each_resource_of_a_node_is_a_row() -> None:
    both = node(capacity={"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "80"})
    rows = fold(seen(at("12:05"), both)).nodes.select("resource", "capacity").rows()
    assert rows == [("nvidia.com/gpu", 0), ("nvidia.com/gpu.shared", 80)]


# --- the whole -----------------------------------------------------------------------------------------------------


def test_nothing_gives_empty_tables() -> None:
    folded = fold(also=[at("12:00")])
    assert folded.pods.schema == polars_schema(PodSighting)
    assert folded.nodes.schema == polars_schema(NodeSighting)
    assert folded.pod_labels.schema == polars_schema(PodLabels)
    assert folded.pods.is_empty() and folded.nodes.is_empty() and folded.pod_labels.is_empty()


def test_the_order_of_rows_does_not_matter() -> None:
    rows = [
        row
        for minute in range(0, 60, 5)
        for row in seen(
            at(f"12:{minute}"),
            *(pod(f"pod-{n}", metadata={"labels": {"m": str(minute // (10 + n))}}) for n in range(5)),
            node(capacity={"nvidia.com/gpu": str(minute % 7)}),
        )
    ]
    shuffled = random.Random(1).sample(rows, len(rows))
    one, other = fold(rows), fold(shuffled)
    assert one.pods.equals(other.pods)
    assert one.nodes.equals(other.nodes)
    assert one.pod_labels.equals(other.pod_labels)
    assert one.findings == other.findings


def test_a_changed_sharing_configuration_is_a_period_of_its_own() -> None:
    shared = {"gpu_sharing__strategy": "time-slicing", "gpu_product": "NVIDIA-H100-SHARED"}
    told = fold(
        seen(at("12:00"), node(capacity={"nvidia.com/gpu": "4"}, gpu_replicas="4", **shared)),
        seen(at("12:25"), node(capacity={"nvidia.com/gpu": "4"}, gpu_replicas="4", **shared)),
        seen(at("12:30"), node(capacity={"nvidia.com/gpu": "8"}, gpu_replicas="8", **shared)),
    ).node_sharing.sort("first_seen_at")
    assert told.select("replicas", "capacity", "first_seen_at", "last_seen_at").rows() == [
        (4, 4, at("12:00"), at("12:25")),
        (8, 8, at("12:30"), at("12:30")),
    ]
