"""`status`: which days are there, what they sum to, which checks failed, how old they are; and which are missing."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from cli.output import money, print_table, trimmed

_DAYS = """
with ledger as (
    select cluster, date, sum(owned_gpu_hours) as owned, sum(held_gpu_hours) as held, sum(idle_gpu_hours) as idle,
           sum(cost) as cost, sum(difference_gpu_hours) as difference
    from reconciliation group by all
), labels as (
    select cluster, date, min(valid) as percent from (
        select cluster, date, dimension,
               100 * sum(case when label_source not in ('missing', 'invalid') then gpu_hours else 0 end)
                   / nullif(max(held_gpu_hours), 0) as valid
        from label_coverage where required group by all
    ) group by all
), telemetry as (
    select cluster, date, 100 * avg(coverage) as percent from occupancy where charge_kind = 'held' group by all
), judged as (
    select cluster, date, count(*) filter (not passed and blocking) as failed,
           count(*) filter (not passed and not blocking) as doubtful
    from checks group by all
)
select coalesce(ledger.cluster, judged.cluster) as cluster, coalesce(ledger.date, judged.date) as date,
       owned, held, idle, cost, difference, labels.percent, telemetry.percent, failed, doubtful
from ledger full join judged using (cluster, date) left join labels using (cluster, date)
    left join telemetry using (cluster, date)
order by 1, 2
"""
_HEADINGS = (
    "cluster",
    "day",
    "state",
    "owned h",
    "held h",
    "idle h",
    "cost",
    "difference",
    "labels",
    "telemetry",
    "age",
)
_NUMBERS = ("owned h", "held h", "idle h", "cost", "difference", "labels", "telemetry", "age")


def print_status(lake: Path, *, clusters: Sequence[str] | None, today: dt.date) -> None:
    """One row per cluster and day, then what is missing: days in between, and yesterday of a configured cluster.

    Args:
        lake: folder of the lake.
        clusters: the configured ones; None where there is no configuration to compare with.
        today: the day that is not over, UTC.
    """
    from pipelines.load.catalog import connect
    from pipelines.load.lake import Lake

    with connect(lake) as connection:
        rows = connection.execute(_DAYS).fetchall()
    if not rows and not clusters:
        typer.echo(f"{lake}: no day is published yet; `gpu-chargeback run` makes yesterday")
        return
    now = dt.datetime.now(dt.UTC)
    places = Lake(lake)
    shown = [_told(row, places, now) for row in rows]
    if shown:
        print_table(_HEADINGS, shown, right=_NUMBERS)
    for line in [*_gaps(rows), *behind(rows, clusters or (), today), *strangers(rows, clusters)]:
        typer.echo(line)


def _told(row: tuple[Any, ...], lake: Any, now: dt.datetime) -> list[str]:
    cluster, day, owned, held, idle, cost, difference, labels, telemetry, failed, doubtful = row
    path = lake.focus_path(cluster, day)
    if failed:
        state = f"{failed} checks failed" + (
            ", an earlier version is published" if path.exists() else ", not published"
        )
    elif owned is None:
        state = "not published"
    else:
        state = "published" + (f", {doubtful} warnings" if doubtful else "")
    age = ""
    if path.exists():
        age = _age(now - dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC))
    return [
        cluster, str(day), state, trimmed(owned), trimmed(held), trimmed(idle), money(cost), trimmed(difference),
        "" if labels is None else f"{labels:.0f} %", "" if telemetry is None else f"{telemetry:.0f} %", age,
    ]  # fmt: skip


def _age(since: dt.timedelta) -> str:
    hours = since.total_seconds() / 3600
    return f"{hours * 60:.0f} min" if hours < 1 else f"{hours:.0f} h" if hours < 48 else f"{hours / 24:.0f} d"


def _gaps(rows: list[tuple[Any, ...]]) -> list[str]:
    """Days between a cluster's first and last that are not there."""
    days: dict[str, set[dt.date]] = {}
    for row in rows:
        days.setdefault(row[0], set()).add(row[1])
    told = []
    for cluster, there in sorted(days.items()):
        span = (max(there) - min(there)).days + 1
        missing = [day for i in range(span) if (day := min(there) + dt.timedelta(days=i)) not in there]
        told += [
            f"{cluster}: {day} is missing; `gpu-chargeback run --date {day} --cluster {cluster}`" for day in missing
        ]
    return told


def behind(rows: list[tuple[Any, ...]], clusters: Sequence[str], today: dt.date) -> list[str]:
    """Configured clusters whose yesterday is not there: a night that failed leaves nothing else to see."""
    yesterday = today - dt.timedelta(days=1)
    told = []
    for cluster in clusters:
        days = [row[1] for row in rows if row[0] == cluster]
        if not days:
            told.append(f"{cluster}: no day is there yet; `gpu-chargeback run --date {yesterday} --cluster {cluster}`")
        elif max(days) < yesterday:
            first = max(days) + dt.timedelta(days=1)
            window = f"--date {first}" if first == yesterday else f"--from {first} --to {yesterday}"
            told.append(
                f"{cluster}: nothing since {max(days)}; `gpu-chargeback run {window} --cluster {cluster}` says why"
            )
    return told


def strangers(rows: list[tuple[Any, ...]], clusters: Sequence[str] | None) -> list[str]:
    """Clusters of the lake that are not configured, such as the demo's: sums over the lake count them too."""
    if clusters is None:
        return []
    return [
        f"{cluster}: in this lake, not in the configuration; its days count in every sum, so give it a lake of its own"
        for cluster in sorted({row[0] for row in rows} - {*clusters})
    ]
