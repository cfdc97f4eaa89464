"""The lake's tables: every column with its type, unit, key and description, once.

Polars schemas, Parquet metadata, the writer's checks, `docs/tables.md` and Dagster's column schemas derive from here.
FOCUS columns are in `schemas.focus`. Instants are UTC milliseconds, intervals half-open [start, end), durations whole
milliseconds in Int64, quantities DECIMAL(18,12), unit prices DECIMAL(18,6), costs DECIMAL(38,18) (ACCOUNTING 4).
"""

import dataclasses

import dataframely as dy
import polars as pl


def _instant(description: str, *, key: bool = False, nullable: bool = False) -> dy.Datetime:
    return dy.Datetime(
        time_unit="ms",
        time_zone="UTC",
        primary_key=key,
        nullable=nullable,
        description=description,
        metadata={"unit": "UTC instant"},
    )


def _text(description: str, *, key: bool = False, nullable: bool = False) -> dy.String:
    return dy.String(primary_key=key, nullable=nullable, description=description)


def _count(description: str, unit: str, *, key: bool = False, nullable: bool = False) -> dy.Int64:
    return dy.Int64(primary_key=key, nullable=nullable, description=description, metadata={"unit": unit})


def _quantity(description: str, unit: str = "GPU-hours", *, nullable: bool = False) -> dy.Decimal:
    return dy.Decimal(18, 12, nullable=nullable, description=description, metadata={"unit": unit})


def _price(description: str) -> dy.Decimal:
    return dy.Decimal(18, 6, description=description, metadata={"unit": "currency per GPU-hour"})


def _cost(description: str) -> dy.Decimal:
    return dy.Decimal(38, 18, description=description, metadata={"unit": "currency"})


def _ratio(description: str) -> dy.Decimal:
    return dy.Decimal(9, 6, nullable=True, description=description, metadata={"unit": "ratio 0..1"})


class Partition(dy.Schema):
    """What every table carries: the partition it belongs to."""

    cluster = _text("Cluster name from the configuration.")
    date = dy.Date(description="UTC day of the partition.")


# --- raw: what was read ------------------------------------------------------------------------------------------


class _Measurement(Partition):
    metric = _text("Canonical metric (data/reference/metric_aliases.csv): engine_active, memory_used, …", key=True)
    hour = _instant(
        "Start of the hour (hour, hour + 1 h] that the samples belong to; a sample covers the time before it."
    )
    device_id = _text("GPU UUID of the card (the parent's, under MIG).", key=True)
    gpu_instance_id = _text("MIG GPU instance id; empty for the whole device.", key=True)
    first_at = _instant("Timestamp of the first sample of this run.", key=True)
    last_at = _instant("Timestamp of the last sample of this run.")
    interval_ms = _count("Scrape interval measured from the series.", "ms")
    instants = _count("Distinct sample timestamps.", "1")
    measured_ms = _count("Time that the samples cover: each min(interval, time since the sample before).", "ms")
    weighted_sum = _count("Sum of value x covered time.", "metric unit x ms")
    value_min = _count("Least value.", "metric unit")
    value_max = _count("Greatest value.", "metric unit")
    value_first = _count("First value.", "metric unit")
    value_last = _count("Last value.", "metric unit")
    increase = _count(
        "Counters only: sum of increases inside the run, a fall counting as a restart from 0.",
        "metric unit",
        nullable=True,
    )
    largest_gap_ms = _count("Longest time between two neighboring samples of the run.", "ms")
    metric_name = _text("Metric name as read; a change of name ends a run.")


class DeviceTelemetry(_Measurement):
    """raw/telemetry: one row per device, metric and run of samples inside one hour.

    A run ends at the hour, at a boundary of a pod's life on the node, at a change of labels or metric name, and
    at a gap longer than the bridging limit. Of several sources of one series one counts at any instant.
    """

    node = _text("Node name that the exporter gave.")
    model = _text("Device model as the exporter gave it.")
    mig_profile = _text("MIG profile as the exporter gave it.", nullable=True)
    source = _text("Scrape source that the samples are from (job, instance, Prometheus replica).")


class WorkloadTelemetry(_Measurement):
    """raw/workload_telemetry: the same per device and workload that the exporter named beside it."""

    node = _text("Node name that the exporter gave.")
    namespace = _text("Namespace of the pod.", key=True)
    pod = _text("Pod name.", key=True)
    pod_uid = _text("Pod UID; empty where the exporter does not give it.", key=True)
    container = _text("Container name; empty where the exporter does not give it.", key=True)
    replica = _text("Replica of a shared device (`vgpu` label); empty elsewhere.", key=True)


