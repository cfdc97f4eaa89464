"""How long a night takes for 10,000 GPUs: transform, proofs and publication of one landed day, in this process.

Beside it DuckDB reads the landed raw layer and writes as many rows as wide: the floor for any pipeline on these files.
"""

import datetime as dt
import multiprocessing
import shutil
import statistics
import tempfile
import time
from pathlib import Path

DAY = dt.date(2026, 3, 2)
NODES, GPUS = 1250, 8
CLUSTER = "big"


def measure(rounds: int = 3) -> dict[str, float]:
    """Land a raw layer, then time both.

    Returns:
        device_hours, focus_rows; ours_s, duckdb_s (medians), ours_per_duckdb; peak_mb of a process that does it once.
    """
    with tempfile.TemporaryDirectory(prefix="bench-night-") as name:
        raw = Path(name) / "raw-lake"
        _in_a_process(_land_raw, raw)
        ours, floor, peak, rows = [], [], 0.0, 0.0
        for _ in range(rounds):
            lake = Path(name) / "lake"
            shutil.copytree(raw, lake)
            seconds, rows, peak = _in_a_process(_run, lake)
            ours.append(seconds)
            floor.append(_in_a_process(_duckdb_copies, lake))
            shutil.rmtree(lake)
        return {
            "device_hours": NODES * GPUS * 24,
            "focus_rows": rows,
            "ours_s": statistics.median(ours),
            "duckdb_s": statistics.median(floor),
            "ours_per_duckdb": statistics.median(ours) / statistics.median(floor),
            "peak_mb": peak,
        }


def _in_a_process(work, lake: Path):  # type: ignore[no-untyped-def]
    """Run in a fresh process, so that one measurement's memory is not another's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, (lake,))


def _peak_kib() -> int:
    """Most memory this process has had resident; getrusage would tell its parent's too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def _config(lake: Path):  # type: ignore[no-untyped-def]
    from schemas.config import Config

    return Config.model_validate(
        {
            "lake": str(lake),
            "clusters": [{"name": CLUSTER, "prometheus": {"url": "http://127.0.0.1:1"}}],
            "labels": {"prefix": "acme.dev"},
            "rates": [{"id": "h100", "model": "NVIDIA H100 80GB HBM3", "contracted": "5.191", "from": "2026-01-01"}],
        }
    )


def _run(lake: Path) -> tuple[float, float, float]:
    """Seconds, FOCUS rows, and megabytes above the imports."""
    import great_expectations  # noqa: F401 - the import is not what is measured

    import assets.runs

    config = _config(lake)
    before = _peak_kib()
    started = time.perf_counter()
    assets.runs.materialize(
        config, dates=[DAY], clusters=[CLUSTER], stage="transform", now=dt.datetime(2026, 3, 4, tzinfo=dt.UTC)
    )
    seconds = time.perf_counter() - started
    import pyarrow.parquet as pq

    from pipelines.load.lake import Lake

    rows = pq.read_metadata(Lake(lake).focus_path(CLUSTER, DAY)).num_rows
    return seconds, float(rows), (_peak_kib() - before) / 1024


def _duckdb_copies(lake: Path) -> float:
    """DuckDB reads the same raw objects and writes the same published rows."""
    import duckdb

    from pipelines.load.lake import Lake

    target = lake / "copies"
    target.mkdir()
    places = Lake(lake)
    raw = [places.path(f"raw/{name}", CLUSTER, DAY) for name in ("telemetry", "workload_telemetry", "pods")]
    made = [places.path(name, CLUSTER, DAY) for name in ("devices", "holdings", "gpu_hours", "occupancy", "charges")]
    started = time.perf_counter()
    with duckdb.connect() as connection:
        for path in raw:
            connection.execute(f"create temp table t as select * from read_parquet('{path}')")
            connection.execute("drop table t")
        for i, path in enumerate([*made, places.focus_path(CLUSTER, DAY)]):
            written = target / f"{i}.parquet"
            connection.execute(f"copy (select * from read_parquet('{path}')) to '{written}' (compression zstd)")
    return time.perf_counter() - started


