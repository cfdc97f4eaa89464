"""The configuration as the transforms want it: the rate card, the label schema, the pools, the window of a day."""

import dataclasses
import datetime as dt

from pipelines.transform.charges import Rate
from pipelines.transform.devices import NodePool, Window
from pipelines.transform.labels import Dimension, VirtualTag
from schemas.config import Cluster, Config
from schemas.errors import UsageError
from schemas.models import normalize_model


@dataclasses.dataclass(frozen=True)
class Settings:
    """A validated configuration; the instant beyond which nothing is known; whether checks write their Data Docs."""

    config: Config
    now: dt.datetime = dataclasses.field(default_factory=lambda: dt.datetime.now(dt.UTC))
    data_docs: bool = True

    def cluster(self, name: str) -> Cluster:
        """Configuration of one cluster. Raises UsageError naming those that there are."""
        for cluster in self.config.clusters:
            if cluster.name == name:
                return cluster
        known = ", ".join(cluster.name for cluster in self.config.clusters)
        raise UsageError(f"no cluster {name!r} in the configuration; there are: {known}")

    def window(self, date: dt.date) -> Window:
        """The told part of a UTC day: all of it, or until now."""
        start = dt.datetime.combine(date, dt.time(), tzinfo=dt.UTC)
        return Window(start, min(start + dt.timedelta(days=1), self.now))

    @property
    def bridge_ms(self) -> int:
        """Longest gap that is bridged without further evidence."""
        return self.config.ownership.bridge_gap_minutes * 60_000

    @property
    def rates(self) -> list[Rate]:
        """The rate card."""
        return [
            Rate(
                model_key=normalize_model(rate.model),
                list_price=rate.listed_price,
                contracted_price=rate.contracted_price,
                category=rate.category,
                valid_from=rate.valid_from,
                valid_to=rate.valid_to,
                rate_id=rate.id,
            )
            for rate in self.config.rates
        ]

    @property
    def dimensions(self) -> list[Dimension]:
        """The label schema, in its order."""
        labels = self.config.labels
        prefix = f"{labels.prefix}/" if labels.prefix else ""
        return [
            Dimension(
                dimension.key,
                f"{prefix}{dimension.key}",
                dimension.required,
                tuple(dimension.allowed) if dimension.allowed is not None else None,
            )
            for dimension in labels.dimensions
        ]

    @property
    def virtual_tags(self) -> list[VirtualTag]:
        """Rules that answer where a pod's own label does not."""
        return [
            VirtualTag(dict(rule.set), rule.when.model_dump(exclude_none=True)) for rule in self.config.virtual_tags
        ]

    @property
    def pools(self) -> list[NodePool]:
        """Configured node pools."""
        return [NodePool(pool.name, dict(pool.selector), pool.replicas) for pool in self.config.pools]
