"""Directories that earlier versions have left are opened, read, written, crash and are opened again (G1, G4, G10).

They are kept in tests/fixtures/directories, with what the server of that version showed.
"""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topics.engine import Engine
from topics.reader import open_directory
from topics.settings import Settings
from topics.testing.clock import ManualClock

KEPT = Path(__file__).parent.parent / "fixtures" / "directories"
ARCHIVES = sorted(path.stem for path in KEPT.glob("*.zip"))
WRITTEN_MS = ManualClock().now_ms() + 61_000  # when the last record was written
LEASES = [(4, "w", 1), (5, "w", 1)]  # held when the server ended: seq, node, deliveries

Shown = dict[str, dict[str, Any]]


def unpacked(name: str, directory: Path) -> Shown:
    with zipfile.ZipFile(KEPT / f"{name}.zip") as archive:
        archive.extractall(directory)
    shown: Shown = json.loads((directory / "shown.json").read_bytes())
    (directory / "shown.json").unlink()
    return shown


def open_engine(path: Path) -> Engine:
    settings = Settings(segment_max_events=20)
    return Engine.open(str(path), settings, clock=ManualClock(WRITTEN_MS), background=False)


async def rows_of(engine: Engine, name: str) -> list[Any]:
    page = await engine.read(name, 0, 1000, include_tags=True)
    return [[row.seq, row.ts, row.tag, row.node, value(row.data), value(row.meta)] for row in page.records]


def value(text: msgspec.Raw) -> Any:
    return json.loads(bytes(text)) if bytes(text) else None


async def check_shown(engine: Engine, shown: Shown, *, is_stopped: bool) -> None:
    """What was shown is there; what was handed out in advance, or was in memory only, is announced."""
    assert await engine.topic_names() == sorted(shown)
    for name, before in shown.items():
        state = await engine.topic_state(name, touch=False)
        rows, durability = await rows_of(engine, name), state.config.durability
        if durability == "ephemeral":
            assert rows == [] and (state.epoch == before["epoch"]) == is_stopped
            page = await engine.read(name, 0 if is_stopped else before["head"], 1000, epoch=before["epoch"])
            assert page.tombstone is not None and (is_stopped or page.tombstone.reason == "recreated")
            continue
        assert (rows, state.earliest_seq, state.epoch) == (before["records"], before["earliest"], before["epoch"]), name
        if is_stopped or durability == "fsync":
            assert state.head_seq == before["head"], name
        else:
            assert state.head_seq > before["head"], "seqs that were reserved are not handed out again"
            page = await engine.read(name, before["head"], 1000)
            assert page.tombstone is not None and page.tombstone.gap_to == state.head_seq


async def check_rest(engine: Engine, shown: Shown) -> None:
    """Keys, queue, routers, named cursors."""
    assert (await engine.append("fsync", records(40), key="fsync-2")).deduped
    assert (await engine.append("disk", records(40), key="disk-2")).deduped
    if "queue" in shown:
        leases, _ = await engine.queues.leases("queue", 0, 100)
        assert [(one.seq, one.node, one.deliveries) for one in leases] == LEASES
        claimed = await engine.claim("queue", "other", 10)
        assert [lease[0] for lease in claimed.leases] == [6, 7, 8], "3 is delayed, 4 and 5 are held"
        await engine.nack("queue", "other", [6, 7, 8])
        assert (await engine.ack("queue", "w", [4])).done == [4]
        routers, _ = await engine.routing.list_after("", 10)
        assert [(one.router, one.source, one.dest, one.forwarded_total) for one in routers] == [
            ("copies", "fsync", "copy", 10)
        ]
    if "paused" in shown:
        assert (await engine.claim("paused", "w", 1)).paused
        assert (await engine.cursors.show("fsync", "reader")).seq == 17


def records(first: int) -> list[dict[str, Any]]:
    return [{"data": {"n": n, "text": "é"}, "tag": f"t{n % 3}", "meta": {"m": n}} for n in range(first, first + 10)]


def test_there_are_directories_of_every_version() -> None:
    listed = [line.split("`")[1] for line in (KEPT / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert [f"{name}-{end}" for name in listed for end in ("killed", "stopped")] == ARCHIVES


@pytest.mark.parametrize("name", ARCHIVES)
async def test_a_directory_of_an_earlier_version_is_read_written_and_outlives_a_crash(
    tmp_path: Path, name: str
) -> None:
    """G1, G4, G9, G10, G11, G12, ST6, ST9, DU10, QU18, ID8"""
    path = tmp_path / "data"
    shown = unpacked(name, path)
    with open_directory(path) as directory:
        assert [fault for fault in directory.check().faults if fault.is_certain] == []
    async with open_engine(path) as engine:
        await check_shown(engine, shown, is_stopped=name.endswith("stopped"))
        await check_rest(engine, shown)
        for topic in shown:
            await engine.append(topic, [{"data": "new"}], key="new")
        await engine.delete("fsync", before_seq=20)
        heads = {topic: (await engine.topic_state(topic)).head_seq for topic in shown}
        now = {topic: await rows_of(engine, topic) for topic in shown}
        shutil.copytree(path, tmp_path / "killed")
        await engine.checkpoint()
        shutil.copytree(path, tmp_path / "killed-behind-a-checkpoint")
    for copy in ("killed", "killed-behind-a-checkpoint", "data"):
        async with open_engine(tmp_path / copy) as engine:
            for topic in shown:
                if (await engine.topic_state(topic)).config.durability != "ephemeral":
                    assert await rows_of(engine, topic) == now[topic], (copy, topic)
                    assert (await engine.topic_state(topic)).head_seq == heads[topic], (copy, topic)
                    assert (await engine.append(topic, [{"data": "new"}], key="new")).deduped
        with open_directory(tmp_path / copy) as directory:
            assert [fault for fault in directory.check().faults if fault.is_certain] == []