class PodSighting(Partition):
    """raw/pods: what one source knew of one pod that asks for GPUs, folded over the day and its edges."""

    source = _text("`snapshot` (Kubernetes API) or `kube_state` (kube-state-metrics).", key=True)
    pod_uid = _text("Pod UID.", key=True)
    resource = _text("Extended resource asked for, in Kubernetes spelling: nvidia.com/gpu.", key=True)
    namespace = _text("Namespace of the pod.")
    pod = _text("Pod name.")
    node = _text("Node that the pod was scheduled to; null while unscheduled.", nullable=True)
    requested = _count("max(largest init container + earlier sidecars, containers + sidecars).", "devices")
    created_at = _instant("Creation of the pod object.", nullable=True)
    scheduled_at = _instant("When the pod was bound to its node.", nullable=True)
    finished_at = _instant(
        "When its last container finished; only where the pod is Succeeded or Failed.", nullable=True
    )
    deletion_at = _instant("deletionTimestamp: when a graceful deletion is due.", nullable=True)
    terminal_seen_at = _instant("First sighting in phase Succeeded or Failed.", nullable=True)
    first_seen_at = _instant("First sighting.")
    last_alive_at = _instant("Last sighting in another phase than Succeeded or Failed.", nullable=True)
    absent_at = _instant(
        "First time after the last sighting that the source was read without it; null: none.", nullable=True
    )
    interval_ms = _count("Time between two readings of the source.", "ms")
    owner_kind = _text("Kind of the controller, resolved upwards where known (Deployment, Job, …).", nullable=True)
    owner_name = _text("Name of the controller.", nullable=True)


class NodeSighting(Partition):
    """raw/nodes: what one source knew of one node with GPUs, folded over the day and its edges."""

    source = _text("`snapshot` or `kube_state`.", key=True)
    node = _text("Node name.", key=True)
    node_uid = _text(
        "UID of the node object, or its system_uuid from kube-state-metrics; empty where unknown.", key=True
    )
    resource = _text("Extended resource, in Kubernetes spelling; empty for a node without GPU resources.", key=True)
    capacity = _count("Most of the resource that the node reported.", "devices or replicas")
    created_at = _instant("Creation of the node object.", nullable=True)
    first_seen_at = _instant("First sighting.")
    last_seen_at = _instant("Last sighting.")
    absent_at = _instant(
        "First time after the last sighting that the source was read without it; null: none.", nullable=True
    )
    interval_ms = _count("Time between two readings of the source.", "ms")
    model = _text("nvidia.com/gpu.product label.", nullable=True)
    sharing_strategy = _text("nvidia.com/gpu.sharing-strategy label.", nullable=True)
    replicas = _count("nvidia.com/gpu.replicas label.", "replicas", nullable=True)
    mig_strategy = _text("nvidia.com/mig.strategy label.", nullable=True)
    zone = _text("topology.kubernetes.io/zone label.", nullable=True)
    provider_id = _text("spec.providerID.", nullable=True)
    labels = _text("Node labels as a JSON object, keys sorted, in the source's spelling.")


class NodeSharing(Partition):
    """raw/node_sharing: a time during which one source saw one sharing configuration of one node's GPU resource."""

    source = _text("`snapshot` or `kube_state`.", key=True)
    node = _text("Node name.", key=True)
    node_uid = _text("As in raw/nodes.", key=True)
    resource = _text("nvidia.com/gpu or nvidia.com/gpu.shared.", key=True)
    first_seen_at = _instant("First sighting of this configuration.", key=True)
    last_seen_at = _instant("Last sighting of it.")
    capacity = _count("The resource that the node reported meanwhile.", "devices or replicas")
    product = _text("nvidia.com/gpu.product label.", nullable=True)
    sharing_strategy = _text("nvidia.com/gpu.sharing-strategy label.", nullable=True)
    replicas = _count("nvidia.com/gpu.replicas label.", "replicas", nullable=True)
    mig_strategy = _text("nvidia.com/mig.strategy label.", nullable=True)
    labels = _text("Node labels as a JSON object, keys sorted, in the source's spelling.")


