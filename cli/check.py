"""`check`: what a valid configuration says, in a few lines."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.config import Config


def told_config(path: Path, config: "Config", *, today: dt.datetime) -> Iterator[str]:
    """Lines that sum a configuration up: clusters, prices in force, label schema, lake."""
    yield f"{path}: valid"
    for cluster in config.clusters:
        inventory = "Kubernetes API and kube-state-metrics" if cluster.kubernetes else "kube-state-metrics only"
        yield f"  cluster {cluster.name}: {cluster.prometheus.url}, {inventory}"
    for rate in config.rates:
        if rate.valid_from <= today and (rate.valid_to is None or today < rate.valid_to):
            until = f" until {rate.valid_to:%Y-%m-%d}" if rate.valid_to else ""
            yield f"  price in force: {rate.model} {rate.contracted_price} {config.currency} per GPU-hour{until}"
        elif rate.valid_from > today:
            yield f"  price from {rate.valid_from:%Y-%m-%d}: {rate.model} {rate.contracted_price} {config.currency}"
        else:
            yield f"  price no longer in force since {rate.valid_to:%Y-%m-%d}: {rate.model}"
        if rate.contracted_price > rate.listed_price:
            yield f"  doubtful: {rate.model}: contracted {rate.contracted_price} is above list {rate.listed_price}"
    required = [dimension.key for dimension in config.labels.dimensions if dimension.required]
    prefix = f"{config.labels.prefix}/" if config.labels.prefix else ""
    yield "  labels: " + ", ".join(
        f"{prefix}{dimension.key}{' (required)' if dimension.key in required else ''}"
        for dimension in config.labels.dimensions
    )
    yield f"  lake: {config.lake}"
