"""What this version does not bill, found in the data and refused by name, rather than billed wrongly.

Whole devices are billed, and replicas of devices that are shared in time (time-slicing, MPS). MIG and vGPU, another
resource, a node that shares its devices nobody says how, or a hold that no device answers for stops the day with a
sentence that names it.
"""

import polars as pl

from pipelines.transform.devices import Window
from pipelines.transform.sharing import SHAREABLE
from schemas.errors import NotCovered

_SHOWN = 5


def require_known_sharing(
    telemetry: pl.LazyFrame, nodes: pl.LazyFrame, pods: pl.LazyFrame, sharing: pl.LazyFrame
) -> None:
    """Raise NotCovered if anything in the day's raw layer shares its GPUs in a way that is not billed.

    Args:
        telemetry: rows of `DeviceTelemetry`.
        nodes: rows of `NodeSighting`.
        pods: rows of `PodSighting`.
        sharing: rows of `Sharing`.
    """
    unclear = sharing.filter(pl.col("replicas").is_null()).select("node").unique().sort("node").collect()
    if not unclear.is_empty():
        raise NotCovered(
            f"cannot tell in how many parts GPUs are shared: node {_listed(unclear['node'].to_list())}. Expected the "
            "node label nvidia.com/gpu.replicas, or a capacity that is a multiple of the GPUs that DCGM shows; give "
            "the nodes a pool with `replicas` under `pools:`. Nothing was published."
        )
    other = ~pl.col("resource").is_in(["", *SHAREABLE])
    shared_nodes = nodes.filter(other & (pl.col("capacity") > 0)).select(
        told=pl.format("node {} ({})", "node", "resource")
    )
    mig = telemetry.filter(pl.col("gpu_instance_id") != "").select(
        told=pl.format("node {} (MIG instances on {})", "node", "device_id")
    )
    single = nodes.filter(pl.col("mig_strategy") == "single").select(told=pl.format("node {} (MIG single)", "node"))
    asking = pods.filter(other).select(told=pl.format("pod {}/{} (asks for {})", "namespace", "pod", "resource"))
    found = pl.concat([shared_nodes, mig, single, asking]).unique().sort("told").collect()["told"].to_list()
    if found:
        raise NotCovered(
            f"GPUs shared by MIG or vGPU are not billed by this version: found {_listed(found)}. "
            "Nothing was published; leave these nodes to another cluster entry (`matchers`), or wait for a version "
            "that bills them."
        )


def require_devices_for_holds(pods: pl.LazyFrame, holdings: pl.LazyFrame, *, window: Window) -> None:
    """Raise NotCovered if a hold would be lost: no device of its node is known, or its model cannot be told.

    Args:
        pods: rows of `pipelines.transform.lifetimes.pod_lives`.
        holdings: rows of `Holdings`.
        window: the day.
    """
    inside = pods.filter((pl.col("hold_start") < window.end) & (pl.col("hold_end") > window.start))
    lost = inside.filter(pl.col("hold_start") < pl.col("hold_end")).join(
        holdings.select("pod_uid").unique(), on="pod_uid", how="anti"
    )
    told = lost.select(told=pl.format("pod {}/{} on node {}", "namespace", "pod", "node")).collect()["told"].to_list()
    if told:
        raise NotCovered(
            f"held GPUs that nothing else shows: {_listed(sorted(told))}. Expected a DCGM series, a node object or "
            "kube_node_status_capacity for these nodes; found none for the time of the hold. Nothing was published."
        )
    unclear = (
        holdings.filter(pl.col("model").is_null())
        .select(told=pl.format("pod {}/{} on node {}", "namespace", "pod", "node"))
        .unique()
        .collect()["told"]
        .to_list()
    )
    if unclear:
        raise NotCovered(
            f"cannot tell which of a node's GPU models was held: {_listed(sorted(unclear))}. Expected pod labels on "
            "the DCGM series of a node with several models; found none. Nothing was published."
        )


def _listed(things: list[str]) -> str:
    more = len(things) - _SHOWN
    return ", ".join(things[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
