"""What the driver asks before a read: the server, the data directory and the lake, seen as one.

A topic's instance, and what it has lost, are what the server says; without a server, what the directory says. Of that
instance, the sealed records come from the directory if there is one, the rest from the server, and what neither has
from the lake. The lake's rows and the live ones cannot overlap: only seqs that are absent from the rest are taken from
it. Epochs and seqs are alike in all directories, so a record that both have shows whether a directory is the server's.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final, Self

from topics import reader
from topics.client import Client
from topics.errors import InvalidRequest, NotFound, TopicNotFound
from topics.model import Tombstone
from topics.ranges import Range, subtract, union
from topics.reader import Directory, Lost, Piece, TopicInfo
from topics.spark.options import Cursor, Edge, Position, ReadOptions
from topics.spark.plan import EPOCH, Look, Stretch, Survey, Wanted, bounds
from topics.spark.tables.lake import Lake, shown

NO_EPOCH: Final = 0  # epochs are positive
MILLISECOND: Final = timedelta(milliseconds=1)


class Origins:
    """The places that a read takes its records from. Use as a context manager, or close."""

    silent: frozenset[str] = frozenset()  # servers that a look passed over: the one there is answers, or a look fails

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._server = "" if options.server is None else options.server.urls[0]
        self._client: Client | None = None if options.server is None else options.server.open()
        self._directory: Directory | None = None if options.path is None else reader.open_directory(options.path)
        self._lake: Lake | None = None if options.archive is None else Lake.load(options.archive)
        self._paired: set[tuple[str, int]] = set()  # instances whose records server and directory share
        self._archived: set[tuple[str, int]] = set()  # instances whose history is the lake's

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._directory is not None:
            self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> None:
        """Go on to what directory and lake have by now."""
        if self._directory is not None:
            self._directory.reload()
        if self._options.archive is not None:
            self._lake = Lake.load(self._options.archive)

    # --- which topics, and how far they have come

    def looks(self, known: Mapping[str, Look] | None = None, *, is_patient: bool = True) -> dict[str, Look]:
        """The topics to read, by name. With a pattern, those that are as `known` has them are not asked for."""
        if self._client is None:
            return {info.name: self._look_at_sealed(info) for info in self._infos()}
        found: dict[str, Look | None] = {name: self.look(name) for name in self._options.names}
        if self._options.pattern is not None:
            for listed in self._client.topics():
                if self._options.matches(listed.topic):
                    before = (known or {}).get(listed.topic)
                    now = (listed.epoch, listed.head_seq, listed.earliest_seq)
                    is_same = before is not None and (before.epoch, before.head, before.earliest) == now
                    found[listed.topic] = before if is_same else self.look(listed.topic)
        return {name: look for name, look in found.items() if look is not None}

    def all_looks(self) -> dict[str, Look]:
        """The same for the start of a read, when each topic that was named has to be there."""
        looks = self.looks()
        where = self._options.server.url if self._options.server is not None else str(self._options.path)
        hint = "" if self._client is not None else "; a topic created since its last checkpoint is not seen there"
        check_found(self._options, looks, where, hint)
        return looks

    def look(self, name: str) -> Look | None:
        """One topic, whether or not the options select it; None: there is none."""
        if self._client is None:
            assert self._directory is not None
            try:
                return self._look_at_sealed(self._directory.topic(name))
            except TopicNotFound:
                return None
        try:
            state = self._client.state(name, touch=False)
        except TopicNotFound:
            return None
        record_bytes = state.bytes / state.count if state.count else 0.0
        look = Look(name, state.epoch, state.head_seq, state.earliest_seq, state.config.dedupe_node, record_bytes)
        return replace(look, server=self._server, written_ts=state.last_write_ts)

    def is_as_of(self, look: Look, seq: int, ts: int) -> bool:
        """Whether the topic is one that had come to `seq` by that time, as far as its first record tells."""
        if self._client is None or look.earliest > seq:
            return True
        try:
            found = self._client.record(look.topic, look.earliest)
        except NotFound:  # it is gone by now
            return True
        return found.epoch != look.epoch or found.record.ts <= ts

    def _look_at_sealed(self, info: TopicInfo) -> Look:
        assert self._directory is not None
        pieces = self._directory.pieces(info.name)
        record_bytes = sum(piece.size_bytes for piece in pieces) / max(1, sum(piece.count for piece in pieces))
        return Look(info.name, info.epoch, info.sealed_through, info.earliest, info.config.dedupe_node, record_bytes)

    def _infos(self) -> list[TopicInfo]:
        assert self._directory is not None
        infos = self._directory.topics() if self._options.pattern is not None else []
        infos = [info for info in infos if self._options.matches(info.name)]
        for name in self._options.names:
            with suppress(TopicNotFound):
                infos.append(self._directory.topic(name))
        for info in infos:
            if info.config.durability == "ephemeral" and info.name in self._options.names:
                raise InvalidRequest(
                    f"topic {info.name} is ephemeral: {self._directory.path} has none of its records; give option url"
                )
        return [info for info in infos if info.config.durability != "ephemeral"]

    # --- cursors

    def start(self, look: Look, default: Edge) -> Cursor:
        """Where a new read of a topic starts."""
        starting_ts = self._options.starting_ts_of(look.topic)
        if starting_ts is not None:
            return look.cursor(self._cursor_before(look, starting_ts))
        position = self._options.start_of(look.topic, default)
        if position == "earliest":
            covered = [] if self._lake is None else self._lake.covered(look.topic, look.epoch)
            return look.cursor(min([look.earliest, *(first for first, _ in covered[:1])]) - 1)
        if position == "latest":
            return look.cursor(look.head)
        assert isinstance(position, Cursor)
        if position.epoch is None:  # a cursor beyond the head is one of another instance (TM11)
            return Cursor(look.epoch if position.seq <= look.head else NO_EPOCH, position.seq, look.server)
        return position if position.server else position._replace(server=look.server)

    def end(self, look: Look) -> int:
        """The last seq of a batch read."""
        ending_ts = self._options.ending_ts_of(look.topic)
        if ending_ts is not None:
            self._check_complete(look)
            return self._cursor_before(look, ending_ts)
        position: Position = self._options.end_of(look.topic)
        if position == "sealed":
            if self._directory is None:
                raise InvalidRequest("option endingSeq is 'sealed': that is for reads with option path")
            return self._sealed(look)[0]
        if isinstance(position, Cursor):
            if self._client is None and position.seq > look.head and not self._is_complete():
                raise InvalidRequest(self._unsealed(look, f"{look.head + 1} to {position.seq}"))
            return min(position.seq, look.head)
        self._check_complete(look)
        return look.head

    def narrowed(self, look: Look, start: Cursor, last: int, wanted: Wanted) -> tuple[Cursor, int]:
        """What of a read is wanted; a start in another instance stays, because it is a gap."""
        last = min(last, wanted.last)
        if wanted.until is not None:
            last = min(last, self._cursor_before(look, wanted.until))
        if not look.has(start) or start.seq > look.head:
            return start, last
        after = max(start.seq, wanted.first - 1)
        if wanted.since is not None:
            after = max(after, self._cursor_before(look, wanted.since))
        return start._replace(seq=min(after, look.head)), last

    def _check_complete(self, look: Look) -> None:
        """Without a server, refuse to take the end of what is sealed for the end of the topic."""
        if self._client is None and not self._is_complete():
            raise InvalidRequest(self._unsealed(look, f"above {look.head}, if there are any,"))

    def _is_complete(self) -> bool:
        return self._directory is not None and self._directory.is_complete

    def _unsealed(self, look: Look, seqs: str) -> str:
        return (
            f"a server is running on {self._options.path}, or was not stopped gracefully: seqs {seqs} of topic "
            f"{look.topic} are not sealed and only in its log. Give option url, too, to read them from the server, or "
            "set endingSeq to sealed to read up to the last checkpoint"
        )

    def _cursor_before(self, look: Look, ts: int) -> int:
        """The cursor from which a reader gets the records that are not older than `ts`."""
        if self._client is not None:
            answer = self._client.diff(look.topic, epoch=look.epoch, limit=1, from_ts=ts)
            live = answer.records[0].seq - 1 if answer.records else answer.next_from_seq
        else:
            live = self._sealed_cursor_before(look, ts)
        archived = None if self._lake is None else self._lake.cursor_before(look.topic, look.epoch, ts)
        return live if archived is None else min(live, archived)

    def _sealed_cursor_before(self, look: Look, ts: int) -> int:
        """The same by bisection over the pieces: `$ts` never falls as seq rises (WR6)."""
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self._directory is not None
        pieces = self._directory.pieces(look.topic)
        low, high = 0, len(pieces)
        while low < high:
            middle = (low + high) // 2
            piece = pieces[middle]
            batches = list(self._directory.batches(look.topic, piece.first - 1, piece.last, ("seq", "ts")))
            table = pa.Table.from_batches(batches, reader.schema(("seq", "ts")))
            fresh = table.filter(pc.greater_equal(table["ts"].cast(pa.int64()), ts))
            if not table.num_rows:  # all deleted since: it says nothing
                del pieces[middle]
                high -= 1
            elif fresh.num_rows == table.num_rows:
                high = middle
            elif fresh.num_rows:
                return int(fresh["seq"][0].as_py()) - 1
            else:
                low = middle + 1
        return look.head if low == len(pieces) else pieces[low].first - 1

    def through_gap(self, look: Look, seq: int) -> int:
        """The end of the gap that `seq` lies in, or just before; `seq` itself if it does neither.

        What the lake has of a gap is none. So a batch that ends there tells of each gap in one row.
        """
        lost, _ = self._lost(look, seq, look.head, self._sealed(look)[0])
        if not lost or lost[0].first != seq + 1 or lost[0].reason == "recreated":
            return seq
        covered = [] if self._lake is None else self._lake.covered(look.topic, look.epoch)
        rest = subtract([(seq + 1, lost[0].last)], covered)
        return rest[0][1] if rest and rest[0][0] == seq + 1 else seq

    # --- what there is of a stretch

    def stretch(self, look: Look, start: Cursor, last: int) -> Stretch:
        """From a cursor to a seq, with what is known of it."""
        after, recreated = bounds(look, start, last)
        return Stretch(look, after, last, self._survey(look, after, last), recreated)

    def _survey(self, look: Look, after: int, last: int) -> Survey:
        sealed, pieces = self._sealed(look)
        sealed = min(sealed, last)
        lost, earliest = self._lost(look, after, last, sealed)
        absent: list[Range] = [(a.first, a.last) for a in lost]
        if self._lake is None:
            return Survey(lost, union(absent), sealed, pieces if sealed > after else ())
        if self._client is not None and (look.topic, look.epoch) not in self._archived:
            if not is_log_of(self._client, self._lake, look):
                raise another_log(self._lake.root, look)
            self._archived.add((look.topic, look.epoch))
        trimmed = self._lake.trimmed_through(look.topic, look.epoch)
        absent.append((after + 1, min(earliest - 1, trimmed, last)))
        return Survey(
            lost,
            union(absent),
            sealed,
            pieces if sealed > after else (),
            self._lake.covered(look.topic, look.epoch),
            self._lake.files(look.topic, look.epoch, after + 1, last),
            trimmed,
        )

    def _lost(self, look: Look, after: int, last: int, sealed: int) -> tuple[list[Lost], int]:
        """What is lost of a stretch, and the earliest seq."""
        if last <= after:
            return [], look.earliest
        if self._client is not None:
            return self._ask_lost(self._client, look, after, last)
        lost: list[Lost] = []
        earliest = last + 1
        if sealed > after:
            assert self._directory is not None
            lost += self._directory.lost(look.topic, after, sealed)
            earliest = self._directory.topic(look.topic).earliest
        if last > max(sealed, after):  # a stream's batch that was planned when the directory still had this instance
            lost.append(Lost(max(sealed, after) + 1, last, "recreated"))
        return lost, earliest

    def _ask_lost(self, client: Client, look: Look, after: int, last: int) -> tuple[list[Lost], int]:
        """What the server has lost of a stretch, and its earliest seq. The head of an export says both."""
        gone = [Lost(after + 1, last, "recreated")], last + 1
        try:
            with closing(client.export(look.topic, after, last=last, epoch=look.epoch)) as export:
                info = export.info
        except TopicNotFound:
            return gone
        if info.epoch != look.epoch:
            return gone
        return clipped(info.lost, after, last), info.earliest_seq

    def _sealed(self, look: Look) -> tuple[int, Sequence[Piece]]:
        """Up to which seq the directory has this instance, and where."""
        if self._directory is None:
            return 0, ()
        try:
            info = self._directory.topic(look.topic)
        except TopicNotFound:
            return 0, ()
        if info.epoch != look.epoch:
            return 0, ()
        client, instance = self._client, (look.topic, look.epoch)
        if client is not None and instance not in self._paired and is_pair(client, self._directory, look, info):
            self._paired.add(instance)
        return info.sealed_through, self._directory.pieces(look.topic)


def is_pair(client: Client, directory: Directory, look: Look, info: TopicInfo) -> bool:
    """Whether the directory has the first live record as the server has it; False = nobody can tell now.

    Refuses a directory that is another server's.
    """
    try:
        runs = client.live(look.topic, 0, last=info.sealed_through, epoch=look.epoch).live
        if not runs:
            return False  # nothing of the directory counts
        batches = directory.batches(look.topic, runs[0][0] - 1, runs[0][0], ("seq", "ts", "node", "tag", "data"))
        rows = [row for batch in batches for row in batch.to_pylist()]
        found = client.record(look.topic, runs[0][0])
    except NotFound:  # it is gone by now, or the server is too old, which tasks will say
        return False
    if found.epoch != look.epoch:
        return False
    record = found.record
    said = (record.ts, record.node, record.tag, bytes(record.data).decode())
    if said not in [((row["ts"] - EPOCH) // MILLISECOND, row["node"], row["tag"], row["data"]) for row in rows]:
        raise InvalidRequest(
            f"option path is {directory.path!r}: that is not the data directory of the server at {client.url}; "
            f"of topic {look.topic} it does not have seq {record.seq} as the server has it"
        )
    return True


def is_log_of(client: Client, lake: Lake, look: Look) -> bool:
    """Whether what a lake has of this epoch is of this log: a server that was set up anew counts from 1 again."""
    try:
        found = client.record(look.topic, look.earliest)
    except NotFound:  # it is gone by now, or there is none
        return True
    return found.epoch != look.epoch or lake.may_know(look.topic, look.epoch, found.record.seq, found.record.ts)


def another_log(root: str, look: Look) -> InvalidRequest:
    return InvalidRequest(
        f"{shown(root)} has another log under the name of topic {look.topic} and its epoch {look.epoch}, by the times "
        "of their records: was its server set up anew? Take another lake, or create the topic anew"
    )


def check_found(options: ReadOptions, looks: Mapping[str, Look], where: str, hint: str = "") -> None:
    """Refuse a read whose topics are not there."""
    missing = [name for name in options.names if name not in looks]
    if missing:
        raise InvalidRequest(f"there is no topic {missing[0]!r} in {where}{hint}")
    if options.pattern is not None and not looks:
        raise InvalidRequest(f"option topicPattern is {options.pattern.pattern!r}: no topic matches it")


def clipped(lost: Iterable[Tombstone], after: int, last: int) -> list[Lost]:
    """Tombstones of an export as stretches within `after`..`last`."""
    stretches = (Lost(max(t.gap_from, after + 1), min(t.gap_to, last), t.reason) for t in lost)
    return [stretch for stretch in stretches if stretch.first <= stretch.last]
