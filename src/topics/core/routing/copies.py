"""Copies: records of a source as a router puts them into its dest.

Owns how rows become batches of the dest, what is known of copies beyond their records (the routers they have passed,
the stamp of exactly_once), and where replay finds the rows that a Forwarded refers to. Pure. Knows nothing of cursors,
caps or durability.

A body that is copied whole and unchanged is one object in the source and in every dest. A new body is made only where
rows are left out or changed.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from topics.core.entries import Forwarded, Stamp
from topics.core.topic.log import Log
from topics.core.topic.parts import Chunk, Part
from topics.core.topic.records import NO_META, Batch, Body, RecordIn, decode_body, meta_of
from topics.model import Columns

STAMP_KEY = "_topics_router"
MERGED_MIN = 8  # bodies with fewer records are merged if there are as many of them

HopRun = tuple[int, int, int]  # first and last seq, routers passed
StampRun = tuple[int, int, int]  # first and last seq in the source, first seq in the dest
SkippedAppends = dict[int, list[tuple[int, Batch]]]  # topic id → first seq and records, ascending

_encode = msgspec.json.Encoder().encode
_JSON_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{},]')


class MissingRecord(Exception):
    """The log refers to a record that it does not hold."""


class Copier:
    """Makes batches of rows that are taken one after the other."""

    def __init__(
        self, source: int = 0, drops_node: bool = False, drops_tag: bool = False, stamp: Stamp | None = None
    ) -> None:
        self._source = source
        self._drops_node = drops_node
        self._drops_tag = drops_tag
        self._stamp = stamp
        self._batches: list[Batch] = []
        self._records: list[RecordIn] = []  # not in a batch yet
        self._sizes = array("I")

    def take_part(self, part: Part, start: int, stop: int, columns: Columns | None = None) -> None:
        """Take rows start..stop of a part; `columns` are these rows decoded, if the caller has them."""
        if isinstance(part, Chunk):
            sizes, done = part.sizes(start, stop), 0
            for body, first, end, count in part.writes(start, stop):
                own = sizes[done : done + end - first]
                self.take_body(body, first, end, count, own, part.has_tags, part.first + start + done)
                done += end - first
            return
        columns = columns or part.columns(start, stop)
        nothing = [None] * len(columns.datas)
        tags, nodes, metas = columns.tags or nothing, columns.nodes or nothing, columns.metas or nothing
        for seq, data, tag, node, meta in zip(columns.seqs, columns.datas, tags, nodes, metas, strict=True):
            self._take(seq, data, tag, node, meta)

    def take_body(
        self, body: bytes, start: int, stop: int, count: int, sizes: "array[int]", has_tags: bool, first: int
    ) -> None:
        """Take rows start..stop of the `count` in a body; the first of them is seq `first` of the source."""
        if stop - start == count and not self._changes(body, has_tags):
            self._flush()
            self._batches.append(Batch(body, sizes, has_tags))
            return
        decoded: Body = decode_body(body)
        for seq, record in enumerate(decoded.records[start:stop], first):
            node = decoded.node if record.node is None else record.node
            self._take(seq, record.data, record.tag, node, meta_of(record))

    def _take(self, seq: int, data: Raw, tag: str | None, node: str | None, meta: Raw | None) -> None:
        if self._stamp is not None:
            meta = Raw(stamped(None if meta is None else bytes(meta), stamp_text(self._stamp, self._source, seq)))
        kept_tag, kept_node = None if self._drops_tag else tag, None if self._drops_node else node
        self._records.append(RecordIn(data, kept_tag, kept_node, NO_META if meta is None else meta))
        self._sizes.append(len(data) + (0 if meta is None else len(meta)))

    def _changes(self, body: bytes, has_tags: bool) -> bool:
        """Whether the records of a body may have to be changed."""
        if self._stamp is not None or (self._drops_tag and has_tags):
            return True
        return self._drops_node and (b"node" in body or b"\\u" in body)

    def _flush(self) -> None:
        if self._records:
            has_tags = any(record.tag is not None for record in self._records)
            body = bytes(memoryview(_encode(Body(self._records))))  # an encoder's bytes may hold on to a larger block
            self._batches.append(Batch(body, self._sizes, has_tags))
            self._records, self._sizes = [], array("I")

    def batches(self) -> list[Batch]:
        """What was taken. Many small bodies are merged: all dests share the result, and each has less to add."""
        self._flush()
        if len(self._batches) < MERGED_MIN:
            return self._batches
        merged = Copier()
        for batch in self._batches:
            if len(batch.sizes) >= MERGED_MIN:
                merged._flush()
                merged._batches.append(batch)
                continue
            decoded: Body = decode_body(batch.body)
            for record in decoded.records:
                node = decoded.node if record.node is None else record.node
                merged._records.append(RecordIn(record.data, record.tag, node, meta_of(record) or NO_META))
            merged._sizes.extend(batch.sizes)
        merged._flush()
        return merged._batches


# --- stamps


def stamp_text(stamp: Stamp, source: int, seq: int) -> bytes:
    """The JSON object that says where a copy comes from (RT14)."""
    return _encode(
        {
            "idempotency_key": f"{stamp.router}:{source}:{stamp.epoch}:{seq}",
            "router": stamp.router,
            "source_topic": stamp.source,
            "source_topic_id": source,
            "source_epoch": stamp.epoch,
            "source_seq": seq,
        }
    )


def stamped(meta: bytes | None, stamp: bytes) -> bytes:
    """`meta` with the stamp as its last member; a stamp that was there is replaced, the rest stays byte for byte."""
    inner = b"" if meta is None else meta.strip()[1:-1]
    if STAMP_KEY.encode() in inner or b"\\" in inner:
        inner = b",".join([member for member in _members(inner) if _key(member) != STAMP_KEY])
    separator = b"," if inner.strip() else b""
    return b"{" + inner + separator + b'"' + STAMP_KEY.encode() + b'":' + stamp + b"}"


def _members(text: bytes) -> Iterator[bytes]:
    """The members `"key": value` in the text between the braces of a JSON object, as they are written."""
    depth = start = 0
    for token in _JSON_TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
        elif token[0] in (b"]", b"}"):
            depth -= 1
        elif token[0] == b"," and not depth:
            yield text[start : token.start()]
            start = token.end()
    if text[start:].strip():
        yield text[start:]


def _key(member: bytes) -> str:
    found = _JSON_TOKEN.search(member)
    assert found is not None
    return msgspec.json.decode(found[0], type=str)


class Stamps:
    """Which records of which source are copied to where in a topic, by exactly_once routers; found by bisection."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int, int], list[StampRun]] = {}  # router's name, source, epoch → disjoint, sorted

    def __len__(self) -> int:
        return sum(len(runs) for runs in self._runs.values())

    def find(self, router: str, source: int, epoch: int, seq: int) -> int:
        """The seq of the copy of a source's record; 0 if it was never copied."""
        runs = self._runs.get((router, source, epoch))
        if not runs or seq > runs[-1][1]:
            return 0
        first, last, dest = runs[bisect_right(runs, seq, key=_first) - 1]
        return dest + seq - first if first <= seq <= last else 0

    def add(self, stamp: Stamp, source: int, first: int, last: int, dest: int, earliest: int) -> None:
        """Records first..last are copied to `dest` and on. Copies below `earliest` are gone and need not be known."""
        key = (stamp.router, source, stamp.epoch)
        runs = self._runs.setdefault(key, [])
        while runs and _dest_last(runs[0]) < earliest:
            del runs[0]
        if runs and runs[-1][1] >= first:
            kept = [part for run in runs for part in _without(run, first, last)]
            self._runs[key] = sorted([*kept, (first, last, dest)])
        elif runs and runs[-1][1] + 1 == first and _dest_last(runs[-1]) + 1 == dest:
            runs[-1] = (runs[-1][0], last, runs[-1][2])
        else:
            runs.append((first, last, dest))

    def dump(self, earliest: int) -> list[tuple[str, int, int, list[StampRun]]]:
        living = {key: [run for run in runs if _dest_last(run) >= earliest] for key, runs in self._runs.items()}
        return [(*key, runs) for key, runs in living.items() if runs]

    def load(self, dumped: Sequence[tuple[str, int, int, list[StampRun]]]) -> None:
        self._runs = {(router, source, epoch): list(runs) for router, source, epoch, runs in dumped}


