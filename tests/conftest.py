"""Real servers for tests: Prometheus with a world's samples, and a Kubernetes API on loopback."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.simulator import World, write_openmetrics
from tests.services import prometheus as service
from tests.services.kubernetes import KubernetesApi, kubernetes_api


@pytest.fixture(scope="session")
def prometheus_binaries() -> None:
    """Skip, saying why, where no Prometheus can be had; fail instead where skipping would hide something."""
    try:
        service.binaries()
    except service.Unavailable as reason:
        if os.environ.get("CI") or os.environ.get("GPU_CHARGEBACK_REQUIRE_SERVERS"):
            pytest.fail(f"a real Prometheus is required here: {reason}")
        pytest.skip(f"needs a real Prometheus: {reason}")


@pytest.fixture(scope="module")
def start_prometheus(
    prometheus_binaries: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    """Start a real Prometheus that serves an OpenMetrics file; gives its URL. Stopped after the module's tests."""
    with ExitStack() as stack:

        def start(openmetrics: Path, *options: str) -> str:
            folder = tmp_path_factory.mktemp("prometheus")
            return stack.enter_context(service.prometheus_server(openmetrics, folder, *options))

        yield start


@pytest.fixture(scope="session")
def prometheus_server(
    prometheus_binaries: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    """Start a real Prometheus that has scraped these worlds; gives its URL. Equal worlds share one for the session."""
    with ExitStack() as stack:
        urls: dict[str, str] = {}

        def serve(*worlds: World) -> str:
            key = repr(worlds)
            if key not in urls:
                folder = tmp_path_factory.mktemp("prometheus")
                write_openmetrics(folder / "worlds.om", worlds)
                urls[key] = stack.enter_context(service.prometheus_server(folder / "worlds.om", folder))
            return urls[key]

        yield serve


@pytest.fixture(scope="module")
def kubernetes() -> Iterator[KubernetesApi]:
    """A Kubernetes API on loopback."""
    with kubernetes_api() as api:
        yield api
