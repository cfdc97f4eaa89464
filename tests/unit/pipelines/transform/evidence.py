"""Short ways to write down evidence for transform tests: times, node and pod sightings, telemetry, a whole day."""

import dataclasses
import datetime as dt
from decimal import Decimal
from typing import Any

import polars as pl

from pipelines.transform.charges import Rate, charges, price_changes
from pipelines.transform.devices import Window, devices
from pipelines.transform.gpu_hours import ledger
from pipelines.transform.holdings import holdings
from pipelines.transform.labels import Dimension, labeled
from pipelines.transform.lifetimes import node_lives, pod_lives
from pipelines.transform.occupancy import occupancy
from pipelines.transform.sharing import sharing, with_physical_capacity
from schemas.tables import (
    DeviceTelemetry,
    NodeSharing,
    NodeSighting,
    PodLabels,
    PodSighting,
    WorkloadTelemetry,
    polars_schema,
)

DAY = dt.date(2026, 3, 2)
MODEL = "NVIDIA H100 80GB HBM3"
INTERVAL_MS = 30_000
WINDOW = Window(dt.datetime(2026, 3, 2, tzinfo=dt.UTC), dt.datetime(2026, 3, 3, tzinfo=dt.UTC))


def at(clock: str) -> dt.datetime:
    """`12:10`, `12:41:15` or `24:00` of the day."""
    hours, minutes, *seconds = clock.split(":")
    delta = dt.timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds[0]) if seconds else 0)
    return WINDOW.start + delta


def frame(schema: Any, rows: list[dict[str, Any]]) -> pl.LazyFrame:
    columns = polars_schema(schema)
    full = [{name: row.get(name) for name in columns} for row in rows]
    return pl.LazyFrame(full, schema=columns, orient="row").with_columns(cluster=pl.lit("c"), date=pl.lit(DAY))


def node(
    name: str, gpus: int | None = None, created: str = "00:00", seen_to: str = "25:00", gone: str | None = None
) -> dict[str, Any]:
    return {
        "source": "kube_state", "node": name, "node_uid": f"uid-{name}-{created}",
        "resource": "nvidia.com/gpu" if gpus else "", "capacity": gpus or 0,
        "created_at": at(created), "first_seen_at": at(created),
        "last_seen_at": at(seen_to),
        "absent_at": at(gone) if gone else None, "interval_ms": INTERVAL_MS, "model": None, "labels": "{}",
    }  # fmt: skip


