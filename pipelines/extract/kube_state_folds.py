"""What kube-state-metrics intervals, facts and scrapes say of each pod and node: pure, frames in, frames out.

Copies (two kube-state-metrics, an HA pair of Prometheus) say the same thing more than once: nothing here adds them up.
"""

import polars as pl

from pipelines.extract.sharing_periods import SHAREABLE, SHARING, sharing_periods

# Where a source was scraped once only.
_DEFAULT_INTERVAL_MS = 30_000
_INSTANT = pl.Datetime("ms", "UTC")
_LABEL_COLUMNS = {
    "model": "label_nvidia_com_gpu_product",
    "sharing_strategy": "label_nvidia_com_gpu_sharing_strategy",
    "mig_strategy": "label_nvidia_com_mig_strategy",
    "zone": "label_topology_kubernetes_io_zone",
}
_REPLICAS = "label_nvidia_com_gpu_replicas"


def pods(
    requests: pl.DataFrame,
    facts: pl.DataFrame,
    terminal: pl.DataFrame,
    replica_sets: pl.DataFrame,
    scrapes: pl.DataFrame,
) -> pl.DataFrame:
    """Rows of PodSighting, but for cluster and date.

    Args:
        requests: per tile and series: hour, name, source, job, uid, namespace, pod, node, container, resource,
            first_at, last_at, amount.
        facts: name, uid, node, container, restart_policy, owner_kind, owner_name, owner_is_controller, value.
        terminal: per tile and pod seen Succeeded or Failed in it: hour, uid, terminal_at, alive_at (null: never).
        replica_sets: namespace, replicaset, owner_kind, owner_name.
        scrapes: source, job, at.
    """
    seen = (
        requests.group_by("hour", "uid")
        .agg(pl.col("first_at").min(), pl.col("last_at").max())
        .join(terminal, on=["hour", "uid"], how="left")
        # A pod does not come back from Succeeded or Failed: in their tile the phase tells until when it lived.
        .with_columns(alive_at=pl.when(pl.col("terminal_at").is_null()).then("last_at").otherwise("alive_at"))
        .group_by("uid")
        .agg(
            first_seen_at=pl.col("first_at").min(),
            last_alive_at=pl.col("alive_at").max(),
            terminal_seen_at=pl.col("terminal_at").min(),
        )
    )
    named = requests.group_by("uid").agg(pl.col("namespace", "pod").max(), requested_on=pl.col("node").max())
    looked = absences(requests.select("uid", "source", "job", seen_at="last_at"), scrapes, key=["uid"])
    return (
        requested(requests, facts)
        .join(named, on="uid")
        .join(seen, on="uid")
        .join(looked, on="uid")
        .join(_timestamps(facts), on="uid", how="left")
        .join(_owners(facts, named, replica_sets), on="uid", how="left")
        .with_columns(
            source=pl.lit("kube_state"),
            pod_uid="uid",
            node=pl.coalesce("requested_on", "node"),
            # Of a pod that still runs it is the latest of those containers that are done.
            finished_at=pl.when(pl.col("terminal_seen_at").is_not_null()).then("finished_at"),
        )
    )


