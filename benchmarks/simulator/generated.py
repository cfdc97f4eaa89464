"""Worlds of any size, from a seed."""

import dataclasses
import datetime as dt
import random
from collections.abc import Iterator

from benchmarks.simulator.world import H100, HOUR, Card, Instant, Node, Pod, World

NAMESPACES = {
    "research": {
        "acme.dev/cost-center": "ml-research", "acme.dev/workload-kind": "training", "acme.dev/tenant": "internal",
    },
    "search": {
        "acme.dev/cost-center": "search", "acme.dev/workload-kind": "inference", "acme.dev/model": "ranker-7b",
        "acme.dev/tenant": "customer-dedicated",
    },
    "notebooks": {"acme.dev/workload-kind": "interactive", "acme.dev/tenant": "internal"},
}  # fmt: skip
_ENGINE = {"research": 0.83, "search": 0.31, "notebooks": 0.04}


def generated_world(
    cluster: str, start: Instant, days: int, *, nodes: int, gpus_per_node: int = 8, idle_nodes: int = 1, seed: int = 1
) -> World:
    """A world of whole-device pods that never overlap: long trainings, serving replicas, short notebooks.

    The last `idle_nodes` nodes run nothing, one pod in nine has no labels, pods on the first node hold all of it.
    """
    rng = random.Random(seed)
    end = start + dt.timedelta(days=days)
    before = start - dt.timedelta(hours=2)
    after = end + dt.timedelta(hours=2)
    made_nodes: list[Node] = []
    cards: list[Card] = []
    pods: list[Pod] = []
    for n in range(nodes):
        name = f"gpu-{n:04d}"
        labels = {"nvidia.com/gpu.product": H100.replace(" ", "-"), "karpenter.sh/nodepool": "h100"}
        labels["topology.kubernetes.io/zone"] = f"us-east-1{'abc'[n % 3]}"
        made_nodes.append(Node(name, before, capacity=((before, gpus_per_node),), labels=labels))
        uuids = [f"GPU-{seed:08x}-{n:04x}-4000-8000-{g:012x}" for g in range(gpus_per_node)]
        cards += [Card(uuid, name, before, after, watts=120 + 10 * g) for g, uuid in enumerate(uuids)]
        if n >= nodes - idle_nodes:
            continue
        groups = [tuple(uuids)] if n == 0 else [tuple(uuids[i : i + 2]) for i in range(0, gpus_per_node, 2)]
        for g, group in enumerate(groups):
            pods += _pods_on(rng, name, group, start, end, serial=n * gpus_per_node + g)
    return World(cluster, before, after, tuple(made_nodes), tuple(cards), tuple(pods), phase=dt.timedelta(seconds=7))


def with_shared_node(world: World, *, gpus: int = 2, replicas: int = 4, used: int = 6, seed: int = 2) -> World:
    """The same world and one more node, whose devices are time-sliced; pods one after another hold `used` replicas."""
    rng = random.Random(seed)
    start, end = world.start + 2 * HOUR, world.end - 2 * HOUR
    name = "gpu-sliced"
    labels = {
        "nvidia.com/gpu.product": f"{H100.replace(' ', '-')}-SHARED", "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": "time-slicing", "karpenter.sh/nodepool": "h100-sliced",
        "topology.kubernetes.io/zone": "us-east-1a",
    }  # fmt: skip
    node = Node(name, world.start, capacity=((world.start, gpus * replicas),), labels=labels)
    uuids = [f"GPU-{seed:08x}-ffff-4000-8000-{g:012x}" for g in range(gpus)]
    cards = tuple(Card(uuid, name, world.start, world.end, watts=140) for uuid in uuids)
    pods = [
        pod
        for slot in range(used)
        for pod in _pods_on(rng, name, (uuids[slot // replicas],), start, end, serial=100 + slot)
    ]
    return dataclasses.replace(
        world, nodes=(*world.nodes, node), cards=(*world.cards, *cards), pods=(*world.pods, *pods)
    )


def _pods_on(
    rng: random.Random, node: str, cards: tuple[str, ...], start: Instant, end: Instant, *, serial: int
) -> Iterator[Pod]:
    """Pods one after another on the same cards, with pauses."""
    at = start + dt.timedelta(seconds=rng.randrange(0, 4 * 3600))
    number = 0
    while at < end - HOUR:
        namespace = sorted(NAMESPACES)[(serial + number) % len(NAMESPACES)]
        hours = {"research": 9, "search": 14, "notebooks": 2}[namespace]
        lasts = dt.timedelta(seconds=rng.randrange(hours * 1800, hours * 5400))
        finished = min(at + lasts, end - dt.timedelta(minutes=5))
        labels = {} if (serial + number) % 9 == 4 else NAMESPACES[namespace]
        name = f"{namespace}-{serial}-{number}"
        owner = ("Deployment", f"{namespace}-{serial}") if namespace == "search" else ("Job", name)
        yield Pod(
            namespace, name, node, cards, at, finished,
            running_from=at + dt.timedelta(seconds=rng.randrange(10, 240)), labels=labels, owner=owner,
            engine=round(_ENGINE[namespace] * rng.uniform(0.7, 1.1), 3), memory_mib=rng.randrange(4_000, 70_000),
        )  # fmt: skip
        at = finished + dt.timedelta(seconds=rng.randrange(60, 5400))
        number += 1
