"""The snapshot through the real client: pages, expiry, refusals, faults, and what two of them say together."""

import contextlib
import datetime as dt
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import yaml

from pipelines.extract import kubernetes_api as reading
from pipelines.extract.kubernetes import take_snapshot
from pipelines.extract.kubernetes_api import ATTEMPTS, RESTARTS_AFTER_EXPIRY
from pipelines.extract.sightings import sightings
from schemas.config import Cluster
from schemas.errors import ChargebackError, SourceRefused, SourceUnavailable
from schemas.tables import SnapshotObject
from tests.services import kubernetes as service
from tests.services.kubernetes import KubernetesApi, kubernetes_api

NOON = dt.datetime(2026, 11, 3, 12, tzinfo=dt.UTC)
FIVE_MINUTES = dt.timedelta(minutes=5)
RBAC = Path(__file__).parents[2] / "deploy" / "rbac.yaml"
CRONJOB = RBAC.with_name("snapshot-cronjob.yaml")


def metadata(name: str, uid: str | None = None, namespace: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "uid": uid or name,
        "namespace": namespace,
        "creationTimestamp": "2026-11-03T11:00:00Z",
    } | more


def pod(name: str, uid: str | None = None, **parts: Any) -> dict[str, Any]:
    """A running pod of one GPU, with secrets where pods have them."""
    container = {
        "name": "main",
        "env": [{"name": "TOKEN", "value": "hunter2"}],
        "args": ["--password=hunter2"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "hunter2"}
    return {
        "metadata": metadata(name, uid, "research", annotations=applied, **parts.pop("metadata", {})),
        "spec": {"nodeName": "gpu-node", "containers": [container], "volumes": [{"secret": "hunter2"}]}
        | parts.pop("spec", {}),
        "status": {"phase": "Running", "message": "hunter2"} | parts.pop("status", {}),
    }


def node(name: str, capacity: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": metadata(name, labels=labels), "status": {"capacity": capacity}}


def cluster(server: str, token: str | None = None) -> Cluster:
    connection = {"server": server} | ({"bearer_token": token} if token else {})
    return Cluster.model_validate(
        {"name": "prod", "prometheus": {"url": "http://prometheus:9090"}, "kubernetes": connection}
    )


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with kubernetes_api() as served:
        served.set_objects("prod", {"Pod": [pod("train-0")], "Node": [node("gpu-node", {"nvidia.com/gpu": "8"})]})
        yield served


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client would have waited between attempts."""
    waited: list[float] = []
    monkeypatch.setattr(reading, "time", SimpleNamespace(sleep=waited.append))
    return waited


def snapshot(api: KubernetesApi, *, token: str | None = None, now: dt.datetime = NOON) -> pl.DataFrame:
    return take_snapshot(cluster(api.server("prod"), token), now=now)


def names(frame: pl.DataFrame, kind: str) -> list[str]:
    return frame.filter(pl.col("kind") == kind)["name"].sort().to_list()


# --- what is read --------------------------------------------------------------------------------------------------


def test_only_what_concerns_gpus_is_kept(api: KubernetesApi) -> None:
    plain = [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]
    mig = {"name": "i", "resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}
    owner = {"kind": "ReplicaSet", "name": "web-1", "uid": "web-1", "controller": True}
    of_job = {"kind": "Job", "name": "fit", "uid": "fit", "controller": True}
    api.set_objects(
        "prod",
        {
            "Pod": [
                pod("gpu", metadata={"ownerReferences": [owner]}),
                pod("init", spec={"containers": plain, "initContainers": [mig]}),
                pod("claims", spec={"containers": plain, "resourceClaims": [{"name": "x"}], "nodeName": "dra-node"}),
                pod("extended", spec={"containers": plain}, status={"extendedResourceClaimStatus": {}}),
                pod("web", spec={"containers": plain}),
                pod("done", status={"phase": "Succeeded"}, metadata={"ownerReferences": [of_job]}),
            ],
            "Node": [
                node("gpu-node", {"nvidia.com/gpu": "8"}),
                node("labeled", {}, **{"nvidia.com/gpu.present": "true"}),
                {"metadata": metadata("allocatable"), "status": {"allocatable": {"nvidia.com/gpu": "1"}}},
                node("dra-node", {"cpu": "8"}),
                node("cpu-node", {"cpu": "8"}),
            ],
            "Namespace": [{"metadata": metadata(name, labels={"a": "b"})} for name in ("research", "held", "other")],
            "ReplicaSet": [{"metadata": metadata(name, labels={"a": "b"})} for name in ("web-1", "web-2")],
            "Job": [{"metadata": metadata(name)} for name in ("fit", "backup")],
            "ResourceClaim": [{"metadata": metadata("claim", namespace="held"), "spec": {"devices": {}}}],
            "ResourceSlice": [{"metadata": metadata("slice"), "spec": {"pool": {"name": "dra-node"}}}],
        },
    )
    frame = snapshot(api)
    assert names(frame, "Pod") == ["claims", "done", "extended", "gpu", "init"]
    assert names(frame, "Node") == ["allocatable", "dra-node", "gpu-node", "labeled"]
    assert names(frame, "Namespace") == ["held", "research"]
    assert names(frame, "ReplicaSet") == ["web-1"]
    assert names(frame, "Job") == ["fit"]
    assert names(frame, "ResourceClaim") == ["claim"]
    assert names(frame, "ResourceSlice") == ["slice"]
    versions = dict(frame.select("kind", "api_version").unique().iter_rows())
    assert versions["Pod"] == "v1"
    assert versions["ReplicaSet"] == "apps/v1"
    assert versions["Job"] == "batch/v1"
    assert versions["ResourceClaim"] == "resource.k8s.io/v1"
    assert frame["observed_at"].unique().to_list() == [NOON]
    SnapshotObject.validate(frame)


def test_no_secret_is_landed(api: KubernetesApi) -> None:
    assert "hunter2" in json.dumps(api.clusters["prod"])
    assert not any("hunter2" in text for text in snapshot(api)["object"])


def test_the_instant_is_in_whole_milliseconds(api: KubernetesApi) -> None:
    frame = snapshot(api, now=NOON.replace(microsecond=123_999))
    assert frame["observed_at"][0] == NOON.replace(microsecond=123_000)


def test_the_same_object_gives_the_same_bytes_whatever_the_order_of_its_keys(api: KubernetesApi) -> None:
    api.clusters["prod"]["Node"] = [node("gpu-node", {"nvidia.com/gpu": "8", "cpu": "96"}, team="a", app="b")]
    first = snapshot(api)

    def reversed_keys(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(each) for each in value] if isinstance(value, list) else value

    api.set_objects("prod", reversed_keys(api.clusters["prod"]))
    assert snapshot(api).equals(first)
    (text,) = first.filter(pl.col("kind") == "Node")["object"]
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_an_empty_cluster_is_no_error(api: KubernetesApi) -> None:
    api.set_objects("prod", {})
    assert snapshot(api).is_empty()


# --- pages ---------------------------------------------------------------------------------------------------------


def test_lists_are_read_in_pages(api: KubernetesApi) -> None:
    api.page_size = 3
    api.clusters["prod"]["Pod"] = [pod(f"train-{n}") for n in range(10)]
    assert len(names(snapshot(api), "Pod")) == 10
    pages = [each for each in api.requests if "/pods?" in each]
    assert len(pages) == 4
    assert all("limit=500" in each for each in pages)


def test_a_list_that_expires_midway_starts_again_and_doubles_nothing(api: KubernetesApi) -> None:
    api.page_size = 3
    api.expire = {"pods": RESTARTS_AFTER_EXPIRY}
    api.clusters["prod"]["Pod"] = [pod(f"train-{n}") for n in range(10)]
    assert names(snapshot(api), "Pod") == [f"train-{n}" for n in range(10)]


def test_a_list_that_always_expires_is_given_up(api: KubernetesApi) -> None:
    api.page_size = 1
    api.expire = {"pods": 1000}
    api.clusters["prod"]["Pod"] = [pod(f"train-{n}") for n in range(2)]
    with pytest.raises(SourceUnavailable, match=r"/api/v1/pods expired 4 times"):
        snapshot(api)


# --- older clusters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("served", [["v1beta2", "v1beta1"], ["v1beta1"]])
def test_claims_are_read_in_the_newest_version_served(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, served: list[str]
) -> None:
    for kind in ("ResourceClaim", "ResourceSlice"):
        monkeypatch.setitem(service.KINDS, kind, ("resource.k8s.io", served, service.KINDS[kind][2]))
    api.clusters["prod"]["ResourceClaim"] = [{"metadata": metadata("claim")}]
    claims = snapshot(api).filter(pl.col("kind") == "ResourceClaim")
    assert claims["api_version"].to_list() == [f"resource.k8s.io/{served[0]}"]


@pytest.mark.parametrize("versions", [None, ["v1alpha3"]])
def test_a_cluster_without_claims_is_read_all_the_same(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch, versions: list[str] | None
) -> None:
    if versions is None:
        api.served_groups.discard("resource.k8s.io")
    else:
        for kind in ("ResourceClaim", "ResourceSlice"):
            monkeypatch.setitem(service.KINDS, kind, ("resource.k8s.io", versions, service.KINDS[kind][2]))
    assert names(snapshot(api), "Pod") == ["train-0"]
    assert not any("resourceclaims" in each for each in api.requests)


def test_a_group_that_is_not_served_is_said_and_passed_over(
    api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.served_groups.discard("batch")
    assert names(snapshot(api), "Pod") == ["train-0"]
    assert "does not serve /apis/batch/v1/jobs" in caplog.text


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_token_is_sent_and_a_wrong_one_refused_without_being_shown(api: KubernetesApi, waits: list[float]) -> None:
    api.token = "right"
    assert not snapshot(api, token="right").is_empty()
    with pytest.raises(SourceRefused, match=r"refused the credentials \(401\)") as raised:
        snapshot(api, token="wr0ng-token")
    assert raised.value.exit_code == 2
    assert "wr0ng-token" not in str(raised.value)
    assert waits == []


@pytest.mark.parametrize(
    ("plural", "group"),
    [
        ("pods", ""),
        ("nodes", ""),
        ("namespaces", ""),
        ("replicasets", "apps"),
        ("jobs", "batch"),
        ("resourceclaims", "resource.k8s.io"),
        ("resourceslices", "resource.k8s.io"),
    ],
)
def test_a_missing_permission_is_named(api: KubernetesApi, plural: str, group: str) -> None:
    api.forbidden = {plural}
    with pytest.raises(SourceRefused) as raised:
        snapshot(api)
    assert f'forbids `list` on `{plural}` (apiGroup "{group}")' in str(raised.value)
    assert "deploy/rbac.yaml" in str(raised.value)
    assert raised.value.exit_code == 2


def test_an_address_that_is_no_kubernetes_api_is_said(api: KubernetesApi) -> None:
    with pytest.raises(SourceRefused, match=r"does not serve /api/v1/pods; check `kubernetes:`"):
        take_snapshot(cluster(api.server("no-such-cluster")))


def test_failing_tls_is_said(api: KubernetesApi, waits: list[float]) -> None:
    with pytest.raises(SourceRefused, match=r"TLS failed .*ca_file"):
        take_snapshot(cluster(api.server("prod").replace("http:", "https:")))
    assert waits == []


# --- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
def test_a_fault_that_passes_is_waited_out(api: KubernetesApi, waits: list[float], code: int) -> None:
    api.faults = [code] * (ATTEMPTS - 1)
    assert names(snapshot(api), "Pod") == ["train-0"]
    assert len(waits) == ATTEMPTS - 1
    assert waits[0] < waits[-1]


def test_a_fault_that_stays_is_said_with_what_was_asked(api: KubernetesApi) -> None:
    api.faults = [503] * ATTEMPTS
    with pytest.raises(SourceUnavailable, match=r"^prod: .* could not be asked for /api/v1/pods: HTTP 503 fault 503"):
        snapshot(api)


def test_an_unreachable_api_is_said(waits: list[float]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SourceUnavailable, match=f"^prod: the Kubernetes API at {address} could not be asked"):
            take_snapshot(cluster(address))
    assert len(waits) == ATTEMPTS - 1


def test_a_slow_api_is_not_waited_for(api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TIMEOUTS_S", (1, 0.05))
    api.delay_s = 0.3
    with pytest.raises(SourceUnavailable, match="timed out"):
        snapshot(api)


@contextlib.contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[Cluster]:
    """A cluster whose API gives these answers in turn, and the last one ever after."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield cluster(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


EMPTY = b'{"metadata": {}, "items": []}'
FIRST_OF_TWO = json.dumps({"metadata": {"continue": "x", "remainingItemCount": 1}, "items": [pod("a")]}).encode()


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([(200, b'{"metadata": {"remainingItemCount": 5}, "items": []}')], "gave 0 of 5 objects of /api/v1/pods"),
        ([(200, FIRST_OF_TWO), (200, EMPTY)], "gave 1 of 2 objects of /api/v1/pods"),
        ([(200, b'{"metadata": {}}')], "no Kubernetes answer to /api/v1/pods"),
        ([(200, b'{"metadata": {}, "items": [{"spec": {}}]}')], "no Kubernetes answer to /api/v1/pods"),
        ([(200, b"<html>sign in</html>")], "no Kubernetes answer to /api/v1/pods"),
        ([(200, b'{"metadata": {}, "items": [{"meta')], "no Kubernetes answer to /api/v1/pods"),
        ([(200, b'{"metadata": {"continue": "\xff"}, "items": []}')], "no Kubernetes answer to /api/v1/pods"),
        ([(502, b"\xff\xfe bad gateway")], "HTTP 502 .* bad gateway"),
        ([(302, b"")], "answered HTTP 302"),
        ([(400, b'{"message": "continue key is not valid"}')], "HTTP 400 .*continue key is not valid"),
    ],
)
def test_a_partial_or_strange_answer_is_an_error(answers: list[tuple[int, bytes]], said: str) -> None:
    with answering(*answers) as strange, pytest.raises(ChargebackError, match=said):
        take_snapshot(strange)


