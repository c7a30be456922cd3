"""`topics audit`: what is whole is found to be whole, and each kind of damage is found."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from topics import reader
from topics.client import Client
from topics.core.dump import TopicItem
from topics.errors import InvalidRequest
from topics.model import Gap
from topics.reader import Lost
from topics.spark.jobs.auditing import Audit, audit
from topics.spark.tables.lake import Commit, Covered, Lake, LakeFile, checksum_of, open_root
from topics.storage.disk import RealDisk
from topics.storage.segments import SegmentFile, decode_file, decode_piece
from topics.storage.snapshots import Snapshots
from topics.testing.patience import PATIENCE_S
from topics.testing.server import ServerProcess

Items = dict[bytes, bytes]


class House:
    """A server with some topics, which can be stopped so that all of it is sealed."""

    def __init__(self, directory: Path) -> None:
        self.server = ServerProcess(directory / "server")
        self.lake = str(directory / "lake")

    @property
    def data(self) -> str:
        return str(self.server.data)

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.server.address)

    def fill(self) -> None:
        """orders: 100 records, 10 deleted; capped: 30 of which 20 are lost; both in one segment in the end."""
        with self.server.start(), Client(self.url, "") as client:
            client.append("orders", [{"data": {"n": n}, "tag": f"t{n % 10}", "meta": {"m": n}} for n in range(1, 101)])
            client.delete_records("orders", match="t3")
            client.put_topic("capped", cap_records=10)
            client.append("capped", [{"data": n} for n in range(1, 31)])
            self.server.stop()

    def audit(self, *arguments: Any, **named: Any) -> Audit:
        return audit(*arguments, path=self.data, **named)

    def edit_snapshot(self, edit: Callable[[Items], None]) -> None:
        """Change the snapshot in force, with right checksums, as one base without a past."""
        disk = RealDisk(self.data, create=False)
        try:
            items = dict(Snapshots(disk).load() or {})
            edit(items)
            for name in [name for name in disk.names() if name.startswith("snapshot-")]:
                disk.remove(name)
            Snapshots(disk).install(items)  # type: ignore[arg-type]
        finally:
            disk.close()

    def archive(self, topic: str, seqs: range, *, gaps: list[Lost] | None = None, has_checksum: bool = False) -> Path:
        """Put seqs of a topic into the lake, as they are in the directory; the file."""
        with reader.open_directory(self.data) as directory:
            epoch = directory.topic(topic).epoch
            batches = list(directory.batches(topic, seqs.start - 1, seqs[-1]))
        table = pa.Table.from_batches(batches)
        name = f"records/{topic}-{seqs.start}.parquet"
        file = Path(self.lake) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, file)
        rows = table["seq"].to_pylist()
        checksum = checksum_of(*open_root(str(file))) if has_checksum else ""
        entry = LakeFile(name, rows[0], rows[-1], len(rows), file.stat().st_size, checksum)
        covered = Covered(topic, epoch, seqs.start, seqs[-1], [entry], gaps or [])
        Lake.load(self.lake, must_exist=False).commit(Commit(covered=[covered]))
        return file


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a house, as its server left it."""
    house = House(tmp_path_factory.mktemp("filled"))
    house.fill()
    return house.server.data


@pytest.fixture
def house(filled: Path, tmp_path: Path) -> Iterator[House]:
    """A house of the test's own, with a copy of that directory."""
    house = House(tmp_path)
    shutil.copytree(filled, house.server.data)
    yield house
    if house.server.process is not None:
        house.server.kill()


def told(found: Audit) -> str:
    return "\n".join(map(str, found.findings))


# --- a data directory


def test_a_whole_directory_is_sound_and_every_seq_is_counted_once(house: House) -> None:
    """TM1, TM3"""
    found = house.audit()
    assert found.is_sound and found.findings == []
    counts = {tally.topic: (tally.head, tally.live, tally.deleted, tally.lost) for tally in found.tallies}
    assert counts == {"orders": (100, 90, 10, 0), "capped": (30, 10, 0, 20)}
    assert found.segments == 1 and found.is_complete


