"""Nodes whose cards changed: who owned which slot when new UUIDs appear, move, or exceed the node's capacity.

The rare nodes that `devices` cannot settle by a plain rule come here: a machine stopped and started with other cards, a
virtual machine that migrated, a card that moved to another node, a node without a known capacity (ACCOUNTING 1,
cases 31 and 33). One small walk per such node, over its stints and not over samples.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable

import polars as pl

_INSTANT = pl.Datetime("ms", "UTC")
_OWNED = pl.Schema({"device_id": pl.String(), "node": pl.String(), "owned_from": _INSTANT, "owned_to": _INSTANT})


@dataclasses.dataclass(frozen=True)
class Stint:
    """A stretch in which a node's series showed one device."""

    device_id: str
    node: str
    seen_from: dt.datetime
    seen_to: dt.datetime
    life_start: dt.datetime
    life_end: dt.datetime
    capacity: int | None
    left_at: dt.datetime | None  # when it was last seen on the node that it came from
    moves_away: bool


@dataclasses.dataclass
class _Owned:
    device_id: str
    owned_from: dt.datetime
    latest: Stint


def owned_through_card_changes(stints: pl.LazyFrame) -> pl.LazyFrame:
    """Owned intervals on lives of nodes whose cards changed.

    Args:
        stints: the fields of `Stint`, and `life`, the key of the node's life.

    Returns:
        device_id, node, owned_from, owned_to.
    """
    fields = [field.name for field in dataclasses.fields(Stint)]

    def walk(frame: pl.DataFrame) -> pl.DataFrame:
        rows: list[tuple[str, str, dt.datetime, dt.datetime]] = []
        ordered = frame.sort("life", "seen_from", "device_id")
        for part in ordered.partition_by("life", maintain_order=True):
            rows += _owned_on_life([Stint(**row) for row in part.select(fields).iter_rows(named=True)])
        return pl.DataFrame(rows, schema=_OWNED, orient="row")

    return stints.select("life", *fields).map_batches(walk, schema=_OWNED)


def _owned_on_life(stints: list[Stint]) -> Iterable[tuple[str, str, dt.datetime, dt.datetime]]:
    """Walk a life's stints in order of appearance, one slot per card that the node can hold."""
    first = stints[0]
    free_from = [first.life_start] * (first.capacity or _most_at_once(stints))
    owned: dict[str, _Owned] = {}
    told: list[tuple[str, str, dt.datetime, dt.datetime]] = []

    def end(card: _Owned, at: dt.datetime) -> None:
        del owned[card.device_id]
        free_from.append(at)
        told.append((card.device_id, first.node, card.owned_from, at))

    for stint in stints:
        for card in [card for card in owned.values() if card.latest.moves_away]:
            if card.latest.seen_to <= stint.seen_from and card.device_id != stint.device_id:
                end(card, card.latest.seen_to)
        if stint.device_id in owned:
            owned[stint.device_id].latest = stint
            continue
        if not free_from:
            unseen = [card for card in owned.values() if card.latest.seen_to <= stint.seen_from]
            if unseen:
                longest = min(unseen, key=lambda card: (card.latest.seen_to, card.device_id))
                end(longest, longest.latest.seen_to)
        # No slot and nobody unseen: more cards at once than the node says it holds. Both are shown, so both are owned;
        # `devices` reports it.
        start = free_from.pop(free_from.index(min(free_from))) if free_from else stint.seen_from
        owned[stint.device_id] = _Owned(stint.device_id, max(start, stint.left_at or start), stint)

    for card in list(owned.values()):
        end(card, card.latest.seen_to if card.latest.moves_away else max(card.latest.life_end, card.latest.seen_to))
    return told


def _most_at_once(stints: list[Stint]) -> int:
    """Most devices that were shown at one instant."""
    changes = sorted([(stint.seen_from, 1) for stint in stints] + [(stint.seen_to, -1) for stint in stints])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
