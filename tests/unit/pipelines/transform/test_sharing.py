"""Devices shared in time: worked cases 4, 5, 6, 18 and 24, and what says that a node shares (ACCOUNTING 3)."""

from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from pipelines.transform.devices import NodePool
from pipelines.transform.findings import mixed_replicas
from pipelines.transform.scope import require_known_sharing
from pipelines.transform.sharing import sharing
from schemas.errors import NotCovered
from schemas.tables import DeviceTelemetry, NodeSharing, NodeSighting, PodSighting, WorkloadTelemetry
from tests.unit.pipelines.transform.evidence import WINDOW, at, day, frame, node, pod, series, sharing_seen

SLICED = [sharing_seen("a", 4, replicas=4, strategy="time-slicing")]
QUARTER = "0.25"


def shares(told: Any, hour: str = "12:00") -> list[tuple[str, int, int, str | None]]:
    rows = told.lines.filter((pl.col("hour") == at(hour)) & (pl.col("charge_kind") == "held")).sort("pod", "line_key")
    return rows.select("pod", "share_num", "share_den", "device_id").rows()


def test_case_4_three_pods_on_a_device_in_four_parts() -> None:
    pods = [pod(name, "a") for name in "pqr"]
    engine = series("GPU-0", "a", value=714_000)
    named = [row for name in "pqr" for row in series("GPU-0", "a", pod=name, replica=name, value=714_000)]
    told = day([node("a", 4)], pods, engine, named, configurations=SLICED)
    assert told.told() == [
        ("held", "p", QUARTER),
        ("held", "q", QUARTER),
        ("held", "r", QUARTER),
        ("idle", "a", QUARTER),
    ]
    assert told.cost() == Decimal("5.191")
    held = told.occupancy.filter((pl.col("hour") == at("12:00")) & (pl.col("charge_kind") == "held"))
    assert set(held["attribution_scope"]) == {"device"}
    assert held["engine_active_ratio"].null_count() == held["engine_active_gpu_hours"].null_count() == 3
    assert set(held["device_engine_active_ratio"]) == {Decimal("0.714")}
    assert set(held["coverage"]) == {Decimal(1)}


def test_case_5_a_pod_with_two_replicas() -> None:
    pods = [pod("p", "a", 2), pod("q", "a"), pod("r", "a")]
    util = series("GPU-0", "a", metric="gpu_util", value=900_000)
    values = {"p": 400_000, "q": 300_000, "r": 200_000}
    named = [
        row
        for name, replica in (("p", "0"), ("p", "1"), ("q", "2"), ("r", "3"))
        for row in series("GPU-0", "a", pod=name, replica=replica, metric="gpu_util", value=values[name])
    ]
    told = day([node("a", 4)], pods, util, named, configurations=SLICED)
    assert told.told() == [("held", "p", "0.5"), ("held", "q", QUARTER), ("held", "r", QUARTER)]
    held = told.occupancy.filter((pl.col("hour") == at("12:00")) & (pl.col("charge_kind") == "held")).sort("line_key")
    # Once per pod, though the exporter has two rows of p.
    assert held["process_sm_ratio"].to_list() == [Decimal("0.4"), Decimal("0.3"), Decimal("0.2")]
    assert set(held["attribution_scope"]) == {"process"}


@pytest.mark.parametrize("values", [(0, 0, 0), (970_000, 970_000, 970_000)])
def test_case_6_device_figures_under_pod_names(values: tuple[int, int, int]) -> None:
    pods = [pod(name, "a") for name in "pqr"]
    util = series("GPU-0", "a", metric="gpu_util", value=970_000)
    named = [
        row
        for name, value in zip("pqr", values, strict=True)
        for row in series("GPU-0", "a", pod=name, replica=name, metric="gpu_util", value=value)
    ]
    told = day([node("a", 4)], pods, util, named, configurations=SLICED)
    held = told.occupancy.filter((pl.col("hour") == at("12:00")) & (pl.col("charge_kind") == "held"))
    assert held["process_sm_ratio"].null_count() == 3
    assert set(held["attribution_scope"]) == {"device"}


