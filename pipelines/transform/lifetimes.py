"""From when to when a node existed and a pod occupied its node, out of what several sources saw of it.

Takes sightings (`schemas.tables.NodeSighting`, `PodSighting`); gives one row per life. A life ends when the object
itself says so, else when it was last seen plus one interval of the source, and never after a source had looked and not
found it. Which devices a pod held is not known here: that is `holdings`.
"""

import polars as pl


def node_lives(nodes: pl.LazyFrame) -> pl.LazyFrame:
    """One row per node object: a successor under the same name is another life.

    The sources name different ids (metadata.uid, system_uuid); what they share is the creation time.

    Returns:
        node, node_uid, life_start, life_end, seen_interval_ms, capacity (of nvidia.com/gpu; null: none reported),
        product (model label), zone, labels.
    """
    sighted = (
        nodes.with_columns(created_at=pl.col("created_at").fill_null(pl.col("created_at").max().over("node")))
        .with_columns(seen_to=pl.col("last_seen_at") + pl.duration(milliseconds="interval_ms"))
        .sort("node", "created_at", "source", "node_uid", "resource")
    )
    lives = sighted.group_by("node", "created_at").agg(
        # The API's object uid where a snapshot has it; sources sort with `snapshot` last.
        pl.col("node_uid").filter(pl.col("node_uid") != "").last(),
        first_seen=pl.col("first_seen_at").min(),
        # Of the source that saw it last: one that reads every hour cannot say more than one that reads every 30 s.
        seen_to=pl.col("seen_to").sort_by("last_seen_at").last(),
        gone_at=_observed_absence("last_seen_at"),
        seen_interval_ms=pl.col("interval_ms").min(),
        capacity=pl.col("capacity").filter(pl.col("resource") == "nvidia.com/gpu").max(),
        product=pl.col("model").drop_nulls().last(),
        zone=pl.col("zone").drop_nulls().last(),
        labels=pl.col("labels").filter(pl.col("labels") != "{}").last(),
    )
    return (
        lives.with_columns(
            life_start=pl.coalesce("created_at", "first_seen"),
            life_end=pl.min_horizontal("seen_to", "gone_at"),
        )
        .with_columns(successor=pl.col("life_start").shift(-1).over("node", order_by="life_start"))
        .with_columns(life_end=pl.min_horizontal("life_end", "successor"))
        .select(
            "node", "node_uid", "life_start", "life_end", "seen_interval_ms", "capacity", "product", "zone", "labels"
        )
    )


def pod_lives(pods: pl.LazyFrame) -> pl.LazyFrame:
    """One row per pod and resource that was scheduled: how many devices it asks for, where, from when to when.

    From scheduling (image pull and CrashLoopBackOff count) to the earliest of: its last container finished, it was
    deleted, it was last seen plus one interval (ACCOUNTING 2). Pods that were never scheduled are left out.

    Returns:
        pod_uid, resource, namespace, pod, node, requested, hold_start, hold_end, gone_at (no evidence may move the end
        beyond it), end_known (the object told its end), end_interval_ms, owner_kind, owner_name.
    """
    sighted = pods.with_columns(
        alive_to=pl.col("last_alive_at") + pl.duration(milliseconds="interval_ms"),
    ).sort("pod_uid", "resource", "source")
    lives = sighted.group_by("pod_uid", "resource").agg(
        pl.col("namespace", "pod").last(),
        *(pl.col(name).drop_nulls().last() for name in ("node", "finished_at", "owner_kind", "owner_name")),
        pl.col("requested").max(),
        pl.col("scheduled_at").min(),
        pl.col("deletion_at").max(),
        terminal_seen=pl.col("terminal_seen_at").min(),
        first_seen=pl.col("first_seen_at").min(),
        last_alive=pl.col("last_alive_at").max(),
        alive_to=pl.col("alive_to").sort_by("last_alive_at").last(),
        gone_at=_observed_absence("last_alive_at"),
        end_interval_ms=pl.col("interval_ms").min(),
    )
    deleted_at = pl.when(pl.col("gone_at").is_not_null() & (pl.col("deletion_at") > pl.col("last_alive"))).then(
        "deletion_at"
    )
    terminal = pl.col("terminal_seen").is_not_null()
    return (
        lives.filter(pl.col("node").is_not_null())
        .with_columns(
            hold_start=pl.coalesce("scheduled_at", "first_seen"),
            hold_end=pl.when(terminal & pl.col("finished_at").is_not_null())
            .then("finished_at")
            .when(terminal)
            .then(pl.min_horizontal("terminal_seen", "alive_to"))
            .otherwise(pl.min_horizontal("alive_to", "gone_at", deleted_at)),
            gone_at=pl.when(terminal).then(pl.coalesce("finished_at", "terminal_seen")).otherwise("gone_at"),
            end_known=terminal & pl.col("finished_at").is_not_null(),
        )
        .with_columns(
            # A pod of the same name (StatefulSet) cannot start before its predecessor is gone.
            successor=pl.col("hold_start").shift(-1).over("namespace", "pod", "resource", order_by="hold_start")
        )
        .with_columns(gone_at=pl.min_horizontal("gone_at", "successor"))
        .select(
            *("pod_uid", "resource", "namespace", "pod", "node", "requested", "hold_start", "hold_end"),
            *("gone_at", "end_known", "end_interval_ms", "owner_kind", "owner_name"),
        )
    )


def _observed_absence(last_seen: str) -> pl.Expr:
    """First time that any source looked and did not find it, after the last time that any source found it."""
    return pl.col("absent_at").filter(pl.col("absent_at") > pl.col(last_seen).max()).min()


def pod_boundaries(pods: pl.LazyFrame) -> pl.LazyFrame:
    """Where pods start and end on their nodes: samples are reduced apart on either side.

    Args:
        pods: rows of `pod_lives`.

    Returns:
        node, at, kind (`start` or `end`), distinct.
    """
    return (
        pl.concat(
            [
                pods.select("node", at="hold_start", kind=pl.lit("start")),
                pods.select("node", at="hold_end", kind=pl.lit("end")),
            ]
        )
        .unique()
        .sort("node", "at", "kind")
    )
