"""Which cost center, workload kind, model and tenant a hold belongs to, and where each value came from (ACCOUNTING 8).

Takes lines and the labels that pods were seen with; adds `dimensions` and `label_sources`. Labels are those
last seen within the hour of the hold, so a later relabel does not rewrite history. A value outside the allowed set is
kept and flagged; a missing one is flagged.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal

import polars as pl

from pipelines.transform.label_values import label_value

_STRATEGIES: tuple[Literal["backward"], Literal["forward"]] = ("backward", "forward")


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A dimension of the label schema: its key, the full label, and the values that are allowed (None: any)."""

    key: str
    label: str
    required: bool = False
    allowed: tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class VirtualTag:
    """An ordered rule: values that it gives where all its globs match; the first match wins, per dimension."""

    values: dict[str, str]
    when: dict[str, str]


def labeled(
    lines: pl.LazyFrame,
    pod_labels: pl.LazyFrame,
    *,
    dimensions: Sequence[Dimension],
    virtual_tags: Sequence[VirtualTag] = (),
) -> pl.LazyFrame:
    """Lines with `dimensions` and `label_sources`, JSON objects; both null on lines that nobody holds.

    Args:
        lines: rows of `GpuHours` less these two columns.
        pod_labels: rows of `PodLabels`.
        dimensions: the label schema, in its order.
        virtual_tags: rules that answer where the pod's own label does not.
    """
    holders = (
        lines.filter(pl.col("hold_id").is_not_null()).select("cluster", "namespace", "pod", "pod_uid", "hour").unique()
    )
    valued = _own_values(holders, pod_labels, dimensions).with_columns(
        **{f"tag_{i}": _virtual_tag(dimension.key, virtual_tags) for i, dimension in enumerate(dimensions)}
    )
    told = valued.select(
        *("namespace", "pod", "pod_uid", "hour"),
        dimensions=_values_json(dimensions),
        label_sources=_sources_json(dimensions),
    )
    return lines.join(told, on=["namespace", "pod", "pod_uid", "hour"], how="left", nulls_equal=True).with_columns(
        pl.when(pl.col("hold_id").is_not_null()).then("dimensions").alias("dimensions"),
        pl.when(pl.col("hold_id").is_not_null()).then("label_sources").alias("label_sources"),
    )


def _own_values(holders: pl.LazyFrame, pod_labels: pl.LazyFrame, dimensions: Sequence[Dimension]) -> pl.LazyFrame:
    """For each holder and hour what the pod's own labels say: `value_0`, `value_1`, … of the dimensions.

    Of each source the set last seen by the end of the hour, the later seen first; then, where a source has only seen
    the pod afterwards, the first it saw. kube-state-metrics may export only some labels, so one set completes another.
    """
    hour_end = pl.col("hour").dt.offset_by("1h").dt.offset_by("-1ms")
    result = holders.with_columns(hour_end=hour_end).sort("hour_end")
    names = [f"value_{i}" for i in range(len(dimensions))]
    for source in ("kube_state", "snapshot"):
        # Labels are read once per set that was seen, not once per hour of the pod.
        seen = (
            pod_labels.filter(pl.col("source") == source)
            .group_by("pod_uid", "first_seen_at")
            .agg(pl.col("labels").max(), pl.col("last_seen_at").max())
            .with_columns(
                **{name: label_value(pl.col("labels"), d.label) for name, d in zip(names, dimensions, strict=True)}
            )
            .drop("labels")
            .sort("first_seen_at")
        )
        for strategy in _STRATEGIES:
            carried = {name: f"{source}_{strategy}_{name}" for name in (*names, "last_seen_at")}
            result = result.join_asof(
                seen.rename(carried),
                left_on="hour_end",
                right_on="first_seen_at",
                by="pod_uid",
                strategy=strategy,
                check_sortedness=False,
            ).drop("first_seen_at", strict=False)
    seen_to = {
        source: pl.min_horizontal("hour_end", f"{source}_backward_last_seen_at")
        for source in ("kube_state", "snapshot")
    }
    snapshot_first = pl.col("kube_state_backward_last_seen_at").is_null() | (
        seen_to["snapshot"] >= seen_to["kube_state"]
    )
    return result.select(
        *("namespace", "pod", "pod_uid", "hour"),
        **{
            name: pl.coalesce(
                pl.when(snapshot_first).then(f"snapshot_backward_{name}").otherwise(f"kube_state_backward_{name}"),
                pl.when(snapshot_first).then(f"kube_state_backward_{name}").otherwise(f"snapshot_backward_{name}"),
                f"snapshot_forward_{name}",
                f"kube_state_forward_{name}",
            )
            for name in names
        },
        cluster="cluster",
    )