class PodLabels(Partition):
    """raw/pod_labels: one row per pod and set of labels that it carried, with when it was seen."""

    source = _text("`snapshot` or `kube_state`.", key=True)
    pod_uid = _text("Pod UID.", key=True)
    labels = _text("Labels as a JSON object, keys sorted, in the source's spelling.", key=True)
    first_seen_at = _instant("First sighting of this set.", key=True)
    last_seen_at = _instant("Last sighting of this set.")


class SnapshotObject(dy.Schema):
    """raw/snapshots: the objects of one reading of the Kubernetes API, one Parquet object per instant.

    Only what the ledger reads is kept of an object: no environment, no commands, no volumes, so no secrets.
    """

    cluster = _text("Cluster name from the configuration.")
    observed_at = _instant("When the reading started.")
    kind = _text("Pod, Node, Namespace, ReplicaSet, Job, ResourceClaim, ResourceSlice.", key=True)
    api_version = _text("API version that served it.")
    uid = _text("metadata.uid.", key=True)
    namespace = _text("metadata.namespace.", nullable=True)
    name = _text("metadata.name.")
    object = _text("The kept part of the object, as JSON, keys sorted.")


# --- facts: what was made of it ----------------------------------------------------------------------------------


class Devices(Partition):
    """devices: every device that was owned, by node and hour. Ownership: ACCOUNTING 1."""

    device_id = _text("GPU UUID; `<node>#<n>` for a slot that the node has and no series shows.", key=True)
    node = _text("Node name.", key=True)
    owned_from = _instant("Start of the owned time inside the hour.", key=True)
    owned_to = _instant("End of the owned time inside the hour.")
    hour = _instant("Start of the hour.")
    owned_ms = _count("owned_to - owned_from.", "ms")
    owned_gpu_hours = _quantity("Owned GPU-hours, fitted so that the device-hour is exact.")
    has_uuid = dy.Bool(description="False for a slot known from the node's capacity only.")
    model = _text("Device model as DCGM gives it, else the node's product label.")
    node_uid = _text("UID of the node object; null where no inventory knows the node.", nullable=True)
    node_pool = _text("Node pool, from the configuration or the provider's node label.", nullable=True)
    zone = _text("Availability zone of the node.", nullable=True)
    node_capacity = _count("Devices that the node's inventory reports; null where none does.", "devices", nullable=True)
    evidence = _text("What shows it: `telemetry`, `inventory`, or both joined by `+`.")


class Sharing(Partition):
    """sharing: how each node shared its devices, from when to when inside the day, and what says so. ACCOUNTING 3."""

    node = _text("Node name.", key=True)
    shared_from = _instant("Start of this mode inside the day.", key=True)
    shared_to = _instant("End of it inside the day.")
    sharing_mode = _text("exclusive, time_slicing, mps.")
    replicas = _count("Parts that each device is shared in; 1 where it is not.", "replicas")
    node_capacity = _count(
        "Devices that the node has: what it advertises, over the replicas.", "devices", nullable=True
    )
    sharing_evidence = _text(
        "config, node label, strategy label, resource name, product name, replica labels; none: nothing says so."
    )


class Holdings(Partition):
    """holdings: who held which device, from when to when, inside the day. ACCOUNTING 2."""

    hold_id = _text("Stable id of the hold: one holder, one device (or one unknown device), one start.", key=True)
    held_from = _instant("Start of the hold inside the day.", key=True)
    held_to = _instant("End of the hold inside the day.")
    hold_start = _instant("Start of the hold; may lie before the day.")
    hold_end = _instant("End of the hold; null where it goes on after the day.", nullable=True)
    device_id = _text("Device held; null where it cannot be told.", nullable=True)
    node = _text("Node name.")
    model = _text("Model of the device, or of the node's devices where the device is unknown.", nullable=True)
    resource = _text("Resource asked for; `nvidia.com/gpu`.")
    sharing_mode = _text("exclusive, time_slicing, mps; later also mig, dra, vgpu.")
    share_num = _count("Share of one device, numerator.", "1")
    share_den = _count("Share of one device, denominator.", "1")
    namespace = _text("Namespace of the holder.")
    pod = _text("Pod name.")
    pod_uid = _text("Pod UID; null where only telemetry knows the pod.", nullable=True)
    owner_kind = _text("Kind of the controller.", nullable=True)
    owner_name = _text("Name of the controller.", nullable=True)
    evidence = _text("Best evidence of the hold: claim, kubelet, inventory, telemetry.")
    device_evidence = _text("How the device is known: telemetry, elimination; null where it is not.", nullable=True)
    clipped_ms = _count("Time taken off because another hold or the device's ownership says so.", "ms")
    clip_reason = _text("overlap, not_owned, null.", nullable=True)


