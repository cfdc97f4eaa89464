"""What kube-state-metrics history says of pods and nodes (design: ACCOUNTING 1 and 2)."""

import datetime as dt
import json

import polars as pl
import pytest

from pipelines.extract.kube_state import KubeStateReading, read_kube_state
from pipelines.extract.kube_state_folds import kubernetes_resource
from tests.unit.pipelines.extract.recorded import (
    CAPACITY,
    DAY,
    INIT_REQUESTS,
    LATER,
    REQUESTS,
    Cluster,
    Recorded,
    at,
    every,
    instant,
)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def read(source: Recorded, now: dt.datetime | None = None) -> KubeStateReading:
    return read_kube_state(source, cluster="prod", day=DAY, now=now or instant("4:00"))


def only(frame: pl.DataFrame) -> dict[str, object]:
    assert frame.height == 1, frame
    return frame.row(0, named=True)


def test_a_running_pod(cluster: Cluster) -> None:
    cluster.node("node-a", "0:00:30", "4:00")
    cluster.pod("train-0", "1:00:30", "2:30", gpus=2, scheduled="1:00:10", labels={"label_team": "nlp"})
    reading = read(cluster)
    pod = only(reading.pods)
    assert pod == pod | {
        "cluster": "prod",
        "date": DAY,
        "source": "kube_state",
        "pod_uid": "uid-train-0",
        "resource": "nvidia.com/gpu",
        "namespace": "research",
        "pod": "train-0",
        "node": "node-a",
        "requested": 2,
        "created_at": instant("0:59:30"),
        "scheduled_at": instant("1:00:10"),
        "finished_at": None,
        "deletion_at": None,
        "terminal_seen_at": None,
        "first_seen_at": instant("1:00:30"),
        "last_alive_at": instant("2:30"),
        "absent_at": instant("2:30:30"),
        "interval_ms": 30_000,
        "owner_kind": "Job",
        "owner_name": "train",
    }
    labels = only(reading.pod_labels)
    assert json.loads(str(labels["labels"])) == {"label_team": "nlp"}
    assert (labels["first_seen_at"], labels["last_seen_at"]) == (instant("1:00:30"), instant("2:30"))
    assert reading.findings == []


def test_a_finished_pod_lived_until_its_phase_changed(cluster: Cluster) -> None:
    cluster.node("node-a", "0:00:30", "4:00")
    cluster.pod("a", "1:00:30", "3:30", ended="1:40:12", seen_ended="1:40:30", scheduled="1:00")
    cluster.pod("b", "1:00:30", "3:30", ended="2:00:12", seen_ended="2:00:30", phase="Failed")
    a, b = read(cluster).pods.rows(named=True)
    assert (a["finished_at"], a["terminal_seen_at"], a["last_alive_at"]) == (
        instant("1:40:12"),
        instant("1:40:30"),
        instant("1:40"),
    )
    assert (b["finished_at"], b["terminal_seen_at"], b["last_alive_at"]) == (
        instant("2:00:12"),
        instant("2:00:30"),
        instant("2:00"),
    )