def test_a_flipped_byte_in_a_segment_is_found(house: House) -> None:
    (segment,) = house.server.data.glob("segment-*.arrow")
    image = bytearray(segment.read_bytes())
    image[image.index(b'{"n":57}') + 5] ^= 1
    segment.write_bytes(image)
    found = house.audit()
    assert not found.is_sound and segment.name in told(found) and "column data" in told(found)


def test_a_flipped_byte_in_a_log_that_is_needed_is_found(house: House) -> None:
    """ST12"""
    with house.server.start(), Client(house.url, "") as client:
        for n in range(3):
            client.append("orders", [{"data": f"unsealed {n}"}])
        house.server.kill()
    assert house.audit().is_sound
    log = max(house.server.data.glob("log-*"))
    image = bytearray(log.read_bytes())
    image[image.index(b"unsealed 0")] ^= 1
    log.write_bytes(image)
    found = house.audit()
    assert not found.is_sound and log.name in told(found) and "a frame is not valid" in told(found)


def test_a_segment_that_is_missing_is_found(house: House) -> None:
    (segment,) = house.server.data.glob("segment-*.arrow")
    segment.unlink()
    found = house.audit()
    assert not found.is_sound and "this segment is missing" in told(found)


def test_a_snapshot_that_was_changed_by_a_byte_is_found(house: House) -> None:
    snapshot = max(house.server.data.glob("snapshot-*"))
    image = bytearray(snapshot.read_bytes())
    image[-1] ^= 1
    snapshot.write_bytes(image)
    found = house.audit()
    assert not found.is_sound and "does not match its checksum" in told(found)


def pieces_of(items: Items, topic: str) -> list[bytes]:
    ids = [item.id for item in topics_in(items) if item.name == topic]
    return [key for key in items if key.startswith(b"s" + ids[0].to_bytes(8, "big"))]


def topics_in(items: Items) -> list[TopicItem]:
    return [msgspec.msgpack.decode(value, type=TopicItem) for key, value in items.items() if key.startswith(b"t")]


def change_topic(items: Items, topic: str, **fields: Any) -> None:
    for key in [key for key in items if key.startswith(b"t")]:
        item = msgspec.msgpack.decode(items[key], type=TopicItem)
        if item.name == topic:
            items[key] = msgspec.msgpack.encode(msgspec.structs.replace(item, **fields))


def test_a_silent_hole_made_by_taking_all_pieces_out_of_a_snapshot_is_found(house: House) -> None:
    def edit(items: Items) -> None:
        for topic in ("orders", "capped"):
            for key in pieces_of(items, topic):
                del items[key]

    house.edit_snapshot(edit)
    found = house.audit()
    assert not found.is_sound
    assert "seqs 1 to 100 (90 records) are in this segment" in told(found)
    assert "seqs 21 to 30 (10 records) are in this segment" in told(found)


def test_a_piece_taken_out_beside_others_of_its_file_is_found(house: House) -> None:
    house.edit_snapshot(lambda items: [items.pop(key) for key in pieces_of(items, "orders")] and None)
    found = house.audit()
    assert {finding.topic for finding in found.findings if finding.is_certain} == {"orders"}
    assert (
        "90 of seqs 1 to 100 are neither live nor deleted nor announced as lost: live 0 + deleted 10 + lost 0 is not "
        "the head 100" in told(found)
    )
    assert "seqs 1 to 100 (90 records) are in this segment" in told(found)


def test_a_piece_that_was_deleted_as_a_whole_leaves_no_doubt(house: House) -> None:
    """DL1"""
    with house.server.start(), Client(house.url, "") as client:
        client.delete_records("orders", before_seq=101)
        house.server.stop()
    found = house.audit()
    assert found.findings == [] and found.tallies[1].deleted == 100


