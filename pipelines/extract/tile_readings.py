"""From the samples of a group of devices to what each device showed at each instant.

Values as integers of the metric's unit, blanks told from measurements, scrape intervals, one source of several:
vectorized over all samples. How readings are cut into runs is in tile_runs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelines.extract.dcgm_series import SeriesIndex
from pipelines.extract.samples import Samples, Values
from pipelines.extract.tile_runs import (
    GROUP,
    Flags,
    Integers,
    NodeCuts,
    Observations,
    Readings,
    Runs,
    changed,
    device_runs,
    in_order,
    lower_medians,
    parted,
    reduce_groups,
    steps,
    workload_runs,
)
from pipelines.extract.windows import TileWindow
from schemas.metrics import Metric

# What DCGM writes where it has no value (fp64 and int64 markers from here on, int32 markers between); older exporters
# and lost devices show it. Nothing that is read here is negative.
_BLANK_FROM = 140_737_488_355_328.0
_BLANK_INT32 = (2_147_483_632.0, 2_147_483_647.0)
# Above this a "ratio" of a device field is the old percentage under the new name (MetricName.is_device_ratio).
_RATIO_LIMIT = 1.5
# A gauge above its unit's limit is garbage too: no device is busy for more than all of its time or has terabytes of
# memory, and sums over an hour must stay in Int64.
_GAUGE_LIMITS = {"ppm": _RATIO_LIMIT * 1e6, "MiB": 2.5e6}
_GAUGE_LIMIT = 1e12
# Fewer differences than this do not tell a scrape interval from a gap.
_MIN_DIFFERENCES = 3
# A source is silent where it missed a scrape, not where one came some milliseconds late.
_SILENT_INTERVALS = 1.5
_ASSUMED_INTERVAL_MS = 30_000


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Some devices of one tile, with all their series (index and `node` have one entry per series).

    node: number of the series' node in `cuts`; -1 for a node without cuts.
    """

    metric: Metric
    index: SeriesIndex
    node: Integers
    source_names: list[str]
    window: TileWindow
    cuts: NodeCuts
    bridge_gap_ms: int


@dataclass(frozen=True, slots=True)
class GroupRuns:
    """What a group came to: runs by device, by workload, of blanks if any; and per series whether it is quarantined."""

    device: Runs
    workload: Runs
    presence: Runs | None
    quarantined: Flags


def reduce_group(group: DeviceGroup, samples: Samples) -> GroupRuns:
    """Runs of a group's devices and of the workloads named beside them.

    Samples outside the window are dropped: before Prometheus 3 a range includes its left end. A blank value (NaN, a
    sentinel) is no measurement, but it does show that the device is there, and that is what ownership asks: blanks
    become runs of their own with the value 0, and no workload is read from them. So do the samples of a quarantined
    series.
    """
    index, window, counts = group.index, group.window, samples.counts
    series = np.repeat(np.arange(len(counts)), counts)
    quarantined = _percentages(group, samples)
    value, measured = _scaled(group, samples.values, series)
    if quarantined.any():
        measured &= ~quarantined[series]
        value[quarantined[series]] = 0
    at = samples.at_ms - window.start_ms
    inside = (at > 0) & (at <= window.end_ms - window.start_ms) & (index.device >= 0)[series]
    device, workload = _runs(group, *_where(inside & measured, series, at, value))
    blank = inside & ~measured
    presence = _runs(group, *_where(blank, series, at, value))[0] if blank.any() else None
    return GroupRuns(device, workload, presence, quarantined)


def _where(keep: Flags, series: Integers, at: Integers, value: Integers) -> tuple[Integers, Integers, Integers]:
    return (series, at, value) if keep.all() else (series[keep], at[keep], value[keep])


def _percentages(group: DeviceGroup, samples: Samples) -> Flags:
    """Per series: whether it is a device field's ratio with a value that no ratio has."""
    suspect = np.array([name.is_device_ratio for name in group.metric.names])[group.index.name]
    if not suspect.any():
        return suspect
    values = np.where(samples.values < _BLANK_FROM, samples.values, 0)
    highest: Values = reduce_groups(np.maximum, values, np.cumsum(samples.counts) - samples.counts)
    return suspect & (highest > _RATIO_LIMIT)


