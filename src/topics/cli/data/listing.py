"""`topics ls` and `topics info`: what there is."""

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from topics.cli.data.tailing import is_pattern, matching
from topics.cli.shell import display
from topics.cli.shell.completing import Topic, topic_names
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import duration_ms, shown_bytes, shown_cell, shown_duration, shown_moment

if TYPE_CHECKING:
    from topics.client import Client, TopicListed

Order = Literal["name", "records", "bytes", "head", "rate", "lag"]
LOSSES_SHOWN: Final = 5
CLEAR: Final = "\x1b[2J\x1b[H"


def ls(
    call: Call,
    pattern: Annotated[
        str, typer.Argument(metavar="[PREFIX|PATTERN]", help="Only these topics.", autocompletion=topic_names)
    ] = "",
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Type, losses, jobs and lag as well; a call each.")
    ] = False,
    sort: Annotated[Order, typer.Option(help="Largest first, except by name.")] = "name",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, with rates, until Ctrl-C.")] = False,
    every: Annotated[int, typer.Option(parser=duration_ms, metavar="TIME", help="Interval of --watch.")] = 2000,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="Stop --watch after this many rounds.")
    ] = None,
) -> None:
    """List topics: records, bytes, head; with -l also type, losses, jobs, and the largest lag of a named cursor.

    Example: topics ls

    Example: topics ls 'orders*' -l --sort bytes

    Example: topics ls --watch --every 100ms -n 2 --sort rate
    """
    rates: dict[str, float] = {}
    heads: dict[str, int] = {}
    at, turns = 0.0, count or 0
    while True:
        now = call.clock.monotonic()
        listed = [(client, one) for client in call.clients for one in _listed(client, pattern)]
        if heads:
            rates = {one.topic: (one.head_seq - heads.get(one.topic, 0)) / max(1e-9, now - at) for _, one in listed}
        heads, at = {one.topic: one.head_seq for _, one in listed}, now
        rows = [_row(client, one, rates if watch else None, long) for client, one in listed]
        if len(call.clients) > 1:
            rows = [row | {"server": client.url} for row, (client, _) in zip(rows, listed, strict=True)]
        rows = _sorted(sorted(rows, key=lambda row: row["topic"]), sort)
        _show(call, rows, watch)
        if not watch or (turns := turns - 1) == 0:
            return
        threading.Event().wait(max(50, every) / 1000)


def _listed(client: "Client", pattern: str) -> "list[TopicListed]":
    if not is_pattern(pattern):
        return list(client.topics(pattern))
    names = set(matching(client, pattern))
    return [one for one in client.topics() if one.topic in names]


