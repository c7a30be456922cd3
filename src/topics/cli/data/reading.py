"""`topics read`, and what other readers share: where to start, and how a record is printed."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.shell import display, exits
from topics.cli.shell.completing import Filter, Topic
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import Position, moment_ms, position, tag_match
from topics.model import Tombstone

if TYPE_CHECKING:
    from topics.client import Client, Job, Record

SPAN_MIN: Final = 64

Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="%s seq, %t time, %T its milliseconds, %k topic, %g tag, %n node, %m meta, %d data; \\n, \\t.",
    ),
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=0, help="At most this many records.")]


def read(
    call: Call,
    topic: Topic,
    start: Annotated[
        str,
        typer.Option("--from", metavar="WHERE", help="A seq, -10 (the last ten), earliest, 5m (ago), or a time."),
    ] = "earliest",
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Only records before this time.")] = None,
    count: Count = None,
    filter: Filter = None,
    format: Format = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if any record was lost on the way.")] = False,
) -> None:
    """Print the records of a topic, up to its head.

    What was lost in between is announced on stderr with its range and reason; with --json it is a line of its own,
    {"topic":…,"tombstone":{…}}.

    Example: topics read orders --from -10

    Example: topics read orders --filter 'eu*' --format '%s %g %d'

    Example: topics read orders --from 5m -n 100 --json
    """
    show = printer(call, format, names_topic=False)
    now = call.clock.now_ms()
    end_ts = None if until is None else moment_ms(until, now)
    after, from_ts = start_of(call.client, topic, position(start, now), tag_match(filter))
    items = call.client.consume(
        topic, after, follow=False, include_tags=True, filter=tag_match(filter), from_ts=from_ts, limit=page_of(count)
    )
    left, has_gaps = count, False
    for item in items if count != 0 else ():
        if isinstance(item, Tombstone):
            has_gaps = True
            show_gap(call, topic, item)
            continue
        if end_ts is not None and item.ts >= end_ts:
            break
        show(topic, item)
        if left is not None and (left := left - 1) <= 0:
            break
    if strict and has_gaps:
        call.fail("records were lost", exits.REFUSED)


def page_of(count: int | None) -> int:
    return 1000 if count is None else max(1, min(1000, count))


def start_of(client: "Client", topic: str, where: Position, match: Any) -> tuple[int, int | None]:
    """The cursor, or time, at which to start."""
    if where.last is None:
        return where.after, where.from_ts
    head = client.state(topic, touch=False).head_seq
    return before_last(client, topic, head, where.last, match), None


def before_last(client: "Client", topic: str, head: int, count: int, match: Any) -> int:
    """The cursor behind which `count` records lie, or as many as there are."""
    if count == 0:
        return head
    span = max(SPAN_MIN, count)
    while True:
        after = max(0, head - span)
        seqs = [record.seq for record in _records(client, topic, after, match) if record.seq <= head]
        if len(seqs) >= count:
            return seqs[-count] - 1
        if after == 0:
            return 0
        span *= 4


def _records(client: "Client", topic: str, after: int, match: Any) -> "Iterator[Record]":
    for item in client.consume(topic, after, follow=False, filter=match, include_meta=False):
        if not isinstance(item, Tombstone):
            yield item


def printer(call: Call, format: str | None, *, names_topic: bool) -> "Callable[[str, Record | Job], None]":
    """What prints one record."""
    if format is not None:
        try:
            pattern = display.check_format(format)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--format") from None
        return lambda topic, record: print(display.formatted(record, topic, pattern))
    if call.is_json:
        return lambda topic, record: call.emit(display.fields_of(record, topic))
    return lambda topic, record: print(display.record_line(record, topic if names_topic else None))


def show_gap(call: Call, topic: str, gap: Any) -> None:
    """A tombstone of a read, or the event of a watch that is one."""
    if call.is_json:
        found = {"gap_from": gap.gap_from, "gap_to": gap.gap_to, "reason": gap.reason}
        call.emit({"topic": topic, "tombstone": found})
    display.say(display.gap_line(topic, gap.gap_from, gap.gap_to, gap.reason))
