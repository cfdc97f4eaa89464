"""The hours that a day is read in: a tile's window, and the windows of a day with its edges."""

import datetime as dt
from dataclasses import dataclass

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True, slots=True)
class TileWindow:
    """Samples of (start, end] belong to the hour that starts at `hour_ms`. UTC milliseconds, whole seconds."""

    hour_ms: int
    start_ms: int
    end_ms: int

    @property
    def range(self) -> str:
        """Its length as PromQL writes it, for a query evaluated at its end."""
        return f"[{(self.end_ms - self.start_ms) // 1000}s]"

    @property
    def name(self) -> str:
        """Its hour, for a person."""
        return f"{dt.datetime.fromtimestamp(self.hour_ms / 1000, dt.UTC):%Y-%m-%dT%H:%MZ}"


def day_windows(day: dt.date, edge_ms: int, now: dt.datetime) -> list[TileWindow]:
    """The hours of a UTC day, and of the time around it what lies within the edge; nothing after now."""
    start = int(dt.datetime.combine(day, dt.time(), tzinfo=dt.UTC).timestamp()) * 1000
    first, last = start - edge_ms, min(start + DAY_MS + edge_ms, int(now.timestamp()) * 1000)
    return [
        TileWindow(hour, max(hour, first), min(hour + HOUR_MS, last))
        for hour in range(first // HOUR_MS * HOUR_MS, last, HOUR_MS)
    ]
