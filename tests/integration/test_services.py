"""The servers that tests stand on: Prometheus gives back a world's samples, the real client reads the API stub."""

import datetime as dt
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from kubernetes import client

from benchmarks.simulator import SECRET, Card, Node, Pod, World, kubernetes_objects, scraped, write_openmetrics
from tests.services import prometheus as service
from tests.services.kubernetes import KubernetesApi, kubernetes_api
from tests.services.prometheus import PrometheusServer

START = dt.datetime(2026, 3, 2, 10, tzinfo=dt.UTC)


def at(minutes: float) -> dt.datetime:
    return START + dt.timedelta(minutes=minutes)


def world(cluster: str) -> World:
    """One GPU, a pod that is deployed and finishes, a job that waits; scraped at odd milliseconds."""
    return World(
        cluster, START, at(180), (Node("a", START, capacity=((START, 1),), not_ready=((at(90), at(95)),)),),
        (Card("GPU-0", "a", START, at(180)),),
        (
            Pod(
                "team", "serve-0", "a", ("GPU-0",), at(10), at(70), running_from=at(12), init_containers=((1, False),),
                owner=("Deployment", "serve"), labels={"acme.dev/tenant": "internal"}, wobble=0.3,
            ),
            Pod("team", "fit-0", "a", ("GPU-0",), None, created=at(20), owner=("Job", "fit")),
        ),
        phase=dt.timedelta(milliseconds=7123), namespace_labels={"team": {"owner": "x"}},
    )  # fmt: skip


# --- Prometheus ----------------------------------------------------------------------------------------------------


def samples(url: str, selector: str) -> dict[tuple[tuple[str, str], ...], tuple[list[int], list[float]]]:
    """Raw samples of three hours, by labels: instants in ms, values."""
    query = {"query": f"{selector}[3h]", "time": str(at(180).timestamp())}
    answer = requests.get(f"{url}/api/v1/query", params=query, timeout=10).json()
    return {
        tuple(sorted(series["metric"].items())): (
            [round(float(moment) * 1000) for moment, _ in series["values"]],
            [float(value) for _, value in series["values"]],
        )
        for series in answer["data"]["result"]
    }


@pytest.mark.real_server
def test_prometheus_gives_back_every_sample_of_a_world(prometheus_server: Callable[..., str]) -> None:
    one, other = world("one"), world("other")
    url = prometheus_server(one, other)
    expected: dict[tuple[tuple[str, str], ...], tuple[list[int], list[float]]] = {}
    for series in scraped(one):
        labels = {"__name__": series.name, "cluster": "one", **series.labels}
        key = tuple(sorted((name, value) for name, value in labels.items() if value))
        instants, values = expected.setdefault(key, ([], []))
        instants += series.at.tolist()
        values += series.values.tolist()
    for key, (instants, values) in expected.items():
        order = np.argsort(instants)
        expected[key] = (np.array(instants)[order].tolist(), np.array(values)[order].tolist())
    assert samples(url, '{cluster="one"}') == expected
    assert prometheus_server(world("one"), world("other")) == url


@pytest.mark.real_server
def test_prometheus_stops_and_says_why_it_did_not_start(tmp_path: Path, prometheus_binaries: None) -> None:
    write_openmetrics(tmp_path / "world.om", [world("one")])
    server = PrometheusServer(tmp_path)
    server.create_blocks(tmp_path / "world.om")
    with server:
        assert len(samples(server.url, "kube_node_info")) == 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=1)
    with pytest.raises(RuntimeError, match=r"ended at once: .*unknown long flag"), PrometheusServer(tmp_path, "--no"):
        pass
    (tmp_path / "broken.om").write_text("not openmetrics\n")
    with pytest.raises(RuntimeError, match=r"tsdb create-blocks-from ended with 1"):
        server.create_blocks(tmp_path / "broken.om")


def test_where_no_prometheus_can_be_had_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(service, "CACHE", tmp_path / "cache")
    with pytest.raises(service.Unavailable, match="not on PATH, and this is no Debian"):
        service.binaries()


