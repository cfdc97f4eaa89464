"""What is kept of a Kubernetes object, what is said when the way to the API is not there, and each step on that way.

Whole snapshots of a whole API are in tests/integration; here an API answers what one test puts into its mouth.
"""

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
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from kubernetes.config import incluster_config

from pipelines.extract import kubernetes_api as reading
from pipelines.extract.kubernetes import take_snapshot
from pipelines.extract.kubernetes_api import ATTEMPTS
from pipelines.extract.kubernetes_objects import Node, Object, Pod, Whole
from schemas.config import Cluster
from schemas.errors import ConfigError, SourceRefused, SourceUnavailable

LABELS = {"app": "train"}
OWNERS = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-abc", "uid": "rs-1", "controller": True}]
METADATA = {
    "name": "train-0",
    "namespace": "research",
    "uid": "pod-1",
    "resourceVersion": "81",
    "creationTimestamp": "2026-11-03T12:00:00Z",
    "labels": LABELS,
    "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "SECRET", "resource.kubernetes.io/x": "SECRET"},
    "ownerReferences": OWNERS,
    "managedFields": [{"manager": "SECRET"}],
}
CONTAINER = {
    "name": "main",
    "image": "registry.example.com/train:1",
    "command": ["sh", "-c", "SECRET"],
    "args": ["--token=SECRET"],
    "env": [{"name": "TOKEN", "value": "SECRET"}],
    "envFrom": [{"secretRef": {"name": "SECRET"}}],
    "volumeMounts": [{"name": "v", "mountPath": "/SECRET"}],
    "lifecycle": {"preStop": {"exec": {"command": ["SECRET"]}}},
    "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": "SECRET"}]}},
    "resources": {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": "9", "nvidia.com/gpu": "2"},
    },
}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": METADATA,
    "spec": {
        "nodeName": "node-a",
        "priorityClassName": "high",
        "containers": [CONTAINER],
        "initContainers": [CONTAINER | {"restartPolicy": "Always"}],
        "ephemeralContainers": [CONTAINER],
        "volumes": [{"name": "v", "secret": {"secretName": "SECRET"}}],
        "imagePullSecrets": [{"name": "SECRET"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
    },
    "status": {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "SECRET",
        "startTime": "2026-11-03T12:00:01Z",
        "conditions": [
            {
                "type": "PodScheduled",
                "status": "True",
                "reason": "R",
                "message": "SECRET",
                "lastTransitionTime": "2026-11-03T12:00:01Z",
            }
        ],
        "containerStatuses": [
            {
                "name": "main",
                "imageID": "SECRET",
                "state": {
                    "terminated": {
                        "exitCode": 1,
                        "message": "SECRET",
                        "reason": "Error",
                        "startedAt": "2026-11-03T12:01:00Z",
                        "finishedAt": "2026-11-03T12:40:00Z",
                    }
                },
            },
            {"name": "side", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "SECRET"}}},
        ],
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-0-gpu-x"}],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "train-0-extended",
            "requestMappings": [
                {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
            ],
        },
    },
}


def kept(kind: type[Object], as_served: dict[str, Any]) -> dict[str, Any]:
    """What a snapshot holds of an object."""
    decoded = msgspec.json.decode(json.dumps(as_served), type=kind)
    again: dict[str, Any] = json.loads(msgspec.json.encode(decoded, order="sorted"))
    return again


def cluster(**kubernetes: Any) -> Cluster:
    return Cluster.model_validate(
        {"name": "prod", "prometheus": {"url": "http://prometheus:9090"}, "kubernetes": kubernetes}
    )


def test_a_pod_keeps_exactly_what_the_ledger_reads() -> None:
    container = {
        "name": "main",
        "resources": {
            "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"},
            "limits": {"nvidia.com/gpu": "2"},
        },
    }
    assert kept(Pod, POD) == {
        "metadata": {
            "name": "train-0",
            "namespace": "research",
            "uid": "pod-1",
            "creationTimestamp": "2026-11-03T12:00:00Z",
            "labels": LABELS,
            "ownerReferences": [{"kind": "ReplicaSet", "name": "train-abc", "uid": "rs-1", "controller": True}],
        },
        "spec": {
            "nodeName": "node-a",
            "containers": [container],
            "initContainers": [container | {"restartPolicy": "Always"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        },
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "startTime": "2026-11-03T12:00:01Z",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "reason": "R",
                    "lastTransitionTime": "2026-11-03T12:00:01Z",
                }
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {
                        "terminated": {
                            "reason": "Error",
                            "startedAt": "2026-11-03T12:01:00Z",
                            "finishedAt": "2026-11-03T12:40:00Z",
                        }
                    },
                },
                {"name": "side", "state": {}},
            ],
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "train-0-gpu-x"}],
            "extendedResourceClaimStatus": POD["status"]["extendedResourceClaimStatus"],
        },
    }


