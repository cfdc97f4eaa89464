"""The worked cases of the accounting model as worlds: what real servers would have shown in each situation.

Every world is about the hour 12:00-13:00 of one day; it reaches from 10:00 to 15:00 so that edges are natural, and is
scraped at :00 and :30 unless the case says otherwise.
"""

import dataclasses
import datetime as dt
from decimal import Decimal

from benchmarks.simulator import Card, Node, Pod, World

DAY = dt.date(2026, 3, 2)
PRICE = Decimal("5.191")


def at(clock: str) -> dt.datetime:
    """`12:41:15` of the day, UTC."""
    return dt.datetime.fromisoformat(f"{DAY}T{clock}+00:00")


HOUR = dt.timedelta(hours=1)
START, END = at("10:00"), at("15:00")


def cards(count: int, node: str = "a", since: dt.datetime = START, until: dt.datetime = END) -> tuple[Card, ...]:
    """GPUs of a node that its exporter shows all along."""
    return tuple(Card(f"GPU-{node}-{i}", node, since, until) for i in range(count))


def node(gpus: int, name: str = "a", created: dt.datetime = START, gone: dt.datetime | None = None) -> Node:
    """A node that reports its GPUs from its creation on."""
    return Node(name, created, gone, capacity=((created, gpus),))


def pod(name: str, *held: str, scheduled: dt.datetime = START, on: str = "a", **more: object) -> Pod:
    """A pod that holds the named cards."""
    return Pod("team", name, on, held, scheduled, **more)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Case:
    """A world and the lines that it must give: (kind, pod or node, GPU-hours in the hour), and their cost."""

    world: World
    lines: tuple[tuple[str, str, str], ...]
    cost: str
    coverage: str | None = None  # of its held lines
    clips: int = 0


def _world(name: str, **parts: object) -> World:
    return World(name, START, END, **parts)  # type: ignore[arg-type]


def sliced_labels(replicas: int, strategy: str = "time-slicing") -> dict[str, str]:
    """What feature discovery says of a node whose devices are shared."""
    return {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": strategy,
    }


def sliced_node(replicas: int) -> Node:
    """A node with one GPU in so many parts."""
    return Node("a", START, capacity=((START, replicas),), labels=sliced_labels(replicas))


def _sliced(name: str, *pods: str, **more: object) -> Case:
    """Pods with one of four replicas each."""
    gpu = "GPU-a-0"
    lines = (*(("held", pod, "0.25") for pod in pods), *(("idle", "a", "0.25") for _ in range(4 - len(pods))))
    sharing = tuple(pod(each, gpu, engine=0.714) for each in pods)
    return Case(_world(name, nodes=(sliced_node(4),), cards=cards(1), pods=sharing, **more), lines, "5.191")


