import json
from typing import Any

import polars as pl

from pipelines.transform.label_values import kube_state_label
from pipelines.transform.labels import Dimension, VirtualTag, glob_regex, label_coverage, labeled
from schemas.tables import GpuHours, PodLabels
from tests.unit.pipelines.transform.evidence import at, frame

DIMENSIONS = [
    Dimension("cost-center", "acme.dev/cost-center", required=True),
    Dimension("tenant", "acme.dev/tenant", allowed=("internal",)),
]


def seen(labels: dict[str, str], start: str, end: str, source: str = "snapshot") -> dict[str, Any]:
    return {
        "source": source, "pod_uid": "uid", "labels": json.dumps(labels, sort_keys=True),
        "first_seen_at": at(start), "last_seen_at": at(end),
    }  # fmt: skip


def told(sightings: list[dict[str, Any]], hour: str = "12:00", tags: list[VirtualTag] | None = None) -> tuple[Any, Any]:
    line = {
        "group_id": "g", "segment_from": at(hour), "segment_to": at(hour), "hour": at(hour), "charge_kind": "held",
        "line_key": "h", "hold_id": "h", "namespace": "search-prod", "pod": "p", "pod_uid": "uid",
    }  # fmt: skip
    lines = frame(GpuHours, [line]).drop("dimensions", "label_sources")
    result = labeled(lines, frame(PodLabels, sightings), dimensions=DIMENSIONS, virtual_tags=tags or []).collect()
    row = result.row(0, named=True)
    return json.loads(row["dimensions"]) if row["dimensions"] else None, json.loads(row["label_sources"])


def test_a_label_an_invalid_value_and_a_missing_one() -> None:
    values, sources = told([seen({"acme.dev/cost-center": "ml", "acme.dev/tenant": "Nobody"}, "10:00", "20:00")])
    assert values == {"cost-center": "ml", "tenant": "Nobody"}
    assert sources == {"cost-center": "label", "tenant": "invalid"}
    assert told([]) == (None, {"cost-center": "missing", "tenant": "missing"})


def test_a_later_relabel_does_not_rewrite_history() -> None:
    sightings = [
        seen({"acme.dev/tenant": "internal"}, "10:00", "14:20"),
        seen({"acme.dev/tenant": "x"}, "14:20", "20:00"),
    ]
    assert told(sightings, "13:00")[0] == {"tenant": "internal"}
    assert told(sightings, "14:00")[0] == {"tenant": "x"}


def test_history_beats_a_snapshot_taken_afterwards() -> None:
    history = seen({"label_acme_dev_tenant": "internal"}, "10:00", "23:00", "kube_state")
    afterwards = seen({"acme.dev/tenant": "renamed", "acme.dev/cost-center": "ml"}, "24:30", "24:30")
    values, sources = told([history, afterwards])
    assert values == {"cost-center": "ml", "tenant": "internal"}
    assert sources == {"cost-center": "label", "tenant": "label"}


def test_hostile_values_survive() -> None:
    nasty = 'a"b\\c\nd}é'
    assert told([seen({"acme.dev/cost-center": nasty}, "10:00", "20:00")])[0] == {"cost-center": nasty}


def test_an_empty_label_is_a_missing_one() -> None:
    assert told([seen({"acme.dev/cost-center": ""}, "10:00", "20:00")])[1]["cost-center"] == "missing"


def test_virtual_tags_answer_in_order_where_the_pod_does_not() -> None:
    tags = [
        VirtualTag({"tenant": "internal"}, {"namespace": "other-*"}),
        VirtualTag({"cost-center": "search"}, {"namespace": "search-*"}),
        VirtualTag({"cost-center": "late"}, {"namespace": "*"}),
    ]
    assert told([], tags=tags) == ({"cost-center": "search"}, {"cost-center": "virtual_tag", "tenant": "missing"})


def test_globs_are_anchored_and_literal() -> None:
    names = pl.Series(["search-1", "xsearch-1", "search.1", "a.b"])
    assert names.str.contains(glob_regex("search-*")).to_list() == [True, False, False, False]
    assert names.str.contains(glob_regex("a.b")).to_list() == [False, False, False, True]


def test_kube_state_metrics_spelling() -> None:
    assert kube_state_label("acme.dev/cost-center") == "label_acme_dev_cost_center"
    assert kube_state_label("acme.dev/costCenter") == "label_acme_dev_cost_center"


def test_coverage_sums_held_hours_by_source() -> None:
    from decimal import Decimal

    rows = [
        {
            "group_id": f"g{i}", "charge_kind": "held", "gpu_hours": Decimal(hours), "hold_id": "h",
            "label_sources": json.dumps({"cost-center": source, "tenant": "label"}),
        }
        for i, (hours, source) in enumerate([("1.5", "label"), ("0.5", "missing")])
    ]  # fmt: skip
    table = label_coverage(frame(GpuHours, rows), dimensions=DIMENSIONS).sort("dimension", "label_source").collect()
    assert table.select("dimension", "label_source", "gpu_hours", "held_gpu_hours").rows() == [
        ("cost-center", "label", Decimal("1.5"), Decimal(2)),
        ("cost-center", "missing", Decimal("0.5"), Decimal(2)),
        ("tenant", "label", Decimal(2), Decimal(2)),
    ]
