"""The proofs of a day's facts, as SQL that finds what breaks them (ACCOUNTING 9).

Each query gives the rows that should not be there. They run in DuckDB over the landed Parquet, in DECIMAL and BIGINT,
whose overflow is an error and never a wrong number, and share no code with the transforms: a proof that reuses what it
proves is none. The views are named as the tables.
"""

import dataclasses
from collections.abc import Sequence

from schemas.tables import TABLES

MS_PER_HOUR = 3_600_000
# A millisecond is 2,500,000 / 9 units of 1e-12 GPU-hour.
_NUMERATOR, _DENOMINATOR = 2_500_000, 9

_SPELLED = "regexp_replace(lower(trim(model)), '[ _]+', '-', 'g')"
MODEL_KEY = f"regexp_replace(regexp_replace({_SPELLED}, '-mig-.*$', ''), '-shared$', '')"
_PODS = "string_agg(distinct namespace || '/' || pod, ', ' order by namespace || '/' || pod)"
# Whole units of 1e-12 in a quantity with twelve places, through its digits: no arithmetic that could round.
UNITS = "cast(replace(cast(gpu_hours as varchar), '.', '') as bigint)"
_OWNED_UNITS = f"""
    (sum(owned_ms)::bigint * {_NUMERATOR}) // {_DENOMINATOR}
    + case when (sum(owned_ms)::bigint * {_NUMERATOR}) % {_DENOMINATOR} > {_DENOMINATOR // 2} then 1 else 0 end
"""
# Made once, for the proofs that read it.
PIECES = f"""
    create table pieces as
    select devices.*, coalesce(shared.group_id, device_id) as group_id, shared.group_id is not null as shared
    from devices left join (
        select distinct group_id, hour from gpu_hours where group_id = node || '/' || {MODEL_KEY}
    ) as shared on shared.hour = devices.hour and shared.group_id = node || '/' || {MODEL_KEY}
"""


@dataclasses.dataclass(frozen=True)
class Proof:
    """A query for what must not be there.

    name: of the check. table: what it is about. sql: gives offending rows, a column `told` first. says: what should
    hold. blocking: whether a day that breaks it stays unpublished.
    """

    name: str
    table: str
    sql: str
    says: str
    blocking: bool = True


