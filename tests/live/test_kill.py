"""A real process on a real directory, killed with SIGKILL at random moments."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topics.engine import Engine
from topics.errors import DirectoryLocked
from topics.model import Record
from topics.testing.patience import PATIENCE_S

WRITER = Path(__file__).with_name("writer.py")
TOPICS = ("fsync", "disk", "memory")
ROUNDS = 8


class Said:
    """What the process has told."""

    def __init__(self) -> None:
        self.acked: dict[str, dict[str, tuple[int, int]]] = {topic: {} for topic in TOPICS}  # key → seqs
        self.seen: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}  # seq → data

    def hear(self, line: str) -> None:
        what, *rest = line.split(" ")
        if what == "acked":
            self.acked[rest[0]][rest[3].strip()] = (int(rest[1]), int(rest[2]))
        elif what == "seen":
            self.seen[rest[0]][int(rest[1])] = rest[2].strip()


@contextmanager
def writer(directory: Path, round_: int) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(directory), str(round_)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        ended(process)


def ended(process: "subprocess.Popen[str]") -> list[str]:
    """Wait for its end. Gives the whole lines that it said and nobody heard."""
    assert process.stdout is not None
    lines = [] if process.stdout.closed else process.stdout.read().splitlines(keepends=True)
    process.stdout.close()
    process.wait(timeout=PATIENCE_S)
    return [line for line in lines if line.endswith("\n")]


def hear_until(process: "subprocess.Popen[str]", said: Said, lines: int) -> None:
    assert process.stdout is not None
    for _ in range(lines):
        line = process.stdout.readline()
        assert line.endswith("\n"), "it ended"
        said.hear(line)


def kill(process: "subprocess.Popen[str]", said: Said) -> None:
    """Kill it, and hear what it had said by then."""
    os.kill(process.pid, signal.SIGKILL)
    for line in ended(process):
        said.hear(line)


async def all_records(engine: Engine, topic: str) -> list[Record]:
    """Every record from the beginning; there must be no tombstone."""
    found: list[Record] = []
    after, is_caught_up = 0, False
    while not is_caught_up:
        answer = await engine.read(topic, after, 1000, include_tags=True)
        assert answer.tombstone is None, f"{topic}: {answer.tombstone} after a mere kill"
        found += answer.records
        after, is_caught_up = answer.next_from_seq, answer.caught_up
    return found


def text(record: Record) -> str:
    return bytes(record.data).decode().strip('"')


async def check_records(engine: Engine, said: Said) -> None:
    for topic in TOPICS:
        records = await all_records(engine, topic)
        state = await engine.topic_state(topic)
        assert [record.seq for record in records] == list(range(1, state.head_seq + 1)), f"{topic} has a hole"
        assert state.count == len(records)
        data = [text(record) for record in records]
        assert len(set(data)) == len(data), f"{topic} has a record twice"
        for key, (first, last) in said.acked[topic].items():
            assert data[first - 1 : last] == [f"{key}.{n}" for n in range(last - first + 1)], f"{topic}: {key}"
        for seq, seen in said.seen[topic].items():
            assert data[seq - 1] == seen.strip('"'), f"{topic}: a reader saw {seen} as {seq}"
        check_batches_are_whole(records)


def check_batches_are_whole(records: list[Record]) -> None:
    """A batch of key w.r.N has 1 + N % 3 records, one behind the other."""
    position = 0
    while position < len(records):
        key, _, first = text(records[position]).rpartition(".")
        size = 1 + int(key.rpartition(".")[2]) % 3
        batch = [text(record) for record in records[position : position + size]]
        assert (first, batch) == ("0", [f"{key}.{n}" for n in range(size)])
        assert [record.tag for record in records[position : position + size]] == [
            f"{key.rpartition('.')[0]}:{n}" for n in range(size)
        ]
        position += size


async def check_retries(engine: Engine, said: Said, rng: random.Random) -> None:
    """Repeat acked writes, and those that were under way, under their keys."""
    for topic in TOPICS:
        for key, seqs in rng.sample(sorted(said.acked[topic].items()), min(20, len(said.acked[topic]))):
            again = await engine.append(topic, [{"data": "again"}], key=key)
            assert (again.deduped, again.first_seq, again.last_seq) == (True, *seqs)
        last: dict[str, int] = {}
        for key in said.acked[topic]:
            name, _, number = key.rpartition(".")
            last[name] = max(last.get(name, -1), int(number))
        for name, number in last.items():
            key = f"{name}.{number + 1}"  # it was sent, and no ack came
            batch = [{"data": f"{key}.{n}", "tag": f"{name}:{n}"} for n in range(1 + (number + 1) % 3)]
            done = await engine.append(topic, batch, key=key)
            assert (await engine.append(topic, batch, key=key)).first_seq == done.first_seq
            said.acked[topic][key] = (done.first_seq, done.last_seq)
    await check_records(engine, said)


def test_what_was_acked_survives_kill_after_kill(tmp_path: Path) -> None:
    """S5, S17, S26, G1, G2, G8, G12, G13, DU3, DU10, WR10, ID8: kills at random moments, on one directory."""
    rng = random.Random(7)
    directory = tmp_path / "data"
    said = Said()
    for round_ in range(ROUNDS):
        with writer(directory, round_) as process:
            hear_until(process, said, 1)
            hear_until(process, said, rng.randrange(1, 3000))
            kill(process, said)

        async def check(round_: int = round_) -> None:
            copy = tmp_path / f"copy {round_}"
            shutil.copytree(directory, copy)
            async with Engine.open(str(copy)) as engine:
                await check_records(engine, said)
                before = {topic: dict(keys) for topic, keys in said.acked.items()}
                await check_retries(engine, said, rng)
                said.acked = before

        asyncio.run(check())
    assert all(said.acked[topic] and said.seen[topic] for topic in TOPICS)


def test_a_second_process_is_refused_and_a_graceful_stop_leaves_no_log_to_replay(tmp_path: Path) -> None:
    """ST11, ST7, SC3: and the second one has changed nothing."""
    directory = tmp_path / "data"
    said = Said()
    with writer(directory, 0) as first:
        hear_until(first, said, 50)
        with writer(directory, 1) as second:
            complaint = ended(second)
            assert second.returncode != 0
            assert any("DirectoryLocked" in line for line in complaint)

        async def refused() -> None:
            with pytest.raises(DirectoryLocked):
                await Engine.open(str(directory)).start()

        asyncio.run(refused())
        hear_until(first, said, 50)
        first.terminate()
        for line in ended(first):
            said.hear(line)
        assert first.returncode == 0

    async def check() -> None:
        async with Engine.open(str(directory)) as engine:
            assert engine._ledger.store.replayed_frames == 0
            await check_records(engine, said)

    asyncio.run(check())


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """ST13"""
    directory = tmp_path / "data"
    with writer(directory, 0) as process:
        hear_until(process, Said(), 200)
        process.terminate()
        ended(process)
    files = list(directory.iterdir())
    assert {file.name.split("-")[0] for file in files} >= {"log", "segment", "snapshot"}
    assert [file.name for file in files if file.stat().st_mode & 0o077] == []
    assert directory.stat().st_mode & 0o077 == 0
