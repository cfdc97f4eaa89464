"""The unit of work: one UTC day of one cluster."""

import datetime as dt
from collections.abc import Sequence

import dagster as dg

FIRST_DAY = "2020-01-01"


def day_by_cluster(clusters: Sequence[str]) -> dg.MultiPartitionsDefinition:
    """Partitions `date` x `cluster`; today is one of them, so that a partial day can be asked for."""
    return dg.MultiPartitionsDefinition(
        {
            "date": dg.DailyPartitionsDefinition(FIRST_DAY, end_offset=1),
            "cluster": dg.StaticPartitionsDefinition(list(clusters)),
        }
    )


def partition_key(cluster: str, date: dt.date) -> dg.MultiPartitionKey:
    """Key of one partition."""
    return dg.MultiPartitionKey({"date": date.isoformat(), "cluster": cluster})


def cluster_and_date(partition: str | None) -> tuple[str, dt.date]:
    """What a run's partition key names."""
    if not isinstance(partition, dg.MultiPartitionKey):
        raise dg.DagsterInvariantViolationError("expected a partition key of date and cluster; materialize a partition")
    dimensions = partition.keys_by_dimension
    return dimensions["cluster"], dt.date.fromisoformat(dimensions["date"])
