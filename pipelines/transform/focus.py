"""FOCUS rows: charges and their occupancy in the specification's words (schemas.focus, INTERFACE "FOCUS rows").

One charge is one row. Quantities, prices and costs are the charges' own, to the last digit; nothing is computed here
but names, descriptions and tags. Also the metadata that FOCUS wants beside the dataset.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from pipelines.transform.model_names import model_key
from pipelines.transform.occupancy import LINE
from schemas.config import Cluster, Config
from schemas.focus import COST_CENTER, FOCUS_VERSION, LABEL_SOURCES, cost_and_usage, dimension_column
from schemas.tables import polars_schema

UNIT = "GPU-Hours"
DATASET_INSTANCE = "chargeback"
SHARED_FOOTNOTE = " Compute time on a shared GPU cannot be measured per process: the replica is billed, used or not."

_OCCUPANCY = {
    "x_AttributionScope": "attribution_scope",
    "x_TelemetryCoverage": "coverage",
    "x_EngineActiveRatio": "engine_active_ratio",
    "x_DeviceEngineActiveRatio": "device_engine_active_ratio",
    "x_TensorActiveRatio": "tensor_active_ratio",
    "x_ProcessSmRatio": "process_sm_ratio",
    "x_EngineActiveGpuHours": "engine_active_gpu_hours",
    "x_MeasuredGpuHours": "measured_gpu_hours",
    "x_MemoryUsedGiBMean": "memory_used_gib_mean",
    "x_MemoryUsedGiBMax": "memory_used_gib_max",
    "x_MemoryGiBHours": "memory_gib_hours",
    "x_EnergyKwh": "energy_kwh",
}


def focus_rows(charges: pl.LazyFrame, occupancy: pl.LazyFrame, *, config: Config, cluster: Cluster) -> pl.LazyFrame:
    """CostAndUsage rows of one (cluster, day).

    Args:
        charges: rows of `Charges`.
        occupancy: rows of `Occupancy` of the same lines.
        config: names, currency, label schema and idle policy.
        cluster: the cluster of these rows: host provider and region.

    Returns:
        The columns of `schemas.focus.cost_and_usage`, in order. The writer sorts the rows.
    """
    keys = [dimension.key for dimension in config.labels.dimensions]
    schema = polars_schema(cost_and_usage(keys))
    lines = (
        charges.join(occupancy.select(*LINE, *_OCCUPANCY.values()), on=LINE, how="left")
        .pipe(_with_sku)
        .pipe(_with_period)
        .pipe(_with_labels, keys=keys, prefix=config.labels.prefix, idle_cost_center=config.idle.cost_center)
    )
    values = {
        **_who_charges(config, cluster),
        **_what_for(config),
        **_money(config.currency),
        **_where(),
        **_who(),
        **_how_we_know(config.digest()),
        **{column: pl.col(name) for column, name in _OCCUPANCY.items()},
        **{column: pl.col(column) for column in ("Tags", *map(dimension_column, keys), LABEL_SOURCES)},
    }
    # A column that chargeback rows never fill (commitments, splits, invoices) is there, typed, and null.
    columns = [values.get(name, pl.lit(None)).cast(dtype).alias(name) for name, dtype in schema.items()]
    return lines.select(columns)


def _who_charges(config: Config, cluster: Cluster) -> dict[str, pl.Expr]:
    """Constants of the whole partition."""
    billing, region = config.billing, cluster.region
    texts = {
        "BillingAccountId": billing.account.id,
        "BillingAccountName": billing.account.name,
        "BillingAccountType": "Chargeback Account",
        "BillingCurrency": config.currency,
        "PricingCurrency": config.currency,
        "InvoiceIssuerName": billing.issuer,
        "ServiceProviderName": billing.issuer,
        "HostProviderName": cluster.host_provider or billing.issuer,
        "RegionId": region.id if region else None,
        "RegionName": region.name if region else None,
        "ServiceCategory": billing.service_category,
        "ServiceSubcategory": billing.service_subcategory,
        "ServiceName": billing.service_name,
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "SkuMeter": "GPU Time",
        "PricingUnit": UNIT,
        "ConsumedUnit": UNIT,
    }
    return {name: pl.lit(text, dtype=pl.String) for name, text in texts.items()}


def _what_for(config: Config) -> dict[str, pl.Expr]:
    start = pl.col("segment_from")
    month = start.dt.truncate("1mo")
    return {
        "ChargePeriodStart": start,
        "ChargePeriodEnd": pl.col("segment_to"),
        "BillingPeriodStart": month,
        "BillingPeriodEnd": month.dt.offset_by("1mo"),
        "ChargeDescription": _description(config.idle.cost_center),
        "SkuId": pl.col("sku_id"),
        "SkuPriceId": pl.concat_str("sku_id", "pricing_category", _said("rate_id"), separator="/", ignore_nulls=True),
        "SkuPriceDetails": pl.col("sku_details"),
    }


def _money(currency: str) -> dict[str, pl.Expr]:
    quantity, cost = pl.col("gpu_hours"), pl.col("cost")
    listed, contracted = pl.col("list_unit_price"), pl.col("contracted_unit_price")
    return {
        "PricingQuantity": quantity,
        "ConsumedQuantity": quantity,
        "PricingCategory": pl.col("pricing_category"),
        "ListUnitPrice": listed,
        "ContractedUnitPrice": contracted,
        "ListCost": pl.col("list_cost"),
        **dict.fromkeys(("BilledCost", "EffectiveCost", "ContractedCost", "PricingCurrencyEffectiveCost"), cost),
        "PricingCurrencyListUnitPrice": listed,
        "PricingCurrencyContractedUnitPrice": contracted,
    }


def _where() -> dict[str, pl.Expr]:
    node = pl.col("node")
    return {
        "ResourceId": pl.coalesce(_uuid(), pl.format("{}/{}", "cluster", node)),
        "ResourceName": pl.coalesce(pl.when(_uuid().is_not_null()).then(_model_on_node()), "device_id", node),
        "ResourceType": pl.when(_uuid().is_not_null()).then(pl.lit("GPU")).otherwise(pl.lit("Node")),
        "AvailabilityZone": _said("zone"),
        "x_Cluster": pl.col("cluster"),
        "x_NodeName": node,
        "x_NodePool": _said("node_pool"),
        "x_DeviceId": _uuid(),
        "x_DeviceModel": pl.col("model"),
        "x_SharingMode": pl.col("sharing_mode"),
        "x_ShareNumerator": pl.col("share_num"),
        "x_ShareDenominator": pl.col("share_den"),
    }


def _who() -> dict[str, pl.Expr]:
    namespace = _said("namespace")
    return {
        "SubAccountId": pl.format("{}/{}", "cluster", namespace),
        "SubAccountName": namespace,
        "SubAccountType": pl.when(namespace.is_not_null()).then(pl.lit("Kubernetes Namespace")),
        "x_Namespace": namespace,
        "x_PodName": _said("pod"),
        "x_PodUid": _said("pod_uid"),
        "x_OwnerKind": _said("owner_kind"),
        "x_OwnerName": _said("owner_name"),
        "x_HoldId": pl.col("hold_id"),
        "x_HoldStart": pl.col("hold_start"),
        "x_HoldEnd": pl.col("hold_end"),
    }


def _how_we_know(config_digest: str) -> dict[str, pl.Expr]:
    return {
        "x_ChargeKind": pl.col("charge_kind"),
        "x_AllocationModel": pl.col("allocation_model"),
        "x_AllocationReason": _said("allocation_reason"),
        "x_IdlePolicy": _said("idle_policy"),
        "x_Evidence": pl.col("evidence"),
        "x_RateId": _said("rate_id"),
        "x_ConfigDigest": pl.lit(config_digest),
    }


def _uuid() -> pl.Expr:
    """UUID of the device; null where it is unknown, and for a slot `<node>#<n>` that no series shows."""
    device = pl.col("device_id")
    return pl.when(~device.str.starts_with(pl.format("{}#", "node"))).then(device)


def _model_on_node() -> pl.Expr:
    return pl.format("{} on node {}", "model", "node")


def _said(column: str) -> pl.Expr:
    """A text of the data, null where it is empty: FOCUS allows no empty strings."""
    return pl.when(pl.col(column) != "").then(column)


def _is_held() -> pl.Expr:
    return pl.col("hold_id").is_not_null()


def _description(idle_cost_center: str) -> pl.Expr:
    """The charge in a sentence that a finance partner understands."""
    whole = pl.col("share_num") == pl.col("share_den")
    share = pl.when(whole).then(pl.lit("1")).otherwise(pl.format("{}/{}", "share_num", "share_den"))
    hours = pl.col("gpu_hours").cast(pl.String).str.strip_chars_end("0").str.strip_chars_end(".")
    footnote = pl.when(pl.col("sharing_mode").is_in(["time_slicing", "mps"])).then(pl.lit(SHARED_FOOTNOTE))
    held = pl.format(
        "Held {} {} for {} GPU-hours: pod {}/{} on node {}, {} UTC, billed on time held.{}",
        *(share, "model", hours, "namespace", "pod", "node", "period", footnote.otherwise(pl.lit(""))),
    )
    idle = pl.format(
        "Idle {} for {} GPU-hours: owned and held by nobody on node {}, {} UTC, charged to cost center {}.",
        *("model", hours, "node", "period", pl.lit(idle_cost_center)),
    )
    return pl.when(_is_held()).then(held).otherwise(idle)


def _with_sku(lines: pl.LazyFrame) -> pl.LazyFrame:
    """Adds `sku_id` and `sku_details`, the same for every spelling of a model."""
    model = model_key(pl.col("model"))
    shared = pl.col("replicas") > 1
    mode = pl.when(shared).then(pl.format("{}/r{}", "sharing_mode", "replicas")).otherwise("sharing_mode")
    facts = pl.struct(x_GpuModel=model, x_SharingMode=pl.col("sharing_mode"))
    shared_facts = pl.struct(x_GpuModel=model, x_SharingMode=pl.col("sharing_mode"), x_Replicas=pl.col("replicas"))
    return _looked_up(
        lines,
        ["model", "sharing_mode", "replicas"],
        sku_id=pl.format("gpu/{}/{}", model, mode),
        sku_details=pl.when(shared).then(shared_facts.struct.json_encode()).otherwise(facts.struct.json_encode()),
    )


def _with_period(lines: pl.LazyFrame) -> pl.LazyFrame:
    """Adds `period`: `2026-03-02 12:00-13:00`, seconds only where there are some."""
    start, end = pl.col("segment_from"), pl.col("segment_to")
    end_clock = pl.when(end == end.dt.truncate("1d")).then(pl.lit("24:00")).otherwise(_clock(end))
    return _looked_up(
        lines,
        ["segment_from", "segment_to"],
        period=pl.format("{} {}-{}", start.dt.strftime("%Y-%m-%d"), _clock(start), end_clock),
    )


def _clock(instant: pl.Expr) -> pl.Expr:
    return (
        pl.when(instant == instant.dt.truncate("1m"))
        .then(instant.dt.strftime("%H:%M"))
        .when(instant == instant.dt.truncate("1s"))
        .then(instant.dt.strftime("%H:%M:%S"))
        .otherwise(instant.dt.strftime("%H:%M:%S%.3f"))
    )


def _with_labels(lines: pl.LazyFrame, *, keys: Sequence[str], prefix: str, idle_cost_center: str) -> pl.LazyFrame:
    """Adds `Tags`, the flat column of each dimension, and x_LabelSources.

    A hold has its own labels; what nobody holds has the cost center that the idle policy names.
    """
    flat = {key: dimension_column(key) for key in keys}
    full = {key: f"{prefix}/{key}" if prefix else key for key in keys}
    idle = {key: idle_cost_center for key in keys if flat[key] == COST_CENTER}
    values = {key: pl.col("dimensions").str.json_path_match(f'$["{key}"]') for key in keys}
    members = [
        pl.when(values[key].is_not_null()).then(
            pl.concat_str(pl.lit(_json(full[key]) + ":"), _json_string(values[key]))
        )
        for key in sorted(keys)
    ]
    tags = pl.concat_str(members, separator=",", ignore_nulls=True) if members else pl.lit("")
    told = _looked_up(
        lines,
        ["dimensions"],
        Tags=pl.when(tags != "").then(pl.concat_str(pl.lit("{"), tags, pl.lit("}"))),
        **{flat[key]: values[key] for key in keys},
    )
    own = {name: pl.col(name) for name in ("Tags", *flat.values())} | {LABEL_SOURCES: pl.col("label_sources")}
    of_idle = {flat[key]: value for key, value in idle.items()}
    if idle:
        of_idle["Tags"] = _json({full[key]: value for key, value in idle.items()})
        of_idle[LABEL_SOURCES] = _json(dict.fromkeys(idle, "idle_policy"))
    return told.with_columns(
        pl.when(_is_held()).then(value).otherwise(pl.lit(of_idle.get(name), dtype=pl.String)).alias(name)
        for name, value in own.items()
    )


def _json_string(value: pl.Expr) -> pl.Expr:
    """A string as JSON, quotes and control characters escaped."""
    return pl.struct(v=value).struct.json_encode().str.slice(5).str.strip_suffix("}")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _looked_up(lines: pl.LazyFrame, keys: Sequence[str], **columns: pl.Expr) -> pl.LazyFrame:
    """Adds columns that depend on few distinct keys, worked out once per key instead of once per row."""
    distinct = lines.select(keys).unique().with_columns(**columns)
    return lines.join(distinct, on=keys, how="left", nulls_equal=True)


def focus_metadata(
    config: Config,
    published: Mapping[tuple[str, dt.date], dt.datetime],
    *,
    updated_at: dt.datetime,
    generator_version: str,
    previous: Mapping[str, Any] | None = None,
) -> dict[str, object]:
    """The FOCUS metadata of the dataset: who made it, its columns, and how fresh each day is.

    Args:
        config: issuer, clusters and label schema.
        published: (cluster, day) -> when it was last published. A day is complete when every cluster has it.
        updated_at: when the dataset was last updated, UTC.
        generator_version: version of this program.
        previous: the metadata that it replaces: FOCUS wants a new Schema object whenever the columns change, so
            earlier ones are kept, and one that did not change keeps its creation date.
    """
    schema = _schema_metadata(config, generator_version, created_at=updated_at)
    earlier = list(previous["Schema"]) if previous else []
    known = any(entry["SchemaId"] == schema["SchemaId"] for entry in earlier)
    clusters = {cluster.name for cluster in config.clusters}
    sectors = []
    for day in sorted({day for _, day in published}):
        times = {cluster: at for (cluster, date), at in published.items() if date == day}
        start = dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)
        sectors.append(
            {
                "TimeSectorStart": _instant(start),
                "TimeSectorEnd": _instant(start + dt.timedelta(days=1)),
                "TimeSectorLastUpdated": _instant(max(times.values())),
                "TimeSectorComplete": clusters <= times.keys(),
            }
        )
    return {
        "DataGenerator": {"DataGenerator": config.billing.issuer},
        "DatasetInstance": [
            {
                "DatasetInstanceId": DATASET_INSTANCE,
                "DatasetInstanceName": "GPU chargeback",
                "FocusDatasetId": "CostAndUsage",
            }
        ],
        "Schema": earlier if known else [*earlier, schema],
        "Recency": [
            {
                "DatasetInstanceId": DATASET_INSTANCE,
                "DatasetInstanceLastUpdated": _instant(updated_at),
                "RecencyLastUpdated": _instant(updated_at),
                "TimeSectors": sectors,
            }
        ],
    }


def _schema_metadata(config: Config, generator_version: str, *, created_at: dt.datetime) -> dict[str, object]:
    keys = [dimension.key for dimension in config.labels.dimensions]
    definitions = [_column_definition(name, dtype) for name, dtype in polars_schema(cost_and_usage(keys)).items()]
    for definition in definitions:
        if definition["ColumnName"] == "Tags":
            definition["ProviderTagPrefixes"] = [config.labels.prefix] if config.labels.prefix else []
    digest = hashlib.sha256(_json([FOCUS_VERSION, generator_version, definitions]).encode()).hexdigest()
    return {
        "SchemaId": f"{DATASET_INSTANCE}-{digest[:16]}",
        "FocusVersion": FOCUS_VERSION,
        "CreationDate": _instant(created_at),
        "DatasetInstanceId": DATASET_INSTANCE,
        "DataGeneratorVersion": generator_version,
        "ColumnDefinition": definitions,
    }


def _column_definition(name: str, dtype: pl.DataType) -> dict[str, object]:
    match dtype:
        case pl.Decimal():
            return {
                "ColumnName": name,
                "DataType": "DECIMAL",
                "NumericPrecision": dtype.precision,
                "NumberScale": dtype.scale,
            }
        case pl.Datetime():
            return {"ColumnName": name, "DataType": "DATETIME"}
        case pl.Int64():
            return {"ColumnName": name, "DataType": "INTEGER"}
        case _:
            return {"ColumnName": name, "DataType": "STRING", "StringEncoding": "UTF-8"}


def _instant(value: dt.datetime) -> str:
    return value.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
