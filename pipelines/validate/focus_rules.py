"""What FOCUS asks of a partition that the column list does not say, as SQL that finds what breaks it.

Attribution: rules of the FinOps Open Cost and Usage Specification 1.4, (c) FinOps Foundation, CC-BY-4.0.
"""

import dataclasses
from collections.abc import Sequence

from pipelines.validate.proofs import Proof, one_row_per_key
from schemas.focus import row_order

_ROW = "coalesce(ResourceId, '?') || ' at ' || coalesce(ChargePeriodStart::varchar, '?')"
_JSON_COLUMNS = ("Tags", "SkuPriceDetails", "x_LabelSources")
_SKU_COLUMNS = (
    *("SkuId", "ListUnitPrice", "ContractedUnitPrice", "PricingQuantity", "PricingUnit", "PricingCategory"),
    *("ConsumedQuantity", "ConsumedUnit"),
)
# FOCUS unit format, as far as these rows use it: GPU-Hours, GB-Hours, Tokens, 1000 Tokens.
UNIT = "^([0-9]+ )?[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*s|s)?$"


def focus_proofs(text_columns: Sequence[str], never_null: Sequence[str]) -> tuple[Proof, ...]:
    """Proofs of a candidate partition, in the view `focus`; `charges` is beside it.

    Args:
        text_columns: its string columns, none of which may be empty text.
        never_null: columns that every row must fill.
    """
    return (
        _money(),
        _sums(),
        _there(never_null),
        dataclasses.replace(one_row_per_key("focus", row_order()), name="7_focus_rows_unique"),
        _rule("7_focus_null_cascade", _null_cascade(), "SkuPriceId, prices, quantities and units are there together"),
        _rule(
            "7_focus_unit_format",
            f"not regexp_matches(PricingUnit, '{UNIT}') or not regexp_matches(ConsumedUnit, '{UNIT}')",
            "units are spelled as FOCUS does: GPU-Hours",
        ),
        _rule(
            "7_focus_no_empty_text",
            " or ".join(f"\"{name}\" = ''" for name in text_columns),
            "nothing is an empty string: what is not known is null",
        ),
        _rule("7_focus_json", _json(), "JSON columns are objects with scalar values"),
        _rule(
            "7_focus_periods",
            "ChargePeriodEnd <= ChargePeriodStart or ChargePeriodEnd > ChargePeriodStart + interval 1 hour"
            " or ChargePeriodStart < BillingPeriodStart or ChargePeriodEnd > BillingPeriodEnd"
            " or BillingPeriodStart <> date_trunc('month', BillingPeriodStart)"
            " or BillingPeriodEnd <> BillingPeriodStart + interval 1 month",
            "charge periods are at most an hour and lie in their billing month",
        ),
        _rule(
            "7_focus_fixed_values",
            "ChargeCategory <> 'Usage' or ChargeFrequency <> 'Usage-Based' or BillingCurrency <> PricingCurrency"
            " or InvoiceIssuerName <> ServiceProviderName or ConsumedQuantity <> PricingQuantity"
            " or (SubAccountId is null) <> (SubAccountName is null)"
            " or (ResourceId is null) <> (ResourceType is null) or PricingCategory = 'Committed'",
            "rows are usage, in one currency, by one provider",
        ),
        _one("7_focus_sku_price_has_one_sku", "SkuPriceId", "SkuId"),
        _one("7_focus_sku_price_has_one_detail", "SkuPriceId", "SkuPriceDetails"),
        _one("7_focus_service_has_one_category", "ServiceName", "ServiceCategory"),
        _one("7_focus_service_has_one_subcategory", "ServiceName", "ServiceSubcategory"),
    )


def _rule(name: str, broken: str, says: str) -> Proof:
    return Proof(name, "focus", f"select {_ROW} as told from focus where {broken}", says)


def _there(never_null: Sequence[str]) -> Proof:
    nulls = ", ".join(f"case when \"{name}\" is null then '{name}' end" for name in never_null)
    broken = " or ".join(f'"{name}" is null' for name in never_null)
    sql = f"select concat_ws(', ', {nulls}) || ' null in ' || {_ROW} as told from focus where {broken}"
    return Proof("7_focus_never_null", "focus", sql, "columns that FOCUS and we never leave null are there")


def _one(name: str, key: str, value: str) -> Proof:
    sql = (
        f"select {key} || ' has several: ' || string_agg(distinct {value}, ', ' order by {value}) as told from focus"
        f" group by {key} having count(distinct {value}) > 1"
    )
    return Proof(name, "focus", sql, f"one {key} has one {value}")


def _money() -> Proof:
    return Proof(
        "2_focus_cost_identities",
        "focus",
        f"""
        select {_ROW} || ': ' || BilledCost || ' is not ' || ContractedUnitPrice || ' x ' || PricingQuantity as told
        from focus
        where BilledCost <> ContractedUnitPrice * PricingQuantity or EffectiveCost <> BilledCost
              or ContractedCost <> BilledCost or ListCost <> ListUnitPrice * PricingQuantity
              or PricingCurrencyEffectiveCost <> EffectiveCost or PricingCurrencyListUnitPrice <> ListUnitPrice
              or PricingCurrencyContractedUnitPrice <> ContractedUnitPrice
        """,
        "BilledCost = EffectiveCost = ContractedCost = price x quantity; ListCost likewise",
    )


def _sums() -> Proof:
    return Proof(
        "2_focus_sums_to_charges",
        "focus",
        """
        with rows as (
            select x_ChargeKind as kind, count(*) as n, sum(PricingQuantity) as quantity, sum(BilledCost) as cost,
                   sum(ListCost) as list_cost
            from focus group by kind
        ), ledger as (
            select charge_kind as kind, count(*) as n, sum(gpu_hours) as quantity, sum(cost) as cost,
                   sum(list_cost) as list_cost
            from charges group by kind
        )
        select coalesce(rows.kind, ledger.kind) || ': FOCUS rows have ' || coalesce(rows.quantity, 0)
               || ' GPU-hours and ' || coalesce(rows.cost, 0) || ', the charges '
               || coalesce(ledger.quantity, 0) || ' and ' || coalesce(ledger.cost, 0) as told
        from rows full join ledger on rows.kind = ledger.kind
        where rows.n is distinct from ledger.n or rows.quantity is distinct from ledger.quantity
              or rows.cost is distinct from ledger.cost or rows.list_cost is distinct from ledger.list_cost
        """,
        "FOCUS rows sum to the charges, difference exactly 0",
    )


def _null_cascade() -> str:
    return "SkuPriceId is null or " + " or ".join(f"{name} is null" for name in _SKU_COLUMNS)


def _json() -> str:
    nested = "len(list_filter(json_extract({0}, '$.*'), lambda v: json_type(v) in ('OBJECT', 'ARRAY'))) > 0"
    broken = (
        f"case when {name} is null then false when not json_valid({name}) then true"
        f" when json_type({name}) <> 'OBJECT' then true else {nested.format(name)} end"
        for name in _JSON_COLUMNS
    )
    return " or ".join(broken)