def test_case_18_inventory_only_eight_devices_in_four_parts() -> None:
    pods = [pod(name, "a") for name in "pqrst"]
    sighting = node("a", 32) | {"model": "NVIDIA-H100-80GB-HBM3-SHARED"}
    told = day([sighting], pods, configurations=[sharing_seen("a", 32, replicas=4, strategy="time-slicing",
                                                                  product="NVIDIA-H100-80GB-HBM3-SHARED")],
               )  # fmt: skip
    assert told.devices.filter(pl.col("hour") == at("12:00")).height == 8
    lines = told.lines.filter(pl.col("hour") == at("12:00"))
    assert lines["gpu_hours"].sum() == 8
    assert lines.filter(pl.col("charge_kind") == "idle")["gpu_hours"].to_list() == [Decimal("6.75")]
    assert shares(told) == [(name, 1, 4, None) for name in "pqrst"]
    assert told.cost() == Decimal("41.528")


def test_case_24_replicas_change_within_the_hour() -> None:
    pods = [pod(name, "a") for name in "pqr"]
    configurations = [
        sharing_seen("a", 4, end="12:29:30", replicas=4, strategy="time-slicing"),
        sharing_seen("a", 8, start="12:30", replicas=8, strategy="time-slicing"),
    ]
    told = day([node("a", 8)], pods, series("GPU-0", "a"), configurations=configurations)
    assert told.told() == [("held", name, "0.1875") for name in "pqr"] + [("idle", "a", "0.4375")]
    assert told.cost() == Decimal("5.191")


def test_three_thirds_of_a_device_sum_to_it_exactly() -> None:
    pods = [pod(name, "a") for name in "pqr"]
    told = day([node("a", 3)], pods, series("GPU-0", "a"), configurations=[sharing_seen("a", 3, replicas=3)])
    assert told.told() == [
        ("held", "p", "0.333333333334"),
        ("held", "q", "0.333333333333"),
        ("held", "r", "0.333333333333"),
    ]


def test_one_arbitrary_name_on_a_shared_device_is_no_evidence() -> None:
    # Two devices in two parts each; the exporter names one pod per device, without its replica.
    named = series("GPU-0", "a", pod="p") + series("GPU-1", "a", pod="p")
    told = day(
        [node("a", 4)], [pod("p", "a"), pod("q", "a")], series("GPU-0", "a") + series("GPU-1", "a"), named,
        configurations=[sharing_seen("a", 4, replicas=2, strategy="mps")],
    )  # fmt: skip
    assert told.told() == [("held", "p", "0.5"), ("held", "q", "0.5"), ("idle", "a", "1")]
    assert shares(told) == [("p", 1, 2, None), ("q", 1, 2, None)]
    assert set(told.lines["sharing_mode"]) == {"mps"}


def test_named_replicas_tell_the_devices() -> None:
    named = series("GPU-0", "a", pod="p", replica="0") + series("GPU-1", "a", pod="p", replica="3")
    told = day(
        [node("a", 4)], [pod("p", "a", 2)], series("GPU-0", "a") + series("GPU-1", "a"), named,
        configurations=[sharing_seen("a", 4, replicas=2)],
    )  # fmt: skip
    assert shares(told) == [("p", 1, 2, "GPU-0"), ("p", 1, 2, "GPU-1")]
    assert told.told() == [("held", "p", "1"), ("idle", "a", "1")]


def test_energy_goes_by_shares_and_is_the_boards() -> None:
    joules = [row | {"increase": 3_600_000_000} for row in series("GPU-0", "a", "12:00", "13:00", metric="energy")]
    pods = [pod(name, "a") for name in "pqr"]
    told = day([node("a", 4)], pods, series("GPU-0", "a") + joules, configurations=SLICED)
    energy = told.occupancy.filter(pl.col("hour") == at("12:00")).sort("charge_kind", "line_key")["energy_kwh"]
    assert energy.to_list() == [Decimal("0.25")] * 4