def test_a_hole_stays_a_finding_after_the_server_has_run_on_it(house: House) -> None:
    house.edit_snapshot(lambda items: [items.pop(key) for key in pieces_of(items, "orders")] and None)
    with house.server.start(), Client(house.url, "") as client:
        assert client.diff("orders").tombstone is None, "the hole is real: a reader is told nothing"
        client.append("orders", [{"data": n} for n in range(5)])
        client.delete_records("orders", before_seq=102)
        house.server.stop()
    assert "live 4 + deleted 11 + lost 0 is not the head 105" in told(house.audit())


SILENT: dict[str, tuple[dict[str, Any], str]] = {
    "a head raised": ({"head": 140}, "83, 101 to 140 and 1 ranges more are neither live nor deleted"),
    "a floor raised": ({"evicted_last": 40}, "36 of seqs 1 to 40, "),
    "an age invented": ({"expired_last": 100}, "90 of seqs 1 to 100 are"),
    "a loss that is no loss": ({"gaps": [Gap(41, 80, "cap")]}, "seqs 41 to 80 are announced as lost, and some"),
    "a delete forgotten": ({"deleted": 9}, "1 of seqs 3, 13, "),
    "a delete invented": ({"deleted": 11}, "1 records are there though they are gone"),
}


@pytest.mark.parametrize("edit", SILENT)
def test_a_topic_edited_in_a_snapshot_is_found(house: House, edit: str) -> None:
    """TM14"""
    fields, said = SILENT[edit]
    house.edit_snapshot(lambda items: change_topic(items, "orders", **fields))
    found = house.audit()
    assert not found.is_sound and said in told(found), told(found)
    assert {finding.topic for finding in found.findings} == {"orders"}


def test_a_loss_that_is_announced_no_more_is_found(house: House) -> None:
    """TM3, TM14"""
    house.edit_snapshot(lambda items: change_topic(items, "capped", evicted_last=0))
    found = house.audit()
    assert not found.is_sound and "10 live" not in told(found)
    assert "seqs 1 to 20 are lost, and no loss is announced: live 10 + deleted 0 + lost 20" in told(found)


def test_marks_of_deletes_that_nobody_asked_for_are_found(house: House) -> None:
    disk = RealDisk(house.data, create=False)
    try:
        items = Snapshots(disk).load() or {}
        (piece,) = (decode_piece(items[key]) for key in pieces_of(items, "orders"))
        files = [decode_file(value) for key, value in items.items() if key.startswith(b"f")]
        SegmentFile(disk, files[0]).set_deleted([(piece.start + 40, piece.start + 45)])
    finally:
        disk.close()
    found = house.audit()
    assert not found.is_sound
    assert "live 85 + deleted 10 + lost 0 is not the head 100" in told(found) and "46 to 50" in told(found)


def test_marks_that_are_ahead_of_the_snapshot_are_explained_by_the_log(house: House) -> None:
    """ST9: a checkpoint that was cut off between its marks and its snapshot."""
    with house.server.start(), Client(house.url, "") as client:
        snapshots = {path: path.read_bytes() for path in house.server.data.glob("snapshot-*")}
        client.delete_records("orders", match="t4")
        logs = {path: path.read_bytes() for path in house.server.data.glob("log-*")}
        client.append("orders", [{"data": "later"}])
        house.server.stop()
    for path in [*house.server.data.glob("snapshot-*"), *house.server.data.glob("log-*")]:
        path.unlink()
    for path, image in (snapshots | logs).items():
        path.write_bytes(image)
    found = house.audit()
    assert found.findings == []
    assert [(tally.live, tally.deleted) for tally in found.tallies if tally.topic == "orders"] == [(80, 20)]


