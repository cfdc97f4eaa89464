"""kube-state-metrics series, read tile by tile, as frames: labels as columns, samples reduced to intervals at once.

What the families mean, and which are asked for, is in kube_state.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing

import msgspec
import numpy as np
import polars as pl

from pipelines.extract.prometheus import PrometheusSource, TileRequest
from pipelines.extract.promql import one_of
from pipelines.extract.samples import Samples, Series, Times, samples
from pipelines.extract.windows import TileWindow
from schemas.metrics import label_aliases

# Prometheus answers a list of plain alternatives from its index up to 256 of them.
_BATCH = 200
# With honorLabels false these come from the scrape target, and the object's own are under exported_*.
_TARGET_LABELS = ("namespace", "pod", "container", "node")
_INSTANT = pl.Datetime("ms", "UTC")

_SCRAPES: dict[str, type[pl.DataType] | pl.DataType] = {"source": pl.String, "job": pl.String, "at": _INSTANT}

_Reduce = Callable[[TileWindow, Sequence[Series]], pl.DataFrame]
Asked = tuple[TileWindow, str]
"""A window and a selector."""


class KubeHistory:
    """Reads frames out of one Prometheus, and remembers when each source was scraped.

    Every frame has `name` and `source` beside the labels asked for; `uid` is `<namespace>/<pod>` where the series has
    none (kube-state-metrics before 2.0), and then `has_uid` is false.
    """

    def __init__(self, source: PrometheusSource, start_ms: int, end_ms: int) -> None:
        self.source = source
        self._start_ms, self._end_ms = start_ms, end_ms
        self._source_labels = label_aliases()["source"] + ((source.replica_label,) if source.replica_label else ())
        self._scrapes: list[pl.DataFrame] = []
        self._label_sets: dict[bytes, str] = {}
        self._own_node_jobs: Collection[str] = ()

    def exists(self, *names: str) -> bool:
        """Whether there is any series of these metrics."""
        return bool(self.label_values("__name__", self.source.selector(names)))

    def label_values(self, label: str, selector: str) -> list[str]:
        """Values of a label in the whole time read."""
        return self.source.label_values(label, [selector], self._start_ms, self._end_ms)

    def tell_nodes_apart(self, selector: str) -> None:
        """Learn the jobs whose target has a `node` label: there the object's node is under exported_node only.

        A pod that is not scheduled has no node, and its series would show that of kube-state-metrics.
        """
        self._own_node_jobs = self.label_values("job", selector)

    def intervals(self, asked: Iterable[Asked], labels: Sequence[str], *, label_set: bool = False) -> pl.DataFrame:
        """Raw series: per tile one row each with hour, first_at, last_at (instants) and amount (greatest value)."""

        def reduced(window: TileWindow, series: Sequence[Series]) -> pl.DataFrame:
            decoded = samples(series)
            frame = self._series(series, labels, label_set=label_set)
            self._remember(frame, decoded, window)
            ends = np.cumsum(decoded.counts)
            begins = ends - decoded.counts
            # Before Prometheus 3 a range includes its left end, which belongs to the tile before.
            first = begins + (decoded.at_ms[begins] <= window.start_ms)
            return (
                frame.with_columns(
                    _instants("hour", np.full(len(series), window.hour_ms)),
                    _instants("first_at", decoded.at_ms[np.minimum(first, ends - 1)]),
                    _instants("last_at", decoded.at_ms[ends - 1]),
                    amount=_greatest(decoded, begins),
                    is_inside=pl.Series(first < ends),
                )
                .filter("is_inside")
                .drop("is_inside")
            )

        return pl.concat(self._tiles(asked, "{selector}{range}", reduced))

    def folded(
        self,
        asked: Iterable[Asked],
        labels: Sequence[str],
        fold: Callable[[pl.DataFrame], pl.DataFrame],
        *,
        label_set: bool = False,
    ) -> pl.DataFrame:
        """Raw series, one row per sample with hour, at (instant) and value, folded tile by tile."""

        def reduced(window: TileWindow, series: Sequence[Series]) -> pl.DataFrame:
            decoded = samples(series)
            frame = self._series(series, labels, label_set=label_set)
            self._remember(frame, decoded, window)
            hour = _instants("hour", np.full(len(series), window.hour_ms))
            return fold(_each_sample(frame.with_columns(hour), decoded, window))

        return pl.concat(self._tiles(asked, "{selector}{range}", reduced))

    def facts(self, asked: Iterable[Asked], labels: Sequence[str]) -> pl.DataFrame:
        """Series whose value does not change: their last values in each window, distinct."""

        def reduced(_: TileWindow, series: Sequence[Series]) -> pl.DataFrame:
            values = pl.Series(samples(series).values, dtype=pl.Float64)
            return self._series(series, labels).drop("source", "job").with_columns(value=values)

        known: pl.DataFrame | None = None
        for frame in self._tiles(asked, "last_over_time({selector}{range})", reduced):
            known = frame if known is None else pl.concat([known, frame]).unique()
        assert known is not None  # _tiles gives at least the columns
        return known

    def ever_one(self, asked: Iterable[Asked], labels: Sequence[str]) -> pl.DataFrame:
        """Series of 0 and 1 that were 1 at some time of the window, with its hour; distinct."""

        def reduced(window: TileWindow, series: Sequence[Series]) -> pl.DataFrame:
            hour = _instants("hour", np.full(len(series), window.hour_ms))
            return self._series(series, labels).drop("name", "source", "job").with_columns(hour)

        return pl.concat(self._tiles(asked, "max_over_time({selector}{range}) == 1", reduced)).unique()

    def scrapes(self, windows: Sequence[TileWindow]) -> pl.DataFrame:
        """When each source that showed anything was scraped: source, job, at; distinct, sorted by time.

        Its series tell, and `up` where it is there: a shard of kube-state-metrics whose last GPU pod is gone shows
        nothing any more, but it was looked at.
        """
        shown = pl.concat([pl.DataFrame(schema=_SCRAPES), *self._scrapes]).unique()
        up = self.source.selector(["up"], one_of("job", shown["job"].unique().sort()))

        def reduced(window: TileWindow, series: Sequence[Series]) -> pl.DataFrame:
            samples_of_up = _each_sample(self._series(series, ()), samples(series), window)
            return samples_of_up.filter(pl.col("value") == 1).select(*_SCRAPES)

        looked_at = pl.concat(self._tiles([(window, up) for window in windows], "{selector}{range}", reduced))
        return (
            pl.concat([shown, looked_at])
            .join(shown.select("source").unique(), on="source", how="semi")
            .unique()
            .sort("at", "source")
        )

    def _tiles(self, asked: Iterable[Asked], query: str, reduced: _Reduce) -> Iterator[pl.DataFrame]:
        """Tiles, each reduced; first an empty one, for the columns."""
        asked = list(asked)
        requests = (
            TileRequest(
                f"kube-state-metrics, hour {window.name}",
                query.format(selector=selector, range=window.range),
                window.end_ms,
            )
            for window, selector in asked
        )
        yield reduced(TileWindow(0, 0, 0), [])
        with closing(self.source.tiles(requests)) as answers:
            for (window, _), (_, series) in zip(asked, answers, strict=True):
                yield reduced(window, series)

    def _series(self, series: Sequence[Series], labels: Sequence[str], *, label_set: bool = False) -> pl.DataFrame:
        own = [f"exported_{label}" for label in labels if label in _TARGET_LABELS]
        fields = dict.fromkeys(("__name__", "job", *self._source_labels, *labels, *own), pl.String)
        raw = [bytes(one.metric) for one in series]
        texts = pl.Series("labels", [one.decode() for one in raw], dtype=pl.String)
        frame = texts.str.json_decode(pl.Struct(fields)).struct.unnest()
        named = [pl.format(f"{label}={{}}", label) for label in self._source_labels]
        frame = frame.select(
            *(_label(label, self._own_node_jobs) for label in labels),
            pl.col("job").fill_null(""),
            name="__name__",
            source=pl.concat_str(named, separator=",", ignore_nulls=True),
        )
        if "uid" in labels:
            frame = frame.with_columns(
                uid=pl.coalesce("uid", pl.format("{}/{}", "namespace", "pod")), has_uid=pl.col("uid").is_not_null()
            )
        if label_set:
            frame = frame.with_columns(labels=pl.Series([self._label_set(one) for one in raw], dtype=pl.String))
        return frame

    def _label_set(self, labels: bytes) -> str:
        """The label_* labels of a series as JSON, keys sorted."""
        if labels not in self._label_sets:
            every = msgspec.json.decode(labels, type=dict[str, str])
            own = {name: value for name, value in every.items() if name.startswith("label_")}
            self._label_sets[labels] = msgspec.json.encode(own, order="sorted").decode()
        return self._label_sets[labels]

    def _remember(self, frame: pl.DataFrame, decoded: Samples, window: TileWindow) -> None:
        scrapes = _each_sample(frame.select("source", "job"), decoded, window)
        self._scrapes.append(scrapes.drop("value").unique())


def _each_sample(frame: pl.DataFrame, decoded: Samples, window: TileWindow) -> pl.DataFrame:
    """One row per sample: the columns of its series, at, value."""
    inside = decoded.at_ms > window.start_ms
    rows = frame[np.repeat(np.arange(frame.height), decoded.counts)[inside]]
    return rows.with_columns(
        _instants("at", decoded.at_ms[inside]), value=pl.Series(decoded.values[inside], dtype=pl.Float64)
    )


def batches(values: Sequence[str]) -> Iterator[Sequence[str]]:
    """Values in lists short enough for one selector."""
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]


def _label(label: str, own_node_jobs: Collection[str]) -> pl.Expr:
    """A label of the object, not of the target that was scraped for it."""
    if label not in _TARGET_LABELS:
        return pl.col(label)
    own = pl.coalesce(f"exported_{label}", label)
    if label == "node":
        own = pl.when(pl.col("job").is_in(own_node_jobs)).then(f"exported_{label}").otherwise(own)
    return own.alias(label)


def _greatest(decoded: Samples, begins: Times) -> pl.Series:
    values = np.nan_to_num(decoded.values)
    return pl.Series(np.maximum.reduceat(values, begins) if len(begins) else values, dtype=pl.Float64)


def _instants(name: str, at_ms: Times) -> pl.Series:
    return pl.Series(name, at_ms, dtype=pl.Int64).cast(_INSTANT)
