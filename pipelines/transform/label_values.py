"""Reading one Kubernetes label out of a JSON object of labels, in the spelling of either source."""

import re

import polars as pl


def kube_state_label(key: str) -> str:
    """`acme.dev/cost-center` -> `label_acme_dev_cost_center`, as kube-state-metrics spells it."""
    snake = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"[^a-zA-Z0-9_]", "_", key)).lower()
    return f"label_{snake}"


def label_value(labels: pl.Expr, key: str) -> pl.Expr:
    """Value of label `key`; null where the object has none. `labels` is a column of JSON objects."""
    return pl.coalesce(
        labels.str.json_path_match(f'$["{key}"]'),
        labels.str.json_path_match(f'$["{kube_state_label(key)}"]'),
    )
