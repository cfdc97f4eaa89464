"""What this version does not bill, found in the data and refused by name, rather than billed wrongly.

Whole devices are billed. A shared device (time-slicing, MPS, MIG, vGPU), a resource other than nvidia.com/gpu, or a
hold that no device answers for stops the day with a sentence that names it.
"""

import polars as pl

from pipelines.transform.devices import Window
from schemas.errors import NotCovered

_SHOWN = 5


def require_whole_devices(telemetry: pl.LazyFrame, nodes: pl.LazyFrame, pods: pl.LazyFrame) -> None:
    """Raise NotCovered if anything in the day's raw layer shares its GPUs.

    Args:
        telemetry: rows of `DeviceTelemetry`.
        nodes: rows of `NodeSighting`.
        pods: rows of `PodSighting`.
    """
    sharing = (pl.col("sharing_strategy").fill_null("none") != "none") | (pl.col("replicas").fill_null(1) > 1)
    other = ~pl.col("resource").is_in(["", "nvidia.com/gpu"])
    shared_nodes = nodes.filter(sharing | (other & (pl.col("capacity") > 0))).select(
        told=pl.format("node {} ({})", "node", pl.coalesce(pl.when(sharing).then("sharing_strategy"), "resource"))
    )
    mig = telemetry.filter(pl.col("gpu_instance_id") != "").select(
        told=pl.format("node {} (MIG instances on {})", "node", "device_id")
    )
    single = nodes.filter(pl.col("mig_strategy") == "single").select(told=pl.format("node {} (MIG single)", "node"))
    asking = pods.filter(other).select(told=pl.format("pod {}/{} (asks for {})", "namespace", "pod", "resource"))
    found = pl.concat([shared_nodes, mig, single, asking]).unique().sort("told").collect()["told"].to_list()
    if found:
        raise NotCovered(
            f"shared GPUs are not billed by this version, whole devices are: found {_listed(found)}. "
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
