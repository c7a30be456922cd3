"""The codec of the log's entries."""

from array import array

import msgspec
import pytest

from topics.core import entries
from topics.core.entries import (
    AnyEntry,
    Appended,
    CursorRemoved,
    CursorSet,
    DeadLettered,
    Deleted,
    EpochRaised,
    Evicted,
    Expired,
    Forwarded,
    Forwarding,
    GapOpened,
    HeadInherited,
    Leased,
    QueuePaused,
    Reincarnated,
    Released,
    Reserved,
    RouterRemoved,
    RouterSet,
    Stamp,
    TopicConfigured,
    TopicCreated,
    TopicDeleted,
    UnknownEntry,
)
from topics.core.topic.losses import Loss
from topics.core.topic.records import Batch
from topics.model import SEQ_MAX, RouterDefinition, TagMatch, TopicConfig

BATCH = Batch(b'{"records":[{"data":1},{"data":22}]}', array("I", [1, 2]), False)
ENTRIES: list[AnyEntry] = [
    Appended(1, 1, 1_700_000_000_000, BATCH),
    Appended(2, 2**40, -5, BATCH, "key é"),
    Appended(3, 7, 0, Batch(b"{}", array("I", [9]), True), ""),
    TopicCreated(1, "t", 1, TopicConfig(type="queue", dead_letter="d", priority=-3)),
    TopicConfigured(1, TopicConfig(ttl_ms=SEQ_MAX, durability="ephemeral")),
    TopicDeleted(1),
    Evicted(1, 5),
    Expired(1, 6),
    Deleted(1, 7, []),
    Deleted(1, 0, [(0, b"\x01"), (12, b"\x00\xff")]),
    GapOpened(1, 9, "source_trim"),
    Reserved(1, 65_536),
    HeadInherited(1, 9, 8),
    Reincarnated(1, 2),
    HeadInherited(1, 9, 8, 1, [Loss(1, 8, "cap", 5, 7)], 2, 3),
    CursorSet(1, "reader", 7, 1700),
    CursorRemoved(1, "reader"),
    RouterSet(9, "a->b", 1, 2, RouterDefinition(True, False, TagMatch("Glob", "x"), True, "exactly_once"), 3, 4),
    RouterSet(9, "a->b", 1, 2, RouterDefinition(), 3, 4),
    RouterRemoved(9, "a->b"),
    Forwarded(9, 1, 2, 5, 1700, 2, 1, [(3, 4, 1), (6, 6, 2)], 7, 8),
    Forwarded(9, 1, 2, 5, 1700, 0, 0, [], 7, 8, True, True, True, Stamp("a->b", "a", 3)),
    Leased(1, "worker", [(1, 2, 3, 4)]),
    Released(1, [(1, 2, 3)]),
    DeadLettered(1, 2),
    EpochRaised(1, 7),
    Appended(4, 1, 0, Batch(b"{}", array("I", [9]), False, True)),
    Appended(5, 1, 0, Batch(b"{}", array("I", [9]), True, True, 2**64 - 1), "k"),
    QueuePaused(1, True),
]


def decoded(payload: bytes) -> list[AnyEntry]:
    return list(entries.decode(memoryview(payload)))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: type(entry).__name__)
def test_an_entry_comes_back_as_it_was(entry: AnyEntry) -> None:
    assert decoded(entries.encode([entry])) == [entry]


def test_every_kind_of_entry_is_tried() -> None:
    kinds = {kind for kind in vars(entries).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
    no_entries = {entries.Entry, entries.Loss, Batch, TopicConfig, RouterDefinition, Stamp, Forwarding, msgspec.Struct}
    no_entries |= {entries.TimePassed, entries.Freed, entries.KeysForgotten}  # never logged
    assert {type(entry) for entry in ENTRIES} == kinds - no_entries


def test_records_that_a_router_copies_are_not_logged_with_its_entry() -> None:
    """RT9"""
    entry = Forwarded(9, 1, 2, 5, 1700, 0, 0, [(3, 4, 1)], 4, 2)
    assert decoded(entries.encode([Forwarding(entry, [BATCH])])) == [entry]
    assert (entry.copied, entry.last) == (2, 6)


def test_the_entries_of_a_frame_come_back_in_order() -> None:
    """G8"""
    assert decoded(entries.encode(ENTRIES)) == ENTRIES
    assert decoded(b"") == []


def test_tags_of_entries_are_never_changed() -> None:
    """A log written today is read by tomorrow's version."""
    tags = {kind.__struct_config__.tag: kind.__name__ for kind in {type(e) for e in ENTRIES} if kind is not Appended}
    names = "Created Configured Deleted Evicted Expired Deleted GapOpened Reserved HeadInherited Reincarnated"
    assert [tags[number].removeprefix("Topic") for number in range(1, 11)] == names.split()
    assert [tags[number] for number in range(11, 15)] == ["RouterSet", "RouterRemoved", "Leased", "Released"]
    assert tags[15] == "Forwarded"
    assert tags[20] == "DeadLettered"
    assert tags[26] == "QueuePaused"


@pytest.mark.parametrize(
    "payload",
    [
        b"\x07\x00\x00\x00\x00",
        b"\x00\x03\x00\x00\x00" + msgspec.msgpack.encode([99, 1]),
        b"\x00\x02\x00\x00\x00" + msgspec.msgpack.encode([4]),
    ],
    ids=["an unknown kind", "an unknown tag", "too few fields"],
)
def test_an_unknown_entry_is_named_as_one_of_a_newer_version(payload: bytes) -> None:
    """ST12"""
    with pytest.raises(UnknownEntry, match="newer version"):
        decoded(payload)


def test_a_newer_versions_longer_entry_is_read() -> None:
    """Fields are added at the end only."""
    content = msgspec.msgpack.encode([4, 1, 5, 7, "new"])
    assert decoded(b"\x00" + len(content).to_bytes(4, "little") + content) == [Evicted(1, 5, 7)]


def test_an_append_of_many_records_comes_back() -> None:
    sizes = array("I", range(1, 10_001))
    entry = Appended(1, 1, 0, Batch(b"x" * 100_000, sizes, True), "k" * 256)
    assert decoded(entries.encode([entry, Evicted(1, 3)])) == [entry, Evicted(1, 3)]


def test_a_frame_says_when_it_was_committed() -> None:
    """BK1: by a mark that replay skips, or by the time of its records."""
    written = Appended(4, 1, 1700, Batch(b"{}", array("I", [9]), False, False))
    deleted = Deleted(1, 7, [])

    def time_of(*logged: AnyEntry, at: int = 0) -> int | None:
        return entries.committed_ms(memoryview(entries.encode(logged, at)))

    assert time_of(deleted) is None
    assert time_of(deleted, at=1800) == 1800
    assert time_of(written, at=1800) == 1700
    assert time_of(written, deleted) == 1700
    assert time_of(written, deleted, at=1800) == 1800
    joined = entries.encode([deleted], 1800) + entries.encode([written])
    assert entries.committed_ms(memoryview(joined)) == 1800
    assert decoded(joined) == [deleted, written]
    assert entries.encode([], 1800) == b""
