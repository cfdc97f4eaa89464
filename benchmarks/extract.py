"""How fast DCGM series are read and reduced, against a bare HTTP read of the same tiles and against a notebook.

One metric of 1,000 devices over a day at 30 s (2.88 M samples) from a real Prometheus. The bare read is the floor: the
same queries, the bodies thrown away. The notebook is what a data scientist would write with prometheus-api-client and
pandas for GPU-hours and mean occupancy per namespace.
"""

import datetime as dt
import multiprocessing
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.services.prometheus import prometheus_server

METRIC = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
DAY = dt.date(2026, 11, 3)
MIDNIGHT = dt.datetime(2026, 11, 3, tzinfo=dt.UTC)
LATER = dt.datetime(2026, 11, 5, tzinfo=dt.UTC)
INTERVAL_S = 30


def measure(devices: int = 1000, rounds: int = 5) -> dict[str, float]:
    """Start a Prometheus, fill it, and measure.

    Returns:
        samples; bare_s, ours_s (medians of interleaved rounds) and ours_per_bare; samples_per_s; peak_mb (above the
        imports); notebook_s and notebook_per_ours.
    """
    with tempfile.TemporaryDirectory(prefix="bench-extract-") as name:
        folder = Path(name)
        written = folder / "day.om"
        samples = _write_day(written, devices)
        with prometheus_server(written, folder) as url:
            written.unlink()
            bare, ours = [], []
            read_bare(url)  # warm: imports, the server's page cache
            read_ours(url)
            for _ in range(rounds):
                bare.append(_timed(partial(read_bare, url)))
                ours.append(_timed(partial(read_ours, url)))
            notebook_s = _timed(partial(read_as_notebook, url))
            bare_s, ours_s = statistics.median(bare), statistics.median(ours)
            return {
                "samples": samples,
                "bare_s": bare_s,
                "ours_s": ours_s,
                "ours_per_bare": ours_s / bare_s,
                "samples_per_s": samples / ours_s,
                "peak_mb": _in_a_fresh_process(url),
                "notebook_s": notebook_s,
                "notebook_per_ours": notebook_s / ours_s,
            }


def read_bare(url: str) -> None:
    """The tiles' bodies, thrown away."""
    import requests

    with requests.Session() as session:
        for hour in range(1, 25):
            query = f'{{__name__="{METRIC}"}}[3600s]'
            asked = {"query": query, "time": str(MIDNIGHT.timestamp() + hour * 3600)}
            answer = session.post(
                f"{url}/api/v1/query", data=asked, headers={"Accept-Encoding": "identity"}, stream=True, timeout=60
            )
            for _ in answer.iter_content(1 << 18):
                pass


def read_ours(url: str) -> dict[str, tuple[float, float]]:
    """GPU-hours and mean occupancy per namespace, from the reading that the nightly job makes."""
    import polars as pl

    from pipelines.extract.prometheus import PrometheusSource
    from pipelines.extract.telemetry import read_telemetry
    from schemas.config import PrometheusConfig
    from schemas.metrics import metrics

    staging = Path(tempfile.mkdtemp(prefix="bench-staging-"))
    with PrometheusSource(PrometheusConfig(url=url), "bench") as source:
        reading = read_telemetry(
            source,
            cluster="bench",
            day=DAY,
            cuts=pl.DataFrame(schema={"node": pl.String, "at": pl.Datetime("ms", "UTC"), "kind": pl.String}),
            bridge_gap_ms=600_000,
            now=LATER,
            staging=staging,
            read_metrics=[metric for metric in metrics() if metric.canonical == "engine_active"],
        )
    shutil.rmtree(staging)
    told = reading.workload.group_by("namespace").agg(
        hours=pl.col("measured_ms").sum() / 3_600_000,
        ratio=pl.col("weighted_sum").sum() / pl.col("measured_ms").sum() / 1_000_000,
    )
    return {namespace: (hours, ratio) for namespace, hours, ratio in told.iter_rows()}


def read_as_notebook(url: str) -> dict[str, tuple[float, float]]:
    """The same two figures with prometheus-api-client and pandas."""
    from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

    data = PrometheusConnect(url=url).get_metric_range_data(
        METRIC,
        start_time=MIDNIGHT,
        end_time=MIDNIGHT + dt.timedelta(days=1),
        chunk_size=dt.timedelta(hours=1),
    )
    frame = MetricRangeDataFrame(data)
    frame["value"] = frame["value"].astype(float)
    told = frame.groupby("exported_namespace")["value"].agg(["count", "mean"])
    return {str(namespace): (row["count"] * INTERVAL_S / 3600, row["mean"]) for namespace, row in told.iterrows()}


def _write_day(path: Path, devices: int) -> int:
    """One metric of one day as OpenMetrics. (The simulator writes all of them: eight times the back-fill.)"""
    rng = random.Random(1)
    count = 24 * 3600 // INTERVAL_S
    with path.open("w") as file:
        for device in range(devices):
            node = device // 8
            labels = (
                f'UUID="GPU-{device:08x}-0000-4000-8000-000000000000",Hostname="gpu-{node:04d}",'
                f'modelName="NVIDIA H100 80GB HBM3",device="nvidia{device % 8}",gpu="{device % 8}",'
                f'exported_namespace="team-{device % 7}",exported_pod="train-{node}-{device % 3}",'
                f'exported_container="main",namespace="gpu-operator",pod="dcgm-exporter-{node:05x}",'
                f'container="dcgm-exporter",instance="10.0.{node // 256}.{node % 256}:9400",job="dcgm-exporter"'
            )
            first = MIDNIGHT.timestamp() + 0.001 + node * 7919 % (INTERVAL_S * 1000) / 1000
            file.writelines(
                f"{METRIC}{{{labels}}} {rng.random():.6f} {first + INTERVAL_S * step:.3f}\n" for step in range(count)
            )
        file.write("# EOF\n")
    return devices * count


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _in_a_fresh_process(url: str) -> float:
    """Peak memory of one reading above what its imports take, in MB."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak_mb, (url,))


def _peak_mb(url: str) -> float:
    import pipelines.extract.telemetry  # noqa: F401 - so that the imports count as imports

    before = _high_water_mb()
    read_ours(url)
    return _high_water_mb() - before


def _high_water_mb() -> float:
    """Most memory that this process has had. (getrusage tells the parent's, if that had more.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Print what was measured."""
    told = measure()
    lines = (
        f"{told['samples']:,.0f} samples: {told['ours_s']:.2f} s, {told['samples_per_s'] / 1e6:.2f} M samples/s",
        f"bare HTTP read of the same tiles: {told['bare_s']:.2f} s; ours / bare: {told['ours_per_bare']:.2f}",
        f"peak memory above the imports: {told['peak_mb']:.0f} MB",
        f"prometheus-api-client and pandas: {told['notebook_s']:.1f} s, {told['notebook_per_ours']:.1f} x ours",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