def test_an_empty_list_may_be_null() -> None:
    with answering((200, b'{"metadata": {}, "items": null}')) as empty:
        assert take_snapshot(empty).is_empty()


# --- what several say together -------------------------------------------------------------------------------------


def together(*frames: pl.DataFrame) -> pl.DataFrame:
    instants = [NOON + FIVE_MINUTES * n for n in range(len(frames))]
    return sightings(pl.concat(frames).lazy(), instants, cluster="prod", day=NOON.date()).pods


def test_a_pod_that_finishes_between_two_snapshots_tells_when(api: KubernetesApi) -> None:
    first = snapshot(api)
    ended = {"state": {"terminated": {"finishedAt": "2026-11-03T12:03:20Z"}}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-03T11:00:04Z"}
    finished = {"phase": "Succeeded", "containerStatuses": [ended], "conditions": [scheduled]}
    api.clusters["prod"]["Pod"] = [pod("train-0", status=finished)]
    told = together(first, snapshot(api, now=NOON + FIVE_MINUTES)).row(0, named=True)
    assert told["scheduled_at"] == dt.datetime(2026, 11, 3, 11, 0, 4, tzinfo=dt.UTC)
    assert told["last_alive_at"] == NOON
    assert told["finished_at"] == dt.datetime(2026, 11, 3, 12, 3, 20, tzinfo=dt.UTC)
    assert told["terminal_seen_at"] == NOON + FIVE_MINUTES
    assert (told["requested"], told["node"]) == (1, "gpu-node")


def test_a_stateful_pod_recreated_under_its_name_is_two(api: KubernetesApi) -> None:
    owner = {"kind": "StatefulSet", "name": "train", "uid": "s", "controller": True}
    api.clusters["prod"]["Pod"] = [pod("train-0", "first", metadata={"ownerReferences": [owner]})]
    first = snapshot(api)
    api.clusters["prod"]["Pod"] = [pod("train-0", "second", metadata={"ownerReferences": [owner]})]
    told = together(first, snapshot(api, now=NOON + FIVE_MINUTES))
    assert told.select("pod", "pod_uid", "owner_name", "absent_at").rows() == [
        ("train-0", "first", "train", NOON + FIVE_MINUTES),
        ("train-0", "second", "train", None),
    ]


def test_a_pod_that_is_gone_and_nothing_else_there_is_absent(api: KubernetesApi) -> None:
    first = snapshot(api)
    api.set_objects("prod", {})
    told = together(first, snapshot(api, now=NOON + FIVE_MINUTES))
    assert told["absent_at"].to_list() == [NOON + FIVE_MINUTES]


# --- deploy/ -------------------------------------------------------------------------------------------------------


def rules() -> list[dict[str, Any]]:
    (role,) = [each for each in yaml.safe_load_all(RBAC.read_text()) if each["kind"] == "ClusterRole"]
    found: list[dict[str, Any]] = role["rules"]
    return found


def test_rbac_grants_what_is_asked_and_nothing_more(api: KubernetesApi) -> None:
    api.set_objects("prod", {kind: [] for kind in service.KINDS})
    snapshot(api)
    asked = set()
    for request in api.requests:
        *place, plural = request.partition("?")[0].removeprefix("/prod/").split("/")
        if len(place) > 1:  # else discovery
            asked.add((place[1] if place[0] == "apis" else "", plural))
    granted = {(group, plural) for rule in rules() for group in rule["apiGroups"] for plural in rule["resources"]}
    assert granted == asked
    assert all(rule["verbs"] == ["list"] for rule in rules())


def test_the_cron_job_uses_the_account_of_rbac_and_one_job_at_a_time() -> None:
    job = yaml.safe_load(CRONJOB.read_text())
    (account,) = [each for each in yaml.safe_load_all(RBAC.read_text()) if each["kind"] == "ServiceAccount"]
    pod_spec = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert job["spec"]["schedule"] == "*/5 * * * *"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert job["metadata"]["namespace"] == account["metadata"]["namespace"]
    assert pod_spec["serviceAccountName"] == account["metadata"]["name"]
    assert pod_spec["containers"][0]["command"][:2] == ["gpu-chargeback", "snapshot"]