def _land_raw(lake: Path) -> None:
    """Hourly measurements of eight metrics for every GPU, two pods a day on each."""
    import polars as pl

    from pipelines.load.lake import Lake
    from schemas.tables import TABLES, polars_schema

    start = dt.datetime.combine(DAY, dt.time(), tzinfo=dt.UTC)
    base = pl.lit(start).dt.cast_time_unit("ms")
    stamp = {"cluster": pl.lit(CLUSTER), "date": pl.lit(DAY)}
    day_hours = pl.datetime_range(
        start, start + dt.timedelta(hours=23), "1h", time_unit="ms", time_zone="UTC", eager=True
    )
    cards = pl.DataFrame({"n": range(NODES * GPUS)}).select(
        "n", device_id=pl.format("GPU-{}", "n"), node=pl.format("node-{}", pl.col("n") // GPUS)
    )

    def land(name: str, frame: pl.DataFrame) -> None:
        table = TABLES[f"raw/{name}"]
        columns = polars_schema(table.schema)
        missing = {key: pl.lit(None, dtype=kind) for key, kind in columns.items() if key not in frame.columns}
        full = frame.with_columns(**{key: value for key, value in missing.items() if key not in stamp}, **stamp)
        Lake(lake).write(table, full.select(columns.names()).cast(columns), CLUSTER, DAY, candidate=False)

    pods = pl.concat(
        [
            cards.with_columns(k=pl.lit(0), from_s=pl.col("n") % 9000, to_s=30_000 + pl.col("n") % 7001),
            cards.with_columns(k=pl.lit(1), from_s=38_000 + pl.col("n") % 5003, to_s=pl.lit(90_000, dtype=pl.Int64)),
        ]
    ).with_columns(
        pod=pl.format("pod-{}-{}", "n", "k"),
        held_from=base + pl.duration(seconds="from_s"),
        held_to=base + pl.duration(seconds="to_s"),
    )
    ended = pl.when(pl.col("k") == 0).then("held_to")
    land(
        "pods",
        pods.select(
            "node", "pod", source=pl.lit("kube_state"), pod_uid=pl.format("uid-{}", "pod"),
            resource=pl.lit("nvidia.com/gpu"), namespace=pl.format("team-{}", pl.col("n") % 40), requested=pl.lit(1),
            created_at="held_from", scheduled_at="held_from", finished_at=ended, terminal_seen_at=ended,
            first_seen_at="held_from", last_alive_at="held_to", interval_ms=pl.lit(30_000),
        ),
    )  # fmt: skip
    labels = '{"label_acme_dev_cost_center":"ml","label_acme_dev_tenant":"internal"}'
    land(
        "pod_labels",
        pods.select(
            source=pl.lit("kube_state"), pod_uid=pl.format("uid-{}", "pod"), labels=pl.lit(labels),
            first_seen_at="held_from", last_seen_at="held_to",
        ),
    )  # fmt: skip
    land(
        "nodes",
        cards.select("node").unique().select(
            "node", source=pl.lit("kube_state"), node_uid=pl.format("uid-{}", "node"),
            resource=pl.lit("nvidia.com/gpu"),
            capacity=pl.lit(GPUS), created_at=base - pl.duration(days=9), first_seen_at=base - pl.duration(hours=1),
            last_seen_at=base + pl.duration(hours=25), interval_ms=pl.lit(30_000), labels=pl.lit("{}"),
        ),
    )  # fmt: skip
    land(
        "node_sharing",
        cards.select("node").unique().select(
            "node", source=pl.lit("kube_state"), node_uid=pl.format("uid-{}", "node"), labels=pl.lit("{}"),
            resource=pl.lit("nvidia.com/gpu"), capacity=pl.lit(GPUS),
            first_seen_at=base, last_seen_at=base + pl.duration(hours=25),
        ),
    )  # fmt: skip
    hours = cards.join(pl.DataFrame({"hour": day_hours}), how="cross")
    measured = {
        "gpu_instance_id": pl.lit(""), "interval_ms": pl.lit(30_000), "value_min": pl.lit(0), "value_max": pl.lit(9),
        "value_first": pl.lit(1), "value_last": pl.lit(2), "increase": pl.lit(1), "largest_gap_ms": pl.lit(30_000),
    }  # fmt: skip
    # Runs are cut where pods start and end, as the extraction does.
    edges = pods.select("n", at="held_from").vstack(pods.filter(pl.col("k") == 0).select("n", at="held_to"))
    cut = pl.concat(
        [hours.select("n", "hour", at="hour"), edges.with_columns(hour=pl.col("at").dt.truncate("1h"))], how="diagonal"
    )
    runs = (
        cut.unique()
        .sort("n", "hour", "at")
        .with_columns(to=pl.col("at").shift(-1).over("n", "hour"))
        .with_columns(last_at=pl.coalesce("to", pl.col("hour").dt.offset_by("1h")))
        .with_columns(first_at=pl.min_horizontal(pl.col("at") + pl.duration(seconds=30), "last_at"))
        .with_columns(measured_ms=(pl.col("last_at") - pl.col("at")).dt.total_milliseconds())
        .with_columns(instants=pl.col("measured_ms") // 30_000)
        .join(cards, on="n")
    )
    metrics = pl.DataFrame(
        {
            "metric": [
                "engine_active", "tensor_active", "sm_active", "dram_active",
                "gpu_util", "memory_used", "energy", "xid_errors",
            ]
        }
    )  # fmt: skip
    telemetry = runs.join(metrics, how="cross").with_columns(
        metric_name="metric", model=pl.lit("NVIDIA H100 80GB HBM3"), source=pl.lit("dcgm"),
        weighted_sum=pl.col("measured_ms") * 400_000, **measured,
    )  # fmt: skip
    land("telemetry", telemetry)
    named = pods.join(hours.select("n", "hour"), on="n").with_columns(
        first_at=pl.max_horizontal(
            pl.col("held_from") + pl.duration(seconds=30), pl.col("hour") + pl.duration(seconds=30)
        ),
        last_at=pl.min_horizontal("held_to", pl.col("hour").dt.offset_by("1h")),
    )
    land(
        "workload_telemetry",
        named.filter(pl.col("last_at") > pl.col("first_at")).with_columns(
            metric=pl.lit("engine_active"), metric_name=pl.lit("engine_active"), weighted_sum=pl.lit(0),
            namespace=pl.format("team-{}", pl.col("n") % 40), pod_uid=pl.lit(""), container=pl.lit("main"),
            replica=pl.lit(""), instants=pl.lit(100), measured_ms=pl.lit(3_000_000), **measured,
        ),
    )  # fmt: skip
    for name in ("inventory_findings", "telemetry_findings"):
        land(name, pl.DataFrame(schema=polars_schema(TABLES[f"raw/{name}"].schema)))


if __name__ == "__main__":
    for key, value in measure().items():
        print(f"{key:18} {value:,.2f}")
