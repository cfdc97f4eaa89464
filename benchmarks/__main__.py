"""`make bench`: measure, and write docs/performance.md. Ratios are of times measured in one run, on one machine."""

import os
import platform
from pathlib import Path

from benchmarks import extract, night

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


def page(read: dict[str, float], made: dict[str, float]) -> str:
    """The page, from both measurements."""
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return f"""# Performance

Written by `make bench` on {machine}. Absolute times are this machine's; ratios compare what was measured in one run.

## Extraction: {read["samples"]:,.0f} samples from a real Prometheus (1,000 series, one day, 30 s)

`python -m benchmarks.extract`: interleaved rounds, medians.

| what | seconds | ratio |
|---|---|---|
| bare HTTP read of the same tiles | {read["bare_s"]:.2f} | 1 |
| read and reduced by us | {read["ours_s"]:.2f} | {read["ours_per_bare"]:.2f} x the bare read |
| prometheus-api-client and pandas notebook | {read["notebook_s"]:.2f} | {read["notebook_per_ours"]:.1f} x ours |

{read["samples_per_s"] / 1e6:.2f} million samples a second; {read["peak_mb"]:.0f} MB above the imports.

## A day of 10,000 GPUs: {made["device_hours"]:,.0f} device-hours, {made["focus_rows"]:,.0f} FOCUS rows

`python -m benchmarks.night`: transform, proofs and publication from a landed raw layer, in process, imports left out.

| what | seconds | ratio |
|---|---|---|
| DuckDB reads the raw layer and writes the same rows | {made["duckdb_s"]:.2f} | 1 |
| transform, proofs, publication | {made["ours_s"]:.2f} | {made["ours_per_duckdb"]:.1f} x DuckDB |

{made["peak_mb"]:.0f} MB above the imports.
"""


if __name__ == "__main__":
    PAGE.write_text(page(extract.measure(), night.measure()))
    print(PAGE.read_text())