OWNED_IS_EXACT = Proof(
    "1_owned_is_exact",
    "devices",
    f"""
    with told as (
        select device_id, hour, {_OWNED_UNITS} as owned_units,
               sum(cast(replace(cast(owned_gpu_hours as varchar), '.', '') as bigint)) as stored_units
        from devices group by device_id, hour
    )
    select device_id || ' at ' || hour || ': ' || stored_units || ' units stored, ' || owned_units || ' owned' as told
    from told where owned_units <> stored_units
    """,
    "every device-hour is round_half_even(owned milliseconds / 3,600,000, 12)",
)
LINES_SUM_TO_OWNED = Proof(
    "1_lines_sum_to_owned",
    "gpu_hours",
    """
    with owned as (select group_id, hour, sum(owned_gpu_hours) as owned from pieces group by group_id, hour),
    lines as (select group_id, hour, sum(gpu_hours) as lines from gpu_hours group by group_id, hour)
    select coalesce(owned.group_id, lines.group_id) || ' at ' || coalesce(owned.hour, lines.hour) || ': owned '
           || coalesce(owned, 0) || ', lines ' || coalesce(lines, 0) as told
    from owned full join lines on owned.group_id = lines.group_id and owned.hour = lines.hour
    where coalesce(owned, 0) <> coalesce(lines, 0)
    """,
    "held + idle = owned GPU-hours, per device or group and hour, difference exactly 0",
)
COST_IS_PRICE_TIMES_QUANTITY = Proof(
    "2_cost_is_price_times_quantity",
    "charges",
    """
    select group_id || ' at ' || segment_from || ' ' || charge_kind || ': ' || cost || ' is not '
           || contracted_unit_price || ' x ' || gpu_hours as told
    from charges
    where cost <> contracted_unit_price * gpu_hours or list_cost <> list_unit_price * gpu_hours
    """,
    "cost = price x quantity on every line, all 18 places",
)
CHARGES_ARE_THE_LEDGER = Proof(
    "2_charges_are_the_ledger",
    "charges",
    """
    select coalesce(c.group_id, g.group_id) || ' at ' || coalesce(c.segment_from, g.segment_from) || ': ledger '
           || coalesce(g.gpu_hours, 0) || ', charged ' || coalesce(c.gpu_hours, 0) as told
    from charges as c full join gpu_hours as g
        on c.group_id = g.group_id and c.segment_from = g.segment_from and c.charge_kind = g.charge_kind
           and c.line_key = g.line_key
    where c.gpu_hours is distinct from g.gpu_hours
    """,
    "every line of the ledger is charged once, with its quantity",
)
COST_IS_PRICE_TIMES_OWNED = Proof(
    "2_cost_is_price_times_owned",
    "charges",
    """
    with owned as (select group_id, hour, sum(owned_gpu_hours) as owned from pieces group by group_id, hour),
    billed as (
        select group_id, hour, sum(cost) as cost, any_value(contracted_unit_price) as price
        from charges group by group_id, hour having count(distinct contracted_unit_price) = 1
    )
    select billed.group_id || ' at ' || billed.hour || ': ' || cost || ' is not ' || price || ' x ' || owned as told
    from billed join owned on billed.group_id = owned.group_id and billed.hour = owned.hour
    where cost <> price * owned::decimal(18, 12)
    """,
    "sum of cost = price x owned, per device or group and hour, difference exactly 0",
)
NOT_HELD_ABOVE_OWNED = Proof(
    "4_not_held_above_owned",
    "gpu_hours",
    f"""
    with owned as (
        select group_id, hour, sum(owned_gpu_hours) as owned from pieces group by group_id, hour
    ),
    held as (
        select group_id, hour, sum(gpu_hours) as held from gpu_hours where charge_kind = 'held' group by group_id, hour
    ),
    broken as (
        select held.*, coalesce(owned, 0) as owned
        from held left join owned on held.group_id = owned.group_id and held.hour = owned.hour
        where held > coalesce(owned, 0)
    )
    select broken.group_id || ' at ' || broken.hour || ': held ' || any_value(held) || ' GPU-hours above '
           || any_value(owned) || ' owned, by ' || {_PODS} as told
    from broken join gpu_hours
        on gpu_hours.group_id = broken.group_id and gpu_hours.hour = broken.hour and charge_kind = 'held'
    group by broken.group_id, broken.hour
    """,
    "no device or group is held above what is owned in an hour",
)
NOT_HELD_ABOVE_CAPACITY = Proof(
    "4_not_held_above_capacity",
    "gpu_hours",
    f"""
    with held as (
        select node, hour, sum(gpu_hours) as held from gpu_hours where charge_kind = 'held' group by node, hour
    ), capacity as (
        select node, hour, max(node_capacity) as capacity from devices where node_capacity > 0 group by node, hour
    ), broken as (
        select held.*, capacity
        from held join capacity on held.node = capacity.node and held.hour = capacity.hour
        where held > capacity
    )
    select broken.node || ' at ' || broken.hour || ': held ' || any_value(held) || ' GPU-hours above the '
           || any_value(capacity) || ' GPUs that the node reports, by ' || {_PODS} as told
    from broken join gpu_hours
        on gpu_hours.node = broken.node and gpu_hours.hour = broken.hour and charge_kind = 'held'
    group by broken.node, broken.hour
    """,
    "no node is held above the number of GPUs that its inventory reports",
)
NOTHING_NEGATIVE = Proof(
    "4_nothing_negative",
    "charges",
    """
    select group_id || ' at ' || segment_from || ' ' || charge_kind || ': ' || gpu_hours || ' GPU-hours' as told
    from charges where gpu_hours < 0 or cost < 0 or list_cost < 0 or contracted_unit_price < 0
    """,
    "no quantity, price or cost is negative",
)
OWNED_ONCE = Proof(
    "5_owned_once",
    "devices",
    """
    with pieces as (
        select device_id, node, owned_from, owned_to,
               max(owned_to) over (
                   partition by device_id order by owned_from, owned_to
                   rows between unbounded preceding and 1 preceding
               ) as earlier_to
        from devices
    )
    select device_id || ' on ' || node || ' from ' || owned_from || ': owned twice until ' || earlier_to as told
    from pieces where earlier_to > owned_from
    union all
    select device_id || ' from ' || owned_from || ' to ' || owned_to || ': not inside its hour' as told
    from devices
    where owned_from < hour or owned_to > hour + interval 1 hour or owned_to <= owned_from
          or owned_ms <> epoch_ms(owned_to) - epoch_ms(owned_from)
    """,
    "no device is owned twice at one time, and every piece lies in its hour",
)