class GpuHours(Partition):
    """gpu_hours: the ledger. Lines of every device-hour, held and idle, that sum to owned exactly. ACCOUNTING 4."""

    group_id = _text(
        "Reconciliation group: the device, or `<node>/<model>` in an hour when a holder's device is unknown.", key=True
    )
    segment_from = _instant("Start of the segment.", key=True)
    segment_to = _instant("End of the segment.")
    hour = _instant("Start of the hour.")
    charge_kind = _text("held, idle; later also held_unused, stranded, unattributed, shared, rounding.", key=True)
    line_key = _text("hold_id for a hold, else the group.", key=True)
    gpu_hours = _quantity("Quantity of the line.")
    line_ms = _count("Time behind the quantity, before its share; idle: whole ms of owned less held shares.", "ms")
    share_num = _count("Share of one device, numerator.", "1")
    share_den = _count("Share of one device, denominator.", "1")
    sharing_mode = _text("exclusive, time_slicing, mps: of the hold; of idle, the node's at that time.")
    replicas = _count("Parts that the device was shared in; 1 where it was not.", "replicas")
    device_id = _text("Device; null where it cannot be told.", nullable=True)
    node = _text("Node name.")
    node_pool = _text("Node pool.", nullable=True)
    zone = _text("Availability zone.", nullable=True)
    model = _text("Device model.")
    hold_id = _text("The hold; null for idle.", nullable=True)
    hold_start = _instant("Start of the hold.", nullable=True)
    hold_end = _instant("End of the hold; null where it goes on after the day.", nullable=True)
    namespace = _text("Namespace of the holder.", nullable=True)
    pod = _text("Pod name.", nullable=True)
    pod_uid = _text("Pod UID.", nullable=True)
    owner_kind = _text("Kind of the controller.", nullable=True)
    owner_name = _text("Name of the controller.", nullable=True)
    evidence = _text("Evidence of the hold; of the device for idle.")
    dimensions = _text("JSON object: dimension -> value, only those that have one; keys sorted.", nullable=True)
    label_sources = _text(
        "JSON object: dimension -> label, virtual_tag, …, missing, invalid; null for idle.", nullable=True
    )


class Occupancy(Partition):
    """occupancy: how busy each line's device was. Shown, never billed. ACCOUNTING 5. Same grain as gpu_hours."""

    group_id = _text("As in gpu_hours.", key=True)
    segment_from = _instant("As in gpu_hours.", key=True)
    charge_kind = _text("As in gpu_hours.", key=True)
    line_key = _text("As in gpu_hours.", key=True)
    hour = _instant("Start of the hour.")
    dimensions = _text("As in gpu_hours.", nullable=True)
    label_sources = _text("As in gpu_hours.", nullable=True)
    attribution_scope = _text("process, instance, device, none.")
    coverage = _ratio("min(1, distinct instants / max(1, floor(held / interval))); null for idle.")
    engine_active_ratio = _ratio("Time-weighted mean of the graphics engine active while held; null: not measured.")
    tensor_active_ratio = _ratio("Likewise, tensor pipes.")
    sm_active_ratio = _ratio("Likewise, SMs.")
    dram_active_ratio = _ratio("Likewise, DRAM interface.")
    device_engine_active_ratio = _ratio("The device's own figure over the segment, whoever held it. Never summed.")
    process_sm_ratio = _ratio("A pod's own SM time on a shared device; null here.")
    engine_active_gpu_hours = _quantity("engine_active_ratio x measured_gpu_hours: what BI sums.", nullable=True)
    measured_gpu_hours = _quantity("GPU-hours for which the engine was measured.", nullable=True)
    memory_used_gib_mean = dy.Decimal(
        18, 6, nullable=True, description="Mean framebuffer used.", metadata={"unit": "GiB"}
    )
    memory_used_gib_max = dy.Decimal(
        18, 6, nullable=True, description="Most framebuffer used.", metadata={"unit": "GiB"}
    )
    memory_gib_hours = dy.Decimal(
        18, 6, nullable=True, description="Mean framebuffer x measured hours.", metadata={"unit": "GiB-hours"}
    )
    energy_kwh = dy.Decimal(
        18, 9, nullable=True, description="Board energy of the line's share.", metadata={"unit": "kWh"}
    )


