"""When things are made: yesterday at night, a late pass over three days, a snapshot every five minutes."""

import datetime as dt

import dagster as dg

from assets.partitions import partition_key
from assets.settings import Settings
from pipelines.extract.kubernetes import take_snapshot
from pipelines.load.lake import Lake

LATE_DAYS = 3

nightly = dg.define_asset_job(
    "nightly", selection=dg.AssetSelection.all(), description="Extract, transform, check, publish."
)

nightly_schedule = dg.build_schedule_from_partitioned_job(
    nightly, name="nightly_schedule", hour_of_day=2, minute_of_hour=30, default_status=dg.DefaultScheduleStatus.RUNNING
)


@dg.schedule(
    job=nightly, cron_schedule="30 4 * * *", execution_timezone="UTC", default_status=dg.DefaultScheduleStatus.RUNNING
)
def late_data_schedule(
    context: dg.ScheduleEvaluationContext, settings: dg.ResourceParam[Settings]
) -> list[dg.RunRequest]:
    """Extract the last three days again: remote writes and snapshots may come late."""
    today = context.scheduled_execution_time.date()
    days = [today - dt.timedelta(days=back) for back in range(1, LATE_DAYS + 1)]
    return [
        dg.RunRequest(run_key=f"late-{today}-{cluster.name}-{day}", partition_key=partition_key(cluster.name, day))
        for day in days
        for cluster in settings.config.clusters
    ]


@dg.op
def record_inventory(
    context: dg.OpExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> None:
    """One snapshot of every cluster that has a Kubernetes API configured."""
    for cluster in settings.config.clusters:
        if cluster.kubernetes is None:
            context.log.info(f"{cluster.name}: no kubernetes section, kube-state-metrics only")
            continue
        now = dt.datetime.now(dt.UTC)
        path = lake.append_snapshot(cluster.name, take_snapshot(cluster, now=now), now)
        context.log.info(f"{cluster.name}: {path}")


@dg.job(description="Pods, nodes and claims as they are now.")
def inventory_snapshot() -> None:
    """One snapshot of every cluster."""
    record_inventory()


snapshot_schedule = dg.ScheduleDefinition(
    name="snapshot_schedule",
    job=inventory_snapshot,
    cron_schedule="*/5 * * * *",
    execution_timezone="UTC",
    # In production a CronJob on `gpu-chargeback snapshot` costs no Dagster run (deploy/): so this one is opt-in.
    default_status=dg.DefaultScheduleStatus.STOPPED,
)

JOBS = (nightly, inventory_snapshot)
SCHEDULES = (nightly_schedule, late_data_schedule, snapshot_schedule)
