"""From what each device showed in one tile to runs: stretches that nothing parts.

A run ends at a change of labels, name, place or source, at a boundary of a pod's life, at a long gap; and always at the
end of the tile. What a run's first sample covers depends on the sample before it, which may lie in another tile: a run
leaves it out and says when that one was (`previous_at`); `telemetry` adds it when it has the whole day.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from pipelines.extract.windows import HOUR_MS, TileWindow

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

GROUP = 1 << 32
"""A group number times this, plus milliseconds since the start of the tile, is one sortable key."""

_NODE = 1 << 42  # milliseconds since 1970 stay below this until 2109


@dataclass(frozen=True, slots=True)
class NodeCuts:
    """Boundaries of pods' lives: `nodes` numbers the nodes; starts and ends are sorted keys node * 2**42 + ms."""

    nodes: dict[str, int]
    starts: Integers
    ends: Integers

    @staticmethod
    def of(cuts: pl.DataFrame) -> "NodeCuts":
        """From a frame of node, at (UTC instant), kind (`start` or `end`)."""
        names = cuts.select(pl.col("node").unique().sort()).with_row_index("number")
        keys = (
            cuts.drop_nulls("at")
            .join(names, on="node")
            .select("kind", key=pl.col("number").cast(pl.Int64) * _NODE + pl.col("at").dt.timestamp("ms"))
            .sort("key")
        )
        starts, ends = (keys.filter(pl.col("kind") == kind)["key"].to_numpy() for kind in ("start", "end"))
        nodes = dict(names.select("node", "number").iter_rows())
        return NodeCuts(nodes, starts, ends)


class Readings(NamedTuple):
    """What each device showed, one entry per device and instant, in that order.

    at: ms since the start of the tile; since: ms since the reading before on this device, -1 for its first;
    interval: scrape interval in ms, 0 where not known; series: (one of) the series it is from, an index into the
    tile's series; labels: hash of the set of labels seen at that instant; parted: whether a pod's life starts or ends
    between the reading before and this one.
    """

    device: Integers
    at: Integers
    since: Integers
    interval: Integers
    value: Integers
    series: Integers
    labels: Integers
    parted: Flags


class Observations(NamedTuple):
    """Samples that name a workload, one entry each: which reading each is part of, and whom it names."""

    reading: Integers
    value: Integers
    series: Integers
    workload: Integers


class Runs(NamedTuple):
    """Runs, one entry each. Times in ms since the start of the tile; -1: none.

    measured and weighted leave out what the first sample covers. interval 0: not known; such a run is one sample.
    """

    series: Integers
    workload: Integers
    first_at: Integers
    last_at: Integers
    previous_at: Integers
    interval: Integers
    instants: Integers
    measured: Integers
    weighted: Integers
    least: Integers
    greatest: Integers
    first: Integers
    last: Integers
    increase: Integers
    largest_gap: Integers

    def where(self, keep: Flags) -> "Runs":
        """Some of the runs."""
        return Runs._make(column[keep] for column in self)

    @staticmethod
    def concat(parts: Sequence["Runs"]) -> "Runs":
        """Runs of several groups, one after the other."""
        return Runs._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def parted(device: Integers, at: Integers, lives: Integers, cuts: NodeCuts, window: TileWindow) -> Flags:
    """Readings before which, on their device, a pod's life starts or ends on the node.

    A life from s to e sets apart the samples of (s, s + interval - 1 ms] and those after e: a sample covers the
    interval before it, so those of the first interval are not the pod's own.

    Args:
        device, at: of the readings, in that order.
        lives: rows of device, number of its node in `cuts`, scrape interval; one column per combination that occurs.
    """
    flags = np.zeros(len(device), dtype=bool)
    devices, nodes, intervals = lives
    if not len(devices):
        return flags
    instants = device * GROUP + at
    for boundaries, delayed in ((cuts.starts, False), (cuts.starts, True), (cuts.ends, False)):
        low = np.searchsorted(boundaries, nodes * _NODE + window.start_ms - HOUR_MS)
        count = np.searchsorted(boundaries, nodes * _NODE + window.end_ms) - low
        of = np.repeat(np.arange(len(devices)), count)
        which = np.arange(len(of)) + np.repeat(low - np.cumsum(count) + count, count)
        cut = boundaries[which] - nodes[of] * _NODE - window.start_ms
        if delayed:
            cut += intervals[of] - 1
        after = np.searchsorted(instants, devices[of] * GROUP + np.clip(cut, 0, GROUP - 1), side="right")
        flags[after[after < len(flags)]] = True
    return flags


