"""Whatever pods do on shared devices: lines sum to owned exactly; order and copies of a source change nothing."""

import random
from decimal import Decimal
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.pipelines.transform.evidence import day, node, pod, series, sharing_seen

MINUTES = st.integers(0, 24 * 60 - 1)


def clock(minute: int) -> str:
    return f"{minute // 60:02d}:{minute % 60:02d}"


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, list[dict[str, Any]]]:
    """A node of one to three devices in parts that may change once, and pods that hold no more than there is."""
    cards = draw(st.integers(1, 3))
    before, after = draw(st.sampled_from([2, 3, 4, 7])), draw(st.sampled_from([2, 3, 4, 7]))
    switch = draw(MINUTES)
    changes = draw(st.booleans())
    configurations = [sharing_seen("a", cards * before, replicas=before, end=clock(switch) if changes else "25:00")]
    if changes:
        configurations.append(sharing_seen("a", cards * after, start=clock(switch), replicas=after))
    room = cards * min(before, after) if changes else cards * before
    pods = []
    for i in range(draw(st.integers(0, room))):
        start, end = sorted((draw(MINUTES), draw(MINUTES)))
        if start < end:
            pods.append(pod(f"p{i}", "a", scheduled=clock(start), finished=clock(end)))
    telemetry = [row for card in range(cards) for row in series(f"GPU-{card}", "a", value=500_000)]
    return {"configurations": configurations, "nodes": [node("a", room)], "pods": pods, "telemetry": telemetry}


def by_hour(frame: pl.DataFrame, column: str) -> list[tuple[Any, ...]]:
    return frame.group_by("hour").agg(pl.col(column).sum()).sort("hour").rows()


@settings(max_examples=25, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_lines_sum_to_owned_whatever_is_held(world: dict[str, list[dict[str, Any]]], order: random.Random) -> None:
    told = day(**world)
    assert by_hour(told.lines, "gpu_hours") == by_hour(told.devices, "owned_gpu_hours")
    assert told.lines["gpu_hours"].min() >= 0
    assert told.charges["cost"].sum() == told.lines["gpu_hours"].sum() * Decimal("5.191")
    shuffled = {name: order.sample(rows, len(rows)) for name, rows in world.items()}
    assert day(**shuffled).lines.sort("segment_from", "line_key").equals(told.lines.sort("segment_from", "line_key"))
    seen_twice = [*world["pods"], *({**row, "source": "snapshot"} for row in world["pods"])]
    assert day(**world | {"pods": seen_twice}).told() == told.told()
