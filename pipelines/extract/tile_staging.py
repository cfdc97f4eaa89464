"""Finished tiles on disk, so that an extraction that died goes on where it was. Deleted when the day has landed."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from pipelines.extract.tile_reduction import SCHEMAS, Reduction

# Part of a tile's place: a release that reduces otherwise must not go on with older tiles.
_REDUCTION_VERSION = 1
# `device` comes last: where it is, the tile is complete.
_PARTS = sorted(SCHEMAS, key="device".__eq__)


class TileStage:
    """A folder of finished tiles that were read and reduced the same way."""

    def __init__(self, folder: Path, *, read_with: Sequence[object]) -> None:
        """
        Args:
            folder: of the partition; created when the first tile is put.
            read_with: whatever decides what a tile comes to; tiles of another reading are not used.
        """
        digest = hashlib.sha256(repr((_REDUCTION_VERSION, *read_with)).encode()).hexdigest()[:16]
        self._folder = folder / digest

    def has(self, tile: str) -> bool:
        """Whether a tile is complete."""
        return self._path(tile, "device").exists()

    def put(self, tile: str, reduction: Reduction) -> None:
        """Keep a tile: a reader finds all of it or none of it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for part in _PARTS:
            frame: pl.DataFrame = getattr(reduction, part)
            if frame.is_empty() and part != "device":
                continue
            path = self._path(tile, part)
            beside = path.with_suffix(".tmp")
            frame.write_parquet(beside, compression="lz4", statistics=False)
            beside.replace(path)

    def load(self, tiles: Sequence[str]) -> Reduction:
        """Several tiles, one after the other."""
        frames = {}
        for part in _PARTS:
            paths = [path for tile in tiles if (path := self._path(tile, part)).exists()]
            frames[part] = pl.concat([pl.DataFrame(schema=SCHEMAS[part]), *(pl.read_parquet(path) for path in paths)])
        return Reduction(**frames)

    def clear(self) -> None:
        """Forget the tiles."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, tile: str, part: str) -> Path:
        return self._folder / f"{tile}.{part}.parquet"
