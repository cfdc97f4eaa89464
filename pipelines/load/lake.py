"""The lake on disk: where each partition lives, and the only code that writes one.

One partition of one table is exactly one Parquet object, written beside its place and renamed onto it, so a reader sees
the old one or the new one. Facts are written as candidates and take their published place only after the checks
(`publish`). Reading for people is the catalog's business (`pipelines.load.catalog`).
"""

import contextlib
import dataclasses
import datetime as dt
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dataframely as dy
import polars as pl
from filelock import FileLock, Timeout

from schemas.errors import LakeUnwritable, PartitionMissing, PartitionUnreadable, PublicationBusy, UsageError
from schemas.tables import FACT_TABLES, RAW_TABLES, SNAPSHOTS_TABLE, Table, polars_schema

FOCUS_DATASET = "cost_and_usage"


@dataclasses.dataclass(frozen=True)
class Written:
    """One landed Parquet object: its path and its number of rows."""

    path: Path
    rows: int


class Lake:
    """A lake under one folder. Every method names its partition by cluster and UTC day."""

    def __init__(self, root: Path) -> None:
        """Raises UsageError for a path that readers of Parquet would take for a pattern."""
        if patterns := sorted(set("*?[]") & set(str(root))):
            raise UsageError(
                f"lake {root}: expected a path without {' '.join(patterns)}, which DuckDB and others read as patterns; "
                "give the folder another name"
            )
        self.root = root

    # --- places ---------------------------------------------------------------------------------------------------

    def path(self, table: str, cluster: str, date: dt.date) -> Path:
        """Place of a published partition, and of a raw one."""
        return self.root / table / f"cluster={cluster}" / f"date={date}" / "part.parquet"

    def candidate_path(self, table: str, cluster: str, date: dt.date) -> Path:
        """Place of a partition that has not passed its checks."""
        return self.root / "candidate" / table / f"cluster={cluster}" / f"date={date}" / "part.parquet"

    def focus_path(self, cluster: str, date: dt.date, dataset: str = FOCUS_DATASET) -> Path:
        """Place of a published FOCUS partition."""
        period = f"billing_period={date:%Y-%m}"
        return self.root / "focus" / dataset / period / f"cluster={cluster}" / f"{date}.parquet"

    def focus_dataset_path(self, dataset: str = FOCUS_DATASET) -> Path:
        """Folder of a FOCUS dataset: Parquet and nothing else, so that every reader can be pointed at it."""
        return self.root / "focus" / dataset

    def focus_metadata_path(self, dataset: str = FOCUS_DATASET) -> Path:
        """The FOCUS metadata JSON, beside the dataset's folder."""
        return self.root / "focus" / f"{dataset}.metadata.json"

    def data_docs_path(self, cluster: str, date: dt.date) -> Path:
        """Folder of the checks' Data Docs of one attempt."""
        return self.root / "data_docs" / f"cluster={cluster}" / f"date={date}"

    def staging_path(self, cluster: str, date: dt.date) -> Path:
        """Folder where an extraction keeps the tiles it has, so that the next run resumes."""
        return self.root / "staging" / f"cluster={cluster}" / f"date={date}"

    # --- raw ------------------------------------------------------------------------------------------------------

    def append_snapshot(self, cluster: str, frame: pl.DataFrame, observed_at: dt.datetime) -> Path:
        """Land one reading of the Kubernetes API: one object per instant, an empty one too. Returns its path."""
        name = f"{observed_at:%H%M%S}.{observed_at.microsecond // 1000:03d}Z.parquet"
        path = self.root / SNAPSHOTS_TABLE.name / f"cluster={cluster}" / f"date={observed_at:%Y-%m-%d}" / name
        _write_parquet(frame, SNAPSHOTS_TABLE.schema, path, table=SNAPSHOTS_TABLE.name)
        return path

    def snapshots(self, cluster: str, *, since: dt.datetime) -> list[Path]:
        """Paths of the snapshots taken at or after `since`, oldest first."""
        folder = self.root / SNAPSHOTS_TABLE.name / f"cluster={cluster}"
        paths = sorted(folder.glob("date=*/*.parquet"))
        return [path for path in paths if snapshot_instant(path) >= since]

    # --- partitions -----------------------------------------------------------------------------------------------

    def write(self, table: Table, frame: pl.DataFrame, cluster: str, date: dt.date, *, candidate: bool) -> Written:
        """Check a partition against its schema, sort it by its key, and put it in its place whole."""
        place = self.candidate_path if candidate else self.path
        return _write_parquet(frame, table.schema, place(table.name, cluster, date), table=table.name)

    def write_focus_candidate(
        self, frame: pl.DataFrame, schema: type[dy.Schema], cluster: str, date: dt.date, order: list[str]
    ) -> Written:
        """Land FOCUS rows as a candidate; `order` is their total order."""
        path = self.candidate_path(f"focus/{FOCUS_DATASET}", cluster, date)
        return _write_parquet(frame, schema, path, table=f"focus/{FOCUS_DATASET}", order=order)

    def scan(self, table: Table, cluster: str, date: dt.date, *, candidate: bool) -> pl.LazyFrame:
        """Read a partition lazily. Raises PartitionMissing, or PartitionUnreadable for a truncated or older one."""
        place = self.candidate_path if candidate else self.path
        return scan_partition(place(table.name, cluster, date), table, cluster, date)

    def has(self, table: Table, cluster: str, date: dt.date) -> bool:
        """Whether a published (or raw) partition is there."""
        return self.path(table.name, cluster, date).exists()

    def dates(self, table: Table, cluster: str) -> list[dt.date]:
        """Days of which a published (or raw) partition is there."""
        folder = self.root / table.name / f"cluster={cluster}"
        return sorted(
            dt.date.fromisoformat(path.parent.name.removeprefix("date=")) for path in folder.glob("date=*/part.parquet")
        )

    def copy_raw(self, cluster: str, date: dt.date, *, to: "Lake") -> None:
        """Put this lake's raw layer of a day into another lake, unchanged."""
        for table in RAW_TABLES:
            content = self.path(table.name, cluster, date).read_bytes()
            _replace_bytes(to.path(table.name, cluster, date), content)

    # --- publication ----------------------------------------------------------------------------------------------

    def publish(self, cluster: str, date: dt.date) -> list[Path]:
        """Let the candidates of a day take the published places.

        The intention is written down first and taken away last, so a publication that was killed between two renames is
        finished by the next one, or by `finish_publications`. FOCUS comes last: it is what others bill from.
        """
        moves = [
            (self.candidate_path(table.name, cluster, date), self.path(table.name, cluster, date))
            for table in FACT_TABLES
        ]
        moves.append((self.candidate_path(f"focus/{FOCUS_DATASET}", cluster, date), self.focus_path(cluster, date)))
        for candidate, _ in moves:
            if not candidate.exists():
                raise PartitionMissing(
                    f"{cluster} {date}: expected the candidate {candidate}, found none; run this day again."
                )
        intention = self.root / "candidate" / f"publishing-{cluster}-{date}.json"
        relative = [[str(a.relative_to(self.root)), str(b.relative_to(self.root))] for a, b in moves]
        _replace_bytes(intention, json.dumps(relative).encode())
        return self._finish(intention)

    def finish_publications(self) -> None:
        """Finish publications that a killed run left half done. Safe to call at any time under the writer's lock."""
        for intention in sorted((self.root / "candidate").glob("publishing-*.json")):
            self._finish(intention)

    def _finish(self, intention: Path) -> list[Path]:
        published = []
        for source, target in json.loads(intention.read_bytes()):
            candidate, place = self.root / source, self.root / target
            if candidate.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                candidate.replace(place)
            published.append(place)
        intention.unlink()
        return published

    def focus_days(self, dataset: str = FOCUS_DATASET) -> dict[tuple[str, dt.date], dt.datetime]:
        """(cluster, day) -> when it was last published."""
        return {
            (path.parent.name.removeprefix("cluster="), dt.date.fromisoformat(path.stem)): dt.datetime.fromtimestamp(
                path.stat().st_mtime, dt.UTC
            )
            for path in sorted(self.focus_dataset_path(dataset).glob("billing_period=*/cluster=*/*.parquet"))
        }

    def focus_metadata(self, dataset: str = FOCUS_DATASET) -> dict[str, Any] | None:
        """The FOCUS metadata beside the dataset; None where there is none yet."""
        path = self.focus_metadata_path(dataset)
        return json.loads(path.read_bytes()) if path.exists() else None

    def write_focus_metadata(self, metadata: dict[str, object], dataset: str = FOCUS_DATASET) -> Path:
        """Put the FOCUS metadata beside the dataset, whole."""
        path = self.focus_metadata_path(dataset)
        _replace_bytes(path, json.dumps(metadata, indent=2, sort_keys=True).encode() + b"\n")
        return path

    def clear_staging(self, cluster: str, date: dt.date) -> None:
        """Forget the tiles of an extraction that has landed."""
        folder = self.staging_path(cluster, date)
        if folder.exists():
            shutil.rmtree(folder)

    @contextlib.contextmanager
    def writing(self, cluster: str, date: dt.date) -> Iterator[None]:
        """Be the only run that makes this partition. Raises PublicationBusy when another one does."""
        folder = self.root / ".locks"
        lock = FileLock(folder / f"{cluster}-{date}.lock", timeout=0)
        with _writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire()
            except Timeout:
                raise PublicationBusy(
                    f"{cluster} {date}: another run is making this day in {self.root}; try again when it is done."
                ) from None
        try:
            yield
        finally:
            lock.release()