def device_runs(readings: Readings, bridge_gap_ms: int) -> Runs:
    """Runs of the devices, whoever is named beside them."""
    nobody = np.broadcast_to(np.int64(-1), readings.at.shape)
    return _runs(readings, changed(readings.labels) | (readings.since < 0), nobody, bridge_gap_ms)


def workload_runs(readings: Readings, observed: Observations, bridge_gap_ms: int) -> Runs:
    """Runs of the workloads named beside the devices.

    Several samples of one workload at one instant count once, by the greatest value (dcgm-exporter #725: a pod with
    k replicas has k rows).
    """
    pair = readings.device[observed.reading] * (observed.workload.max(initial=0) + 1) + observed.workload
    key = pair * GROUP + observed.reading
    order = in_order(key)
    if order is not None:
        key = key[order]
        observed = Observations(*(column[order] for column in observed))
    firsts = np.flatnonzero(changed(key))
    reading, series = observed.reading[firsts], observed.series[firsts]
    value = reduce_groups(np.maximum, observed.value, firsts)
    own = Readings._make(column[reading] for column in readings)._replace(value=value, series=series)
    # A reading without the workload in between ends its run, too.
    starts = changed(key[firsts] // GROUP) | (steps(reading) != 1) | changed(series)
    return _runs(own, starts, observed.workload[firsts], bridge_gap_ms)


def _runs(readings: Readings, starts: Flags, workload: Integers, bridge_gap_ms: int) -> Runs:
    at, since, value = readings.at, readings.since, readings.value
    starts = starts | readings.parted | (since > bridge_gap_ms) | (readings.interval == 0)
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(at))[: len(first)] - 1
    gap = np.where(starts, 0, since)
    covered = np.minimum(readings.interval, gap)
    step = steps(value)
    np.copyto(step, value, where=step < 0)  # a counter that falls has restarted from 0
    step[first] = 0
    return Runs(
        series=readings.series[first],
        workload=workload[first],
        first_at=at[first],
        last_at=at[last],
        previous_at=np.where(since[first] < 0, -1, at[first] - since[first]),
        interval=readings.interval[first],
        instants=last - first + 1,
        measured=reduce_groups(np.add, covered, first),
        weighted=reduce_groups(np.add, covered * value, first),
        least=reduce_groups(np.minimum, value, first),
        greatest=reduce_groups(np.maximum, value, first),
        first=value[first],
        last=value[last],
        increase=reduce_groups(np.add, step, first),
        largest_gap=reduce_groups(np.maximum, gap, first),
    )


def in_order(key: Integers) -> Integers | None:
    """The stable order of keys; None where they are sorted as they are, as in most tiles."""
    return None if (key[1:] >= key[:-1]).all() else np.argsort(key, kind="stable")


def changed(column: npt.NDArray[Any]) -> Flags:
    """Entries that differ from the one before; the first does."""
    flags = np.ones(len(column), dtype=bool)
    np.not_equal(column[1:], column[:-1], out=flags[1:])
    return flags


def steps(column: Integers) -> Integers:
    """Differences from the entry before; the first entry as it is."""
    differences = column.copy()
    differences[1:] -= column[:-1]
    return differences


def reduce_groups(function: np.ufunc, column: npt.NDArray[Any], firsts: Integers) -> npt.NDArray[Any]:
    """`function.reduceat`, also of nothing."""
    return function.reduceat(column, firsts) if len(firsts) else column[:0]


def lower_medians(group: Integers, value: Integers, groups: int, *, least: int) -> Integers:
    """The lower median of the values of each of `groups` groups; 0 for a group of fewer than `least`."""
    ordered = np.sort(group * GROUP + value)
    low = np.searchsorted(ordered, np.arange(groups) * GROUP)
    count = np.diff(np.append(low, len(ordered)))
    medians = np.zeros(groups, dtype=np.int64)
    enough = count >= least
    medians[enough] = ordered[(low + (count - 1) // 2)[enough]] % GROUP
    return medians
