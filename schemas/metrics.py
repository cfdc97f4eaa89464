"""DCGM metric names and label names, as data: what each exporter release and scrape configuration calls them.

The two tables are data/reference/metric_aliases.csv and label_aliases.csv; a new name is a new row there, not code.
How series are read and reduced is not here: see pipelines.extract.
"""

import csv
import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, cast

PRESENCE = "presence"
"""Metric of rows that show a device and measure nothing: every value it gave in that run was blank (NaN, a sentinel).

Such a device is there, so it is owned; its values are 0 and its measured time is 0.
"""

_REFERENCE = Path(__file__).resolve().parents[1] / "data" / "reference"


@dataclasses.dataclass(frozen=True, slots=True)
class MetricName:
    """One name that DCGM gives a metric. A value read times multiplier / divisor is in the metric's unit."""

    dcgm_name: str
    multiplier: int
    divisor: int

    @property
    def is_device_ratio(self) -> bool:
        """Whether it is a device field that claims a ratio of 0..1.

        In DCGM 4.6 headers DCGM_FI_DEV_GPU_UTIL_RATIO is still the field of the 0..100 percentage.
        """
        return "_DEV_" in self.dcgm_name and self.dcgm_name.endswith("_RATIO")


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """A canonical metric, the integer unit it is stored in, and its names: the first is preferred where both exist."""

    canonical: str
    kind: Literal["gauge", "counter"]
    unit: str
    names: tuple[MetricName, ...]


@functools.cache
def metrics() -> tuple[Metric, ...]:
    """All canonical metrics, in the order of data/reference/metric_aliases.csv."""
    names: dict[tuple[str, str, str], list[MetricName]] = defaultdict(list)
    for row in _rows("metric_aliases.csv"):
        name = MetricName(row["dcgm_name"], int(row["multiplier"]), int(row["divisor"]))
        names[row["canonical"], row["kind"], row["unit"]].append(name)
    return tuple(
        Metric(canonical, cast(Literal["gauge", "counter"], kind), unit, tuple(aliases))
        for (canonical, kind, unit), aliases in names.items()
    )


@functools.cache
def label_aliases() -> dict[str, tuple[str, ...]]:
    """Field (device_id, node, pod, …) -> the labels that carry it, best first; `source`: all that name the scrape."""
    labels: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for row in _rows("label_aliases.csv"):
        labels[row["field"]].append((int(row["priority"]), row["label"]))
    return {field: tuple(label for _, label in sorted(ranked)) for field, ranked in labels.items()}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_REFERENCE / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
