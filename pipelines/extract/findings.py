"""What an extraction wants a person to know and what does not stop it."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import polars as pl

from schemas.tables import Findings, polars_schema


@dataclass(frozen=True, slots=True)
class Finding:
    """A row of `schemas.tables.Findings`, but for cluster and date."""

    code: str
    subject: str
    message: str
    affected: int


def findings_frame(findings: Sequence[Finding], cluster: str, day: dt.date) -> pl.DataFrame:
    """Rows of `schemas.tables.Findings`; of several with one key the first counts."""
    rows = [asdict(finding) | {"cluster": cluster, "date": day} for finding in findings]
    schema = polars_schema(Findings)
    frame = pl.DataFrame(rows, schema=schema).unique(Findings.primary_key(), keep="first", maintain_order=True)
    return Findings.validate(frame.sort(Findings.primary_key()), cast=True)
