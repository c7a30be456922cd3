"""Single records of a log are replayed many at a time: the state is the same as if each were replayed by itself."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Raw

from tests.effort import tries
from tests.engine.running import open_engine, running
from topics.core import decide, entries
from topics.core.decide import Append, Caps
from topics.core.entries import Appended, TopicConfigured, TopicCreated, encode
from topics.core.framing import frames_of
from topics.core.state import State
from topics.core.topic.log import Log
from topics.core.topic.parts import Chunk
from topics.core.topic.records import Batch, RecordIn, batch_of
from topics.engine import Engine
from topics.engine.durability import singles
from topics.engine.durability.catalogue import Catalogue
from topics.engine.durability.singles import Singles
from topics.errors import Damaged, TopicsError, UnusableDirectory
from topics.model import TagMatch, TopicConfig
from topics.settings import Settings
from topics.storage import frames, log_files
from topics.storage.frames import FRAME_OVERHEAD_BYTES as FRAME_BYTES
from topics.storage.log_files import Stretch
from topics.testing.clock import ManualClock
from topics.testing.disk import Faulty, MemoryDisk

NAMES = ("plain", "capped", "young", "synced", "jobs", "source", "dest")
SMALL = Settings(segment_max_events=50)


async def create(engine: Engine) -> None:
    await engine.put_topic("plain")
    await engine.put_topic("capped", {"cap_records": 20})
    await engine.put_topic("young", {"ttl_ms": 1500})
    await engine.put_topic("synced", {"durability": "fsync", "cap_bytes": 400})
    await engine.put_topic("jobs", {"type": "queue"})
    await engine.put_router("r", "source", "dest")


async def step(engine: Engine, clock: ManualClock, random: Random) -> None:
    """One thing that somebody does, or a turn in which many write a record each."""
    name = random.choice(NAMES[:-1])
    kind = random.random()
    if kind < 0.7:
        writers = [engine.append(random.choice(NAMES[:-1]), [record(random)]) for _ in range(random.randrange(1, 30))]
        await asyncio.gather(*writers)
    elif kind < 0.75:
        await engine.append(name, [record(random) for _ in range(random.randrange(2, 9))])
    elif kind < 0.8:
        await engine.append(name, [record(random)], key=str(random.randrange(5)))
    elif kind < 0.84:
        await engine.append("jobs", [{"data": 1, "delay_ms": random.randrange(3000)}])
    elif kind < 0.88:
        await engine.claim("jobs", "n", random.randrange(1, 5))
    elif kind < 0.92:
        await engine.delete(name, match=TagMatch("Eq", "a"))
    elif kind < 0.94:
        await engine.delete(name, before_seq=engine.state.topics[name].log.head - 3)
    elif kind < 0.96:
        await engine.delete_topic("plain")
        await engine.put_topic("plain", {"durability": random.choice(["disk", "memory", "fsync", "ephemeral"])})
    elif kind < 0.97:
        await engine.put_topic("passing", {"durability": "ephemeral"})
        await engine.append("passing", [record(random)])
        await engine.put_topic("passing", {"durability": "disk"})
        await engine.append("passing", [record(random)])
    elif kind < 0.98:
        writers = [engine.append(random.choice(NAMES[:-1]), [record(random)]) for _ in range(30)]
        await asyncio.gather(*writers[:10], engine.checkpoint(), *writers[10:])
    else:
        clock.advance(random.choice([1, 400, 1000, 70_000]))


def record(random: Random) -> dict[str, Any]:
    fields = {"tag": random.choice("ab")} if random.random() < 0.2 else {}
    return {"data": "x" * random.choice([0, 5, 300]), **fields}


def nothing(self: Singles, data: bytes, number: int, start: int, limit: int) -> None:
    """A taker that takes nothing: every frame is read, decoded and applied."""


def recovered(disk: MemoryDisk) -> tuple[State, int]:
    loaded = Catalogue(disk).load()
    for _ in loaded.replay():
        pass
    return loaded.state, loaded.frames


def one_by_one(disk: MemoryDisk) -> tuple[State, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Singles, "take", nothing)
        return recovered(disk)


def eagerly(disk: MemoryDisk) -> tuple[State, int]:
    """Gather whatever can be gathered, worthwhile or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(singles, "PAUSE_MAX", 0)
        return recovered(disk)


def image(value: Any) -> Any:
    """All that an object holds, down to the bytes; a sealed part by its place."""
    if isinstance(value, Log | Chunk):
        slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
        return {slot: image(getattr(value, slot)) for slot in slots}
    if isinstance(value, list):
        return [image(one) for one in value]
    if hasattr(value, "_seconds"):
        return value._seconds, value._totals
    return (value.ref, value.live_count, value.live_bytes) if hasattr(value, "ref") else value


