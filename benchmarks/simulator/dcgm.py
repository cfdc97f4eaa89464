"""What dcgm-exporter shows of the cards: metrics by generation of names, and the pod named beside each."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from benchmarks.simulator.series import Series, Times, Values, scrapes_of, stored
from benchmarks.simulator.world import NO_TIME, Card, Node, Pod, World, milliseconds, milliseconds_or


class Metric(NamedTuple):
    """A DCGM metric under its names before and from exporter 4.9.0; a new value is old x multiplier // divisor."""

    old: str
    new: str
    multiplier: int = 1
    divisor: int = 1


METRICS = {
    "engine": Metric("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO"),
    "tensor": Metric("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
    "sm": Metric("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO"),
    "dram": Metric("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
    "util": Metric("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", divisor=100),
    "memory": Metric("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES", multiplier=1_048_576),
    "energy": Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", divisor=1000),
    "power": Metric("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
    "xid": Metric("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"),
}
IDLE_MEMORY_MIB = 4
DCGM_POD = {"namespace": "gpu-operator", "container": "nvidia-dcgm-exporter", "service": "nvidia-dcgm-exporter"}


def dcgm(world: World, job: str, phase: dt.timedelta) -> Iterator[Series]:
    nodes: dict[str, list[Node]] = defaultdict(list)
    for node in world.nodes:
        nodes[node.name].append(node)
    holders: dict[tuple[str, str], list[Pod]] = defaultdict(list)
    for pod in sorted((pod for pod in world.pods if pod.scheduled), key=lambda pod: pod.scheduled or pod.since):
        for uuid in pod.cards:
            holders[pod.node, uuid].append(pod)
    slots: dict[str, list[Card]] = defaultdict(list)
    for card in world.cards:
        lives = nodes[card.node]
        gaps = [gap for node in lives for gap in node.exporter_gaps]
        at = scrapes_of(world, phase + (lives[0].scrape_phase if lives else NO_TIME), gaps)
        at = at[(at >= milliseconds(card.seen_from)) & (at <= milliseconds(card.seen_to))]
        index = sum(other.seen_to > card.seen_from for other in slots[card.node])
        slots[card.node].append(card)
        if len(at):
            pods = holders[card.node, card.uuid]
            yield from _of_card(world, card, pods, lives, at, index=index, job=job)


def _of_card(
    world: World, card: Card, pods: list[Pod], lives: list[Node], at: Times, *, index: int, job: str
) -> Iterator[Series]:
    """All metrics of a card at these instants, by who is named beside it, exporter pod and generation of names."""
    device = {
        "gpu": str(index), "UUID": card.uuid, "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "device": f"nvidia{index}", "modelName": card.model,
    }  # fmt: skip
    target = {"job": job, "instance": f"{card.node}:9400"}
    values = _values(card, pods, at, world)
    named = _names(at, [_named(pod, card, world) for pod in pods], every=world.virtual_gpus)
    restarts = [milliseconds(restart) for node in lives for restart in node.exporter_restarts]
    exporter = np.searchsorted(np.array(sorted(restarts), dtype=np.int64), at, side="right")
    is_new = at > milliseconds_or(world.new_names_from, world.end)
    states, of_sample = np.unique(np.stack([named, exporter, is_new]), axis=1, return_inverse=True)
    for state, (who, restarted, new) in enumerate(states.T.tolist()):
        here = of_sample.ravel() == state
        host = {"hostname" if new or world.lowercase_hostname else "Hostname": card.node}
        exporter_pod = DCGM_POD | {"pod": f"nvidia-dcgm-exporter-{card.node}-{restarted}"}
        for copy in _copies(world, card, [pod for i, pod in enumerate(pods) if who >> i & 1]):
            labels = stored(device | host | copy.labels, target, exporter_pod, world.honor_labels)
            if world.honor_labels and world.idle_shows_exporter:
                labels = exporter_pod | labels
            for metric in copy.metrics:
                old_name, new_name, multiplier, divisor = METRICS[metric]
                shown = np.full(here.sum(), copy.own[metric]) if metric in copy.own else values[metric][here]
                if new:
                    shown = shown * multiplier / divisor if metric != "energy" else shown // divisor
                yield Series(new_name if new else old_name, labels, at[here], shown)


def _names(at: Times, windows: Sequence[tuple[int, int]], *, every: bool) -> Times:
    """Who is named at each instant, as bits: every pod that is there, or one of them only."""
    bits = np.zeros(len(at), dtype=np.int64)
    for position, (since, until) in enumerate(windows):
        there = (at >= since) & (at <= until)
        bits |= np.where(there & (every | (bits == 0)), 1 << position, 0)
    return bits


class _Copy(NamedTuple):
    """One copy of a card's series: whose labels it has, which metrics, and the values that are the pod's own."""

    labels: dict[str, str]
    metrics: Sequence[str] = tuple(METRICS)
    own: Mapping[str, float] = MappingProxyType({})


def _copies(world: World, card: Card, pods: list[Pod]) -> Iterator[_Copy]:
    """As the exporter shows a card: once; or once per pod and replica; or, of some metrics, each pod's own value."""
    if not world.virtual_gpus or not pods:
        yield _Copy(_workload(world, pods[0], card) if pods else {})
        return
    process = ("util", "memory") if world.per_process else ()
    if process:
        yield _Copy({}, process)
    for vgpu, pod in enumerate(each for each in pods for _ in range(sum(each.asked))):
        labels = _workload(world, pod, card) | {"vgpu": str(vgpu)}
        yield _Copy(labels, tuple(metric for metric in METRICS if metric not in process))
        if process:
            own = {"util": float(pod.util_percent or 0), "memory": float(pod.memory_mib)}
            yield _Copy(labels | {"pod_uid": pod.uid}, process, own)


def _workload(world: World, pod: Pod, card: Card) -> dict[str, str]:
    holds = [name for name, count in zip(pod.container_names, pod.asked, strict=True) for _ in range(count)]
    at = pod.cards.index(card.uuid)
    labels = {"container": holds[min(at, len(holds) - 1)], "namespace": pod.namespace, "pod": pod.name}
    return labels | ({"pod_uid": pod.uid} if world.with_pod_uid else {})


def _named(pod: Pod, card: Card, world: World) -> tuple[int, int]:
    """When the exporter names the pod beside a card, both ends included."""
    if pod.named_cards is not None and card.uuid not in pod.named_cards:
        return 0, 0
    return milliseconds(pod.named_from or pod.runs_from), milliseconds(pod.named_to or pod.stopped or world.end)


def _first_in(at: Times, windows: Sequence[tuple[int, int]]) -> Times:
    """Position of the first window [from, to] that each instant is in; -1: none."""
    found = np.full(len(at), -1, dtype=np.int64)
    for position in reversed(range(len(windows))):
        since, until = windows[position]
        found[(at >= since) & (at <= until)] = position
    return found


def _values(card: Card, pods: list[Pod], at: Times, world: World) -> dict[str, Values]:
    """What the card does, in the units of the old names: whoever runs on it does it, whoever is named."""
    windows = [(milliseconds(pod.runs_from), milliseconds(pod.stopped or world.end)) for pod in pods]
    runs = _first_in(at, windows)

    def of(each: Iterable[float], idle: float) -> Values:
        return np.array([*each, idle], dtype=np.float64)[runs]

    swing = 2 * np.abs(2 * (at % 600_000) / 600_000 - 1) - 1
    engine = np.clip(of((pod.engine for pod in pods), 0) * (1 + of((pod.wobble for pod in pods), 0) * swing), 0, 1)
    util = of((np.nan if pod.util_percent is None else pod.util_percent for pod in pods), np.nan)
    watts = [card.watts if pod.watts is None else pod.watts for pod in pods]
    codes = np.array([0, *(code for _, code in card.xids)], dtype=np.float64)
    seen = np.array([milliseconds(since) for since, _ in card.xids], dtype=np.int64)
    return {
        "engine": engine.round(6),
        "tensor": (engine * of((pod.tensor_per_engine for pod in pods), 0)).round(6),
        "sm": (engine * of((pod.sm_per_engine for pod in pods), 0)).round(6),
        "dram": (engine * of((pod.dram_per_engine for pod in pods), 0)).round(6),
        "util": np.where(np.isnan(util), (100 * engine).round(), util),
        "memory": of((pod.memory_mib for pod in pods), IDLE_MEMORY_MIB),
        "energy": _energy_mj(card, at, windows, watts, milliseconds(world.start)),
        "power": of(watts, card.watts),
        "xid": codes[np.searchsorted(seen, at, side="right")],
    }


def _energy_mj(card: Card, at: Times, windows: list[tuple[int, int]], watts: list[int], start: int) -> Values:
    """Energy since the world began, or since the last reload of the driver: W x ms = mJ."""
    last = max(int(at[-1]), start + 1)
    edges = np.unique(np.clip([start, last, *(edge for window in windows for edge in window)], start, last))
    draws = np.array([*watts, card.watts], dtype=np.float64)[_first_in(edges[:-1], [(a, b - 1) for a, b in windows])]
    drawn = np.concatenate([[0.0], np.cumsum(draws * np.diff(edges))])
    reloads = np.array(sorted(milliseconds(reload) for reload in card.driver_reloads), dtype=np.int64)
    restarts_from = np.concatenate([[0.0], np.interp(reloads, edges, drawn)])
    since_reload: Values = np.interp(at, edges, drawn) - restarts_from[np.searchsorted(reloads, at, side="right")]
    return since_reload.round()