def test_records_that_only_the_log_has_are_counted(house: House) -> None:
    with house.server.start(), Client(house.url, "") as client:
        client.append("orders", [{"data": n} for n in range(20)])
        client.delete_records("orders", before_seq=111)
        client.append("capped", [{"data": n} for n in range(20)])
        house.server.kill()
    found = house.audit()
    counts = {tally.topic: (tally.head, tally.live, tally.deleted, tally.lost) for tally in found.tallies}
    assert counts == {"orders": (120, 10, 110, 0), "capped": (50, 10, 0, 40)}
    assert found.findings == [] and not found.is_complete


def test_a_piece_cut_short_in_a_snapshot_is_found(house: House) -> None:
    def edit(items: Items) -> None:
        (key,) = pieces_of(items, "orders")
        ref = msgspec.msgpack.decode(items[key])
        ref[5] -= 40  # count
        items[key] = msgspec.msgpack.encode(ref)

    house.edit_snapshot(edit)
    found = house.audit()
    assert not found.is_sound and "the snapshot says 1 to 100" in told(found)


def test_an_announced_loss_that_a_newer_snapshot_takes_back_is_found(house: House) -> None:
    """TM14"""
    with house.server.start(), Client(house.url, "") as client:
        client.append("capped", [{"data": "more"}])
        house.server.stop()
    assert house.audit().is_sound
    disk = RealDisk(house.data, create=False)
    try:
        shots = Snapshots(disk)
        items = dict(shots.load() or {})
        before = dict(items)
        change_topic(items, "capped", evicted_last=0)
        shots.install({key: value for key, value in items.items() if value != before[key]})
    finally:
        disk.close()
    found = house.audit()
    assert not found.is_sound and "evicted_last was 21 in the snapshot before, and is 0" in told(found)


def test_pieces_that_overlap_or_reach_above_the_head_are_found(house: House) -> None:
    house.edit_snapshot(lambda items: change_topic(items, "orders", head=60))
    found = house.audit()
    assert not found.is_sound and "a piece ends at seq 100, above the head 60" in told(found)


# --- a server


def test_a_server_is_audited_by_reading_all_it_has(house: House) -> None:
    with house.server.start():
        found = audit(url=house.url, token="")
        counts = {tally.topic: (tally.head, tally.live, tally.deleted, tally.lost) for tally in found.tallies}
        assert counts == {"orders": (100, 90, 10, 0), "capped": (30, 10, 0, 20)}
        assert found.is_sound and found.findings == []
        assert [tally.topic for tally in audit(url=house.url, token="", pattern="cap.*").tallies] == ["capped"]


def test_a_server_whose_segment_is_damaged_is_found(tmp_path: Path) -> None:
    """ST12"""
    house = House(tmp_path)
    with house.server.start(), Client(house.url, "") as client:
        client.append("plain", [{"data": {"n": n}} for n in range(100)])
        house.server.stop()
    (segment,) = house.server.data.glob("segment-*.arrow")
    image = bytearray(segment.read_bytes())
    image[image.index(b'{"n":57}') + 5] ^= 1
    segment.write_bytes(image)
    with house.server.start():
        found = audit(url=house.url, token="")
    assert not found.is_sound and "server topic plain: it cannot be read" in told(found)


# --- a lake


def test_a_lake_that_equals_its_topics_is_sound(house: House, spark: SparkSession) -> None:
    house.archive("orders", range(1, 61))
    house.archive("orders", range(61, 101))
    found = house.audit(house.lake, spark=spark)
    assert found.is_sound and found.findings == []
    (compared,) = found.compared
    assert (compared.covered, compared.rows, compared.equal, compared.deleted_since) == (100, 90, 90, 0)


def test_what_was_deleted_since_it_was_archived_is_counted_and_no_finding(house: House, spark: SparkSession) -> None:
    house.archive("orders", range(1, 101))
    with house.server.start(), Client(house.url, "") as client:
        client.delete_records("orders", before_seq=11)
        found = audit(house.lake, url=house.url, token="", spark=spark)
    assert found.findings == [] and (found.compared[0].equal, found.compared[0].deleted_since) == (81, 9)


def rewrite(file: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    table = pq.read_table(file)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), table.schema), file)


