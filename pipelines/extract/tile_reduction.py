"""From the answer of one tile to frames of runs: in groups of devices, so that memory is bounded and stays in cache.

The arithmetic is in tile_readings and tile_runs; joining the tiles of a day is in telemetry.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import polars as pl

from pipelines.extract.dcgm_series import Device, Place, SeriesBook, SeriesIndex, Workload
from pipelines.extract.samples import Series, samples
from pipelines.extract.tile_readings import DeviceGroup, reduce_group
from pipelines.extract.tile_runs import Integers, NodeCuts, Runs, changed
from pipelines.extract.windows import TileWindow
from schemas.metrics import PRESENCE

# Some 50,000 samples: enough to amortize the calls, few enough for the arrays to stay in cache.
_GROUP_BYTES = 1_600_000
PERCENTAGE = "percentage"
NO_DEVICE = "no_device"
"""Why a series was dropped: a device field's ratio that is a percentage; no label that names the device."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """What a tile came to.

    device, workload: runs, with the columns of DeviceTelemetry and WorkloadTelemetry but for cluster and date, and with
    `source` and `previous_at`. Instants are UTC milliseconds (previous_at -1: none); interval_ms is 0 where it is not
    known; measured_ms and weighted_sum leave out what the first sample covers.
    dropped: reason (PERCENTAGE or NO_DEVICE), metric, metric_name, node, device_id, gpu_instance_id of series that were
    not read.
    """

    device: pl.DataFrame
    workload: pl.DataFrame
    dropped: pl.DataFrame


_RUN: dict[str, type[pl.DataType]] = {
    "metric": pl.String,
    **dict.fromkeys(("hour", "first_at", "last_at", "previous_at", "interval_ms", "instants"), pl.Int64),
    **dict.fromkeys(("measured_ms", "weighted_sum", "value_min", "value_max", "value_first", "value_last"), pl.Int64),
    **dict.fromkeys(("largest_gap_ms", "increase"), pl.Int64),
    **dict.fromkeys((*Device._fields, "metric_name", "source"), pl.String),
}
SCHEMAS: dict[str, dict[str, type[pl.DataType]]] = {
    "device": {**_RUN, **dict.fromkeys(Place._fields, pl.String)},
    "workload": {**_RUN, **dict.fromkeys(("node", *Workload._fields), pl.String)},
    "dropped": dict.fromkeys(("reason", "metric", "metric_name", "node", *Device._fields), pl.String),
}
"""Columns of the frames of a `Reduction`, in order."""

_EMPTY = Reduction(**{part: pl.DataFrame(schema=columns) for part, columns in SCHEMAS.items()})


@dataclass(frozen=True, slots=True)
class _Tile:
    book: SeriesBook
    index: SeriesIndex
    window: TileWindow


def reduce_tile(
    book: SeriesBook, series: Sequence[Series], *, window: TileWindow, cuts: NodeCuts, bridge_gap_ms: int
) -> Reduction:
    """Runs of one metric in one hour, by device and by workload.

    Args:
        book: of the metric; learns the series.
        series: the answer of the tile.
        window: what the tile covers.
        cuts: boundaries of pods' lives on their nodes.
        bridge_gap_ms: a longer gap parts a run.
    """
    if not series:
        return _EMPTY
    index = book.look_up([bytes(one.metric) for one in series])
    cut_node = np.array([cuts.nodes.get(node, -1) for node in book.nodes], dtype=np.int64)[index.node]
    source_names = list(book.sources)
    device, workload, presence, quarantined = [], [], [], []
    for members in _device_groups(index, series):
        group = DeviceGroup(
            book.metric, index.where(members), cut_node[members], source_names, window, cuts, bridge_gap_ms
        )
        runs = reduce_group(group, samples([series[member] for member in members]))
        device.append(runs.device._replace(series=members[runs.device.series]))
        workload.append(runs.workload._replace(series=members[runs.workload.series]))
        if runs.presence:
            presence.append(runs.presence._replace(series=members[runs.presence.series]))
        quarantined.append(members[runs.quarantined])
    tile = _Tile(book, index, window)
    dropped = {PERCENTAGE: np.concatenate(quarantined), NO_DEVICE: np.flatnonzero(index.device < 0)}
    runs_of = {book.metric.canonical: device, PRESENCE: presence}
    return Reduction(
        pl.concat([_device_frame(tile, metric, Runs.concat(runs)) for metric, runs in runs_of.items() if runs]),
        _workload_frame(tile, book.metric.canonical, Runs.concat(workload)),
        pl.concat([_EMPTY.dropped, *(_series_frame(tile, why, which) for why, which in dropped.items() if len(which))]),
    )


def _device_groups(index: SeriesIndex, series: Sequence[Series]) -> Iterator[Integers]:
    """The series of whole nodes, some hundred kilobytes at a time: a node's devices share a scrape interval."""
    # A device that moved belongs to the first of its nodes; index -1, no device, is the last entry.
    owner = np.full(index.device.max() + 2, np.iinfo(np.int64).max)
    np.minimum.at(owner, index.device, index.node)
    node = owner[index.device]
    order = np.lexsort((index.device, node))
    size = np.array([series[which].size for which in order])
    nodes = np.flatnonzero(changed(node[order]))
    group = (np.cumsum(size) - size)[nodes] // _GROUP_BYTES
    yield from np.split(order, nodes[changed(group)][1:])


