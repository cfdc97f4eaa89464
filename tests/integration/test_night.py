"""The nightly job on real servers: what a person calls, what lands, and what happens when something is wrong."""

import csv
import datetime as dt
import io
import multiprocessing
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pytest
import requests

from assets.runs import materialize
from benchmarks.simulator import (
    Card,
    Node,
    Pod,
    World,
    generated_world,
    kubernetes_objects,
    truth,
    write_openmetrics,
)
from schemas.config import Config
from schemas.config_file import load_config
from tests.integration import killed_run
from tests.services.kubernetes import KubernetesApi
from tests.services.prometheus import free_port

pytestmark = pytest.mark.real_server
ROOT = Path(__file__).parents[2]
START = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
DAYS = [dt.date(2026, 3, 2), dt.date(2026, 3, 3)]
WORLD = generated_world("prod", START, 2, nodes=2, gpus_per_node=4, seed=7)
SCRAPES_PER_HOUR = 120


def hours(n: float) -> dt.datetime:
    return START + dt.timedelta(hours=n)


def small(cluster: str, pods: tuple[Pod, ...], **more: object) -> World:
    """One node with one GPU for three hours, whatever its pods do."""
    node = Node("a", hours(0), capacity=((hours(0), 1),))
    card = Card("GPU-a", "a", hours(0), hours(3))
    return World(cluster, hours(0), hours(3), (node,), (card,), pods, **more)  # type: ignore[arg-type]


# Two pods on one GPU, both alive for an hour: more is held than there is.
BROKEN = small(
    "broken", (Pod("team", "p", "a", ("GPU-a",), hours(0.5)), Pod("team", "q", "a", ("GPU-a",), hours(1), hours(2)))
)
STALE = small(
    "stale", (Pod("team", "p", "a", ("GPU-a",), hours(0), hours(1), named_to=hours(2), object_gone=hours(1.1)),)
)
PAIR = small(
    "pair", (Pod("team", "p", "a", ("GPU-a",), hours(0), hours(2), engine=0.5),),
    replicas=(("one", dt.timedelta()), ("two", dt.timedelta(seconds=11))),
)  # fmt: skip
GAP = World(
    "gap", hours(0), hours(3),
    (Node("a", hours(0), capacity=((hours(0), 1),), exporter_gaps=((hours(0.5), hours(1.5)),)),),
    (Card("GPU-a", "a", hours(0), hours(3)),),
    (Pod("team", "p", "a", ("GPU-a",), hours(0), hours(2), engine=0.5),),
)  # fmt: skip


class Site:
    """A folder with a configuration, and calls of the command line in it."""

    def __init__(self, folder: Path, prometheus: str, server: str | None, cluster: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        kubernetes = f"\n    kubernetes: {{server: {server}}}" if server else ""
        (folder / "chargeback.yaml").write_text(
            f"""
lake: lake
clusters:
  - name: {cluster}
    prometheus:
      url: {prometheus}
      timeout_s: 30
      matchers: {{cluster: {cluster}}}
      replica_label: prometheus_replica{kubernetes}
labels: {{prefix: acme.dev}}
rates: [{{id: h100, model: NVIDIA H100 80GB HBM3, list: 6.88, contracted: 5.191, from: 2026-01-01}}]
"""
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False, env=environment)

    def rows(self, sql: str) -> list[dict[str, str]]:
        told = self.call("query", sql, "--format", "csv")
        assert told.returncode == 0, told.stderr
        return list(csv.DictReader(io.StringIO(told.stdout)))

    def focus(self) -> dict[str, bytes]:
        root = self.folder / "lake" / "focus" / "cost_and_usage"
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.glob("billing_period=*/*/*"))}