def requested(requests: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """uid, resource (in Kubernetes spelling), requested: max(largest init container + sidecars, containers + sidecars).

    An init container that restarts always is a sidecar. The order of init containers is not in the series, so every
    sidecar counts as earlier than the largest init container. Pods that ask for nothing are left out.
    """
    sidecars = (
        facts.filter((pl.col("name") == "kube_pod_init_container_info") & (pl.col("restart_policy") == "Always"))
        .select("uid", "container", is_sidecar=pl.lit(True))
        .unique()
    )
    amount = pl.col("amount")
    is_init, is_sidecar = pl.col("is_init"), pl.col("is_init") & pl.col("is_sidecar").fill_null(False)
    return (
        requests.group_by(
            "uid", "resource", "container", is_init=pl.col("name") == "kube_pod_init_container_resource_requests"
        )
        .agg(amount.max().round().cast(pl.Int64))
        .join(sidecars, on=["uid", "container"], how="left")
        .group_by("uid", kubernetes_resource("resource"))
        .agg(
            requested=pl.max_horizontal(amount.filter(~is_init).sum(), amount.filter(is_init & ~is_sidecar).max())
            + amount.filter(is_sidecar).sum()
        )
        .filter(pl.col("requested") > 0)
    )


def kubernetes_resource(column: str) -> pl.Expr:
    """nvidia_com_mig_1g_10gb -> nvidia.com/mig-1g.10gb, nvidia_com_gpu_shared -> nvidia.com/gpu.shared."""
    name = pl.col(column).str.strip_prefix("nvidia_com_")
    dotted = name.str.replace_all("_", ".", literal=True)
    spelled = (
        pl.when(name.str.starts_with("mig_"))
        .then(dotted.str.replace("mig.", "mig-", literal=True))
        .when(name.str.starts_with("gpu_"))
        .then(dotted)
        .otherwise(name)
    )
    return pl.format("nvidia.com/{}", spelled).alias(column)


def _timestamps(facts: pl.DataFrame) -> pl.DataFrame:
    """What the series of single values and of the pod's node say, per uid."""

    def instant(metric: str) -> pl.Expr:
        seconds = pl.col("value").filter((pl.col("name") == metric) & (pl.col("value") > 0))
        return (seconds.max() * 1000).round().cast(pl.Int64).cast(_INSTANT)

    return facts.group_by("uid").agg(
        created_at=instant("kube_pod_created"),
        scheduled_at=instant("kube_pod_status_scheduled_time"),
        finished_at=instant("kube_pod_completion_time"),
        deletion_at=instant("kube_pod_deletion_timestamp"),
        node=pl.col("node").filter(pl.col("name") == "kube_pod_info").max(),
    )


def _owners(facts: pl.DataFrame, named: pl.DataFrame, replica_sets: pl.DataFrame) -> pl.DataFrame:
    """uid, owner_kind, owner_name of the controller; of a ReplicaSet, its own."""
    return (
        controllers(facts.filter(pl.col("name") == "kube_pod_owner"))
        .group_by("uid")
        .agg(pl.struct("owner_kind", "owner_name").sort().first().alias("owner"))
        .unnest("owner")
        .join(named.select("uid", "namespace"), on="uid")
        .join(
            controllers(replica_sets)
            .group_by("namespace", owner_name="replicaset")
            .agg(pl.struct(above_kind="owner_kind", above_name="owner_name").sort().first().alias("above"))
            .unnest("above")
            .with_columns(owner_kind=pl.lit("ReplicaSet")),
            on=["namespace", "owner_kind", "owner_name"],
            how="left",
        )
        .select(
            "uid",
            owner_kind=pl.coalesce("above_kind", "owner_kind"),
            owner_name=pl.coalesce("above_name", "owner_name"),
        )
    )


def controllers(owners: pl.DataFrame) -> pl.DataFrame:
    """Owner series that name a controller (`<none>` stands for no owner)."""
    return owners.filter((pl.col("owner_is_controller") == "true") & (pl.col("owner_kind") != "<none>"))


def terminal(phases: pl.DataFrame) -> pl.DataFrame:
    """hour, uid, terminal_at, alive_at: first sighting as Succeeded or Failed in a tile, last one as neither.

    Args:
        phases: samples of the series of these two phases: hour, source, uid, at, value.
    """
    is_terminal = pl.col("value") > 0
    return (
        phases.group_by("hour", "uid", "source", "at")
        .agg(pl.col("value").max())
        .group_by("hour", "uid")
        .agg(terminal_at=pl.col("at").filter(is_terminal).min(), alive_at=pl.col("at").filter(~is_terminal).max())
        .filter(pl.col("terminal_at").is_not_null())
    )


def pod_labels(seen: pl.DataFrame) -> pl.DataFrame:
    """Rows of PodLabels, but for cluster and date: a set of labels from its first to its last sighting in a row.

    Args:
        seen: per tile and series: uid, labels (JSON), first_at, last_at.
    """
    return (
        seen.sort("uid", "first_at", "last_at", "labels")
        .with_columns(run=pl.col("labels").rle_id().over("uid"))
        .group_by("uid", "run", "labels")
        .agg(first_seen_at=pl.col("first_at").min(), last_seen_at=pl.col("last_at").max())
        .with_columns(source=pl.lit("kube_state"), pod_uid="uid")
    )


def node_tile(samples: pl.DataFrame) -> pl.DataFrame:
    """What one tile says of nodes: node, node_uid, source, job, kind, text, number, first_at, last_at per kind of fact.

    Kinds: seen; capacity (text: resource, number: greatest); created (number: epoch seconds); provider_id and labels
    (text). A node's uid is its system_uuid at the same instant of the same source, so a successor under the same name
    stands apart.

    Args:
        samples: name, source, job, node, resource, system_uuid, provider_id, labels, at, value.
    """
    at = ["source", "node", "at"]
    info = samples.filter(pl.col("name") == "kube_node_info")
    uids = info.group_by(at).agg(node_uid=pl.col("system_uuid").max())
    told = samples.join(uids, on=at, how="left").with_columns(pl.col("node_uid").fill_null(""))
    is_capacity = (pl.col("name") == "kube_node_status_capacity") & pl.col("resource").is_not_null()
    facts = {
        "seen": told.filter(is_capacity | (pl.col("name") == "kube_node_info")).with_columns(text=pl.lit("")),
        "capacity": told.filter(is_capacity).with_columns(text=kubernetes_resource("resource")),
        "created": told.filter(pl.col("name") == "kube_node_created").with_columns(text=pl.lit("")),
        "provider_id": told.filter((pl.col("name") == "kube_node_info") & pl.col("provider_id").is_not_null())
        .with_columns(text="provider_id"),
        "labels": told.filter(pl.col("name") == "kube_node_labels").with_columns(text="labels"),
    }  # fmt: skip
    # A capacity that changes within the tile is several facts.
    apart = {"capacity": [pl.col("value").alias("_value")]}
    return pl.concat(
        frame.group_by("node", "node_uid", "source", "job", "text", *apart.get(kind, ()))
        .agg(number=pl.col("value").max(), first_at=pl.col("at").min(), last_at=pl.col("at").max())
        .with_columns(kind=pl.lit(kind))
        .drop("_value", strict=False)
        for kind, frame in facts.items()
    )


def nodes(told: pl.DataFrame, scrapes: pl.DataFrame) -> pl.DataFrame:
    """Rows of NodeSighting, but for cluster and date.

    Args:
        told: rows of `node_tile`, of all tiles.
        scrapes: source, job, at.
    """
    key = ["node", "node_uid"]
    seen = told.filter(pl.col("kind") == "seen")
    sightings = seen.group_by(key).agg(first_seen_at=pl.col("first_at").min(), last_seen_at=pl.col("last_at").max())
    looked = absences(seen.select(*key, "source", "job", seen_at="last_at"), scrapes, key=key)
    capacity = (
        told.filter(pl.col("kind") == "capacity")
        .group_by(*key, resource="text")
        .agg(capacity=pl.col("number").max().round().cast(pl.Int64))
    )
    latest = told.sort("last_at", "text").group_by(key, maintain_order=True)
    facts = latest.agg(
        created_at=(pl.col("number").filter((pl.col("kind") == "created") & (pl.col("number") > 0)).min() * 1000)
        .round().cast(pl.Int64).cast(_INSTANT),
        provider_id=pl.col("text").filter(pl.col("kind") == "provider_id").last(),
        labels=pl.col("text").filter(pl.col("kind") == "labels").last(),
    )  # fmt: skip
    label = pl.col("labels").str.json_decode(pl.Struct(dict.fromkeys((*_LABEL_COLUMNS.values(), _REPLICAS), pl.String)))
    return (
        sightings.join(looked, on=key)
        .join(capacity, on=key, how="left")
        .join(facts, on=key, how="left")
        .with_columns(
            pl.col("resource").fill_null(""),
            pl.col("capacity").fill_null(0),
            pl.col("labels").fill_null("{}"),
        )
        .with_columns(
            *(label.struct.field(name).alias(column) for column, name in _LABEL_COLUMNS.items()),
            replicas=label.struct.field(_REPLICAS).cast(pl.Int64, strict=False),
            source=pl.lit("kube_state"),
        )
    )


def node_sharing(told: pl.DataFrame) -> pl.DataFrame:
    """Rows of NodeSharing, but for cluster and date.

    Args:
        told: rows of `node_tile`, of all tiles.
    """
    key = ["node", "node_uid"]
    label = pl.col("text").str.json_decode(pl.Struct(dict.fromkeys((*_LABEL_COLUMNS.values(), _REPLICAS), pl.String)))
    labeled = told.filter(pl.col("kind") == "labels").with_columns(
        product=label.struct.field(_LABEL_COLUMNS["model"]),
        sharing_strategy=label.struct.field(_LABEL_COLUMNS["sharing_strategy"]),
        mig_strategy=label.struct.field(_LABEL_COLUMNS["mig_strategy"]),
        replicas=label.struct.field(_REPLICAS).cast(pl.Int64, strict=False),
        labels="text",
    )
    capacity = told.filter((pl.col("kind") == "capacity") & pl.col("text").is_in(SHAREABLE)).select(
        *key, "first_at", "last_at", resource="text", capacity=pl.col("number").round().cast(pl.Int64)
    )
    unlabeled = capacity.join(labeled, on=key, how="anti").select(*key, "first_at", "last_at")
    described = pl.concat([labeled.select(*key, "first_at", "last_at", *SHARING, "labels"), unlabeled], how="diagonal")
    return sharing_periods(described.with_columns(pl.col("labels").fill_null("{}")), capacity, key=key).with_columns(
        source=pl.lit("kube_state")
    )


def absences(seen: pl.DataFrame, scrapes: pl.DataFrame, *, key: list[str]) -> pl.DataFrame:
    """When each object was looked for and not found: key, absent_at (null: never), interval_ms of its sources.

    The first scrape, after the last sighting by anyone, of a source that had seen it; or of a source of the same job
    that was not there before (kube-state-metrics restarted meanwhile). A gap of the sources is no absence, and another
    shard of kube-state-metrics, which never shows this object, does not count.

    Args:
        seen: key, source, job, seen_at.
        scrapes: source, job, at.
    """
    last = seen.group_by(key).agg(pl.col("seen_at").max()).sort("seen_at")
    again = (
        seen.select(*key, "source").unique().join(last, on=key).sort("seen_at")
        .join_asof(
            scrapes.select("source", looked_at="at").sort("looked_at"), left_on="seen_at", right_on="looked_at",
            by="source", strategy="forward", allow_exact_matches=False, coalesce=False, check_sortedness=False,
        )
    )  # fmt: skip
    began = scrapes.group_by("source", "job").agg(looked_at=pl.col("at").min()).select("job", "looked_at")
    successor = (
        seen.select(*key, "job").unique().join(last, on=key).sort("seen_at")
        .join_asof(
            began.sort("looked_at"), left_on="seen_at", right_on="looked_at",
            by="job", strategy="forward", allow_exact_matches=False, coalesce=False, check_sortedness=False,
        )
    )  # fmt: skip
    looked = pl.concat([again.select(*key, "looked_at"), successor.select(*key, "looked_at")])
    step = pl.col("at").diff().dt.total_milliseconds()
    intervals = (
        scrapes.sort("source", "at")
        .group_by("source")
        .agg(interval_ms=step.drop_nulls().quantile(0.5, interpolation="lower").cast(pl.Int64))
    )
    return (
        looked.group_by(key)
        .agg(absent_at=pl.col("looked_at").min())
        .join(
            seen.select(*key, "source").unique().join(intervals, on="source", how="left")
            .group_by(key).agg(pl.col("interval_ms").min().fill_null(_DEFAULT_INTERVAL_MS)),
            on=key,
        )
    )  # fmt: skip