def _first(run: tuple[int, Any] | HopRun | StampRun) -> int:
    return run[0]


def _dest_last(run: StampRun) -> int:
    return run[2] + run[1] - run[0]


def _without(run: StampRun, first: int, last: int) -> Iterator[StampRun]:
    """What is left of a run when the records first..last are taken out of it."""
    if run[0] < first:
        yield run[0], min(run[1], first - 1), run[2]
    if run[1] > last:
        start = max(run[0], last + 1)
        yield start, run[1], run[2] + start - run[0]


# --- hops


def add_hops(runs: list[HopRun], first: int, last: int, hops: int) -> None:
    """Note how many routers the newest records of a topic have passed."""
    if runs and runs[-1][1] + 1 == first and runs[-1][2] == hops:
        runs[-1] = (runs[-1][0], last, hops)
    else:
        runs.append((first, last, hops))


def hops_between(runs: Sequence[HopRun], first: int, last: int) -> Iterator[HopRun]:
    """The stretches of first..last with the routers that each has passed; records of writers have passed none."""
    index = max(0, bisect_right(runs, first, key=_first) - 1)
    while first <= last:
        while index < len(runs) and runs[index][1] < first:
            index += 1
        if index == len(runs) or runs[index][0] > last:
            yield first, last, 0
            return
        start, stop, hops = runs[index]
        if first < start:
            yield first, start - 1, 0
        yield max(first, start), min(last, stop), hops
        first = stop + 1