def test_a_package_that_cannot_be_fetched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script in {"apt-get": "echo no route to host >&2; exit 100", "dpkg": "exit 0"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(service, "CACHE", tmp_path / "cache" / "prometheus")
    with pytest.raises(service.Unavailable, match=r"could not be fetched: .*no route to host"):
        service.binaries()
    assert not (tmp_path / "cache" / "prometheus").exists()


# --- the Kubernetes API, under the real client ---------------------------------------------------------------------


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    with kubernetes_api() as served:
        yield served


def connect(api: KubernetesApi, cluster: str, token: str | None = None) -> client.ApiClient:
    configuration = client.Configuration(host=api.server(cluster))
    configuration.retries = False
    if token:
        configuration.api_key = {"authorization": f"Bearer {token}"}
    return client.ApiClient(configuration)


def pods(count: int) -> dict[str, list[dict[str, Any]]]:
    """Pods in another order than an API server lists them."""
    return {"Pod": [{"kind": "Pod", "metadata": {"name": f"p{i:02}", "namespace": "team"}} for i in range(count)][::-1]}


def test_the_typed_client_reads_the_objects_of_a_world(api: KubernetesApi) -> None:
    told = world("one")
    api.set_objects("one", kubernetes_objects(told, at(30)))
    with connect(api, "one") as connection:
        core = client.CoreV1Api(connection)
        waiting, serving = core.list_pod_for_all_namespaces().items
        assert (waiting.spec.node_name, waiting.status.phase) == (None, "Pending")
        assert (serving.spec.node_name, serving.status.phase) == ("a", "Running")
        assert serving.status.conditions[0].last_transition_time == at(10)
        assert serving.spec.containers[0].env[0].value == SECRET
        [node] = core.list_node().items
        assert (node.status.capacity["nvidia.com/gpu"], node.metadata.creation_timestamp) == ("1", START)
        assert [each.metadata.labels for each in core.list_namespace().items] == [{"owner": "x"}]
        apps, batch = client.AppsV1Api(connection), client.BatchV1Api(connection)
        [replica_set] = apps.list_replica_set_for_all_namespaces().items
        assert serving.metadata.owner_references[0].uid == replica_set.metadata.uid
        [deployment] = apps.list_deployment_for_all_namespaces().items
        assert replica_set.metadata.owner_references[0].uid == deployment.metadata.uid
        [job] = batch.list_job_for_all_namespaces().items
        assert waiting.metadata.owner_references[0].uid == job.metadata.uid
        api.set_objects("one", kubernetes_objects(told, at(71)))
        done = core.list_pod_for_all_namespaces().items[1]
        assert done.status.container_statuses[0].state.terminated.finished_at == at(70)


def test_pages_are_of_one_instant_and_in_order(api: KubernetesApi) -> None:
    api.set_objects("one", pods(5))
    with connect(api, "one") as connection:
        core = client.CoreV1Api(connection)
        page = core.list_pod_for_all_namespaces(limit=2)
        assert page.metadata.remaining_item_count == 3
        names = [each.metadata.name for each in page.items]
        api.set_objects("one", {})
        while page.metadata._continue:
            page = core.list_pod_for_all_namespaces(limit=2, _continue=page.metadata._continue)
            names += [each.metadata.name for each in page.items]
        assert names == [f"p{i:02}" for i in range(5)]
        with pytest.raises(client.ApiException) as refused:
            core.list_node(_continue="pods-0")
        assert refused.value.status == 400


def test_an_expired_page_is_gone_as_often_as_it_is_told(api: KubernetesApi) -> None:
    api.set_objects("one", pods(3))
    with connect(api, "one") as connection:
        core = client.CoreV1Api(connection)

        def restarts() -> int:
            for count in range(5):
                page = core.list_pod_for_all_namespaces(limit=2)
                try:
                    core.list_pod_for_all_namespaces(limit=2, _continue=page.metadata._continue)
                except client.ApiException as gone:
                    assert (gone.status, '"reason": "Expired"' in gone.body) == (410, True)
                else:
                    return count
            return 5

        assert restarts() == 0
        api.expire = {"pods": 1}
        assert restarts() == 1
        api.expire = {"pods": float("inf")}
        assert restarts() == 5
        api.behave()
        assert restarts() == 0


def test_discovery_tells_what_is_served(api: KubernetesApi) -> None:
    api.set_objects("one", {})
    with connect(api, "one") as connection:
        assert client.VersionApi(connection).get_code(_preload_content=False).status == 200
        assert client.CoreApi(connection).get_api_versions(_preload_content=False).json()["versions"] == ["v1"]
        assert client.CoreV1Api(connection).get_api_resources(_preload_content=False).json()["resources"][0] == {
            "name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["list"],
        }  # fmt: skip
        groups = client.ApisApi(connection).get_api_versions(_preload_content=False).json()["groups"]
        assert [group["name"] for group in groups] == ["apps", "batch", "resource.k8s.io"]
        assert client.ResourceV1Api(connection).list_resource_claim_for_all_namespaces().items == []
        api.served_groups.discard("resource.k8s.io")
        with pytest.raises(client.ApiException) as absent:
            client.ResourceV1Api(connection).list_resource_slice()
        assert (absent.value.status, '"kind": "Status"' in absent.value.body) == (404, True)


def test_refusals_and_faults(api: KubernetesApi) -> None:
    def status(cluster: str = "one", token: str | None = None) -> int:
        with connect(api, cluster, token) as connection:
            try:
                client.CoreV1Api(connection).list_pod_for_all_namespaces(_request_timeout=5)
            except client.ApiException as refused:
                return int(refused.status)
            return 200

    api.set_objects("one", pods(1))
    api.set_objects("two", pods(1))
    api.down = {"two"}
    assert (status("one"), status("two"), status("three")) == (200, 503, 404)
    api.faults, api.retry_after_s = [429, 500], 7
    answer = requests.get(f"{api.server('one')}/api/v1/pods", timeout=5)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "7")
    assert (status(), status()) == (500, 200)
    api.forbidden = {"pods"}
    assert status() == 403
    api.behave()
    api.token = "right"
    assert (status(), status(token="wrong"), status(token="right")) == (401, 401, 200)
    api.delay_s = 0.2
    before = time.monotonic()
    assert status(token="right") == 200
    assert time.monotonic() - before >= 0.2
