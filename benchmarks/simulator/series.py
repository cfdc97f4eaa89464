"""Samples as Prometheus stores them: when it scraped, and which labels won."""

import datetime as dt
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.simulator.world import Window, World, milliseconds

Times = npt.NDArray[np.int64]  # ms since the epoch
Values = npt.NDArray[np.float64]


class Series(NamedTuple):
    """Samples of one set of labels, or some of them."""

    name: str
    labels: dict[str, str]
    at: Times
    values: Values


def stored(own: dict[str, str], job: dict[str, str], target: dict[str, str], honor_labels: bool) -> dict[str, str]:
    """Labels as Prometheus stores them: a label of the target that the series has too is the series' or exported_*."""
    if honor_labels:
        return {**own, **job}
    return {**{f"exported_{name}" if name in target else name: value for name, value in own.items()}, **target, **job}


def scrapes_of(world: World, phase: dt.timedelta, gaps: Iterable[Window]) -> Times:
    """Scrape instants of the world, none within a gap (from, to)."""
    step = world.interval // dt.timedelta(milliseconds=1)
    at = np.arange(milliseconds(world.start + world.phase + phase), milliseconds(world.end) + 1, step, dtype=np.int64)
    for since, until in gaps:
        at = at[(at <= milliseconds(since)) | (at >= milliseconds(until))]
    return at
