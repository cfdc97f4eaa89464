import datetime as dt
from pathlib import Path

import dataframely as dy
import polars as pl
import pytest

from pipelines.load.lake import Lake, snapshot_instant
from schemas.errors import LakeUnwritable, PartitionMissing, PartitionUnreadable, PublicationBusy, UsageError
from schemas.tables import CHECKS_TABLE, FACT_TABLES, TABLES, SnapshotObject, polars_schema

DAY = dt.date(2026, 3, 2)
FINDINGS = TABLES["findings"]


def some_findings(*codes: str) -> pl.DataFrame:
    rows = [
        {"cluster": "c", "date": DAY, "code": code, "subject": "s", "message": "m", "affected": 1} for code in codes
    ]
    return pl.DataFrame(rows, schema=polars_schema(FINDINGS.schema))


def land_candidates(lake: Lake, code: str) -> None:
    for table in FACT_TABLES:
        content = some_findings(code) if table is FINDINGS else pl.DataFrame(schema=polars_schema(table.schema))
        lake.write(table, content, "c", DAY, candidate=True)
    lake.write_focus_candidate(some_findings(code), FINDINGS.schema, "c", DAY, ["code"])


def published_code(lake: Lake) -> str:
    return str(lake.scan(FINDINGS, "c", DAY, candidate=False).collect()["code"][0])


def test_a_partition_is_one_object_sorted_by_its_key(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    written = lake.write(FINDINGS, some_findings("b", "a"), "c", DAY, candidate=False)
    assert written.path == tmp_path / "findings" / "cluster=c" / "date=2026-03-02" / "part.parquet"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [written.path]
    assert lake.scan(FINDINGS, "c", DAY, candidate=False).collect()["code"].to_list() == ["a", "b"]


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    one = Lake(tmp_path / "1").write(FINDINGS, some_findings("b", "a"), "c", DAY, candidate=False)
    two = Lake(tmp_path / "2").write(FINDINGS, some_findings("a", "b"), "c", DAY, candidate=False)
    assert one.path.read_bytes() == two.path.read_bytes()


def test_rows_that_break_the_contract_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(dy.exc.ValidationError):
        Lake(tmp_path).write(FINDINGS, some_findings("a", "a"), "c", DAY, candidate=False)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_missing_partition_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(PartitionMissing, match="gpu-chargeback run --date 2026-03-02 --cluster c"):
        Lake(tmp_path).scan(FINDINGS, "c", DAY, candidate=False)


def test_a_truncated_partition_is_named(tmp_path: Path) -> None:
    path = Lake(tmp_path).write(FINDINGS, some_findings("a"), "c", DAY, candidate=False).path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PartitionUnreadable, match=r"not a whole Parquet file.*gpu-chargeback run --date 2026-03-02"):
        Lake(tmp_path).scan(FINDINGS, "c", DAY, candidate=False)


def test_a_partition_of_an_older_schema_is_named(tmp_path: Path) -> None:
    path = Lake(tmp_path).path("findings", "c", DAY)
    path.parent.mkdir(parents=True)
    some_findings("a").drop("affected").write_parquet(path)
    with pytest.raises(
        PartitionUnreadable, match=r"written by another version \(affected: expected Int64, found none\)"
    ):
        Lake(tmp_path).scan(FINDINGS, "c", DAY, candidate=False)


def test_publishing_moves_every_candidate(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    land_candidates(lake, "new")
    lake.publish("c", DAY)
    assert published_code(lake) == "new"
    assert lake.focus_path("c", DAY).exists()
    assert not list((tmp_path / "candidate").rglob("*.parquet"))


def test_nothing_moves_while_a_candidate_is_missing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    land_candidates(lake, "old")
    lake.publish("c", DAY)
    land_candidates(lake, "new")
    lake.candidate_path("charges", "c", DAY).unlink()
    with pytest.raises(PartitionMissing):
        lake.publish("c", DAY)
    assert published_code(lake) == "old"


def test_a_publication_killed_halfway_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path)
    land_candidates(lake, "old")
    lake.publish("c", DAY)
    land_candidates(lake, "new")
    moves, replace = [], Path.replace

    def killed(self: Path, target: Path) -> Path:
        moves.append(target)
        if len(moves) == 5:
            raise KeyboardInterrupt
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.publish("c", DAY)
    lake.finish_publications()
    assert published_code(lake) == "new"
    assert not list((tmp_path / "candidate").rglob("*.parquet"))
    assert pl.read_parquet(lake.focus_path("c", DAY))["code"].to_list() == ["new"]


def test_snapshots_are_one_object_per_instant(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    instants = [dt.datetime(2026, 3, 2, 23, 59, 59, 500_000, dt.UTC), dt.datetime(2026, 3, 3, 0, 5, tzinfo=dt.UTC)]
    for instant in instants:
        frame = pl.DataFrame(
            [
                {
                    "cluster": "c", "observed_at": instant, "kind": "Node", "api_version": "v1", "uid": "u",
                    "namespace": None, "name": "n", "object": "{}",
                }
            ],
            schema=polars_schema(SnapshotObject),
        )  # fmt: skip
        lake.append_snapshot("c", frame, instant)
    assert [snapshot_instant(path) for path in lake.snapshots("c", since=instants[0])] == instants
    assert [snapshot_instant(path) for path in lake.snapshots("c", since=instants[1])] == instants[1:]


def test_one_run_makes_a_partition_at_a_time(tmp_path: Path) -> None:
    with (
        Lake(tmp_path).writing("c", DAY),
        pytest.raises(PublicationBusy, match="another run is making this day"),
        Lake(tmp_path).writing("c", DAY),
    ):
        pass


def test_an_empty_partition_is_a_partition(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.write(CHECKS_TABLE, pl.DataFrame(schema=polars_schema(CHECKS_TABLE.schema)), "c", DAY, candidate=False)
    assert lake.scan(CHECKS_TABLE, "c", DAY, candidate=False).collect().height == 0


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    root = tmp_path / "a file"
    root.write_text("no folder")
    with pytest.raises(LakeUnwritable, match=r"a file.*cannot be written"), Lake(root).writing("c", DAY):
        pass
    with pytest.raises(LakeUnwritable, match="cannot be written"):
        Lake(root).write(FINDINGS, some_findings("a"), "c", DAY, candidate=False)


def test_a_path_that_reads_as_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"without \* \?"):
        Lake(tmp_path / "a*b?")