@pytest.fixture(scope="module")
def prometheus(start_prometheus: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("worlds") / "worlds.om"
    write_openmetrics(file, [WORLD, BROKEN, STALE, PAIR, GAP])
    return start_prometheus(file)


@pytest.fixture(scope="module")
def site(prometheus: str, kubernetes: KubernetesApi, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The two-day world, snapshot taken after it, both days run."""
    kubernetes.set_objects("prod", kubernetes_objects(WORLD, START + dt.timedelta(days=2, hours=1)))
    site = Site(tmp_path_factory.mktemp("site"), prometheus, kubernetes.server("prod"), "prod")
    snapshot = site.call("snapshot")
    assert snapshot.returncode == 0, snapshot.stderr
    run = site.call("run", "--from", "2026-03-02", "--to", "2026-03-03")
    assert run.returncode == 0, run.stderr
    assert run.stdout == "prod 2026-03-02: published\nprod 2026-03-03: published\n"
    return site


def test_every_line_equals_the_worlds_truth(site: Site) -> None:
    found: dict[tuple[str, str], dict[str, Decimal]] = defaultdict(dict)
    for row in site.rows(
        "select strftime(ChargePeriodStart, '%Y-%m-%dT%H') as hour, x_DeviceId as device,"
        " coalesce(x_PodUid, '') as pod, sum(PricingQuantity) as quantity,"
        " sum(BilledCost) as cost from focus_cost_and_usage group by all"
    ):
        found[row["hour"], row["device"]][row["pod"]] = Decimal(row["quantity"])
        assert Decimal(row["cost"]) == Decimal(row["quantity"]) * Decimal("5.191")
    expected: dict[tuple[str, str], dict[str, int]] = {}
    for day in DAYS:
        for (hour, device), told in truth(WORLD, day).items():
            expected[f"{hour:%Y-%m-%dT%H}", device] = told
    assert found.keys() == expected.keys()
    for key, told in expected.items():
        owned_ms = told.pop("")
        assert sum(found[key].values()) == Decimal(owned_ms) / 3_600_000
        idle_ms = owned_ms - sum(told.values())
        exact = {**told, **({"": idle_ms} if idle_ms else {})}
        assert found[key].keys() == exact.keys()
        for pod, ms in exact.items():
            assert abs(found[key][pod] - Decimal(ms) / 3_600_000) < Decimal("0.000000000001")


def test_quantities_sum_to_owned_and_costs_to_price_times_owned(site: Site) -> None:
    rows = site.rows(
        "select sum(PricingQuantity) as q, sum(BilledCost) as c, sum(ListCost) as l from focus_cost_and_usage"
    )
    assert Decimal(rows[0]["q"]) == 2 * 24 * 8
    assert Decimal(rows[0]["c"]) == Decimal("5.191") * 384
    assert Decimal(rows[0]["l"]) == Decimal("6.88") * 384
    sums = "sum(owned_gpu_hours) as o, sum(difference_gpu_hours) as d, sum(difference_cost) as c"
    owned = site.rows(f"select {sums} from reconciliation")
    assert [Decimal(value) for value in owned[0].values()] == [384, 0, 0]


def test_a_second_run_writes_the_same_bytes(site: Site) -> None:
    before = site.focus()
    assert len(before) == 2
    run = site.call("run", "--from", "2026-03-02", "--to", "2026-03-03")
    assert run.returncode == 0, run.stderr
    assert site.focus() == before


def test_no_secret_and_nothing_else_of_a_pod_is_landed(site: Site) -> None:
    for path in (site.folder / "lake").rglob("*"):
        if path.is_file() and path.suffix == ".parquet":
            assert "not-for-the-lake" not in str(pl.read_parquet(path).to_dicts()[:500])


def test_status_and_the_view_for_people(site: Site) -> None:
    told = site.call("status")
    assert told.returncode == 0
    assert "2026-03-02  published" in told.stdout
    rows = site.rows("select sum(held_gpu_hours) as h, sum(idle_gpu_hours) as i from chargeback")
    assert Decimal(rows[0]["h"]) + Decimal(rows[0]["i"]) == 384


def test_the_catalog_is_replaced_while_somebody_reads_it(site: Site) -> None:
    with duckdb.connect(str(site.folder / "lake" / "chargeback.duckdb"), read_only=True) as reader:
        assert site.call("catalog").returncode == 0
        assert reader.execute("select count(*) > 0 from focus_cost_and_usage").fetchall() == [(True,)]


def test_a_moved_lake_is_found_again(site: Site, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(site.folder / "lake", moved)
    before = site.call("status", "--lake", str(moved))
    assert (before.returncode, "made where the lake was before" in before.stderr) == (1, True)
    assert site.call("catalog", "--root", str(moved)).returncode == 0
    told = site.call("query", "select count(*) as n from focus_cost_and_usage", "--lake", str(moved), "--format", "csv")
    assert int(told.stdout.split()[1]) > 0


# --- what is wrong --------------------------------------------------------------------------------------------------


def test_a_day_that_holds_more_than_is_owned_is_not_published(
    prometheus: str, kubernetes: KubernetesApi, tmp_path: Path
) -> None:
    kubernetes.set_objects("broken", kubernetes_objects(BROKEN, hours(2.9)))
    site = Site(tmp_path, prometheus, kubernetes.server("broken"), "broken")
    assert site.call("snapshot").returncode == 0
    run = site.call("run", "--date", "2026-03-02")
    assert run.returncode == 1
    assert run.stderr.startswith("gpu-chargeback: broken 2026-03-02: not published")
    assert "held 2.000000000000 GPU-hours above 1.000000000000 owned, by team/p, team/q" in run.stderr
    assert site.focus() == {}
    status = site.call("status")
    assert status.returncode == 0, status.stderr
    assert "checks failed, not published" in status.stdout


@pytest.mark.parametrize(
    ("sql", "expected"),
    [("unreachable", "could not be reached"), ("nothing", "DCGM")],
)
def test_sources_that_do_not_answer(sql: str, expected: str, prometheus: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}" if sql == "unreachable" else prometheus
    site = Site(tmp_path, url, None, "no-such-cluster")
    run = site.call("run", "--date", "2026-03-02")
    assert run.returncode == (3 if sql == "unreachable" else 1), run.stderr
    assert run.stderr.startswith("gpu-chargeback: ")
    assert "Traceback" not in run.stderr
    assert not (tmp_path / "lake" / "focus").exists()


def test_refused_credentials(kubernetes: KubernetesApi, prometheus: str, tmp_path: Path) -> None:
    kubernetes.set_objects("prod", kubernetes_objects(WORLD, hours(1)))
    kubernetes.token = "right"
    try:
        site = Site(tmp_path, prometheus, kubernetes.server("prod"), "prod")
        told = site.call("snapshot")
    finally:
        kubernetes.token = None
    assert told.returncode == 2
    assert "refused the credentials (401)" in told.stderr


# --- the two queries that users know --------------------------------------------------------------------------------


def prometheus_value(url: str, query: str, at: dt.datetime) -> float:
    answer = requests.get(f"{url}/api/v1/query", params={"query": query, "time": at.timestamp()}, timeout=10).json()
    return float(answer["data"]["result"][0]["value"][1])


def held_hours(site: Site) -> Decimal:
    rows = site.rows("select sum(PricingQuantity) as q from focus_cost_and_usage where x_ChargeKind = 'held'")
    return Decimal(rows[0]["q"])


def usual_hours(url: str, cluster: str) -> float:
    selector = f'DCGM_FI_DEV_GPU_UTIL{{namespace!="",cluster="{cluster}"}}'
    return prometheus_value(url, f"sum by (namespace) (count_over_time({selector}[1d])) * 30 / 3600", hours(24))


def usual_occupancy(url: str, cluster: str) -> float:
    selector = f'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{namespace!="",cluster="{cluster}"}}'
    return prometheus_value(url, f"avg(avg_over_time({selector}[1d]))", hours(24))


@pytest.fixture(scope="module")
def run_world(
    prometheus: str, kubernetes: KubernetesApi, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[World], Site]:
    def run(world: World) -> Site:
        site = Site(tmp_path_factory.mktemp(world.cluster), prometheus, None, world.cluster)
        config = load_config(site.folder / "chargeback.yaml")
        materialize(config, dates=[DAYS[0]], clusters=[world.cluster], data_docs=False)
        return site

    return run


def test_the_usual_queries_double_a_highly_available_pair(run_world: Callable[[World], Site], prometheus: str) -> None:
    site = run_world(PAIR)
    assert held_hours(site) == 2
    assert usual_hours(prometheus, "pair") == pytest.approx(4, abs=0.05)
    assert usual_occupancy(prometheus, "pair") == pytest.approx(0.5)
    rows = site.rows("select engine_active_ratio as r from chargeback where namespace = 'team'")
    assert float(rows[0]["r"]) == pytest.approx(0.5)


def test_the_usual_queries_lose_an_exporter_gap(run_world: Callable[[World], Site], prometheus: str) -> None:
    assert held_hours(run_world(GAP)) == 2
    assert usual_hours(prometheus, "gap") == pytest.approx(1, abs=0.05)


def test_the_usual_queries_bill_stale_labels(run_world: Callable[[World], Site], prometheus: str) -> None:
    assert held_hours(run_world(STALE)) == 1
    assert usual_hours(prometheus, "stale") == pytest.approx(2, abs=0.05)


# --- killed at every write -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def landed(prometheus: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Config, Path]]:
    """A lake with a published day, and a configuration with another price that would publish it anew."""
    folder = tmp_path_factory.mktemp("killed")
    cluster = {"name": "pair", "prometheus": {"url": prometheus, "matchers": {"cluster": "pair"}}}

    def config(price: str) -> Config:
        rates = [{"model": "NVIDIA H100 80GB HBM3", "contracted": price, "from": "2026-01-01"}]
        return Config.model_validate({"lake": str(folder / "lake"), "clusters": [cluster], "rates": rates})

    materialize(config("5.191"), dates=[DAYS[0]], clusters=["pair"], now=hours(48))
    yield config("6"), folder / "lake"


def test_killed_at_every_write(landed: tuple[Config, Path], tmp_path: Path) -> None:
    config, lake = landed
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.integration.killed_run"])
    before = published(lake)

    def attempt(folder: Path, kill_at: int) -> int | None:
        moved = config.model_copy(update={"lake": str(folder)})
        process = context.Process(
            target=killed_run.run_and_die, args=(moved.model_dump_json(by_alias=True), DAYS[0], hours(48), kill_at)
        )
        process.start()
        process.join()
        return process.exitcode

    whole = tmp_path / "whole"
    shutil.copytree(lake, whole)
    assert attempt(whole, 0) == 0
    after = published(whole)
    assert after != before
    renames = int((whole / "renames").read_text())
    assert renames > 20
    for kill_at in range(1, renames + 1):
        folder = tmp_path / f"killed-{kill_at}"
        shutil.copytree(lake, folder)
        assert attempt(folder, kill_at) == -signal.SIGKILL
        for name, content in published(folder).items():
            assert content in (before[name], after[name]), f"{name} after a kill at write {kill_at}"
        # The next run finishes what was begun: tried after kills before, within, and after the publication's renames.
        if kill_at in (3, renames - 9, renames - 5, renames - 1):
            assert attempt(folder, 0) == 0
            assert published(folder) == after
        shutil.rmtree(folder)


def published(lake: Path) -> dict[str, bytes]:
    """Everything that readers see, by table."""
    tables = (
        "devices",
        "holdings",
        "gpu_hours",
        "occupancy",
        "charges",
        "label_coverage",
        "reconciliation",
        "findings",
    )
    paths = [
        *(path for table in tables for path in (lake / table).rglob("*.parquet")),
        *(lake / "focus").rglob("*.parquet"),
    ]
    return {str(path.relative_to(lake)): path.read_bytes() for path in sorted(paths)}