# --- replay


def find_copies(entry: Forwarded, source: Log | None, skipped: SkippedAppends) -> list[Batch]:
    """The batches that a Forwarded of the log copies. MissingRecord: the log does not hold one of the records."""
    copier = Copier(entry.source, entry.drops_node, entry.drops_tag, entry.stamp)
    known = skipped.get(entry.source, ())
    for seq, last, _ in entry.runs:
        while seq <= last:
            seq = _copy_skipped(copier, known, seq, last) or _copy_live(copier, source, seq, last)
    return copier.batches()


def _copy_skipped(copier: Copier, known: Sequence[tuple[int, Batch]], seq: int, last: int) -> int:
    """Copy what one skipped append has from `seq` on. Gives the next seq; 0: none has it."""
    index = bisect_right(known, seq, key=_first) - 1
    if index < 0:
        return 0
    first, batch = known[index]
    start, stop = seq - first, min(len(batch.sizes), last - first + 1)
    if start >= stop:
        return 0
    copier.take_body(batch.body, start, stop, len(batch.sizes), batch.sizes[start:stop], batch.has_tags, seq)
    return first + stop


def _copy_live(copier: Copier, source: Log | None, seq: int, last: int) -> int:
    """Copy what one part of the source has from `seq` on. Gives the next seq."""
    part = None if source is None else source.part_at(seq)
    row = 0 if part is None else part.row_from(seq)
    if part is None or row >= part.count or part.seq_at(row) != seq:
        raise MissingRecord(f"the log does not hold record {seq}, which a router has copied")
    stop = part.row_from(last + 1)
    while part.seq_at(stop - 1) - seq != stop - 1 - row:  # seqs are missing in between
        stop -= 1
    copier.take_part(part, row, stop)
    return seq + stop - row