def _scaled(group: DeviceGroup, values: Values, series: Integers) -> tuple[Integers, Flags]:
    """Values as integers of the metric's unit, and which of them are measurements; the others are 0."""
    metric = group.metric
    low, high = _BLANK_INT32
    measured = (values >= 0) & (values < _BLANK_FROM) & ~((values >= low) & (values <= high))
    factors = np.array([name.multiplier / name.divisor for name in metric.names])[group.index.name]
    factor = factors[0] if len(factors) and (factors == factors[0]).all() else factors[series]
    scaled = np.rint(np.where(measured, values, 0) * factor)
    if metric.kind == "gauge":
        measured &= scaled < _GAUGE_LIMITS.get(metric.unit, _GAUGE_LIMIT)
    return np.where(measured, scaled, 0).astype(np.int64), measured


class _Lanes(NamedTuple):
    """A lane is one source of one device. Per series its lane; per lane, in the order of devices, the rest."""

    of_series: Integers
    device: Integers
    source: Integers

    @staticmethod
    def of(index: SeriesIndex) -> "_Lanes":
        sources = index.source.max(initial=0) + 1
        lanes, of_series = np.unique(index.device * sources + index.source, return_inverse=True)
        return _Lanes(of_series, lanes // sources, lanes % sources)


class _Copies(NamedTuple):
    """At most one value per lane and instant, in that order. `labels`: hash of the labels seen there."""

    lane: Integers
    at: Integers
    value: Integers
    series: Integers
    labels: Integers


def _runs(group: DeviceGroup, series: Integers, at: Integers, value: Integers) -> tuple[Runs, Runs]:
    """Runs by device and by workload of samples in any order."""
    index, lanes = group.index, _Lanes.of(group.index)
    lane = lanes.of_series[series]
    key = lane * GROUP + at
    order = in_order(key)
    if order is not None:
        key, lane, series, at, value = (column[order] for column in (key, lane, series, at, value))
    if len(np.unique(index.name)) > 1:
        preferred = _preferred_names(key, index.name[series])
        key, lane, series, at, value = (column[preferred] for column in (key, lane, series, at, value))
    first = changed(key)
    is_single = bool(first.all())
    copies = _Copies(lane, at, value, series, _label_hashes(index, lanes)[series])
    if not is_single:
        firsts = np.flatnonzero(first)
        # Copies per pod, container or replica carry the full device value: they never add up.
        greatest = reduce_groups(np.maximum, value, firsts)
        labels = reduce_groups(np.add, copies.labels, firsts)
        copies = _Copies._make(column[firsts] for column in copies)._replace(value=greatest, labels=labels)
    intervals = _intervals(copies, lanes)

    every = np.ones(len(lanes.device), dtype=bool)
    readings, kept = _readings(group, copies, lanes, intervals, every)
    devices = device_runs(readings, group.bridge_gap_ms)

    # Of a device's workloads only those sources speak that name any: a second, bare exporter does not unname them.
    names = np.zeros(len(lanes.device), dtype=bool)
    names[lanes.of_series[index.workload >= 0]] = True
    bare_beside = (np.isin(lanes.device, lanes.device[names]) & ~names).any()
    if is_single and not bare_beside:
        # No instant has two series, so a workload's runs are its device's, which part at every change of labels.
        workload = index.workload[devices.series]
        return devices, devices._replace(workload=workload).where(workload >= 0)
    if bare_beside:
        readings, kept = _readings(group, copies, lanes, intervals, names)
    reading = np.full(len(copies.at), -1, dtype=np.int64)
    reading[kept] = np.arange(len(kept))
    of_sample = reading[np.cumsum(first) - 1]
    named = (index.workload[series] >= 0) & (of_sample >= 0)
    observed = Observations(of_sample[named], value[named], series[named], index.workload[series[named]])
    return devices, workload_runs(readings, observed, group.bridge_gap_ms)


def _preferred_names(key: Integers, name: Integers) -> Flags:
    """Where one lane has a metric under both its names at one instant, only the preferred one counts."""
    firsts = np.flatnonzero(changed(key))
    best: Integers = np.repeat(reduce_groups(np.minimum, name, firsts), np.diff(np.append(firsts, len(key))))
    return np.equal(name, best)


def _label_hashes(index: SeriesIndex, lanes: _Lanes) -> Integers:
    """Per series a hash that is summed over an instant's series: equal sums mean equal sets of labels."""
    places, names = index.place.max(initial=0) + 1, index.name.max(initial=0) + 1
    where = (lanes.of_series * places + index.place) * names + index.name
    return _scattered(where) + _scattered(-1 - index.workload)


def _scattered(numbers: Integers) -> Integers:
    """splitmix64."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.int64)


def _intervals(copies: _Copies, lanes: _Lanes) -> Integers:
    """Scrape interval of each lane in ms, measured; of one too short, its source's in this tile; else 0."""
    same = ~changed(copies.lane)
    differences = steps(copies.at)
    intervals = lower_medians(copies.lane[same], differences[same], len(lanes.device), least=_MIN_DIFFERENCES)
    known = intervals > 0
    of_source = lower_medians(lanes.source[known], intervals[known], lanes.source.max(initial=0) + 1, least=1)
    return np.where(known, intervals, of_source[lanes.source])


def _readings(
    group: DeviceGroup, copies: _Copies, lanes: _Lanes, intervals: Integers, eligible: Flags
) -> tuple[Readings, Integers]:
    """The readings that count, and which copy each is."""
    counting = _counting(group, copies, lanes, intervals, eligible)
    kept = np.flatnonzero(counting)
    order = in_order(lanes.device[copies.lane[kept]] * GROUP + copies.at[kept])
    if order is not None:
        kept = kept[order]
    if order is not None or not counting.all():
        copies = _Copies._make(column[kept] for column in copies)
    lane, at, value, series, labels = copies
    device, interval = lanes.device[lane], intervals[lane]
    first = changed(device)
    since = steps(at)
    since[first] = -1
    some = np.flatnonzero(first | changed(series))
    lives = np.unique(np.stack([device[some], group.node[series[some]], interval[some]]), axis=1)
    boundaries = parted(device, at, lives[:, lives[1] >= 0], group.cuts, group.window)
    return Readings(device, at, since, interval, value, series, labels, boundaries), kept


def _counting(group: DeviceGroup, copies: _Copies, lanes: _Lanes, intervals: Integers, eligible: Flags) -> Flags:
    """Which copies count: those of the device's primary source, and of others only where it is silent.

    The primary source is the one with most instants, then the first by name; the next one fills its silences, and so
    on. So an HA pair or a second exporter never doubles, and an exporter's restart loses nothing.
    """
    counts = np.bincount(copies.lane, minlength=len(lanes.device))
    candidates = np.flatnonzero(eligible & (counts > 0))
    rank = np.full(len(lanes.device), -1, dtype=np.int64)
    if len(candidates) == len(np.unique(lanes.device[candidates])):
        rank[candidates] = 0
        return np.equal(rank[copies.lane], 0)
    by_name = np.argsort(np.argsort(np.array(group.source_names)))[lanes.source]
    order = candidates[np.lexsort((by_name[candidates], -counts[candidates], lanes.device[candidates]))]
    firsts = np.flatnonzero(changed(lanes.device[order]))
    sizes = np.diff(np.append(firsts, len(order)))
    rank[order] = np.arange(len(order)) - np.repeat(firsts, sizes)
    primary_interval = np.zeros(len(lanes.device), dtype=np.int64)
    primary_interval[order] = np.repeat(intervals[order[firsts]], sizes)
    primary_interval[primary_interval == 0] = _ASSUMED_INTERVAL_MS

    device = lanes.device[copies.lane]
    key = device * GROUP + copies.at
    counting: Flags = rank[copies.lane] == 0
    for this in range(1, int(rank.max()) + 1):
        fillers = np.flatnonzero(rank[copies.lane] == this)
        there = np.sort(key[counting])
        after = np.searchsorted(there, key[fillers])
        # Beyond the first and last reading of a device the tile itself is the bound.
        begin = device[fillers] * GROUP
        end = begin + (group.window.end_ms - group.window.start_ms) + 1
        padded = np.concatenate([[-1], there, [np.iinfo(np.int64).max]])
        silence = np.minimum(padded[after + 1], end) - np.maximum(padded[after], begin)
        silent = silence > _SILENT_INTERVALS * primary_interval[copies.lane[fillers]]
        counting[fillers[silent & (padded[after + 1] != key[fillers])]] = True
    return counting