class Charges(GpuHours):
    """charges: the ledger with its price. cost = price x gpu_hours, exact: 18 places, no rounding."""

    rate_id = _text("Rate row.", nullable=True)
    pricing_category = _text("Standard, Dynamic or Other.")
    list_unit_price = _price("List price.")
    contracted_unit_price = _price("Contracted price.")
    list_cost = _cost("list_unit_price x gpu_hours.")
    cost = _cost("contracted_unit_price x gpu_hours: what is billed.")
    allocation_model = _text("held; later also occupancy, hybrid.")
    allocation_reason = _text("Why this model.", nullable=True)
    idle_policy = _text("platform, for idle lines.", nullable=True)


class LabelCoverage(Partition):
    """label_coverage: share of held GPU-hours by dimension and by where the value came from."""

    dimension = _text("Dimension key without its prefix: cost-center.", key=True)
    label_source = _text("label, virtual_tag, namespace, default, missing, invalid.", key=True)
    required = dy.Bool(description="Whether the configuration requires the dimension.")
    gpu_hours = _quantity("Held GPU-hours.")
    held_gpu_hours = _quantity("All held GPU-hours of the day.")


class Reconciliation(Partition):
    """reconciliation: owned against the lines, per group and hour; the difference is 0 or nothing is published."""

    group_id = _text("As in gpu_hours.", key=True)
    hour = _instant("Start of the hour.", key=True)
    node = _text("Node name; of several in the hour, the first.")
    model = _text("Device model.")
    owned_gpu_hours = _quantity("From devices.")
    held_gpu_hours = _quantity("Held lines.")
    idle_gpu_hours = _quantity("Idle lines.")
    difference_gpu_hours = _quantity("owned - sum of lines.")
    cost = _cost("Sum of the lines' cost.")
    owned_cost = _cost("Sum of price x owned over the group's segments.")
    difference_cost = _cost("owned_cost - cost.")


class Findings(Partition):
    """findings: what a person should know and what does not stop the day: warnings, clips, gaps."""

    code = _text("label_coverage, telemetry_coverage, clip, over_capacity, telemetry_only, …", key=True)
    subject = _text("What it is about: a node, device, pod or namespace.", key=True)
    message = _text("The sentence for a person.")
    affected = _count("How many things, or milliseconds where the message says so.", "1")


class CheckResults(Partition):
    """checks: the outcome of every check of the latest attempt at a day, published or not."""

    check = _text("Name of the check.", key=True)
    passed = dy.Bool(description="Whether it held.")
    blocking = dy.Bool(description="Whether its failure stops publication.")
    detail = _text("What was expected and found.")


@dataclasses.dataclass(frozen=True)
class Table:
    """A table's place in the lake: `<lake>/<name>/cluster=<c>/date=<d>/part.parquet`."""

    name: str
    schema: type[dy.Schema]


RAW_TABLES = (
    Table("raw/inventory_findings", Findings),
    Table("raw/telemetry_findings", Findings),
    Table("raw/telemetry", DeviceTelemetry),
    Table("raw/workload_telemetry", WorkloadTelemetry),
    Table("raw/pods", PodSighting),
    Table("raw/nodes", NodeSighting),
    Table("raw/node_sharing", NodeSharing),
    Table("raw/pod_labels", PodLabels),
)
FACT_TABLES = (
    Table("sharing", Sharing),
    Table("devices", Devices),
    Table("holdings", Holdings),
    Table("gpu_hours", GpuHours),
    Table("occupancy", Occupancy),
    Table("charges", Charges),
    Table("label_coverage", LabelCoverage),
    Table("reconciliation", Reconciliation),
    Table("findings", Findings),
)
CHECKS_TABLE = Table("checks", CheckResults)
# One object per instant: `<lake>/raw/snapshots/cluster=<c>/date=<d>/<HHMMSS.mmm>Z.parquet`.
SNAPSHOTS_TABLE = Table("raw/snapshots", SnapshotObject)
TABLES = {table.name: table for table in (*RAW_TABLES, *FACT_TABLES, CHECKS_TABLE)}


def polars_schema(schema: type[dy.Schema]) -> pl.Schema:
    """Column names and Polars types of a table, in order."""
    return pl.Schema({name: column.dtype for name, column in schema.columns().items()})