def picture(state: State) -> Any:
    topics = {topic.name: (topic.id, topic.weight, image(topic.log)) for topic in state.topics.values()}
    totals = (state.records, state.written, state.bytes, state.memory, state.lost, state.next_id)
    return totals, topics, set(state.unsaved), state.skipped_appends


@pytest.mark.parametrize("seed", range(tries(40)))
async def test_records_taken_together_make_the_state_of_records_taken_one_by_one(seed: int) -> None:
    """ST8: caps, lifetimes, queues, routers, keys, deletes and checkpoints lie between them."""
    random, disk, clock = Random(seed), MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock, SMALL)
    await engine.start()
    await create(engine)
    for _ in range(60):
        await step(engine, clock, random)
    killed = disk.kill()
    together, apart = eagerly(killed), one_by_one(killed)
    assert picture(together[0]) == picture(apart[0]) == picture(recovered(killed)[0])
    assert together[1] == apart[1], "frames"
    for topic in together[0].topics.values():
        live = engine.state.topics[topic.name].log
        if topic.is_logged and topic.name != "passing":  # whose first records were in no file
            assert (topic.log.head, topic.log.earliest, topic.log.count, topic.log.bytes, topic.log.lost) == (
                (live.head, live.earliest, live.count, live.bytes, live.lost)
            )
            topic.log.check()
    await engine.close()


async def test_the_log_of_single_writers_replays_to_the_very_log_that_was_live() -> None:
    """ST8: chunk by chunk, with the samples of its pace."""
    disk, clock = MemoryDisk(), ManualClock()
    engine = open_engine(disk, clock)
    await engine.start()
    await engine.put_topic("t")
    for turn in range(60):
        written = {"data": turn, "tag": "a"} if turn == 40 else {"data": turn}
        await asyncio.gather(*(engine.append("t", [written]) for _ in range(50)))
        clock.advance(300)
    live = image(engine.state.topics["t"].log)
    state, count = recovered(disk.kill())
    assert count > 3000 and len(state.topics["t"].log.parts) == 3
    assert image(state.topics["t"].log) == live
    await engine.close()


async def test_most_single_records_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writes of 64 writers to 8 topics are decoded by nobody."""
    disk = MemoryDisk()
    engine = open_engine(disk)
    await engine.start()
    for number in range(8):
        await engine.put_topic(f"t{number}")
    for _ in range(10):
        await asyncio.gather(*(engine.append(f"t{number % 8}", [{"data": number}]) for number in range(64)))
    killed, decoded = disk.kill(), 0
    decode = entries.decode

    def counting(payload: memoryview) -> Any:
        nonlocal decoded
        decoded += 1
        return decode(payload)

    monkeypatch.setattr(entries, "decode", counting)
    state, count = recovered(killed)
    assert (state.records, count > 640, decoded < 20) == (640, True, True)
    await engine.close()


async def test_void_frames_and_those_behind_a_cut_are_not_taken() -> None:
    """ST4: a sync fails; what was acked is there, what was refused is not, whoever takes the frames."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("d")
        await engine.put_topic("f", {"durability": "fsync"})
        await asyncio.gather(*(engine.append("d", [{"data": n}]) for n in range(20)))
        disk.hooks.append(Faulty("sync", name="log-*"))
        written = [engine.append("df"[n % 2], [{"data": n}]) for n in range(20)]
        outcomes = await asyncio.gather(*written, return_exceptions=True)
        refused = sum(isinstance(outcome, TopicsError) for outcome in outcomes)
        assert refused
        await asyncio.gather(*(engine.append("d", [{"data": n}]) for n in range(20)))
        live = {name: image(engine.state.topics[name].log)["head"] for name in "df"}
        killed = disk.kill()
        state, _ = recovered(killed)
        assert {name: state.topics[name].log.head for name in "df"} == live
        assert picture(state) == picture(one_by_one(killed)[0]) == picture(eagerly(killed)[0])


def forged(*payloads: bytes) -> MemoryDisk:
    """A log whose frames are valid, whatever they say."""
    data = frames.encode_header(frames.FileHeader(1, "other", 0))
    for payload in (CREATED, *payloads):
        data += frames.encode_frame(payload, frames.position_of(1, len(data)), 0)
    return MemoryDisk({log_files.name_of(1): data + bytes(100)})


def one_record() -> Batch:
    return batch_of([RecordIn(Raw(b"1"))], None, Settings())


def single(topic: int, seq: int, ts: int = 1) -> bytes:
    return encode([Appended(topic, seq, ts, one_record())])


def with_key(payload: bytes) -> bytes:
    """An entry with a key of four bytes, though its flags do not say so."""
    length = int.from_bytes(payload[1:5], "little") + 4
    return payload[:1] + length.to_bytes(4, "little") + payload[5:34] + b"\x04\0" + bytes(4) + payload[36:]


