"""Planning a read: from cursors to parts that tasks read, and what is known to be lost on the way.

Pure: what the server, the data directory and the lake say is given. A stretch lies within one instance of a topic,
above `after` and up to `last`. Streams cut it by arithmetic alone, so that a batch that is run again has the same
parts; batch reads cut where segments end.

Invariant: each seq of a stretch belongs to exactly one part; each stretch that is known to be lost, and that the
lake does not have, is announced by exactly one part.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from topics.errors import TopicsError
from topics.model import SEQ_MAX
from topics.ranges import Range, aligned, intersect, split, subtract, union
from topics.reader import Lost, Piece
from topics.spark.options import Cursor
from topics.spark.tables.lake import LakeFile

PART_RECORDS = 500_000  # seqs of a part, unless more parts are asked for
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Wanted:
    """What the filters of a query leave of a read; it may leave more than they do, because Spark applies them again.

    Seqs are inclusive, times epoch-ms, `since` inclusive and `until` not. None = whatever there is.
    """

    topics: frozenset[str] | None = None
    tags: frozenset[str] | None = None
    first: int = 1
    last: int = SEQ_MAX
    since: int | None = None
    until: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Any]) -> "Wanted":
        """By filters as PySpark has them: all of them hold at once."""
        wanted = cls()
        for filter in filters:
            path, kind, value = getattr(filter, "attribute", ()), type(filter).__name__, getattr(filter, "value", None)
            texts = [value] if kind == "EqualTo" else list(value or ()) if kind == "In" else []
            if path == ("topic",) and texts:
                wanted = replace(wanted, topics=_both(wanted.topics, texts))
            elif path == ("tag",) and texts:
                wanted = replace(wanted, tags=_both(wanted.tags, texts))
            elif path == ("seq",) and isinstance(value, int):
                wanted = wanted._bounded(kind, value)
            elif path == ("ts",) and isinstance(value, datetime) and value.tzinfo is not None:
                wanted = wanted._timed(kind, value)
        return wanted

    def _bounded(self, kind: str, seq: int) -> "Wanted":
        firsts = {"EqualTo": seq, "GreaterThan": seq + 1, "GreaterThanOrEqual": seq}
        lasts = {"EqualTo": seq, "LessThan": seq - 1, "LessThanOrEqual": seq}
        return replace(self, first=max(self.first, firsts.get(kind, 1)), last=min(self.last, lasts.get(kind, SEQ_MAX)))

    def _timed(self, kind: str, when: datetime) -> "Wanted":
        ms = (when - EPOCH) // timedelta(milliseconds=1)
        since, until = self.since, self.until
        if kind in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
            since = ms if since is None else max(since, ms)
        if kind in ("EqualTo", "LessThan", "LessThanOrEqual"):
            until = ms + 1 if until is None else min(until, ms + 1)
        return replace(self, since=since, until=until)


def _both(some: frozenset[str] | None, others: Iterable[Any]) -> frozenset[str]:
    found = frozenset(text for text in others if isinstance(text, str))
    return found if some is None else some & found


class RecordsLost(TopicsError):
    """Records that a reader with onGap=fail did not get."""


@dataclass(frozen=True)
class Look:
    """A topic at one moment."""

    topic: str
    epoch: int
    head: int
    earliest: int
    filters_nodes: bool = True
    record_bytes: float = 0.0  # on average
    server: str = ""  # that has it; "" without one
    written_ts: int | None = None  # when the last record was written

    def cursor(self, seq: int) -> Cursor:
        """The place behind one of its seqs."""
        return Cursor(self.epoch, seq, self.server)

    def has(self, cursor: Cursor) -> bool:
        """Whether a cursor is one of this instance. Epochs are those of a server: on another they mean nothing."""
        return cursor.epoch == self.epoch and cursor.server in ("", self.server)


@dataclass(frozen=True)
class Survey:
    """What is known of a stretch before it is read."""

    lost: Sequence[Lost] = ()  # within the stretch, ascending
    absent: Sequence[Range] = ()  # seqs that neither server nor directory has: what is lost, and what was trimmed
    sealed: int = 0  # up to here `pieces` have the records
    pieces: Sequence[Piece] = ()
    covered: Sequence[Range] = ()  # by the lake
    files: Sequence[LakeFile] = ()  # of the lake
    trimmed: int = 0  # up to here what is absent may be in the lake, though it is not lost


@dataclass(frozen=True)
class Stretch:
    """What one read takes from one topic."""

    look: Look
    after: int
    last: int
    survey: Survey = field(default_factory=Survey)
    recreated: Lost | None = None  # the cursor belonged to an earlier instance

    @property
    def gaps(self) -> list[Lost]:
        """What is lost for good, ascending."""
        found = without(self.survey.lost, self.survey.covered)
        return found if self.recreated is None else [self.recreated, *found]


@dataclass(frozen=True)
class Part:
    """What one task reads."""

    topic: str
    epoch: int
    after: int
    last: int
    announced: tuple[Lost, ...] = ()  # gaps that this part tells of
    absent: tuple[Range, ...] = ()
    sealed: int = 0
    pieces: tuple[Piece, ...] = ()
    covered: tuple[Range, ...] = ()
    files: tuple[LakeFile, ...] = ()
    trimmed: int = 0
    filters_nodes: bool = True
    server: str = ""


def bounds(look: Look, start: Cursor, last: int) -> tuple[int, Lost | None]:
    """Where reading begins, and the gap if the cursor belongs to an earlier instance (TM11)."""
    if look.has(start) and start.seq <= look.head:
        return start.seq, None
    return min(look.earliest - 1, last), Lost(1, last, "recreated")


def check(stretches: Iterable[Stretch]) -> None:
    """Raise for what a reader that must not miss anything would miss."""
    said = [describe(stretch.look.topic, gap) for stretch in stretches for gap in stretch.gaps]
    if said:
        raise RecordsLost(
            f"records were lost before they could be read: {'; '.join(said)}. Set onGap to record to get a row for "
            "each such gap, to ignore to continue without them, or archive to a lake that has them"
        )


def describe(topic: str, gap: Lost) -> str:
    if gap.reason == "recreated":
        return f"topic {topic} was deleted and created again, so its cursor is void (recreated, seqs 1 to {gap.last})"
    return f"topic {topic}, seqs {gap.first} to {gap.last} ({gap.reason})"


def parts_of(
    stretches: Sequence[Stretch],
    parts_min: int,
    *,
    is_stream: bool,
    announces: bool,
    part_max: int | None = None,
) -> list[Part]:
    """The parts of a read: `parts_min` at least, if there are as many seqs, and of `part_max` records at most."""
    total = sum(stretch.last - stretch.after for stretch in stretches)
    parts: list[Part] = []
    for stretch in stretches:
        seqs = stretch.last - stretch.after
        share = -(-parts_min * seqs // total) if total else 1
        count = max(share, -(-seqs // min(PART_RECORDS, part_max or PART_RECORDS)), 1)
        gaps = stretch.gaps if announces else []
        for after, last in _cut(stretch, count, is_even=is_stream or part_max is not None):
            is_first = after == stretch.after
            told = [gap for gap in gaps if after < gap.first <= last or (is_first and gap is stretch.recreated)]
            if last > after or told:
                parts.append(_part(stretch, after, last, told))
    return parts


def _cut(stretch: Stretch, count: int, is_even: bool) -> list[tuple[int, int]]:
    after, last, survey = stretch.after, stretch.last, stretch.survey
    if is_even or survey.covered:
        return list(split(after, last, count))
    base = max(after, min(stretch.look.earliest - 1, last))  # what was deleted below is no work
    ends = [piece.last for piece in survey.pieces if base < piece.last < last]
    cuts = aligned(base, last, count, ends)
    if len(cuts) < count:  # more parts are wanted than there are segments
        cuts = list(split(base, last, count))
    return [(after, cuts[0][1]), *cuts[1:]]


def _part(stretch: Stretch, after: int, last: int, told: Sequence[Lost]) -> Part:
    survey, here = stretch.survey, [(after + 1, last)]
    return Part(
        topic=stretch.look.topic,
        epoch=stretch.look.epoch,
        after=after,
        last=last,
        announced=tuple(told),
        absent=tuple(intersect(union(survey.absent), here)),
        sealed=survey.sealed,
        pieces=tuple(piece for piece in survey.pieces if piece.last > after and piece.first <= last),
        covered=tuple(intersect(survey.covered, here)),
        files=tuple(file for file in survey.files if file.last > after and file.first <= last),
        trimmed=survey.trimmed,
        filters_nodes=stretch.look.filters_nodes,
        server=stretch.look.server,
    )


def limited(
    starts: Mapping[str, Cursor],
    looks: Mapping[str, Look],
    records_max: int | None,
    bytes_max: int | None,
    *,
    has_lake: bool = False,
) -> dict[str, Cursor]:
    """How far a batch goes in each topic: to the head, or its share of the limits, by how far it is behind.

    At least one seq of each topic that is behind, so that all move on. Sizes are estimated from the averages. What lies
    below the first live record counts only if a lake may have it.
    """
    behind = {name: waiting(starts.get(name), look, has_lake=has_lake) for name, look in looks.items()}
    part = 1.0
    if records_max is not None:
        part = min(part, records_max / max(1, sum(behind.values())))
    if bytes_max is not None:
        part = min(part, bytes_max / max(1.0, sum(looks[name].record_bytes * n for name, n in behind.items())))
    return {
        name: look.cursor(look.head - behind[name] + min(behind[name], max(1, int(behind[name] * part))))
        for name, look in looks.items()
    }


def waiting(start: Cursor | None, look: Look, *, has_lake: bool = False) -> int:
    """How many seqs of a topic a reader has not read yet."""
    read = 0 if start is None or not look.has(start) else start.seq
    return max(0, look.head - (read if has_lake else max(read, look.earliest - 1)))


def without(lost: Iterable[Lost], others: Sequence[Range]) -> list[Lost]:
    """What remains of the stretches in `lost` outside of `others`, each with its reason."""
    return [Lost(first, last, a.reason) for a in lost for first, last in subtract([(a.first, a.last)], others)]