def sharing_seen(
    on: str, capacity: int, start: str = "00:00", end: str = "25:00", replicas: int | None = None,
    strategy: str | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A time in which kube-state-metrics saw one sharing configuration of a node."""
    return {
        "source": "kube_state", "node": on, "node_uid": f"uid-{on}-00:00", "resource": "nvidia.com/gpu",
        "first_seen_at": at(start), "last_seen_at": at(end), "capacity": capacity, "replicas": replicas,
        "sharing_strategy": strategy, "labels": "{}", **more,
    }  # fmt: skip


def pod(
    name: str, on: str, gpus: int = 1, scheduled: str = "00:00", finished: str | None = None, seen_to: str = "25:00",
    gone: str | None = None, deletion: str | None = None, uid: str | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "source": "kube_state", "pod_uid": uid or f"uid-{name}", "resource": "nvidia.com/gpu", "namespace": "team",
        "pod": name, "node": on, "requested": gpus, "created_at": at(scheduled), "scheduled_at": at(scheduled),
        "finished_at": at(finished) if finished else None, "terminal_seen_at": at(finished) if finished else None,
        "deletion_at": at(deletion) if deletion else None, "first_seen_at": at(scheduled),
        "last_alive_at": at(finished or seen_to), "absent_at": at(gone) if gone else None,
        "interval_ms": INTERVAL_MS, **more,
    }  # fmt: skip


def series(
    device: str, on: str, start: str = "00:00", end: str = "24:00", pod: str | None = None,
    metric: str = "engine_active", value: int = 0, gaps: list[tuple[str, str]] | None = None, model: str = MODEL,
    uid: str = "", name: str | None = None, replica: str = "",
) -> list[dict[str, Any]]:  # fmt: skip
    """Runs of samples every 30 s at (start, end], cut at hours and at gaps (a, b]; `pod` names a workload."""
    instants = pl.datetime_range(at(start) + dt.timedelta(seconds=30), at(end), "30s", time_unit="ms", eager=True)
    samples = pl.DataFrame(
        {"ts": instants.dt.replace_time_zone("UTC") if instants.dtype.time_zone is None else instants}
    )  # type: ignore[attr-defined]
    run = pl.lit(0)
    for a, b in gaps or []:
        samples = samples.filter(~((pl.col("ts") > at(a)) & (pl.col("ts") <= at(b))))
        run = run + (pl.col("ts") > at(b)).cast(pl.Int64)
    rows = (
        samples.with_columns(hour=(pl.col("ts") - pl.duration(milliseconds=1)).dt.truncate("1h"), run=run)
        .group_by("hour", "run", maintain_order=True)
        .agg(first_at=pl.col("ts").min(), last_at=pl.col("ts").max(), instants=pl.len().cast(pl.Int64))
    )
    namespace = (
        {"namespace": "team", "pod": pod, "pod_uid": uid, "container": "main", "replica": replica} if pod else {}
    )
    return [
        {
            "metric": metric, "device_id": device, "gpu_instance_id": "", "node": on, "model": model, "source": "s",
            "interval_ms": INTERVAL_MS, "measured_ms": row["instants"] * INTERVAL_MS, "metric_name": name or metric,
            "weighted_sum": row["instants"] * INTERVAL_MS * value, "value_min": value, "value_max": value,
            "value_first": value, "value_last": value, "largest_gap_ms": INTERVAL_MS,
            "increase": 0 if metric == "energy" else None, **row, **namespace,
        }
        for row in rows.drop("run").iter_rows(named=True)
    ]  # fmt: skip


@dataclasses.dataclass
class Day:
    """Everything that one day's evidence leads to."""

    devices: pl.DataFrame
    holdings: pl.DataFrame
    lines: pl.DataFrame
    occupancy: pl.DataFrame
    charges: pl.DataFrame

    def told(self, hour: str = "12:00") -> list[tuple[str, str, str]]:
        """(kind, pod or node, quantity) of an hour, summed over devices, in order."""
        rows = (
            self.lines.filter(pl.col("hour") == at(hour))
            .group_by("charge_kind", who=pl.coalesce("pod", "node"))
            .agg(pl.col("gpu_hours").sum())
            .sort("charge_kind", "who")
        )
        return [(kind, who, f"{quantity.normalize():f}") for kind, who, quantity in rows.iter_rows()]

    def cost(self, hour: str = "12:00") -> Decimal:
        return Decimal(self.charges.filter(pl.col("hour") == at(hour))["cost"].sum())


def day(
    nodes: list[dict[str, Any]] | None = None,
    pods: list[dict[str, Any]] | None = None,
    telemetry: list[dict[str, Any]] | None = None,
    workloads: list[dict[str, Any]] | None = None,
    rates: list[Rate] | None = None,
    window: Window = WINDOW,
    configurations: list[dict[str, Any]] | None = None,
) -> Day:
    """Run the transform over one day's evidence; without `configurations` no node shares its devices."""
    rates = rates or [
        Rate("nvidia-h100-80gb-hbm3", Decimal("6.88"), Decimal("5.191"), "Standard", at("00:00") - dt.timedelta(9))
    ]
    # Each stage is landed before the next reads it, as the assets do.
    lives = node_lives(frame(NodeSighting, nodes or [])).collect().lazy()
    pod_times = pod_lives(frame(PodSighting, pods or [])).collect().lazy()
    device_series = frame(DeviceTelemetry, telemetry or [])
    workload_series = frame(WorkloadTelemetry, workloads or [])
    stamp = {"cluster": pl.lit("c"), "date": pl.lit(DAY)}
    seen = [sharing_seen(each["node"], each["capacity"]) for each in nodes or [] if each["resource"]]
    shared = (
        sharing(frame(NodeSharing, configurations or seen), device_series, workload_series, window=window)
        .collect()
        .lazy()
    )
    lives = with_physical_capacity(lives, shared).collect().lazy()
    owned = devices(device_series, lives, pod_times, window=window, bridge_ms=600_000).with_columns(**stamp).collect()
    held = (
        holdings(pod_times, workload_series, owned.lazy(), shared, window=window, bridge_ms=600_000)
        .with_columns(**stamp)
        .collect()
    )
    unlabeled = ledger(owned.lazy(), held.lazy(), shared, price_changes(rates)).collect()
    lines = labeled(
        unlabeled.lazy(), frame(PodLabels, []), dimensions=[Dimension("tenant", "acme.dev/tenant")]
    ).collect()
    return Day(
        devices=owned.sort("device_id", "owned_from"),
        holdings=held.sort("hold_id", "held_from"),
        lines=lines,
        occupancy=occupancy(lines.lazy(), device_series, workload_series, bridge_ms=600_000).collect(),
        charges=charges(lines.lazy(), rates, currency="USD").collect(),
    )