CREATED = encode([TopicCreated(1, "t", 1, TopicConfig())])
PASSING = encode([TopicCreated(2, "e", 2, TopicConfig(durability="ephemeral")), TopicConfigured(2, TopicConfig())])
NONSENSE = {
    "a gap": (single(1, 1), single(1, 3)),
    "the same seq twice": (single(1, 1), single(1, 1)),
    "no topic": (single(7, 1), single(0, 0)),
    "a size that no body has": (single(1, 1), single(1, 2)[:36] + b"\xff" * 4 + single(1, 2)[40:], single(1, 3)),
    "an empty body": (single(1, 1), single(1, 2)[:1] + (35).to_bytes(4, "little") + single(1, 2)[5:40]),
    "time that goes back": (single(1, 1, 5000), single(1, 2, 1), single(1, 3, 9000), single(1, 4, 3)),
    "more behind the entry": (single(1, 1), single(1, 2) + single(1, 3), single(1, 4)),
    "a key that no flag announces": (single(1, 1), with_key(single(1, 2)), single(1, 3)),
    "a gap behind the first record of a topic that was ephemeral": (PASSING, single(2, 1), single(2, 2), single(2, 4)),
    "a length of its own": (single(1, 1), single(1, 2)[:1] + (99).to_bytes(4, "little") + single(1, 2)[5:]),
}


@pytest.mark.parametrize("payloads", NONSENSE.values(), ids=NONSENSE)
def test_what_is_not_plain_is_judged_as_one_by_one(payloads: Sequence[bytes]) -> None:
    """ST12: the same state, or the same refusal with the same offset."""
    disk = forged(*payloads)

    def outcome(recover: Callable[[MemoryDisk], tuple[State, int]]) -> Any:
        try:
            state, count = recover(disk)
        except (Damaged, UnusableDirectory) as error:
            return str(error)
        return picture(state), count

    assert outcome(eagerly) == outcome(one_by_one) == outcome(recovered)


def test_a_frame_with_a_wrong_checksum_ends_what_is_taken() -> None:
    """ST8, ST12: in the newest file of another boot it is a torn tail, and one that more frames prove synced is not."""
    disk = forged(*(single(1, seq) for seq in range(1, 6)))
    data = bytearray(disk.files()[log_files.name_of(1)])
    data[data.rindex(b"FRME") - 2] ^= 1
    state, count = recovered(MemoryDisk({log_files.name_of(1): bytes(data)}))
    assert (state.topics["t"].log.head, count) == (3, 4)


async def test_a_bad_frame_is_not_believed_what_it_says_of_the_log(tmp_path: Path) -> None:
    """ST8: neither where frames are taken, nor where the log is repaired, which starts at what is proven."""
    data = bytearray(forged(*(single(1, seq) for seq in range(1, 6))).files()[log_files.name_of(1)])
    says = data.rindex(b"FRME") + 8
    data[says + 4 : says + 6] = b"\xff\x01"  # far behind the end of this file
    taken = Singles(recovered(forged())[0]).take(bytes(data), 1, data.index(single(1, 1)) - FRAME_BYTES, len(data))
    assert taken == Stretch(says - 8, 0, 4)
    (tmp_path / log_files.name_of(1)).write_bytes(data)
    engine = Engine.open(tmp_path, background=False)
    await engine.start()
    assert (await engine.read("t")).count == 4
    await engine.close()


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
async def test_a_write_is_committed_as_the_frame_that_it_forms(durability: str) -> None:
    """DU10, WR10: what is logged, what it waits for and from where on it may be shown, before and after a renewal."""
    disk = MemoryDisk()
    async with running(disk) as engine:
        await engine.put_topic("t", {"durability": durability})
        ledger, wal = engine._ledger, engine.wal
        topic = ledger.state.topics["t"]
        disk.hold_syncs()
        for last in (1, 40_000, 70_000, 140_000):
            topic.log.open_gap(last, "cap")
            decided, _ = decide.append(ledger.state, Append("t", one_record()), 5, Caps())
            entry = decided[0]
            [frame] = frames_of(ledger.state, [entry], wal.synced)
            assert isinstance(entry, Appended)
            depends_on, before = frame.depends_on(wal.synced, wal.end), topic.notes.synced_at
            ledger.commit([entry])
            noted = (topic.notes.synced_at, topic.notes.written_at)
            if frame.needs_sync:
                assert (wal._unsynced[-1][2], noted) == (wal.end, (wal.end, 0))
            else:
                assert (wal._unsynced[-1][2], noted) == (depends_on, (max(before, depends_on), wal.end))
            assert bytes(wal._buffer[-1]).endswith(encode(frame.logged))
        disk.release_syncs()