# ACCOUNTING 4, worked out again: device-hours, their segments, the lines of every segment, in whole numbers.
RECOMPUTED_LINES = f"""
    with boundaries as (
        select group_id, hour, owned_from as edge from pieces
        union select group_id, hour, owned_to from pieces
        union select group_id, hour, segment_from from gpu_hours
    ),
    stretches as (
        select group_id, hour, edge as segment_from,
               lead(edge) over (partition by group_id, hour order by edge) as segment_to
        from boundaries
    ),
    device_segments as (
        select p.device_id, p.node, p.group_id, p.shared, p.hour, s.segment_from, s.segment_to,
               (epoch_ms(s.segment_to) - epoch_ms(s.segment_from))::bigint as ms
        from pieces as p join stretches as s
            on s.group_id = p.group_id and s.hour = p.hour
               and s.segment_from >= p.owned_from and s.segment_to <= p.owned_to
    ),
    floored as (
        select *, ms * {_NUMERATOR} // {_DENOMINATOR} as units, ms * {_NUMERATOR} % {_DENOMINATOR} as rest
        from device_segments
    ),
    device_hours as (
        select device_id, hour, sum(ms) * {_NUMERATOR} // {_DENOMINATOR}
               + case when sum(ms) * {_NUMERATOR} % {_DENOMINATOR} > {_DENOMINATOR // 2} then 1 else 0 end as total
        from floored group by device_id, hour
    ),
    ranked as (
        select f.*, total - sum(units) over (partition by f.device_id, f.hour) as residue,
               row_number() over (partition by f.device_id, f.hour order by rest desc, segment_from) as place
        from floored as f join device_hours as d on d.device_id = f.device_id and d.hour = f.hour
    ),
    segments as (
        select group_id, hour, segment_from, segment_to, sum(ms) as owned_ms,
               sum(units + case when place <= residue then 1 else 0 end) as total,
               any_value(node) as node, any_value(shared) as shared, any_value(device_id) as device_id
        from ranked group by group_id, hour, segment_from, segment_to
    ),
    hours as (
        select h.*, h.node || '/' || {MODEL_KEY} as shared_group,
               unnest(range(date_trunc('hour', held_from), held_to, interval 1 hour)) as hour
        from holdings as h
    ),
    meetings as (
        select s.group_id, s.segment_from, s.segment_to, h.hold_id, h.held_from, h.held_to, h.share_num, h.share_den
        from hours as h join segments as s on s.hour = h.hour and s.node = h.node and s.device_id = h.device_id
        where not s.shared
        union all
        select s.group_id, s.segment_from, s.segment_to, h.hold_id, h.held_from, h.held_to, h.share_num, h.share_den
        from hours as h join segments as s on s.hour = h.hour and s.group_id = h.shared_group
        where s.shared
    ),
    held as (
        select group_id, segment_from, hold_id, any_value(share_num) as share_num, any_value(share_den) as share_den,
               sum(epoch_ms(least(held_to, segment_to)) - epoch_ms(greatest(held_from, segment_from)))::bigint as ms
        from meetings where held_from < segment_to and held_to > segment_from
        group by group_id, segment_from, hold_id
    ),
    commons as (
        select group_id, segment_from,
               list_reduce(list(distinct share_den), lambda a, b: lcm(a, b))::bigint as common
        from held group by group_id, segment_from
    ),
    taken as (
        select held.group_id, held.segment_from, any_value(common) as common,
               sum(ms * share_num * (common // share_den)) as parts
        from held join commons on commons.group_id = held.group_id and commons.segment_from = held.segment_from
        group by held.group_id, held.segment_from
    ),
    lines as (
        select s.group_id, s.segment_from, 4 as kind_rank, 'held' as charge_kind, hold_id as line_key,
               ms * share_num as ms, share_den as den, total
        from held join segments as s on s.group_id = held.group_id and s.segment_from = held.segment_from
        union all
        select s.group_id, s.segment_from, 0, 'idle', s.group_id, owned_ms * coalesce(common, 1) - coalesce(parts, 0),
               coalesce(common, 1), total
        from segments as s left join taken on s.group_id = taken.group_id and s.segment_from = taken.segment_from
        where owned_ms * coalesce(common, 1) <> coalesce(parts, 0)
    ),
    parts as (
        select *, ms * {_NUMERATOR} as numerator, den * {_DENOMINATOR} as denominator,
               ((ms * {_NUMERATOR} % (den * {_DENOMINATOR})) + den * {_DENOMINATOR}) % (den * {_DENOMINATOR}) as rest
        from lines
    ),
    placed as (
        select *, (numerator - rest) // denominator as units,
               total - sum((numerator - rest) // denominator) over (partition by group_id, segment_from) as residue,
               count(*) over (partition by group_id, segment_from)::bigint as takers,
               row_number() over (
                   partition by group_id, segment_from
                   order by rest * 1000000000 // denominator desc, kind_rank, line_key
               ) as place
        from parts
    )
    select group_id, segment_from, charge_kind, line_key,
           units + (residue - ((residue % takers + takers) % takers)) // takers
                 + case when place <= (residue % takers + takers) % takers then 1 else 0 end as units
    from placed
"""
LINES_RECOMPUTED = Proof(
    "6_lines_recomputed",
    "gpu_hours",
    f"""
    with again as ({RECOMPUTED_LINES}),
    landed as (select group_id, segment_from, charge_kind, line_key, {UNITS} as units from gpu_hours)
    select coalesce(l.group_id, a.group_id) || ' at ' || coalesce(l.segment_from, a.segment_from) || ' '
           || coalesce(l.charge_kind, a.charge_kind) || ': landed ' || coalesce(l.units::varchar, 'nothing')
           || ', recomputed ' || coalesce(a.units::varchar, 'nothing') || ' (units of 1e-12 GPU-hour)' as told
    from landed as l full join again as a
        on l.group_id = a.group_id and l.segment_from = a.segment_from and l.charge_kind = a.charge_kind
           and l.line_key = a.line_key
    where l.units is distinct from a.units
    """,
    "every quantity, worked out again from holdings and devices in whole numbers, is the same",
)
TELEMETRY_COVERAGE = Proof(
    "telemetry_coverage",
    "occupancy",
    """
    select 'held GPU time was measured to ' || round(100 * avg(coverage), 1) || ' %' as told
    from occupancy where charge_kind = 'held' having avg(coverage) < 0.9
    """,
    "held time is measured to 90 % or more",
    blocking=False,
)


def one_row_per_key(table: str, key: Sequence[str]) -> Proof:
    """Proof that no two rows of a table have one key."""
    columns = ", ".join(key)
    named = " || ' ' || ".join(f"coalesce({column}::varchar, 'null')" for column in key)
    sql = f"select {named} || ': ' || count(*) || ' rows' as told from {table} group by {columns} having count(*) > 1"
    return Proof(f"5_{table}_keys_unique", table, sql, f"one row of {table} per {columns}")


FACT_PROOFS = (
    OWNED_IS_EXACT,
    LINES_SUM_TO_OWNED,
    COST_IS_PRICE_TIMES_QUANTITY,
    CHARGES_ARE_THE_LEDGER,
    COST_IS_PRICE_TIMES_OWNED,
    NOT_HELD_ABOVE_OWNED,
    NOT_HELD_ABOVE_CAPACITY,
    NOTHING_NEGATIVE,
    OWNED_ONCE,
    LINES_RECOMPUTED,
    TELEMETRY_COVERAGE,
    *(
        one_row_per_key(name, TABLES[name].schema.primary_key())
        for name in ("devices", "holdings", "gpu_hours", "charges", "occupancy")
    ),
)