def _cases() -> dict[str, Case]:
    one = {"nodes": (node(1),), "cards": cards(1)}
    gpu = "GPU-a-0"
    return {
        "case-1": Case(
            _world("case-1", **one, pods=(pod("p", gpu, engine=0.04),)), (("held", "p", "1"),), "5.191", coverage="1"
        ),
        "case-2": Case(
            _world("case-2", nodes=(node(8),), cards=cards(8), pods=(pod("p", "GPU-a-2", "GPU-a-5"),)),
            (("held", "p", "2"), ("idle", "a", "6")),
            "41.528",
        ),
        "case-3": Case(
            _world(
                "case-3", **one,
                pods=(pod("p", gpu, scheduled=at("12:10"), running_from=at("12:25"), finished=at("12:40")),),
            ),
            (("held", "p", "0.5"), ("idle", "a", "0.5")),
            "5.191",
        ),
        "case-4": _sliced("case-4", "p", "q", "r", virtual_gpus=True),
        "case-4-one-name": _sliced("case-4-one-name", "p", "q", "r"),
        "case-5": Case(
            _world(
                "case-5",
                nodes=(sliced_node(4),),
                cards=cards(1),
                pods=(
                    pod("p", gpu, containers=(2,), util_percent=40),
                    pod("q", gpu, util_percent=30),
                    pod("r", gpu, util_percent=20),
                ),
                virtual_gpus=True,
                per_process=True,
            ),
            (("held", "p", "0.5"), ("held", "q", "0.25"), ("held", "r", "0.25")),
            "5.191",
        ),
        "case-6": _sliced("case-6", "p", "q", "r", virtual_gpus=True, per_process=True),
        "case-11": Case(
            _world(
                "case-11",
                nodes=(dataclasses.replace(node(1), exporter_gaps=((at("12:15"), at("12:45:30")),)),),
                cards=cards(1),
                pods=(pod("p", gpu),),
            ),
            (("held", "p", "1"),),
            "5.191",
            coverage="0.5",
        ),
        "case-12": Case(
            _world(
                "case-12", **one,
                pods=(
                    pod("p", gpu, finished=at("12:20"), named_to=at("12:50"), object_gone=at("12:21")),
                    pod("q", gpu, scheduled=at("12:30"), named_from=at("12:50:30")),
                ),
            ),
            (("held", "p", "0.333333333333"), ("held", "q", "0.5"), ("idle", "a", "0.166666666667")),
            "5.191",
        ),
        "case-13": Case(
            _world(
                "case-13", **one, pods=(pod("p", gpu),),
                replicas=(("prometheus-0", dt.timedelta()), ("prometheus-1", dt.timedelta(seconds=13))),
            ),
            (("held", "p", "1"),),
            "5.191",
            coverage="1",
        ),
        "case-15": Case(
            World(
                "case-15", at("00:00") - 2 * HOUR, at("00:00") + 26 * HOUR,
                nodes=(node(2, created=at("00:00") - 2 * HOUR),),
                cards=cards(2, since=at("00:00") - 2 * HOUR, until=at("00:00") + 26 * HOUR),
            ),
            (("idle", "a", "2"),),
            "10.382",
        ),
        "case-16": Case(
            _world("case-16", **one, pods=(pod("p", gpu, scheduled=at("12:10"), finished=at("12:30")),)),
            (("held", "p", "0.333333333333"), ("idle", "a", "0.666666666667")),
            "5.191",
        ),
        # No series shows node a; node z keeps the day from being one on which there is nothing at all to read.
        "case-18": Case(
            _world(
                "case-18",
                nodes=(dataclasses.replace(sliced_node(4), capacity=((START, 32),)), node(1, "z")),
                cards=cards(1, "z"),
                pods=tuple(pod(name, containers=(1,)) for name in "pqrst"),
            ),
            (*(("held", name, "0.25") for name in "pqrst"), ("idle", "a", "6.75"), ("idle", "z", "1")),
            "46.719",
        ),
        "case-21": Case(
            _world(
                "case-21",
                nodes=(Node("a", at("12:20"), capacity=((at("12:28"), 8),)),),
                cards=cards(8, since=at("12:27")),
                pods=(pod("p", *(f"GPU-a-{i}" for i in range(8)), scheduled=at("12:30")),),
            ),
            (("held", "p", "4"), ("idle", "a", "1.333333333336")),
            "27.685333333347176",
        ),
        "case-22": Case(
            World(
                "case-22", START, END, phase=dt.timedelta(seconds=15),
                nodes=(node(1, gone=at("12:41:20")),),
                cards=cards(1, until=at("12:41:15")),
                pods=(pod("p", gpu, object_gone=at("12:41:20")),),
            ),
            (("held", "p", "0.695833333333"),),
            "3.612070833331603",
        ),
        "case-24": Case(
            _world(
                "case-24",
                nodes=(
                    dataclasses.replace(
                        sliced_node(4),
                        capacity=((START, 4), (at("12:30"), 8)),
                        relabels=((at("12:30"), sliced_labels(8)),),
                    ),
                ),
                cards=cards(1),
                pods=tuple(pod(name, gpu) for name in "pqr"),
            ),
            (*(("held", name, "0.1875") for name in "pqr"), ("idle", "a", "0.4375")),
            "5.191",
        ),
        "case-30": Case(
            _world(
                "case-30", nodes=(node(2),), cards=cards(2),
                pods=(
                    # The exporter names the card of the main container; what init held stays with the pod all the same.
                    pod(
                        "p", "GPU-a-0", "GPU-a-1", containers=(1,), init_containers=((2, False),),
                        named_cards=("GPU-a-0",),
                    ),
                ),
            ),
            (("held", "p", "2"),),
            "10.382",
        ),
        "case-31": Case(
            _world(
                "case-31",
                nodes=(
                    Node("a", START, capacity=((START, 1), (at("12:24"), 0))),
                    Node("b", START, capacity=((START, 0), (at("12:24"), 1))),
                ),
                cards=(Card("GPU-x", "a", START, at("12:23:30")), Card("GPU-x", "b", at("12:24"), END)),
                pods=(pod("p", "GPU-x", scheduled=at("12:30"), on="b"),),
            ),
            (("held", "p", "0.5"), ("idle", "a", "0.4"), ("idle", "b", "0.1")),
            "5.191",
        ),
        "case-32": Case(
            _world(
                "case-32", **one,
                pods=(
                    # Deleted by force: the object is gone at once and no end was ever told.
                    pod("p", gpu, object_gone=at("12:30:02")),
                    pod("q", gpu, scheduled=at("12:30")),
                ),
            ),
            (("held", "p", "0.5"), ("held", "q", "0.5")),
            "5.191",
            clips=1,
        ),
        "case-33": Case(
            _world(
                "case-33",
                nodes=(node(8),),
                cards=(
                    *(Card(f"GPU-old-{i}", "a", START, at("12:10")) for i in range(8)),
                    *(Card(f"GPU-new-{i}", "a", at("12:20"), END) for i in range(8)),
                ),
            ),
            (("idle", "a", "8"),),
            "41.528",
        ),
        "case-35-telemetry-only": Case(
            _world(
                "case-35-telemetry-only", cards=cards(1), pods=(pod("p", gpu),), with_kube_state=False,
                replicas=(("prometheus-0", dt.timedelta()), ("prometheus-1", dt.timedelta(seconds=13))),
            ),
            (("held", "p", "1"),),
            "5.191",
            coverage="1",
        ),
        "case-35-plugin-restart": Case(
            _world(
                "case-35-plugin-restart",
                nodes=(dataclasses.replace(node(1), allocatable=((START, 1), (at("12:20"), 0), (at("12:23"), 1))),),
                cards=cards(1),
                pods=(pod("p", gpu, scheduled=at("12:15")),),
            ),
            (("held", "p", "0.75"), ("idle", "a", "0.25")),
            "5.191",
        ),
        "case-35-plugin-restart-capacity": Case(
            _world(
                "case-35-plugin-restart-capacity",
                nodes=(Node("a", START, capacity=((START, 1), (at("12:20"), 0), (at("12:23"), 1))),),
                cards=cards(1),
                pods=(pod("p", gpu, scheduled=at("12:15")),),
            ),
            (("held", "p", "0.75"), ("idle", "a", "0.25")),
            "5.191",
        ),
        "case-35-not-ready": Case(
            _world(
                "case-35-not-ready",
                nodes=(
                    dataclasses.replace(
                        node(1), exporter_gaps=((at("12:20"), at("12:40")),), not_ready=((at("12:20"), at("12:40")),)
                    ),
                ),
                cards=cards(1),
                pods=(pod("p", gpu),),
            ),
            (("held", "p", "1"),),
            "5.191",
        ),
        "case-35-evicted": Case(
            _world(
                "case-35-evicted", **one,
                pods=(
                    pod("p", gpu, finished=at("12:15"), phase_at_end="Failed", evicted=True, object_gone=at("14:00")),
                    pod("p", gpu, scheduled=at("12:30")),
                ),
            ),
            (("held", "p", "0.75"), ("idle", "a", "0.25")),
            "5.191",
        ),
        "case-35-kube-state-gap": Case(
            _world(
                "case-35-kube-state-gap", **one, pods=(pod("p", gpu),), kube_state_gaps=((at("12:05"), at("12:50")),)
            ),
            (("held", "p", "1"),),
            "5.191",
        ),
    }  # fmt: skip


CASES = _cases()


def over_midnight() -> World:
    """A pod from 23:30 to 00:30 on one GPU: nothing is lost or doubled at midnight."""
    start, end = at("20:00"), at("20:00") + dt.timedelta(hours=9)
    midnight = at("20:00") + dt.timedelta(hours=4)
    half = dt.timedelta(minutes=30)
    return World(
        "over-midnight", start, end,
        nodes=(node(1, created=start),),
        cards=cards(1, since=start, until=end),
        pods=(pod("p", "GPU-a-0", scheduled=midnight - half, finished=midnight + half),),
    )  # fmt: skip
