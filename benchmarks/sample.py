"""Make data/sample: the raw layer of the embedded cluster, as our own extraction reads it from real servers.

`python -m benchmarks.sample` simulates the cluster, serves it from a real Prometheus and a Kubernetes API on loopback,
takes snapshots, extracts two days, and puts the raw layer beside the sample's configuration.
"""

import datetime as dt
import shutil
import tempfile
from pathlib import Path

from assets.runs import SAMPLE_CONFIG, materialize
from benchmarks.simulator import generated_world, kubernetes_objects, with_shared_node, write_openmetrics
from pipelines.extract.kubernetes import take_snapshot
from pipelines.load.lake import Lake
from schemas.config import Config, KubernetesConfig
from schemas.config_file import load_config
from tests.services.kubernetes import kubernetes_api
from tests.services.prometheus import prometheus_server

START = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
DAYS = 2


def make_sample() -> None:
    """Replace data/sample/lake."""
    config = load_config(SAMPLE_CONFIG)
    world = with_shared_node(generated_world("demo", START, DAYS, nodes=3))
    target = SAMPLE_CONFIG.parent / "lake"
    with tempfile.TemporaryDirectory() as name, kubernetes_api() as api:
        folder = Path(name)
        write_openmetrics(folder / "world.om", [world])
        with prometheus_server(folder / "world.om", folder) as url:
            connected = _connected(config, folder / "lake", url, api.server("demo"))
            lake = Lake(folder / "lake")
            for hour in range(0, 24 * DAYS + 1, 6):
                instant = START + dt.timedelta(hours=hour)
                api.set_objects("demo", kubernetes_objects(world, instant))
                lake.append_snapshot("demo", take_snapshot(connected.clusters[0], now=instant), instant)
            days = [START.date() + dt.timedelta(days=i) for i in range(DAYS)]
            materialize(connected, dates=days, clusters=["demo"], stage="extract")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder / "lake" / "raw", target / "raw")


def _connected(config: Config, lake: Path, url: str, server: str) -> Config:
    cluster = config.clusters[0]
    prometheus = cluster.prometheus.model_copy(update={"url": url, "matchers": {"cluster": "demo"}})
    kubernetes = KubernetesConfig(server=server)
    with_servers = cluster.model_copy(update={"prometheus": prometheus, "kubernetes": kubernetes})
    return config.model_copy(update={"lake": str(lake), "clusters": [with_servers]})


if __name__ == "__main__":
    make_sample()