def snapshot_instant(path: Path) -> dt.datetime:
    """The instant that a snapshot's path names."""
    day = path.parent.name.removeprefix("date=")
    return dt.datetime.strptime(f"{day} {path.stem}+0000", "%Y-%m-%d %H%M%S.%fZ%z")


def scan_partition(path: Path, table: Table, cluster: str, date: dt.date) -> pl.LazyFrame:
    """Read one Parquet object as `table`, refusing one that is missing, truncated, or of another schema."""
    if not path.exists():
        raise PartitionMissing(
            f"{cluster} {date}: {table.name} has no partition in this lake (expected {path}); "
            f"run `gpu-chargeback run --date {date} --cluster {cluster}`."
        )
    expected = polars_schema(table.schema)
    rebuild = f"Rebuild it with `gpu-chargeback run --date {date} --cluster {cluster}`."
    try:
        frame = pl.scan_parquet(path, hive_partitioning=False)
        found = frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PartitionUnreadable(f"{path}: not a whole Parquet file ({reason}). {rebuild}") from error
    differing = sorted(
        f"{name}: expected {expected.get(name, 'no such column')}, found {found.get(name, 'none')}"
        for name in {*expected, *found}
        if expected.get(name) != found.get(name)
    )
    if differing:
        raise PartitionUnreadable(f"{path}: written by another version ({'; '.join(differing[:3])}). {rebuild}")
    return frame.select(expected.names())


def _write_parquet(
    frame: pl.DataFrame, schema: type[dy.Schema], path: Path, *, table: str, order: list[str] | None = None
) -> Written:
    """Cast, check, sort, write beside, rename: never half a file to a reader, and the same rows are the same bytes."""
    expected = polars_schema(schema)
    checked = schema.validate(frame.select(expected.names()).cast(expected, strict=True))
    ordered = checked.sort(order or schema.primary_key(), nulls_last=True, maintain_order=True)
    with _beside(path) as beside:
        ordered.write_parquet(
            beside,
            compression="zstd",
            statistics=True,
            row_group_size=131_072,
            metadata={"gpu_chargeback_table": table},
        )
    return Written(path, ordered.height)


def _replace_bytes(path: Path, content: bytes) -> None:
    with _beside(path) as beside:
        beside.write_bytes(content)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A place to write to, renamed onto `path` when all is written; taken away when it is not."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    with _writable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
            _sync(beside)
            beside.replace(path)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say in a sentence that a place cannot be written, and why."""
    try:
        yield
    except OSError as error:
        raise LakeUnwritable(
            f"{path}: cannot be written ({error.strerror or error}). Nothing half-written is left; make room or "
            "give this user the right to write there, and run again."
        ) from error


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