def test_a_pod_never_seen_alive(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:30", ended="1:00:12", seen_ended="1:00:30")
    pod = only(read(cluster).pods)
    assert (pod["last_alive_at"], pod["terminal_seen_at"]) == (None, instant("1:00:30"))


def test_the_end_of_one_container_is_not_the_end_of_the_pod(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:30", ended="1:40")
    assert only(read(cluster).pods)["finished_at"] is None


def test_a_pod_that_is_not_scheduled_has_no_node(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:30", node="")
    pod = only(read(cluster).pods)
    assert (pod["node"], pod["scheduled_at"]) == (None, None)


@pytest.mark.parametrize(
    ("containers", "init", "sidecars", "expected"),
    [
        ({"main": 1}, {}, {}, 1),
        ({"main": 1, "other": 2}, {}, {}, 3),
        ({"main": 1}, {"load": 2}, {}, 2),
        ({"main": 1}, {"load": 2, "check": 1}, {"proxy": 1}, 3),
        ({"main": 3}, {"load": 2}, {"proxy": 1}, 4),
    ],
)
def test_how_much_a_pod_asks_for(
    cluster: Cluster, containers: dict[str, int], init: dict[str, int], sidecars: dict[str, int], expected: int
) -> None:
    identity = {"namespace": "n", "pod": "p", "uid": "u"}
    gpu = identity | {"resource": "nvidia_com_gpu", "node": "node-a"}
    for container, amount in containers.items():
        cluster.add_seen(REQUESTS, "1:00:30", "2:00", amount, **gpu, container=container)
    for container, amount in (init | sidecars).items():
        cluster.add_seen(INIT_REQUESTS, "1:00:30", "2:00", amount, **gpu, container=container)
        restart = {"restart_policy": "Always"} if container in sidecars else {}
        cluster.add_seen("kube_pod_init_container_info", "1:00:30", "2:00", **identity, container=container, **restart)
    assert only(read(cluster).pods)["requested"] == expected


def test_pods_that_ask_for_no_gpu_are_left_out(cluster: Cluster) -> None:
    cluster.node("node-a", "0:00:30", "4:00")
    cluster.pod("a", "1:00:30", "2:00", gpus=0)
    reading = read(cluster)
    assert reading.pods.is_empty()
    assert reading.nodes.height == 1


def test_copies_double_nothing(cluster: Cluster) -> None:
    for target in ({}, {"instance": "ksm-2:8080"}, {"prometheus_replica": "b"}):
        copy = Cluster(**target)
        copy.node("node-a", "0:00:30", "4:00")
        copy.pod("a", "1:00:30", "2:30", gpus=2, labels={"label_team": "nlp"})
        cluster.series += copy.series
    reading = read(cluster)
    assert only(reading.pods)["requested"] == 2
    assert only(reading.nodes)["capacity"] == 8
    assert reading.pod_labels.height == 1


def test_a_second_source_that_looked_later_tells_absence_only_after_the_last_sighting(cluster: Cluster) -> None:
    cluster.node("node-a", "0:00:30", "1:30")  # this one dies at 1:30
    cluster.pod("a", "1:00:30", "1:30")
    other = Cluster(instance="ksm-2:8080")
    other.node("node-a", "0:00:45", "4:00")
    other.pod("a", "1:00:45", "2:00:15")
    cluster.series += other.series
    assert only(read(cluster).pods)["absent_at"] == instant("2:00:45")


def test_a_gap_of_the_source_is_no_absence(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:00")
    cluster.node("node-a", "1:00:30", "2:00")
    assert only(read(cluster).pods)["absent_at"] is None
    cluster.pod("a", "3:00:30", "4:00")
    cluster.node("node-a", "3:00:30", "4:00")
    pod = only(read(cluster).pods)
    assert (pod["first_seen_at"], pod["last_alive_at"], pod["absent_at"]) == (instant("1:00:30"), instant("4:00"), None)


def test_a_restarted_source_tells_absence(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:00")
    cluster.node("node-a", "1:00:30", "2:00")
    after = Cluster(instance="10.0.0.9:8080")
    after.node("node-a", "2:05", "3:00")
    cluster.series += after.series
    assert only(read(cluster).pods)["absent_at"] == instant("2:05")


def test_another_shard_does_not_tell_absence(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:00")
    shard = Cluster(instance="shard-1:8080")
    shard.node("node-a", "0:00:30", "4:00")
    cluster.series += shard.series
    assert only(read(cluster).pods)["absent_at"] is None
    # Its own shard shows nothing any more, but `up` tells that it was scraped.
    cluster.add("up", [*every(30, "0:00:30", "2:30"), *every(30, "2:30:30", "4:00", 0)], **cluster.target)
    assert only(read(cluster).pods)["absent_at"] is None  # value 0.5 is not up
    cluster.series[-1] = (cluster.series[-1][0], [*every(30, "0:00:30", "2:00", 1), *every(30, "2:10", "2:30", 1)])
    assert only(read(cluster).pods)["absent_at"] == instant("2:10")


def test_exported_labels_are_the_pods_own(cluster: Cluster) -> None:
    cluster.target |= {"namespace": "monitoring", "pod": "ksm-0", "container": "ksm", "node": "node-ksm"}
    own = {"exported_namespace": "research", "exported_container": "main"}
    gpu = own | {"resource": "nvidia_com_gpu"}
    for name, node in (("a", "node-a"), ("b", "")):
        identity = {"exported_pod": name, "uid": f"uid-{name}", "exported_node": node}
        cluster.add_seen(REQUESTS, "1:00:30", "2:00", 1, **gpu | identity)
        cluster.add_seen("kube_pod_info", "1:00:30", "2:00", **own | identity)
    cluster.add_seen(CAPACITY, "1:00:30", "2:00", 8, exported_node="node-a", resource="nvidia_com_gpu")
    cluster.add_seen("kube_node_info", "1:00:30", "2:00", exported_node="node-a", system_uuid="m")
    reading = read(cluster)
    # b is not scheduled: `node` is that of kube-state-metrics.
    assert reading.pods.select("namespace", "pod", "node").rows() == [
        ("research", "a", "node-a"),
        ("research", "b", None),
    ]
    assert reading.nodes.select("node", "node_uid").rows() == [("node-a", "m")]


def test_pods_without_uid_are_known_by_name_and_told(cluster: Cluster) -> None:
    identity = {"namespace": "research", "pod": "a"}
    cluster.add_seen(REQUESTS, "1:00:30", "2:00", 1, **identity, container="main", resource="nvidia_com_gpu")
    cluster.add_seen("kube_pod_status_scheduled_time", "1:00:30", "2:00", at("1:00"), **identity)
    reading = read(cluster)
    pod = only(reading.pods)
    assert (pod["pod_uid"], pod["scheduled_at"]) == ("research/a", instant("1:00"))
    assert [(finding.code, finding.affected) for finding in reading.findings] == [("pod_without_uid", 1)]


def test_a_replica_set_is_resolved_to_its_deployment(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "2:00", owner=("ReplicaSet", "serve-7d9"))
    cluster.pod("b", "1:00:30", "2:00", owner=("ReplicaSet", "bare"))
    cluster.pod("c", "1:00:30", "2:00", owner=("<none>", "<none>"))
    for name, owner in (("serve-7d9", ("Deployment", "serve")), ("bare", ("<none>", "<none>"))):
        labels = {"owner_kind": owner[0], "owner_name": owner[1], "owner_is_controller": "true"}
        cluster.add_seen("kube_replicaset_owner", "1:00:30", "2:00", namespace="research", replicaset=name, **labels)
    assert read(cluster).pods.select("pod", "owner_kind", "owner_name").rows() == [
        ("a", "Deployment", "serve"),
        ("b", "ReplicaSet", "bare"),
        ("c", None, None),
    ]


def test_relabeled_pods_keep_each_set_with_its_time(cluster: Cluster) -> None:
    cluster.pod("a", "1:00:30", "3:30")
    identity = {"namespace": "research", "pod": "a", "uid": "uid-a"}
    for team, first, last in (("nlp", "1:00:30", "1:30"), ("search", "1:30:30", "2:10"), ("nlp", "2:10:30", "3:30")):
        cluster.add_seen("kube_pod_labels", first, last, **identity, label_team=team, label_app="x")
    labels = read(cluster).pod_labels.sort("first_seen_at")
    assert labels.select("labels", "first_seen_at", "last_seen_at").rows() == [
        ('{"label_app":"x","label_team":"nlp"}', instant("1:00:30"), instant("1:30")),
        ('{"label_app":"x","label_team":"search"}', instant("1:30:30"), instant("2:10")),
        ('{"label_app":"x","label_team":"nlp"}', instant("2:10:30"), instant("3:30")),
    ]


def test_a_node_with_its_labels(cluster: Cluster) -> None:
    labels = {
        "label_nvidia_com_gpu_product": "NVIDIA-H100-80GB-HBM3",
        "label_nvidia_com_gpu_sharing_strategy": "none",
        "label_nvidia_com_gpu_replicas": "1",
        "label_topology_kubernetes_io_zone": "us-east-1a",
    }
    # The driver comes up at 1:27; the node is there from 1:20:30 on.
    cluster.node("node-a", "1:20:30", "3:00", gpus_from="1:27", created="1:20", labels=labels)
    node = only(read(cluster).nodes)
    assert node == node | {
        "source": "kube_state",
        "node": "node-a",
        "node_uid": "machine-1",
        "resource": "nvidia.com/gpu",
        "capacity": 8,
        "created_at": instant("1:20"),
        "first_seen_at": instant("1:20:30"),
        "last_seen_at": instant("3:00"),
        "absent_at": None,
        "interval_ms": 30_000,
        "model": "NVIDIA-H100-80GB-HBM3",
        "sharing_strategy": "none",
        "replicas": 1,
        "mig_strategy": None,
        "zone": "us-east-1a",
        "provider_id": "aws:///node-a",
        "labels": json.dumps(labels, sort_keys=True, separators=(",", ":")),
    }


def test_a_node_replaced_under_its_name_is_two(cluster: Cluster) -> None:
    cluster.node("node-a", "1:00:30", "1:20", uuid="old", gpus=8, created="0:30", labels={"label_a": "1"})
    cluster.node("node-a", "1:30:30", "3:00", uuid="new", gpus=4, created="1:30", labels={"label_a": "2"})
    nodes = read(cluster).nodes
    assert nodes.select("node_uid", "capacity", "created_at", "first_seen_at", "last_seen_at", "labels").rows() == [
        ("new", 4, instant("1:30"), instant("1:30:30"), instant("3:00"), '{"label_a":"2"}'),
        ("old", 8, instant("0:30"), instant("1:00:30"), instant("1:20"), '{"label_a":"1"}'),
    ]
    assert nodes.filter(pl.col("node_uid") == "old")["absent_at"].item() == instant("1:30:30")


def test_edges_are_an_hour_and_end_now(cluster: Cluster) -> None:
    cluster.pod("before", "-2:00:30", "-1:30")
    cluster.pod("earlier", "-3:00:30", "-2:30")
    cluster.pod("after", "24:20", "24:40")
    assert read(cluster, LATER).pods["pod"].to_list() == ["after", "before"]
    assert read(cluster, instant("4:00")).pods["pod"].to_list() == ["before"]


def test_no_kube_state_metrics_is_no_error(cluster: Cluster) -> None:
    reading = read(cluster)
    assert (reading.pods.height, reading.nodes.height, reading.pod_labels.height) == (0, 0, 0)
    assert [finding.code for finding in reading.findings] == ["kube_state_missing"]


def test_kube_state_metrics_without_gpus_is_told(cluster: Cluster) -> None:
    cluster.add_seen("kube_node_info", "1:00:30", "2:00", node="cpu-node")
    assert [finding.code for finding in read(cluster).findings] == ["kube_state_no_gpus"]


@pytest.mark.parametrize(
    ("name", "resource"),
    [
        ("nvidia_com_gpu", "nvidia.com/gpu"),
        ("nvidia_com_gpu_shared", "nvidia.com/gpu.shared"),
        ("nvidia_com_mig_1g_10gb", "nvidia.com/mig-1g.10gb"),
        ("nvidia_com_mig_1g_10gb_me", "nvidia.com/mig-1g.10gb.me"),
        ("nvidia_com_mig_3g_40gb_shared", "nvidia.com/mig-3g.40gb.shared"),
        ("nvidia_com_pgpu", "nvidia.com/pgpu"),
    ],
)
def test_resources_in_kubernetes_spelling(name: str, resource: str) -> None:
    assert pl.DataFrame({"resource": [name]}).select(kubernetes_resource("resource")).item() == resource


def test_a_changed_sharing_configuration_is_a_period_of_its_own(cluster: Cluster) -> None:
    def labels(replicas: int) -> dict[str, str]:
        return {
            "label_nvidia_com_gpu_product": "NVIDIA-H100-80GB-HBM3-SHARED",
            "label_nvidia_com_gpu_sharing_strategy": "time-slicing",
            "label_nvidia_com_gpu_replicas": str(replicas),
        }

    cluster.node("node-a", "1:00:30", "2:30", gpus=4, labels=labels(4))
    cluster.node("node-a", "2:30:30", "4:00", gpus=8, labels=labels(8))
    told = read(cluster).node_sharing.sort("first_seen_at")
    assert told.select("replicas", "capacity", "first_seen_at", "last_seen_at").rows() == [
        (4, 4, instant("1:00:30"), instant("2:30")),
        (8, 8, instant("2:30:30"), instant("4:00")),
    ]
    assert set(told["sharing_strategy"]) == {"time-slicing"}


def test_a_node_without_labels_has_a_period_too(cluster: Cluster) -> None:
    cluster.node("node-a", "1:00:30", "2:30")
    period = only(read(cluster).node_sharing)
    assert (period["replicas"], period["capacity"], period["sharing_strategy"]) == (None, 8, None)
