"""Who held which device, from when to when (ACCOUNTING 2).

Takes pod lives, what the exporter named beside each device, and the owned devices; gives one row per holder, device and
interval (`schemas.tables.Holdings`). Inventory says THAT and WHEN a pod held n devices; telemetry says WHICH. Prices,
labels and hours are not known here: they come in charges, labels and gpu_hours.
"""

import polars as pl

from pipelines.transform.devices import Window
from pipelines.transform.intervals import computed, merged
from pipelines.transform.model_names import model_key
from pipelines.transform.overlaps import without_overlaps
from pipelines.transform.shared_holdings import shared_pods
from pipelines.transform.sharing import EXCLUSIVE, SHAREABLE, shared_nodes, with_shares


def holdings(
    pods: pl.LazyFrame,
    workloads: pl.LazyFrame,
    devices: pl.LazyFrame,
    sharing: pl.LazyFrame,
    *,
    window: Window,
    bridge_ms: int,
) -> pl.LazyFrame:
    """One row per holder, device and interval inside the day.

    A device-plugin pod's devices are fixed for its life, so one unambiguous sample names them for the whole hold. A
    device that nothing names is null: a hold is never dropped and never guessed.

    Args:
        pods: rows of `pipelines.transform.lifetimes.pod_lives`.
        workloads: rows of `WorkloadTelemetry`, edges around the day included.
        devices: rows of `Devices`.
        sharing: rows of `Sharing`.
        window: the day.
        bridge_ms: longest gap in a pod's labels that is bridged where only telemetry knows the pod.

    Returns:
        Rows of `Holdings` less `cluster` and `date`.
    """
    named = computed(_named_devices(workloads))
    known_pods = computed(_extended_by_labels(pods.filter(pl.col("resource").is_in(SHAREABLE)), named))
    owned = computed(_owned_stretches(devices))
    sharing_nodes = computed(shared_nodes(sharing))
    on_shared = known_pods.join(sharing_nodes, on="node", how="semi")
    # On a shared device the exporter names one arbitrary pod: such a name is no evidence there (dcgm-exporter #307).
    own_names = named.join(sharing_nodes, on="node", how="anti")
    by_inventory = computed(_with_devices(known_pods.join(sharing_nodes, on="node", how="anti"), own_names, owned))
    by_telemetry = _known_by_telemetry_only(named, pods, by_inventory, bridge_ms).join(
        owned.group_by("device_id").agg(pl.col("model").min()), on="device_id", how="left"
    )
    held = pl.concat(
        [by_inventory, shared_pods(on_shared, workloads, owned), by_telemetry], how="diagonal"
    ).with_columns(
        pl.col("replicas_held").fill_null(1),
        held_from=pl.max_horizontal("hold_start", pl.lit(window.start).dt.cast_time_unit("ms")),
        held_to=pl.min_horizontal("hold_end", pl.lit(window.end).dt.cast_time_unit("ms")),
        # A hold that goes on after the day is told so, not by when the inventory happened to be read last.
        hold_end=pl.when(pl.col("hold_end") <= pl.lit(window.end).dt.cast_time_unit("ms")).then("hold_end"),
    )
    shares = with_shares(held.filter(pl.col("held_to") > pl.col("held_from")), sharing)
    inside = computed(_inside_ownership(shares, owned))
    alone = pl.col("sharing_mode") == EXCLUSIVE
    # Holds of replicas share a device by nature; what they hold together is judged by the checks.
    together = inside.filter(~alone).drop("end_known", "end_interval_ms")
    return pl.concat([without_overlaps(inside.filter(alone)), together], how="diagonal").with_columns(
        pl.col("resource").fill_null(SHAREABLE[0])
    )


def _named_devices(workloads: pl.LazyFrame) -> pl.LazyFrame:
    """Runs in which the exporter named a pod beside a device, whatever the metric."""
    return workloads.group_by("namespace", "pod", "pod_uid", "device_id", "node", "hour", "first_at").agg(
        pl.col("last_at").max(), pl.col("interval_ms").min()
    )