@pytest.mark.parametrize(("column", "value"), [("data", '{"n":58}'), ("tag", None), ("meta", "{}")])
def test_a_lake_row_that_was_changed_is_found(house: House, spark: SparkSession, column: str, value: Any) -> None:
    file = house.archive("orders", range(1, 101))
    rewrite(file, lambda rows: [{**row, column: value} if row["seq"] == 57 else row for row in rows])
    found = house.audit(house.lake, spark=spark)
    assert not found.is_sound and found.compared[0].equal == 89
    assert told(found) == f"lake topic orders: seq 57 differs from the topic in {column}"


@pytest.mark.parametrize("gone", ["deleted records", "a deleted topic", "a recreated topic"])
def test_a_lake_row_that_was_changed_is_found_where_the_topic_no_longer_has_it(
    house: House, spark: SparkSession, gone: str
) -> None:
    file = house.archive("orders", range(1, 101), has_checksum=True)
    with house.server.start(), Client(house.url, "") as client:
        if gone == "deleted records":
            client.delete_records("orders", before_seq=101)
        else:
            client.delete_topic("orders")
        if gone == "a recreated topic":
            client.append("orders", [{"data": n} for n in range(100)])
        house.server.stop()
    assert house.audit(house.lake, spark=spark).findings == []
    rewrite(file, lambda rows: [{**row, "data": "58"} if row["seq"] == 57 else row for row in rows])
    found = house.audit(house.lake, spark=spark)
    assert [finding.file for finding in found.findings] == ["records/orders-1.parquet"] and not found.is_sound
    assert "do not match the checksum in the manifest" in told(found)


def test_rows_missing_from_a_lake_file_are_found(house: House, spark: SparkSession) -> None:
    file = house.archive("orders", range(1, 101))
    rewrite(file, lambda rows: [row for row in rows if not 40 < row["seq"] < 50])
    found = house.audit(house.lake, spark=spark)
    assert not found.is_sound and "it has 82 rows; the manifest says 90" in told(found)


def test_a_lake_file_that_is_missing_is_found(house: House, spark: SparkSession) -> None:
    house.archive("orders", range(1, 61)).unlink()
    house.archive("orders", range(61, 101))
    found = house.audit(house.lake, spark=spark)
    assert not found.is_sound and "the manifest names this file, and it is missing" in told(found)
    assert "seqs 1 to 2 are live in the topic and missing in the lake" in told(found)


def test_a_lake_range_that_is_missing_is_found(house: House, spark: SparkSession) -> None:
    for seqs in (range(1, 31), range(31, 61), range(61, 101)):
        house.archive("orders", seqs)
    (Path(house.lake) / "manifest" / f"{2:020d}.json").unlink()
    found = house.audit(house.lake, spark=spark)
    assert not found.is_sound
    assert "seqs 31 to 60 of epoch" in told(found) and "2.json is missing" in told(found)


# --- the command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from topics.cli import main; main()", "audit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env={"COLUMNS": "120"})


def test_the_command_prints_a_report_and_ends_with_a_code(house: House) -> None:
    whole = run("--path", house.data)
    assert (whole.returncode, whole.stderr) == (0, "") and "Sound: every seq is accounted for." in whole.stdout
    (segment,) = house.server.data.glob("segment-*.arrow")
    segment.write_bytes(segment.read_bytes()[:-8192])
    broken = run("--path", house.data, "--json")
    document = json.loads(broken.stdout)
    assert broken.returncode == 1 and document["is_sound"] is False
    assert document["findings"][0]["file"] == segment.name
    nowhere = run("--path", house.data + "-not")
    assert nowhere.returncode == 2 and "cannot read data directory" in nowhere.stderr


def test_a_pattern_that_is_no_expression_is_refused(house: House) -> None:
    with pytest.raises(InvalidRequest, match=r"topics is '\(': it is not a regular expression"):
        house.audit(pattern="(")