def _row(client: "Client", one: "TopicListed", rates: dict[str, float] | None, long: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": one.topic}
    if long:
        row |= _more(client, one.topic)
    row |= {"records": one.count, "bytes": one.bytes, "earliest": one.earliest_seq, "head": one.head_seq}
    if rates is not None:
        row["rate"] = round(rates.get(one.topic, 0.0), 1)
    return row


def _more(client: "Client", topic: str) -> dict[str, Any]:
    """What only the state of a topic says. One that is gone by now has nothing to say."""
    from topics.errors import NotFound

    try:
        state = client.state(topic, touch=False)
        lag = max((cursor.lag for cursor in client.cursors(topic)), default=0)
    except NotFound:
        return {"type": "gone", "class": "", "lost": 0, "ready": None, "in_flight": None, "lag": 0}
    queue = state.queue
    return {
        "type": f"{state.type}, paused" if state.paused else state.type,
        "class": state.config.durability,
        "lost": state.lost_total,
        "ready": queue.ready if queue else None,
        "in_flight": queue.in_flight if queue else None,
        "lag": lag,
    }


def _sorted(rows: list[dict[str, Any]], order: Order) -> list[dict[str, Any]]:
    return rows if order == "name" else sorted(rows, key=lambda row: (-(row.get(order) or 0), row["topic"]))


def _show(call: Call, rows: list[dict[str, Any]], watch: bool) -> None:
    if call.is_json:
        for row in rows:
            call.emit(row)
        return
    header = list(rows[0]) if rows else ["topic", "records", "bytes", "earliest", "head"]
    texts = [[shown_cell(name, row.get(name)) for name in header] for row in rows]
    numbers = [name for name in header if name not in ("topic", "type", "class", "server")]
    if watch and sys.stdout.isatty():
        print(CLEAR, end="")
    print("\n".join(display.table(header, texts, right=numbers)), flush=True)


# --- one topic


def info(call: Call, topic: Topic) -> None:
    """Show a topic: watermarks, what became of every record, its config, losses, cursors, routers and jobs.

    Example: topics info orders
    """
    import msgspec

    state = call.client.state(topic, touch=False)
    losses = call.client.losses(topic, limit=LOSSES_SHOWN)
    cursors = list(call.client.cursors(topic))
    routers = [*call.client.routers(source=topic), *call.client.routers(dest=topic)]
    if call.is_json:
        lists = {"losses": losses, "cursors": cursors, "routers": routers}
        found = {name: value for name, value in msgspec.to_builtins(state).items() if name != "performance"}
        call.emit(found | {name: msgspec.to_builtins(value) for name, value in lists.items()})
        return
    now = call.clock.now_ms()
    print("\n".join(_aligned(_facts(state, now))))
    changed = _changed(state.config)
    print("\nconfig" + ("" if changed else ": all fields have their defaults"))
    print(
        "\n".join(f"  {name}: {display.quoted(value)}" for name, value in changed.items()), end="\n" if changed else ""
    )
    _print_list(
        "losses, the newest",
        [f"{shown_moment(one.ts)}  seqs {one.gap_from:,} to {one.gap_to:,}: {one.reason}" for one in losses],
    )
    _print_list(
        "named cursors",
        [
            f"{one.name}: at {one.seq:,}, lag {one.lag:,}" + (f", {one.lost:,} lost above it" if one.lost else "")
            for one in cursors
        ],
    )
    _print_list("routers", [f"{one.router}: {one.source} to {one.dest}" for one in routers])


def _print_list(title: str, lines: Iterable[str]) -> None:
    if texts := list(lines):
        print(f"\n{title}\n" + "\n".join(f"  {display.printable(text)}" for text in texts))


def _facts(state: Any, now: int) -> list[tuple[str, str]]:
    facts = [
        ("topic", f"{state.topic}, a {state.type} of class {state.config.durability}, epoch {state.epoch}"),
        ("live", f"{state.count:,} records, {shown_bytes(state.bytes)}"),
        (
            "seqs",
            f"{state.earliest_seq:,} to {state.head_seq:,}" if state.count else f"none live, head {state.head_seq:,}",
        ),
        (
            "written",
            f"{state.written_total:,} = {state.count:,} live + {state.lost_total:,} lost + "
            f"{state.expired_total:,} expired + {state.deleted_total:,} deleted",
        ),
        ("last write", _ago(state.last_write_ts, now)),
        ("last read", _ago(state.last_read_ts, now)),
        ("priority", str(state.effective_priority)),
    ]
    if state.seconds_until_loss is not None:
        facts.append(("next loss", f"in about {shown_duration(state.seconds_until_loss * 1000)}, at the present rate"))
    if state.queue is not None:
        queue = state.queue
        text = f"{queue.ready:,} ready, {queue.in_flight:,} in flight, {queue.dead_lettered:,} dead-lettered"
        facts.append(("jobs", text + (", PAUSED" if state.paused else "")))
    return facts


def _ago(ts: int | None, now: int) -> str:
    if ts is None:
        return "never"
    return f"{shown_moment(ts)}, {shown_duration(max(0, now - ts))} ago"


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{display.coloured(name.ljust(width), display.DIM)}  {text}" for name, text in rows]


def _changed(config: Any) -> dict[str, Any]:
    """The fields that do not have their default."""
    import msgspec

    plain = msgspec.structs.asdict(type(config)())
    fields = msgspec.structs.asdict(config)
    return {name: value for name, value in fields.items() if value != plain[name] and name != "durable"}