def _extended_by_labels(pods: pl.LazyFrame, named: pl.LazyFrame) -> pl.LazyFrame:
    """A pod whose end nobody told and nobody saw lasts while the exporter names it, plus one interval."""
    last_named = (
        pods.filter(~pl.col("end_known"))
        .select("pod_uid", "namespace", "pod", "hold_start", "gone_at")
        .join(named.rename({"pod_uid": "named_uid"}), on=["namespace", "pod"], how="inner")
        .filter(_same_pod() & (pl.col("first_at") >= pl.col("hold_start")))
        .filter(pl.col("gone_at").is_null() | (pl.col("first_at") < pl.col("gone_at")))
        .group_by("pod_uid")
        .agg(named_to=(pl.col("last_at") + pl.duration(milliseconds="interval_ms")).max())
    )
    return (
        pods.join(last_named, on="pod_uid", how="left")
        .with_columns(hold_end=pl.min_horizontal(pl.max_horizontal("hold_end", "named_to"), "gone_at"))
        .drop("named_to")
    )


def _same_pod() -> pl.Expr:
    return (pl.col("named_uid") == "") | (pl.col("named_uid") == pl.col("pod_uid"))


def _owned_stretches(devices: pl.LazyFrame) -> pl.LazyFrame:
    """Owned intervals of devices on their nodes, hours joined again."""
    models = devices.group_by("device_id", "node").agg(pl.col("model").min())
    stretches = merged(devices, by=["device_id", "node"], start="owned_from", end="owned_to")
    return stretches.join(models, on=["device_id", "node"])


def _with_devices(pods: pl.LazyFrame, named: pl.LazyFrame, owned: pl.LazyFrame) -> pl.LazyFrame:
    """One row per pod and device that it asked for: named by telemetry, else by elimination, else unknown."""
    candidates = (
        pods.select("pod_uid", "namespace", "pod", "node", "requested", "hold_start", "hold_end")
        .join(named.rename({"pod_uid": "named_uid", "node": "named_node"}), on=["namespace", "pod"], how="inner")
        .filter(_same_pod())
        .filter((pl.col("first_at") >= pl.col("hold_start")) & (pl.col("first_at") <= pl.col("hold_end")))
        # dcgm-exporter #16, #140: a predecessor's label may linger under the same name; it fades, the pod's own stays.
        .with_columns(settled_at=pl.col("hold_start") + pl.duration(milliseconds=2 * pl.col("interval_ms")))
        .group_by("pod_uid", "device_id")
        .agg(pl.col("requested").first(), stays=(pl.col("last_at") >= pl.col("settled_at")).any())
        .with_columns(
            named_count=pl.len().over("pod_uid"), staying_count=pl.col("stays").cast(pl.Int64).sum().over("pod_uid")
        )
    )
    told = candidates.filter(
        (pl.col("named_count") <= pl.col("requested"))
        | (pl.col("stays") & (pl.col("staying_count") <= pl.col("requested")))
    ).select("pod_uid", "device_id", device_evidence=pl.lit("telemetry"))
    told = computed(told)
    told_count = told.group_by("pod_uid").agg(told=pl.len().cast(pl.Int64))
    # A pod that asked for as many devices as its node had during the hold holds them all.
    on_node = (
        pods.select("pod_uid", "node", "requested", "hold_start", "hold_end")
        .join(owned, on="node", how="inner")
        .filter((pl.col("owned_from") < pl.col("hold_end")) & (pl.col("owned_to") > pl.col("hold_start")))
        .group_by("pod_uid", "device_id")
        .agg(pl.col("requested").first())
        .with_columns(on_node=pl.len().over("pod_uid"))
    )
    eliminated = (
        on_node.filter(pl.col("on_node") == pl.col("requested"))
        .join(told_count, on="pod_uid", how="left")
        .filter(pl.col("told").fill_null(0) < pl.col("requested"))
        .select("pod_uid", "device_id", device_evidence=pl.lit("elimination"))
        .join(told, on=["pod_uid", "device_id"], how="anti")
    )
    assigned = computed(pl.concat([told, eliminated]))
    assigned_count = assigned.group_by("pod_uid").agg(assigned=pl.len().cast(pl.Int64))
    unknown = (
        pods.select("pod_uid", "requested")
        .join(assigned_count, on="pod_uid", how="left")
        .with_columns(unknown=pl.int_ranges(0, pl.col("requested") - pl.col("assigned").fill_null(0)))
        .explode("unknown", empty_as_null=True)
        .filter(pl.col("unknown").is_not_null())
        .select("pod_uid", "unknown")
    )
    node_model = owned.group_by("node").agg(
        model=pl.when(model_key(pl.col("model")).n_unique() == 1).then(pl.col("model").min())
    )
    return (
        pods.join(pl.concat([assigned, unknown], how="diagonal"), on="pod_uid", how="inner")
        .join(owned.group_by("device_id").agg(device_model=pl.col("model").min()), on="device_id", how="left")
        .join(node_model, on="node", how="left")
        .with_columns(
            model=pl.coalesce("device_model", "model"),
            hold_id=pl.format("{}/{}", "pod_uid", pl.coalesce("device_id", pl.format("unknown-{}", "unknown"))),
            evidence=pl.lit("inventory"),
        )
        .drop("device_model", "unknown", "requested")
    )