def test_what_was_kept_is_kept_again_unchanged() -> None:
    assert kept(Pod, kept(Pod, POD)) == kept(Pod, POD)


def test_a_node_keeps_labels_capacity_and_identity() -> None:
    status = {
        "capacity": {"cpu": "96", "nvidia.com/gpu": "8"},
        "allocatable": {"nvidia.com/gpu": "7"},
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-03T12:00:00Z"}],
    }
    served = {
        "metadata": {"name": "node-a", "uid": "node-1", "labels": LABELS, "annotations": {"csi": "SECRET"}},
        "spec": {"providerID": "aws:///i-1", "podCIDR": "10.0.0.0/24"},
        "status": status | {"nodeInfo": {"systemUUID": "ABC", "kernelVersion": "6"}, "images": [{"names": ["x"]}]},
    }
    assert kept(Node, served) == {
        "metadata": {"name": "node-a", "uid": "node-1", "labels": LABELS},
        "spec": {"providerID": "aws:///i-1"},
        "status": status | {"nodeInfo": {"systemUUID": "ABC"}},
    }


def test_a_replica_set_keeps_its_owners_only() -> None:
    served = {"metadata": METADATA, "spec": {"template": {"spec": {"containers": [CONTAINER]}}}}
    assert kept(Object, served) == {
        "metadata": {
            "name": "train-0",
            "namespace": "research",
            "uid": "pod-1",
            "ownerReferences": [{"kind": "ReplicaSet", "name": "train-abc", "uid": "rs-1", "controller": True}],
        }
    }


def test_a_claim_keeps_spec_and_status_whole() -> None:
    body = {"spec": {"devices": {"requests": [{"name": "gpu"}]}}, "status": {"reservedFor": [{"uid": "pod-1"}]}}
    served = {"metadata": {"name": "c", "uid": "c-1", "annotations": {"other": "SECRET"}}, **body}
    assert kept(Whole, served) == {"metadata": {"name": "c", "uid": "c-1"}, **body}


@pytest.mark.parametrize("served", [{"metadata": {"name": "x"}}, {"metadata": {"uid": "x"}}, {}])
def test_an_object_without_identity_is_refused(served: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match="missing required field"):
        kept(Pod, served)


# --- the way to the API --------------------------------------------------------------------------------------------


def problem(*, of: Cluster) -> str:
    with pytest.raises(ConfigError) as raised:
        take_snapshot(of)
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_no_kubernetes_section_is_said() -> None:
    plain = Cluster.model_validate({"name": "prod", "prometheus": {"url": "http://prometheus:9090"}})
    assert "no `kubernetes:` section" in problem(of=plain)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    assert str(path) in problem(of=cluster(kubeconfig=path))


@pytest.mark.parametrize("content", ["", "[]", "word", "a: [1", "apiVersion: v1\ncurrent-context: x\n"])
def test_a_kubeconfig_of_another_shape_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    assert str(path) in problem(of=cluster(kubeconfig=path))