def _device_frame(tile: _Tile, metric: str, runs: Runs) -> pl.DataFrame:
    place = tile.index.place[runs.series]
    return pl.DataFrame(
        [*_measurements(tile, metric, runs), *(_texts(field, tile.book.places, place) for field in Place._fields)]
    )


def _workload_frame(tile: _Tile, metric: str, runs: Runs) -> pl.DataFrame:
    return pl.DataFrame(
        [
            *_measurements(tile, metric, runs),
            _gathered("node", list(tile.book.nodes), tile.index.node[runs.series]),
            *(_texts(field, tile.book.workloads, runs.workload) for field in Workload._fields),
        ]
    )


def _measurements(tile: _Tile, metric: str, runs: Runs) -> list[pl.Series]:
    """The columns that device and workload runs share."""
    book, index, start_ms = tile.book, tile.index, tile.window.start_ms
    count, is_counter = len(runs.series), book.metric.kind == "counter"
    numbers = {
        "hour": np.full(count, tile.window.hour_ms),
        "first_at": runs.first_at + start_ms,
        "last_at": runs.last_at + start_ms,
        "previous_at": np.where(runs.previous_at < 0, -1, runs.previous_at + start_ms),
        "interval_ms": runs.interval,
        "instants": runs.instants,
        "measured_ms": runs.measured,
        # A counter's level has no mean (and millijoules x milliseconds would leave Int64).
        "weighted_sum": np.zeros_like(runs.weighted) if is_counter else runs.weighted,
        "value_min": runs.least,
        "value_max": runs.greatest,
        "value_first": runs.first,
        "value_last": runs.last,
        "largest_gap_ms": runs.largest_gap,
    }
    increase = pl.Series("increase", runs.increase)
    return [
        pl.Series("metric", [metric]).new_from_index(0, count),
        *(pl.Series(name, values) for name, values in numbers.items()),
        increase if is_counter else pl.Series("increase", [None], dtype=pl.Int64).new_from_index(0, count),
        *(_texts(field, book.devices, index.device[runs.series]) for field in Device._fields),
        _gathered("metric_name", _names(book), index.name[runs.series]),
        _gathered("source", list(book.sources), index.source[runs.series]),
    ]


def _series_frame(tile: _Tile, reason: str, series: Integers) -> pl.DataFrame:
    book, index = tile.book, tile.index
    devices = [*book.devices, Device("", "")]  # at index -1: no device
    return pl.DataFrame(
        [
            pl.Series("reason", [reason]).new_from_index(0, len(series)),
            pl.Series("metric", [book.metric.canonical]).new_from_index(0, len(series)),
            _gathered("metric_name", _names(book), index.name[series]),
            _gathered("node", list(book.nodes), index.node[series]),
            *(_texts(field, devices, index.device[series]) for field in Device._fields),
        ]
    )


def _names(book: SeriesBook) -> list[str]:
    return [name.dcgm_name for name in book.metric.names]


def _texts(field: str, owners: Iterable[object], which: Integers) -> pl.Series:
    """A field of the owners that `which` names."""
    return _gathered(field, list(map(attrgetter(field), owners)), which)


def _gathered(name: str, texts: list[str], which: Integers) -> pl.Series:
    return pl.Series(name, texts, dtype=pl.String)[which]
