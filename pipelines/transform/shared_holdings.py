"""Which devices pods hold replicas of, on nodes that share their devices (ACCOUNTING 2 and 3).

Takes pod lives on such nodes, the replicas that the exporter names, and the owned devices; gives one row per pod and
device with `replicas_held`. In how many parts a device is shared, and so the share, is not known here: see `sharing`.
"""

import polars as pl

from pipelines.transform.intervals import computed
from pipelines.transform.model_names import model_key


def shared_pods(pods: pl.LazyFrame, workloads: pl.LazyFrame, owned: pl.LazyFrame) -> pl.LazyFrame:
    """One row per pod and device that it holds replicas of; the device is null where it cannot be told.

    A replica's device is known where the exporter names the replica (its `vgpu` label), or where the node had one
    device only. A name without a replica is no evidence: the exporter names one arbitrary pod of those on the device.

    Args:
        pods: rows of `pipelines.transform.lifetimes.pod_lives`, of nodes that share their devices.
        workloads: rows of `WorkloadTelemetry`.
        owned: device_id, node, owned_from, owned_to, model.
    """
    named = computed(_named_replicas(pods, workloads))
    single = (
        pods.select("pod_uid", "node", "requested", "hold_start", "hold_end")
        .join(owned, on="node")
        .filter((pl.col("owned_from") < pl.col("hold_end")) & (pl.col("owned_to") > pl.col("hold_start")))
        .group_by("pod_uid")
        .agg(pl.col("device_id").first(), pl.col("requested").first(), devices=pl.col("device_id").n_unique())
        .filter(pl.col("devices") == 1)
        .join(named, on="pod_uid", how="anti")
        .select("pod_uid", "device_id", replicas_held="requested", device_evidence=pl.lit("elimination"))
    )
    known = computed(pl.concat([named, single]))
    unknown = pods.join(known, on="pod_uid", how="anti").select("pod_uid", replicas_held="requested")
    node_model = owned.group_by("node").agg(
        model=pl.when(model_key(pl.col("model")).n_unique() == 1).then(pl.col("model").min())
    )
    return (
        pods.join(pl.concat([known, unknown], how="diagonal"), on="pod_uid")
        .join(owned.group_by("device_id").agg(device_model=pl.col("model").min()), on="device_id", how="left")
        .join(node_model, on="node", how="left")
        .with_columns(
            model=pl.coalesce("device_model", "model"),
            hold_id=pl.format("{}/{}", "pod_uid", pl.col("device_id").fill_null("shared")),
            evidence=pl.lit("inventory"),
        )
        .drop("device_model", "requested")
    )


def _named_replicas(pods: pl.LazyFrame, workloads: pl.LazyFrame) -> pl.LazyFrame:
    """pod_uid, device_id, replicas_held, device_evidence of pods whose every replica was named on a device."""
    return (
        pods.select("pod_uid", "namespace", "pod", "requested", "hold_start", "hold_end")
        .join(
            workloads.filter(pl.col("replica") != "").rename({"pod_uid": "named_uid"}),
            on=["namespace", "pod"],
        )
        .filter((pl.col("named_uid") == "") | (pl.col("named_uid") == pl.col("pod_uid")))
        .filter((pl.col("first_at") >= pl.col("hold_start")) & (pl.col("first_at") <= pl.col("hold_end")))
        .group_by("pod_uid", "device_id")
        .agg(pl.col("requested").first(), replicas_held=pl.col("replica").n_unique().cast(pl.Int64))
        .filter(pl.col("replicas_held").sum().over("pod_uid") == pl.col("requested"))
        .select("pod_uid", "device_id", "replicas_held", device_evidence=pl.lit("telemetry"))
    )