def decided(
    configuration: dict[str, Any], cards: int, *, replica: str = "", pools: list[NodePool] | None = None
) -> Any:
    shown = [row for i in range(cards) for row in series(f"GPU-{i}", "a")]
    named = series("GPU-0", "a", pod="p", replica=replica) if replica else []
    told = sharing(
        frame(NodeSharing, [configuration]), frame(DeviceTelemetry, shown), frame(WorkloadTelemetry, named),
        window=WINDOW, pools=pools or [],
    ).collect()  # fmt: skip
    return told.select("sharing_mode", "replicas", "node_capacity", "sharing_evidence").row(0)


@pytest.mark.parametrize(
    ("configuration", "cards", "expected"),
    [
        (sharing_seen("a", 8), 8, ("exclusive", 1, 8, "none")),
        (sharing_seen("a", 8), 4, ("exclusive", 1, 8, "none")),  # an exporter that is down is no sharing
        (sharing_seen("a", 8, replicas=1, strategy="none"), 8, ("exclusive", 1, 8, "none")),
        (sharing_seen("a", 8, replicas=4, strategy="time-slicing"), 0, ("time_slicing", 4, 2, "node label")),
        (sharing_seen("a", 8, replicas=4, strategy="mps"), 2, ("mps", 4, 2, "node label")),
        (sharing_seen("a", 8, replicas=0), 8, ("exclusive", 1, 8, "none")),
        (sharing_seen("a", 8, strategy="time-slicing"), 2, ("time_slicing", 4, 2, "strategy label")),
        (sharing_seen("a", 8, resource="nvidia.com/gpu.shared"), 2, ("time_slicing", 4, 2, "resource name")),
        (sharing_seen("a", 8, product="NVIDIA-A100-SHARED"), 4, ("time_slicing", 2, 4, "product name")),
        (sharing_seen("a", 8, product="NVIDIA-A100-SHARED"), 3, ("time_slicing", None, None, "product name")),
    ],
)
def test_what_says_that_a_node_shares(configuration: dict[str, Any], cards: int, expected: tuple[Any, ...]) -> None:
    assert decided(configuration, cards) == expected


def test_a_configured_pool_and_named_replicas_are_evidence() -> None:
    pool = NodePool("sliced", {"acme.dev/pool": "x"}, 2)
    seen = sharing_seen("a", 8, replicas=4, strategy="time-slicing", labels='{"label_acme_dev_pool":"x"}')
    assert decided(seen, 4, pools=[pool]) == ("time_slicing", 2, 4, "config")
    assert decided(sharing_seen("a", 8), 2, replica="3") == ("time_slicing", 4, 2, "replica labels")


def test_a_node_that_shares_nobody_says_how_is_refused() -> None:
    periods = frame(NodeSharing, [sharing_seen("a", 8, product="NVIDIA-A100-SHARED")])
    nothing = frame(DeviceTelemetry, []), frame(NodeSighting, []), frame(PodSighting, [])
    told = sharing(periods, nothing[0], frame(WorkloadTelemetry, []), window=WINDOW)
    with pytest.raises(NotCovered, match=r"in how many parts GPUs are shared: node a\..*`replicas` under `pools:`"):
        require_known_sharing(*nothing, told)


def test_a_pool_with_different_numbers_of_parts_is_told() -> None:
    pool = {"labels": '{"label_karpenter_sh_nodepool":"sliced"}'}
    nodes = [node(name, 4) | pool for name in "ab"]
    configurations = [sharing_seen("a", 4, replicas=4), sharing_seen("b", 2, replicas=2)]
    told = day(nodes, configurations=configurations, telemetry=series("GPU-0", "a") + series("GPU-1", "b"))
    sharing_rows = sharing(
        frame(NodeSharing, configurations), frame(DeviceTelemetry, []), frame(WorkloadTelemetry, []), window=WINDOW
    )
    [finding] = mixed_replicas(sharing_rows, told.devices.lazy()).collect().to_dicts()
    assert "node pool sliced: its nodes share their GPUs in 2 and 4 parts" in finding["message"]
