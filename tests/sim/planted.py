"""Bugs to be found: small changes of our own code, each of which breaks one promise.

    with planted("a sync is skipped"):
        run(plan_of(seed))        # Broken, sooner or later

A bug is a list of replacements, made in this process for as long as the block lasts. The first one is what the code did
before answers were given in turns of the log's own: pipelined writes that were acked were lost by a kill.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from topics.core import decide, dump, entries
from topics.core.entries import AnyEntry, DeadLettered, Deleted, Evicted
from topics.core.framing import Frame, frames_of
from topics.core.queue.jobs import Queue
from topics.core.state import State, Topic
from topics.core.topic.log import Log
from topics.core.topic.reservation import Reservation
from topics.engine import instance, ledger
from topics.engine.durability import recovery
from topics.engine.durability.checkpoint import Checkpoint
from topics.engine.gate import Gate, Gates
from topics.engine.ledger import Ledger, Listeners
from topics.server.call import Call
from topics.server.handlers.writing.turn import WriteTurn
from topics.server.live.conversation import Conversation
from topics.server.live.feeds import Feed
from topics.server.transport.http1 import Http1
from topics.storage import frames
from topics.storage.snapshots import Snapshots
from topics.storage.wal import Wal

Replacement = tuple[Any, str, Any]


class Bug(NamedTuple):
    what: str  # it does
    ids: str  # rules that it breaks
    replacements: Callable[[], list[Replacement]]


BUGS: dict[str, Bug] = {}


def bug(name: str, what: str, ids: str) -> Callable[[Callable[[], list[Replacement]]], None]:
    def add(replacements: Callable[[], list[Replacement]]) -> None:
        BUGS[name] = Bug(what, ids, replacements)

    return add


@contextmanager
def planted(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, attribute, value in BUGS[name].replacements():
            stack.enter_context(patch.object(owner, attribute, value))
        yield


# --- the log


@bug("pipelining", "acks are told in the middle of a change, and the next request is handled inside", "ST17 G1")
def _() -> list[Replacement]:
    def write_buffer(self: Wal, in_steps: bool = False) -> None:
        if not self._buffer or self._file is None or self._failure is not None:
            return
        data = b"".join(self._buffer)
        try:
            self._file.write(frames.offset_of(self.written), data)
        except OSError as error:
            self._failure = error
            return
        self._buffer, self._buffered_bytes = [], 0
        self._written_to(self.written + len(data))
        self._end_turn()
        if self._needs_sync:
            self.start_sync()

    def append_to(self: Wal, file: Any, number: int, position: int) -> None:
        self._file, self.number, self.end = file, number, position
        self._ahead = file.size()
        self.bytes_since_roll = 0

    def answer_late(self: Conversation, place: Any, text: bytes) -> None:
        self.answer(place, text)
        self._go_on()

    def add(self: WriteTurn, call: Call) -> None:
        self._waiting.append(call)
        self._end()

    return [
        (Wal, "_write_buffer", write_buffer),
        (Wal, "_append_to", append_to),
        (WriteTurn, "add", add),
        (Http1, "_advance_soon", Http1._advance_later),
        (Conversation, "answer_late", answer_late),
    ]


@bug("skipped fsync", "the log is called synced without a sync", "DU4 G1")
def _() -> list[Replacement]:
    def start_sync(self: Wal) -> None:
        if not self._is_held:
            self._synced_to(self.written)
            self._end_turn_soon()

    return [(Wal, "start_sync", start_sync)]


@bug("unsynced roll", "the log goes on in a new file before the old one is synced", "ST5 G1")
def _() -> list[Replacement]:
    async def start_rolled(self: Wal, old: Any, file: Any, number: int, start: int) -> None:
        last = self.written
        marker = frames.encode_frame(b"", start, last)
        self._append_to(file, number, start + len(marker))
        if self._syncing is not None:
            await asyncio.wait([self._syncing])
        self._synced_to(last)
        file.write(frames.offset_of(start), marker)
        file.sync()
        self._written_to(start + len(marker))
        self._synced_to(self.written)
        self._end_turn_soon()

    return [(Wal, "_start_rolled", start_rolled)]


@bug("revived frames", "after a failure the log does not say which frames do not count", "ST4 G2")
def _() -> list[Replacement]:
    begin = Wal.begin
    return [(Wal, "begin", lambda self, number, payload, synced, cut=0: begin(self, number, payload, synced))]


@bug("torn frame accepted", "the checksum of a frame is not looked at", "ST1 G5")
def _() -> list[Replacement]:
    return [(frames, "_checksum", lambda payload, position, synced: 0)]


# --- gates and waiting


@bug("gate before sync", "a topic of class fsync is shown when it is written", "WR9 WR10 G13")
def _() -> list[Replacement]:
    gate_of = Gates.of

    def of(self: Gates, topic: Topic | None) -> Gate:
        gate = gate_of(self, topic)
        return Gate(0, gate.written_at, gate.generation)

    return [(Gates, "of", of)]


@bug("gate before write", "a write is acked before it is written", "WR9 DU3 G1")
def _() -> list[Replacement]:
    gate_of = Gates.of

    def of(self: Gates, topic: Topic | None) -> Gate:
        gate = gate_of(self, topic)
        return Gate(gate.synced_at, 0, gate.generation)

    def end_turn(wal: Wal) -> None:
        """The log is written in a later turn than the one that acks."""

    return [(Gates, "of", of), (instance, "end_turn", end_turn)]


@bug("lost wake-up", "who follows a topic is not told when a sync has made its news visible", "DF10 SS9 G15")
def _() -> list[Replacement]:
    def tell_reached(self: Listeners, written: int, synced: int) -> None:
        self.unsynced.clear()
        while self.unwritten and self.unwritten[0][0] <= written:
            self.tell(self.unwritten.popleft()[1])

    return [(Listeners, "tell_reached", tell_reached)]


@bug("state not rebuilt", "after the log failed, the state keeps what was refused", "ER7 WR10 G2")
def _() -> list[Replacement]:
    return [(Ledger, "_rebuild", lambda self, void: None)]


# --- seqs, floors, gaps


@bug("seq reuse", "a power loss opens no gap over seqs that were handed out", "DU10 G3")
def _() -> list[Replacement]:
    losses = recovery._losses
    return [(recovery, "_losses", lambda state, now, is_clean, has_lost_power: losses(state, now, is_clean, False))]


@bug("reservation ignored", "a record is shown before its seq is reserved for good", "DU10 G3")
def _() -> list[Replacement]:
    return [(Reservation, "sync_needed_for", lambda self, head, synced, end, *, is_renewed=False: 0)]


@bug("floor off by one", "an eviction moves the floor one seq too little", "TM1 TM3 G10")
def _() -> list[Replacement]:
    def evict(self: Log, last: int, ts: int = 0) -> None:
        self.evicted_last = max(self.evicted_last, last - 1)
        self._lose(last, "cap", ts)

    return [(Log, "evict", evict)]


@bug("silent expiry", "what expires moves no floor", "TM7 TM3 G10")
def _() -> list[Replacement]:
    return [(Log, "expire", lambda self, last, ts=0: self._lose(last, "ttl", ts))]


@bug("eviction not logged", "an eviction happens in memory only", "TM14 G9")
def _() -> list[Replacement]:
    encode = entries.encode

    def encode_others(logged: Sequence[AnyEntry], committed_ms: int = 0) -> bytes:
        return encode([entry for entry in logged if not isinstance(entry, Evicted)], committed_ms)

    return [(entries, "encode", encode_others)]


@bug("epoch kept", "a crash leaves an ephemeral topic its epoch", "DU9 TP16")
def _() -> list[Replacement]:
    losses = recovery._losses

    def losses_of_a_stop(state: State, now: int, is_clean: bool, has_lost_power: bool) -> Iterator[AnyEntry]:
        return losses(state, now, True, has_lost_power)

    return [(recovery, "_losses", losses_of_a_stop)]


# --- deletes and checkpoints


@bug("delete bound off by one", "the log is told of one record less than a delete has taken", "ST9 DL8 G9")
def _() -> list[Replacement]:
    encode = entries.encode

    def encode_short(logged: Sequence[AnyEntry], committed_ms: int = 0) -> bytes:
        def short(entry: AnyEntry) -> AnyEntry:
            is_bound = isinstance(entry, Deleted) and entry.before
            return Deleted(entry.topic, entry.before - 1, entry.blocks, entry.count) if is_bound else entry

        return encode([short(entry) for entry in logged], committed_ms)

    return [(entries, "encode", encode_short)]


@bug("delete flags lost", "a checkpoint does not set the delete flags of its segments", "DL9 G9")
def _() -> list[Replacement]:
    async def write_no_flags(self: Checkpoint) -> None:
        self._flags = []

    return [(Checkpoint, "_write_flags", write_no_flags)]


@bug("keys left out", "a snapshot has no idempotency keys", "ID8 G12")
def _() -> list[Replacement]:
    return [(dump, "_dump_keys", lambda topic, position, now: dict(topic.keys.take_fresh()[:0]))]


@bug("leases left out", "durable leases are not taken over from a snapshot", "QU18 G11")
def _() -> list[Replacement]:
    restore = Queue.restore

    def restore_without(self: Queue, deliveries: Any, leases: Any, delayed: Any, scheduled: Any) -> None:
        restore(self, deliveries, {}, delayed, scheduled)

    return [(Queue, "restore", restore_without)]


@bug("cursor above head", "recovery leaves a router's cursor above the head of a source that lost its tail", "RT22 G14")
def _() -> list[Replacement]:
    return [(recovery, "lowered_cursors", lambda state: [])]


@bug("replayed twice", "replay does not skip what the snapshot has", "ST9 G2 G4")
def _() -> list[Replacement]:
    load_topic = dump._load_topic

    def load(state: State, item: dump.TopicItem) -> None:
        load_topic(state, item)
        state.by_id[item.id].notes.snapshot_position = 0

    return [(dump, "_load_topic", load)]


@bug("unsynced snapshot name", "a snapshot is in force before the directory is synced", "ST7 G6")
def _() -> list[Replacement]:
    write = Snapshots._write

    def write_only(self: Snapshots, suffix: str, content: bytes) -> None:
        with patch.object(type(self._disk), "sync_directory", lambda disk: None):
            write(self, suffix, content)

    return [(Snapshots, "_write", write_only)]


# --- queues, caps, streams


@bug("ack not logged", "an ack takes its jobs from memory only", "QU10 G9 G11")
def _() -> list[Replacement]:
    def in_memory(state: State, decided: Sequence[AnyEntry], synced: int) -> Sequence[Frame]:
        first = decided[0]
        if len(decided) == 1 and isinstance(first, Deleted) and state.by_id[first.topic].is_queue:
            return [Frame(decided, (), (state.by_id[first.topic],))]
        return frames_of(state, decided, synced)

    return [(ledger, "frames_of", in_memory)]


@bug("lease cut short", "a lease ends a second before its deadline", "QU8 G11")
def _() -> list[Replacement]:
    advance = Queue.advance
    return [(Queue, "advance", lambda self, now: advance(self, now + 1000))]


@bug("dead letter doubled", "the log is not told that a dead letter has left its queue", "QU14 QU15 G11")
def _() -> list[Replacement]:
    encode = entries.encode

    def encode_letter_only(logged: Sequence[AnyEntry], committed_ms: int = 0) -> bytes:
        is_letter = any(isinstance(entry, DeadLettered) for entry in logged)
        return encode([entry for entry in logged if not (is_letter and isinstance(entry, Deleted))], committed_ms)

    return [(entries, "encode", encode_letter_only)]


@bug("one over the cap", "a topic that refuses when it is full takes one record too many", "WR11")
def _() -> list[Replacement]:
    admit = decide.admit

    def admit_more(name: str, config: Any, topic: Topic, batch: Any) -> int:
        if config.discard == "reject" and topic.log.count + len(batch.sizes) == config.cap_records + 1:
            return 0
        return admit(name, config, topic, batch)

    return [(decide, "admit", admit_more)]


@bug("stream skips one", "a stream that goes on behind a cursor leaves the next record out", "SS9 WS6 G13")
def _() -> list[Replacement]:
    init = Feed.__init__

    def behind(self: Feed, name: str, template: Any, epoch: int, cursor: int, head: int = 0) -> None:
        init(self, name, template, epoch, cursor + 1 if 0 < cursor < head else cursor, head)

    return [(Feed, "__init__", behind)]
