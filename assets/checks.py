"""Blocking checks: great-expectations judges the landed facts and the candidate, and only then is a day published.

Every outcome lands in the `checks` table too, so that `gpu-chargeback status` can tell why a day is not there.
"""

import dataclasses
import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import polars as pl

from assets.facts import FACTS, reconciliation
from assets.partitions import cluster_and_date
from assets.published import focus_candidate
from assets.settings import Settings
from pipelines.load.lake import FOCUS_DATASET, Lake
from pipelines.validate.expectations import CheckOutcome, validate_facts, validate_focus
from schemas.tables import CHECKS_TABLE, FACT_TABLES, polars_schema


@dg.asset_check(
    asset=reconciliation, additional_deps=[fact for fact in FACTS if fact is not reconciliation], blocking=True
)
def facts_reconcile(
    context: dg.AssetCheckExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.AssetCheckResult:
    """Lines sum to owned, every cost is price x quantity, nothing is held above owned, keys are unique."""
    cluster, date = _partition(context)
    docs = lake.data_docs_path(cluster, date) / "facts" if settings.data_docs else None
    outcomes = validate_facts(
        {table.name: lake.candidate_path(table.name, cluster, date) for table in FACT_TABLES}, docs_dir=docs
    )
    # A new attempt begins here: what an earlier one recorded is forgotten.
    return _told(outcomes, lake, cluster, date, docs=docs, earlier=[])


@dg.asset_check(asset=focus_candidate, blocking=True)
def focus_conforms(
    context: dg.AssetCheckExecutionContext, lake: dg.ResourceParam[Lake], settings: dg.ResourceParam[Settings]
) -> dg.AssetCheckResult:
    """The candidate has the FOCUS columns, types and rules, and sums to the charges exactly."""
    cluster, date = _partition(context)
    docs = lake.data_docs_path(cluster, date) / "focus" if settings.data_docs else None
    outcomes = validate_focus(
        lake.candidate_path(f"focus/{FOCUS_DATASET}", cluster, date),
        lake.candidate_path("charges", cluster, date),
        dimensions=[dimension.key for dimension in settings.dimensions],
        docs_dir=docs,
    )
    recorded = lake.scan(CHECKS_TABLE, cluster, date, candidate=False).collect().to_dicts()
    earlier = [CheckOutcome(row["check"], row["passed"], row["blocking"], row["detail"]) for row in recorded]
    return _told(outcomes, lake, cluster, date, docs=docs, earlier=earlier)


def _told(
    outcomes: Sequence[CheckOutcome],
    lake: Lake,
    cluster: str,
    date: dt.date,
    *,
    docs: Path | None,
    earlier: Sequence[CheckOutcome],
) -> dg.AssetCheckResult:
    """Record every outcome, and tell Dagster whether the blocking ones held."""
    recorded = {outcome.check: outcome for outcome in (*earlier, *outcomes)}
    rows = [
        {"cluster": cluster, "date": date, **dataclasses.asdict(outcome)} for _, outcome in sorted(recorded.items())
    ]
    frame = pl.DataFrame(rows, schema=polars_schema(CHECKS_TABLE.schema))
    lake.write(CHECKS_TABLE, frame, cluster, date, candidate=False)
    failed = [outcome for outcome in outcomes if outcome.blocking and not outcome.passed]
    return dg.AssetCheckResult(
        passed=not failed,
        severity=dg.AssetCheckSeverity.ERROR,
        description="; ".join(outcome.detail for outcome in failed) or None,
        metadata={
            "checks": len(outcomes),
            **({"data_docs": dg.MetadataValue.path(str(docs / "index.html"))} if docs else {}),
            **{outcome.check: outcome.detail for outcome in outcomes if not outcome.passed},
        },
    )


def _partition(context: dg.AssetCheckExecutionContext) -> tuple[str, dt.date]:
    return cluster_and_date(context.partition_key)


CHECKS = (facts_reconcile, focus_conforms)
