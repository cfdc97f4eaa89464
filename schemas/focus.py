"""FOCUS 1.4 CostAndUsage as data: the 65 columns of the specification, our x_ columns, one x_ column per dimension.

The specification's part is data/reference/focus_columns_1_4.csv; types, nulls, allowed values and descriptions derive
from it. How rows are made is in `pipelines.transform.focus`, how they are judged in `pipelines.validate`.
"""

import csv
import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import dataframely as dy

FOCUS_VERSION = "1.4"
LABEL_SOURCES = "x_LabelSources"
COST_CENTER = "x_CostCenter"
DEFAULT_DIMENSIONS = ("cost-center", "workload-kind", "model", "tenant")
# One row of a partition: a device (or slot, or node and model), a segment, what it is charged for, and who holds it.
ROW_KEY = ("ChargePeriodStart", "ResourceId", "x_ChargeKind", "x_HoldId", "ResourceName", "x_DeviceModel")

_REFERENCE = Path(__file__).resolve().parents[1] / "data" / "reference"
_QUANTITIES = {"PricingQuantity", "ConsumedQuantity", "CommitmentDiscountQuantity"}
_CUSTOM_NAME_LENGTH = 50  # FOCUS: custom columns have at most 50 characters.


@dataclasses.dataclass(frozen=True, slots=True)
class FocusColumn:
    """One column of the specification. `carries` says what a chargeback row has in it."""

    name: str
    data_type: str
    feature_level: str
    nullable: bool
    value_format: str
    allowed: tuple[str, ...]
    carries: str


@functools.cache
def focus_columns() -> tuple[FocusColumn, ...]:
    """The 65 columns of CostAndUsage, in the specification's order."""
    return tuple(
        FocusColumn(
            name=row["column_id"],
            data_type=row["data_type"],
            feature_level=row["feature_level"],
            nullable=row["allows_nulls"] == "true",
            value_format=row["value_format"],
            allowed=tuple(row["allowed_values"].split("|")) if row["allowed_values"] else (),
            carries=row["carries"],
        )
        for row in _rows("focus_columns_1_4.csv")
    )


@functools.cache
def service_categories() -> dict[str, str]:
    """ServiceSubcategory -> the one ServiceCategory that it belongs to."""
    return {row["service_subcategory"]: row["service_category"] for row in _rows("focus_service_subcategories_1_4.csv")}


def dimension_column(key: str) -> str:
    """Flat column of a label dimension: `cost-center` -> `x_CostCenter`. May be longer than FOCUS allows: see below."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", key) if word]
    return "x_" + "".join(word[0].upper() + word[1:] for word in words)


def is_custom_name(name: str) -> bool:
    """Whether FOCUS allows a custom column or JSON key of this name: x_ and PascalCase, at most 50 characters."""
    return len(name) <= _CUSTOM_NAME_LENGTH and re.fullmatch(r"x_[A-Z][A-Za-z0-9]*", name) is not None


def own_columns() -> dict[str, dy.Column]:
    """Our x_ columns less the dimensions' and x_LabelSources, which come after them, in order."""
    return {
        # where
        "x_Cluster": _text("Cluster name from the configuration.", nullable=False),
        "x_NodeName": _text("Node name.", nullable=False),
        "x_NodePool": _text("Node pool, from the configuration or the provider's node label."),
        "x_DeviceId": _text("GPU UUID of the card; null where it cannot be told."),
        "x_DeviceModel": _text("Device model as DCGM gives it.", nullable=False),
        "x_MigUuid": _text("UUID of the MIG instance; null for whole devices."),
        "x_MigProfile": _text("Profile of the MIG instance; null for whole devices."),
        "x_SharingMode": _text("exclusive; later also time_slicing, mps, mig, dra, vgpu.", nullable=False),
        "x_ShareNumerator": dy.Int64(nullable=False, description="Share of one device, numerator."),
        "x_ShareDenominator": dy.Int64(nullable=False, description="Share of one device, denominator."),
        # who
        "x_Namespace": _text("Namespace of the holder; null where nobody holds."),
        "x_PodName": _text("Pod of the holder."),
        "x_PodUid": _text("UID of the pod; null where only telemetry knows it."),
        "x_ContainerName": _text("Container, where one container of the pod is known to hold the device."),
        "x_OwnerKind": _text("Kind of the pod's controller."),
        "x_OwnerName": _text("Name of the pod's controller."),
        "x_ClaimName": _text("ResourceClaim of the hold; null for extended resources."),
        "x_HoldId": _text("Stable id of the hold; null where nobody holds."),
        "x_HoldStart": _instant("Start of the hold; may lie before the charge period.", nullable=True),
        "x_HoldEnd": _instant("End of the hold; null where it goes on after the day.", nullable=True),
        # how we know
        "x_ChargeKind": _text("held, idle; later also held_unused, stranded, unattributed, shared.", nullable=False),
        "x_AllocationModel": _text("What is billed of a hold: held (the time).", nullable=False),
        "x_AllocationReason": _text("Why this model, where another one was asked for."),
        "x_IdlePolicy": _text("Who pays for idle capacity: platform; null for holds."),
        "x_Evidence": _text("Best evidence: claim, kubelet, inventory, telemetry.", nullable=False),
        "x_AttributionScope": _text("Whose the occupancy is: process, instance, device, none.", nullable=False),
        "x_TelemetryCoverage": _ratio("Part of the hold for which telemetry exists; null where nobody holds."),
        "x_RateId": _text("Rate row."),
        "x_ConfigDigest": _text("Digest of the configuration that made the row.", nullable=False),
        # shown, not billed
        "x_EngineActiveRatio": _ratio("Mean of the graphics engine active while held; null: not measured."),
        "x_DeviceEngineActiveRatio": _ratio("The device's own figure over the segment, whoever held it. Never summed."),
        "x_TensorActiveRatio": _ratio("Mean of the tensor pipes active while held."),
        "x_ProcessSmRatio": _ratio("A pod's own SM time on a shared device."),
        "x_EngineActiveGpuHours": _quantity("x_EngineActiveRatio x x_MeasuredGpuHours: what BI sums.", nullable=True),
        "x_MeasuredGpuHours": _quantity("GPU-hours for which the engine was measured.", nullable=True),
        "x_MemoryUsedGiBMean": _decimal(18, 6, "Mean framebuffer used, GiB."),
        "x_MemoryUsedGiBMax": _decimal(18, 6, "Most framebuffer used, GiB."),
        "x_MemoryGiBHours": _decimal(18, 6, "Mean framebuffer used x measured hours, GiB-hours."),
        "x_EnergyKwh": _decimal(18, 9, "Board energy of the line, kWh."),
    }