def test_a_missing_context_is_named(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\ncurrent-context: ''\n")
    assert "context prod-east" in problem(of=cluster(kubeconfig=path, context="prod-east"))


def test_in_cluster_outside_a_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "kubernetes.in_cluster: expected to run in a pod" in problem(of=cluster(in_cluster=True))


def test_a_missing_service_account_token_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert "kubernetes.in_cluster: expected to run in a pod with a service-account token" in problem(
        of=cluster(in_cluster=True)
    )


def test_a_missing_ca_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    assert str(path) in problem(of=cluster(server="https://127.0.0.1:1", ca_file=path))


# --- one step at a time --------------------------------------------------------------------------------------------

PODS = "/k8s/api/v1/pods"  # behind a proxy that serves several clusters, a server has a path
DISCOVERY = "/k8s/apis/resource.k8s.io"
Answer = tuple[int, dict[str, Any]]


def page(*items: dict[str, Any], more: str = "") -> Answer:
    return 200, {"metadata": {"continue": more} if more else {}, "items": list(items)}


def status(code: int, message: str = "") -> Answer:
    return code, {"kind": "Status", "message": message}


def gpu_pod(name: str) -> dict[str, Any]:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    return {"metadata": {"name": name, "uid": name}, "spec": {"containers": containers}}


class Api:
    """Answers each path in turn, the last one ever after; an empty list where nothing was said, no resource API."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {DISCOVERY: [status(404)]}
        self.asked: list[tuple[str, str]] = []  # path and continue token
        self.authorizations: set[str | None] = set()
        self.host = ""
        self.retry_after = ""  # of refusals, where told

    @property
    def server(self) -> str:
        return f"http://{self.host}/k8s"

    def answer(self, target: str) -> Answer:
        parts = urlsplit(target)
        self.asked.append((parts.path, parse_qs(parts.query).get("continue", [""])[0]))
        left = self.answers.get(parts.path, [page()])
        return left.pop(0) if len(left) > 1 else left[0]

    def names(self) -> list[str]:
        """Names of everything in a snapshot."""
        return take_snapshot(cluster(server=self.server))["name"].to_list()


@contextlib.contextmanager
def serving(api: Api) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # headers and body in one packet

        def do_GET(self) -> None:
            api.authorizations.add(self.headers.get("Authorization"))
            code, body = api.answer(self.path)
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            if code == 429 and api.retry_after:
                self.send_header("Retry-After", api.retry_after)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.host = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    with serving(api):
        yield api


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the client would have waited between attempts."""
    waited: list[float] = []
    monkeypatch.setattr(reading, "time", SimpleNamespace(sleep=waited.append))
    return waited


def test_a_list_is_read_page_by_page(api: Api) -> None:
    api.answers[PODS] = [page(gpu_pod("a"), more="2"), page(gpu_pod("b"), more="3"), page(gpu_pod("c"))]
    assert api.names() == ["a", "b", "c"]
    assert [token for path, token in api.asked if path == PODS] == ["", "2", "3"]


def test_a_server_that_gives_one_page_again_and_again_is_not_asked_for_ever(api: Api) -> None:
    api.answers[PODS] = [page(gpu_pod("a"), more="2"), page(gpu_pod("b"), more="2")]
    with pytest.raises(SourceUnavailable, match="again and again"):
        api.names()


@pytest.mark.parametrize(("told", "least", "most"), [("7", 7, 7), ("900", 30, 30), ("soon", 0.2, 1)])
def test_the_pause_that_the_server_asks_for_is_kept(
    api: Api, waits: list[float], told: str, least: float, most: float
) -> None:
    api.retry_after = told
    api.answers[PODS] = [status(429), page(gpu_pod("a"))]
    assert api.names() == ["a"]
    [waited] = waits
    assert least <= waited <= most


def test_a_list_that_expires_starts_again_from_its_first_page(api: Api) -> None:
    api.answers[PODS] = [page(gpu_pod("a"), more="2"), status(410), page(gpu_pod("a"), more="2"), page(gpu_pod("b"))]
    assert api.names() == ["a", "b"]
    assert [token for path, token in api.asked if path == PODS] == ["", "2", "", "2"]


def test_a_list_starts_again_three_times_at_most(api: Api) -> None:
    api.answers[PODS] = [page(gpu_pod("a"), more="2"), status(410)] * 3 + [page(more="2"), status(410)]
    with pytest.raises(SourceUnavailable, match=r"the list /api/v1/pods expired 4 times before its end \(410\)"):
        api.names()


def test_refused_credentials_are_said_and_not_tried_again(api: Api, waits: list[float]) -> None:
    api.answers[PODS] = [status(401, "Unauthorized")]
    with pytest.raises(SourceRefused, match=r"^prod: .*refused the credentials \(401\) for /api/v1/pods"):
        api.names()
    assert (len(api.asked), waits) == (1, [])


def test_a_missing_permission_names_verb_and_resource(api: Api) -> None:
    api.answers["/k8s/apis/apps/v1/replicasets"] = [status(403, "replicasets.apps is forbidden")]
    with pytest.raises(SourceRefused) as raised:
        api.names()
    assert 'forbids `list` on `replicasets` (apiGroup "apps") (403); grant it as deploy/rbac.yaml does' in str(
        raised.value
    )
    assert str(raised.value).endswith("The server says: replicasets.apps is forbidden")


def test_forbidden_discovery_names_the_role_that_grants_it(api: Api) -> None:
    api.answers[DISCOVERY] = [status(403)]
    with pytest.raises(SourceRefused, match=r"`get` on /apis/resource\.k8s\.io: bind the ClusterRole system:discovery"):
        api.names()


def test_a_fault_in_the_middle_of_a_list_repeats_its_page_only(api: Api, waits: list[float]) -> None:
    api.answers[PODS] = [page(gpu_pod("a"), more="2"), status(503), status(429), page(gpu_pod("b"))]
    assert api.names() == ["a", "b"]
    assert [token for path, token in api.asked if path == PODS] == ["", "2", "2", "2"]
    assert len(waits) == 2


def test_a_fault_that_stays_names_cluster_server_and_what_was_asked(api: Api, waits: list[float]) -> None:
    api.answers["/k8s/api/v1/nodes"] = [status(503, "etcd is away")]
    with pytest.raises(SourceUnavailable) as raised:
        api.names()
    assert str(raised.value) == (
        f"prod: the Kubernetes API at {api.server} could not be asked for /api/v1/nodes: "
        "HTTP 503 etcd is away; try again"
    )
    assert len(waits) == ATTEMPTS - 1


def test_an_unreachable_api_is_said_after_some_attempts(waits: list[float]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listens
        server = f"http://127.0.0.1:{taken.getsockname()[1]}/k8s"
        with pytest.raises(SourceUnavailable, match=rf"^prod: .* at {server} could not be asked for /api/v1/pods: "):
            take_snapshot(cluster(server=server))
    assert len(waits) == ATTEMPTS - 1


def test_a_cluster_without_the_resource_api_has_no_claims(api: Api) -> None:
    api.answers[PODS] = [page(gpu_pod("a"))]
    assert api.names() == ["a"]
    assert not any("resourceclaims" in path for path, _ in api.asked)


@pytest.mark.parametrize("served", ["v1", "v1beta2", "v1beta1"])
def test_claims_are_asked_for_in_a_version_that_is_served(api: Api, served: str) -> None:
    versions = [{"version": each} for each in ("v1alpha3", "v1beta1", "v1beta2", "v1")]
    api.answers[DISCOVERY] = [(200, {"versions": versions[: versions.index({"version": served}) + 1]})]
    api.answers[f"{DISCOVERY}/{served}/resourceclaims"] = [page({"metadata": {"name": "claim", "uid": "c"}})]
    frame = take_snapshot(cluster(server=api.server))
    assert frame.select("name", "api_version").rows() == [("claim", f"resource.k8s.io/{served}")]


def test_what_is_landed_holds_no_secret_and_is_canonical(api: Api) -> None:
    api.answers[PODS] = [page(POD)]
    noon = dt.datetime(2026, 11, 3, 12, tzinfo=dt.UTC)
    (row,) = take_snapshot(cluster(server=api.server), now=noon).rows(named=True)
    assert (row["cluster"], row["observed_at"], row["kind"], row["api_version"]) == ("prod", noon, "Pod", "v1")
    assert "SECRET" in json.dumps(POD)
    assert "SECRET" not in str(row)
    assert row["object"] == json.dumps(json.loads(row["object"]), sort_keys=True, separators=(",", ":"))


# --- each way to the API -------------------------------------------------------------------------------------------


def test_a_token_of_the_configuration_is_sent(api: Api) -> None:
    take_snapshot(cluster(server=f"{api.server}/", bearer_token="abc"))
    assert api.authorizations == {"Bearer abc"}
    assert api.asked[0] == (PODS, "")


def test_the_end_of_line_of_a_token_is_not_sent(api: Api) -> None:
    take_snapshot(cluster(server=api.server, bearer_token="abc\n"))
    assert api.authorizations == {"Bearer abc"}


@pytest.mark.parametrize("token", ["hun\nter2", "hun\x00ter2", "hünter2"])
def test_a_token_that_no_header_can_carry_is_said_without_being_shown(token: str) -> None:
    said = problem(of=cluster(server="http://127.0.0.1:1", bearer_token=token))
    assert "kubernetes.server: expected a token of one line of plain characters" in said
    assert "ter2" not in said


def test_server_and_token_of_a_kubeconfig_context_are_used(api: Api, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "elsewhere",
        "clusters": [{"name": "c", "cluster": {"server": api.server}}],
        "users": [{"name": "u", "user": {"token": "abc"}}],
        "contexts": [{"name": "prod-east", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(config))
    take_snapshot(cluster(kubeconfig=path, context="prod-east"))
    assert api.authorizations == {"Bearer abc"}
    assert api.asked[0] == (PODS, "")
