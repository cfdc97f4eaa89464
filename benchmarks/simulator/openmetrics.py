"""The history of many worlds as one OpenMetrics file, for `promtool tsdb create-blocks-from openmetrics`."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.simulator.dcgm import dcgm
from benchmarks.simulator.kube_state import KUBE_STATE, KUBE_STATE_POD, kube_state
from benchmarks.simulator.series import Series, Times, Values, scrapes_of, stored
from benchmarks.simulator.world import World, milliseconds_or


def write_openmetrics(path: Path, worlds: Iterable[World]) -> int:
    """Write everything that was scraped in these worlds; gives the number of samples.

    Every series carries `cluster`, so one Prometheus can hold many worlds.
    """
    families: dict[str, dict[str, list[Series]]] = defaultdict(lambda: defaultdict(list))
    for world in worlds:
        for series in scraped(world):
            families[series.name][_text({"cluster": world.cluster, **series.labels})].append(series)
    total = 0
    with path.open("w") as file:
        for name in sorted(families):
            # Counters too: OpenMetrics has their names end in _total, and DCGM's do not.
            file.write(f"# TYPE {name} gauge\n")
            for labels, pieces in families[name].items():
                # A series that several things show at once (the owner of two pods) is one series.
                at, first = np.unique(np.concatenate([piece.at for piece in pieces]), return_index=True)
                file.write(_lines(f"{name}{labels} ", at, np.concatenate([piece.values for piece in pieces])[first]))
                total += len(at)
        file.write("# EOF\n")
    return total


def scraped(world: World) -> Iterator[Series]:
    """Every series of a world, in pieces, none without samples; `cluster` is not among the labels."""
    facts = list(kube_state(world)) if world.with_kube_state else []
    for replica, phase in world.replicas:
        scraped_by = {"prometheus_replica": replica}
        for job, offset in world.exporters:
            for series in dcgm(world, job, phase + offset):
                yield series._replace(labels=series.labels | scraped_by)
        scrapes = scrapes_of(world, phase + world.kube_state_phase, world.kube_state_gaps)
        for fact in facts:
            at = scrapes[milliseconds_or(fact.since, world.start) <= scrapes]
            at = at[at < milliseconds_or(fact.until, world.end, 1)]
            if len(at):
                labels = stored(fact.labels, KUBE_STATE, KUBE_STATE_POD, world.kube_state_honor_labels)
                yield Series(fact.name, labels | scraped_by, at, np.broadcast_to(np.float64(fact.value), len(at)))


def _lines(series: str, at: Times, values: Values) -> str:
    millis = pl.col("at")
    columns = (
        pl.lit(series), pl.col("value"),
        pl.lit(" "), millis // 1000, pl.lit("."), (millis % 1000).cast(pl.String).str.zfill(3), pl.lit("\n"),
    )  # fmt: skip
    return str(pl.DataFrame({"at": at, "value": values}).select(pl.concat_str(*columns).str.join("")).item())


def _text(labels: dict[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items() if value != "") + "}"
