"""`demo`: the embedded cluster, made and printed: who held what, how busy it was, what it cost, what nobody used."""

import sys
from pathlib import Path

import typer

from cli.output import money, print_table, trimmed
from cli.run import progress_bar

_TABLE = """
select coalesce(namespace, '(idle)') as namespace, cost_center, workload_kind,
       sum(held_gpu_hours) as held, sum(idle_gpu_hours) as idle,
       sum(engine_active_gpu_hours) / nullif(sum(measured_gpu_hours), 0) as busy, sum(cost) as cost
from chargeback group by all order by cost desc, 1, 2, 3
"""
_PROOF = """
select sum(owned_gpu_hours), sum(owned_gpu_hours) - sum(held_gpu_hours) - sum(idle_gpu_hours),
       sum(cost), sum(difference_cost) from reconciliation
"""
_TRY = (
    "select x_ChargeKind, sum(PricingQuantity), sum(BilledCost) from focus_cost_and_usage group by 1",
    "select * from chargeback order by cost desc limit 10",
)


def run_demo(lake: Path) -> None:
    """Make the sample's days in `lake`, print them, and name the files to open."""
    from assets.runs import demo

    with progress_bar() as progress:
        report = demo(lake, progress=progress)
    from pipelines.load.catalog import connect

    with connect(lake) as connection:
        rows = connection.execute(_TABLE).fetchall()
        owned, difference, cost, difference_cost = connection.execute(_PROOF).fetchall()[0]
        currency = connection.execute("select any_value(BillingCurrency) from focus_cost_and_usage").fetchall()[0][0]
    days = sorted({str(day) for _, day in report.published})
    clusters = sorted({cluster for cluster, _ in report.published})
    typer.echo(f"GPU chargeback of {', '.join(clusters)}, {days[0]} to {days[-1]}\n")
    shown = [
        [
            namespace, center or "-", kind or "-", trimmed(held), trimmed(idle),
            "" if busy is None else f"{100 * busy:.0f} %", money(cost_of_row),
        ]
        for namespace, center, kind, held, idle, busy, cost_of_row in rows
    ]  # fmt: skip
    numbers = ("GPU-hours held", "idle", "busy", currency)
    print_table(("namespace", "cost center", "workload", *numbers), shown, right=numbers)
    typer.echo(f"\nowned {trimmed(owned)} GPU-hours = held + idle, difference {trimmed(difference)}")
    typer.echo(f"cost {money(cost)} {currency} = price x owned, difference {trimmed(difference_cost)}")
    for warning in report.warnings:
        typer.echo(f"warning: {warning}")
    typer.echo(f"\nParquet (FOCUS 1.4): {lake / 'focus' / 'cost_and_usage'}")
    typer.echo(f"Catalog (DuckDB):    {lake / 'chargeback.duckdb'}")
    typer.echo("\nTry:")
    for sql in _TRY:
        typer.echo(f'  {_this_program()} query "{sql}"')


def _this_program() -> str:
    """How to call this program again from here: `make` puts it into .venv/bin, which is on no PATH."""
    program = Path(sys.argv[0]).absolute()
    here = Path.cwd()
    return str(program.relative_to(here)) if program.is_relative_to(here) else program.name
