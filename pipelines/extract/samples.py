"""From the undecoded series of an answer to arrays of samples, all at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


class Series(msgspec.Struct):
    """One series of an answer, undecoded: labels, and `values` (range selector) or `value` (instant vector)."""

    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw()
    value: msgspec.Raw = msgspec.Raw()

    @property
    def size(self) -> int:
        """Length of its samples in bytes."""
        return memoryview(self.values or self.value).nbytes


@dataclass(frozen=True, slots=True)
class Samples:
    """Decoded samples of several series, series after series.

    counts: samples per series; at_ms: timestamps in UTC milliseconds; values: floats as read, NaN where unreadable.
    """

    counts: Times
    at_ms: Times
    values: Values


def samples(series: Sequence[Series]) -> Samples:
    """Decode the values of several series at once.

    Values are JSON strings ("0.25", "NaN", "+Inf"), so brackets, quotes and blanks are dropped and one vectorized cast
    reads what is left: timestamp, value, timestamp, value. A sixth of the time of a typed JSON decode, and no objects.
    """
    texts = [bytes(one.values or one.value) for one in series]
    counts = np.array([text.count(b'"') // 2 for text in texts], dtype=np.int64)
    text = b",".join(texts).translate(None, b'[]" \t\r\n').decode("ascii")
    numbers = pl.col("text").str.split(",").explode().cast(pl.Float64, strict=False)
    flat = pl.DataFrame({"text": [text] if text else []}, {"text": pl.String}).select(numbers)["text"].to_numpy()
    return Samples(counts, np.rint(flat[0::2] * 1000).astype(np.int64), flat[1::2])