def _virtual_tag(key: str, rules: Sequence[VirtualTag]) -> pl.Expr:
    """First rule that sets the dimension and whose globs all match."""
    answers = [
        pl.when(
            pl.all_horizontal(
                pl.lit(True), *(pl.col(field).str.contains(glob_regex(glob)) for field, glob in rule.when.items())
            )
        ).then(pl.lit(rule.values[key]))
        for rule in rules
        if key in rule.values
    ]
    return pl.coalesce(*answers) if answers else pl.lit(None, dtype=pl.String)


def glob_regex(glob: str) -> str:
    """A shell glob (`*`, `?`) as an anchored regular expression."""
    body = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in glob)
    return f"^(?s:{body})$"


def _values_json(dimensions: Sequence[Dimension]) -> pl.Expr:
    """JSON object of the dimensions that have a value, keys sorted; null where none has."""
    ordered = sorted(enumerate(dimensions), key=lambda item: item[1].key)
    parts = [
        pl.when(_value(i).is_not_null()).then(pl.format('"{}":{}', pl.lit(dimension.key), _json_string(_value(i))))
        for i, dimension in ordered
    ]
    joined = pl.concat_str(parts, separator=",", ignore_nulls=True)
    return pl.when(joined != "").then(_object(joined))


def _sources_json(dimensions: Sequence[Dimension]) -> pl.Expr:
    """JSON object: dimension -> label, virtual_tag, invalid or missing."""
    ordered = sorted(enumerate(dimensions), key=lambda item: item[1].key)
    parts = [pl.format('"{}":"{}"', pl.lit(dimension.key), _source(i, dimension)) for i, dimension in ordered]
    return _object(pl.concat_str(parts, separator=","))


def _value(i: int) -> pl.Expr:
    # An empty label value says nothing, and FOCUS allows no empty strings.
    own = pl.when(pl.col(f"value_{i}") != "").then(f"value_{i}")
    return pl.coalesce(own, f"tag_{i}")


def _source(i: int, dimension: Dimension) -> pl.Expr:
    value = _value(i)
    allowed = value.is_in(list(dimension.allowed)) if dimension.allowed is not None else pl.lit(True)
    return (
        pl.when(value.is_null())
        .then(pl.lit("missing"))
        .when(~allowed)
        .then(pl.lit("invalid"))
        .when((pl.col(f"value_{i}") != "").fill_null(False))
        .then(pl.lit("label"))
        .otherwise(pl.lit("virtual_tag"))
    )


def _object(members: pl.Expr) -> pl.Expr:
    return pl.concat_str(pl.lit("{"), members, pl.lit("}"))


def _json_string(value: pl.Expr) -> pl.Expr:
    """A string as JSON, quotes and control characters escaped."""
    return pl.struct(v=value).struct.json_encode().str.slice(5).str.strip_suffix("}")


def label_coverage(lines: pl.LazyFrame, *, dimensions: Sequence[Dimension]) -> pl.LazyFrame:
    """Held GPU-hours by dimension and source of the value (`schemas.tables.LabelCoverage`)."""
    # One row per distinct set of sources, few, before any JSON is read.
    held = (
        lines.filter(pl.col("charge_kind") == "held")
        .group_by("cluster", "date", "label_sources")
        .agg(pl.col("gpu_hours").sum())
        .with_columns(held_gpu_hours=pl.col("gpu_hours").sum())
    )
    return pl.concat(
        [
            held.group_by(
                "cluster",
                "date",
                label_source=pl.col("label_sources").str.json_path_match(f'$["{dimension.key}"]'),
            )
            .agg(pl.col("gpu_hours").sum(), pl.col("held_gpu_hours").first())
            .with_columns(dimension=pl.lit(dimension.key), required=pl.lit(dimension.required))
            for dimension in dimensions
        ]
    )
