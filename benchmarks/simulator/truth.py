"""Who held what, worked out naively from a world itself and not from its telemetry."""

import datetime as dt

from benchmarks.simulator.world import HOUR, Instant, Window, World


def truth(world: World, day: dt.date) -> dict[tuple[Instant, str], dict[str, int]]:
    """(hour, card) -> {"": owned ms, pod uid: held ms}, in whole milliseconds.

    For worlds whose pods do not overlap on a card. Where a card is not owned for its node's whole life, it says so.
    """
    start = dt.datetime.combine(day, dt.time(), tzinfo=dt.UTC)
    hours = [(start + i * HOUR, start + (i + 1) * HOUR) for i in range(24)]
    lives = {node.name: (node.created, node.gone or world.end) for node in world.nodes}
    told: dict[tuple[Instant, str], dict[str, int]] = {}
    for card in world.cards:
        node = lives[card.node]
        for hour in hours:
            if owned := _overlap(hour, (card.owned_from or node[0], card.owned_to or node[1])):
                device = told.setdefault((hour[0], card.uuid), {"": 0})
                device[""] += owned
    for pod in world.pods:
        for uuid in pod.cards if pod.scheduled else ():
            for hour in hours:
                if held := _overlap(hour, (pod.scheduled or pod.since, pod.stopped or world.end)):
                    told[hour[0], uuid][pod.uid] = held
    return told


def _overlap(a: Window, b: Window) -> int:
    return max((min(a[1], b[1]) - max(a[0], b[0])) // dt.timedelta(milliseconds=1), 0)