def _known_by_telemetry_only(
    named: pl.LazyFrame, pods: pl.LazyFrame, by_inventory: pl.LazyFrame, bridge_ms: int
) -> pl.LazyFrame:
    """Holds of pods that no inventory knows: from the first named sample to the last one plus one interval.

    Where an inventory's pod holds the device, its evidence is better, and the label was stale.
    """
    unknown_pods = named.join(pods, left_on="pod_uid", right_on="pod_uid", how="anti").join(
        pods, on=["namespace", "pod"], how="anti"
    )
    runs = merged(
        unknown_pods.with_columns(
            pod_uid=pl.when(pl.col("pod_uid") != "").then("pod_uid"),
            end=pl.col("last_at") + pl.duration(milliseconds="interval_ms"),
        ),
        by=["namespace", "pod", "pod_uid", "node", "device_id"],
        start="first_at",
        end="end",
        bridge_ms=bridge_ms,
    ).with_columns(
        hold_id=pl.format(
            "{}/{}/{}/{}", "namespace", "pod", pl.col("first_at").dt.strftime("%Y%m%dT%H%M%S%.3fZ"), "device_id"
        )
    )
    better = (
        runs.join(
            by_inventory.filter(pl.col("device_id").is_not_null()).select("device_id", "hold_start", "hold_end"),
            on="device_id",
            how="inner",
        )
        .filter((pl.col("hold_start") < pl.col("end")) & (pl.col("hold_end") > pl.col("first_at")))
        .group_by("hold_id")
        .agg(
            covered_to=pl.col("hold_end").filter(pl.col("hold_start") <= pl.col("first_at")).max(),
            covered_from=pl.col("hold_start").filter(pl.col("hold_start") > pl.col("first_at")).min(),
        )
    )
    return (
        runs.join(better, on="hold_id", how="left")
        .with_columns(
            hold_start=pl.max_horizontal("first_at", "covered_to"),
            hold_end=pl.min_horizontal("end", "covered_from"),
        )
        .filter(pl.col("hold_end") > pl.col("hold_start"))
        .drop("first_at", "end", "covered_to", "covered_from")
        .with_columns(
            evidence=pl.lit("telemetry"),
            device_evidence=pl.lit("telemetry"),
            end_known=pl.lit(False),
            end_interval_ms=None,
        )
    )


def _inside_ownership(held: pl.LazyFrame, owned: pl.LazyFrame) -> pl.LazyFrame:
    """Holds cut to the time that their device (or, unknown, any device of the node) was owned; what is cut is told."""
    on_node = merged(owned, by=["node"], start="owned_from", end="owned_to")
    known = held.filter(pl.col("device_id").is_not_null()).join(
        owned.drop("model"), on=["device_id", "node"], how="left"
    )
    unknown = held.filter(pl.col("device_id").is_null()).join(on_node, on="node", how="left")
    before = (pl.col("held_to") - pl.col("held_from")).dt.total_milliseconds()
    cut = pl.concat([known, unknown], how="diagonal").with_columns(
        piece="held_from",
        whole_ms=before,
        held_from=pl.max_horizontal("held_from", "owned_from"),
        held_to=pl.min_horizontal("held_to", "owned_to"),
    )
    return (
        cut.filter(pl.col("owned_from").is_not_null() & (pl.col("held_to") > pl.col("held_from")))
        .with_columns(
            kept_ms=before.sum().over("hold_id", "piece"),
            first=pl.col("held_from") == pl.col("held_from").min().over("hold_id", "piece"),
        )
        .with_columns(
            clipped_ms=pl.when("first").then(pl.col("whole_ms") - pl.col("kept_ms")).otherwise(0),
        )
        .with_columns(clip_reason=pl.when(pl.col("clipped_ms") > 0).then(pl.lit("not_owned")))
        .drop("owned_from", "owned_to", "whole_ms", "kept_ms", "first", "piece")
    )