def cost_and_usage(dimensions: Sequence[str]) -> type[dy.Schema]:
    """Schema of CostAndUsage rows: 65 FOCUS columns, our x_ columns, one per dimension key, x_LabelSources last.

    Args:
        dimensions: keys of the label schema without their prefix, in the configured order: `cost-center`, …

    Raises:
        ValueError: a dimension has no valid column name, or the name of another column. The configuration sees to it.
    """
    columns: dict[str, dy.Column] = {column.name: _specified(column) for column in focus_columns()} | own_columns()
    for key in dimensions:
        name = dimension_column(key)
        if not is_custom_name(name) or name in columns or name == LABEL_SOURCES:
            raise ValueError(f"dimension {key!r}: expected a column name of its own, found {name!r}.")
        columns[name] = _text(f"Label dimension {key}, flat: the same value as in Tags.")
    columns[LABEL_SOURCES] = _text("JSON object: dimension -> label, virtual_tag, idle_policy, …, missing, invalid.")
    return type("CostAndUsage", (dy.Schema,), dict(columns))


def row_order() -> list[str]:
    """Columns that order the rows of a partition totally; they are unique in it."""
    return list(ROW_KEY)


def _specified(column: FocusColumn) -> dy.Column:
    metadata = {"allowed": column.allowed} if column.allowed else None
    match column.data_type:
        case "Decimal" if column.name in _QUANTITIES:
            return _quantity(column.carries, nullable=column.nullable)
        case "Decimal" if column.name.endswith("UnitPrice"):
            return _decimal(18, 6, column.carries, nullable=column.nullable)
        case "Decimal":
            return _decimal(38, 18, column.carries, nullable=column.nullable)
        case "Date/Time":
            return _instant(column.carries, nullable=column.nullable)
        case "String" | "JSON":
            return dy.String(nullable=column.nullable, description=column.carries, metadata=metadata)
        case other:
            raise ValueError(f"focus_columns_1_4.csv: {column.name} has the unknown data type {other!r}.")


def _text(description: str, *, nullable: bool = True) -> dy.String:
    return dy.String(nullable=nullable, description=description)


def _instant(description: str, *, nullable: bool) -> dy.Datetime:
    return dy.Datetime(time_unit="ms", time_zone="UTC", nullable=nullable, description=description)


def _decimal(precision: int, scale: int, description: str, *, nullable: bool = True) -> dy.Decimal:
    return dy.Decimal(precision, scale, nullable=nullable, description=description)


def _quantity(description: str, *, nullable: bool) -> dy.Decimal:
    return _decimal(18, 12, description, nullable=nullable)


def _ratio(description: str) -> dy.Decimal:
    return _decimal(9, 6, description)


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (_REFERENCE / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
