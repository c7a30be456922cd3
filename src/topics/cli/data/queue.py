"""`topics queue`: jobs by hand. A job claimed here is held by this machine's node until it is acked or times out."""

import socket
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from topics.cli.data.reading import Format, printer
from topics.cli.shell import display, exits
from topics.cli.shell.completing import Filter, Queue
from topics.cli.shell.invoking import Call, Yes, command
from topics.cli.shell.manual import Sections
from topics.cli.shell.quantities import duration_ms, shown_bytes, shown_duration, shown_moment, tag_match
from topics.model import Tombstone

if TYPE_CHECKING:
    from topics.client import Job

queue = typer.Typer(name="queue", cls=Sections, no_args_is_help=True, rich_markup_mode=None)

LEASE_MS: Final = 30_000

Node = Annotated[str | None, typer.Option(help="Who holds the jobs; cli@HOST by default.")]
Seqs = Annotated[list[int], typer.Argument(metavar="SEQ…", min=1, help="Seqs of claimed jobs.")]
Lease = Annotated[int, typer.Option(parser=duration_ms, metavar="TIME", help="How long, from now.")]
Count = Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="At most this many jobs.")]


def node_of(given: str | None) -> str:
    return given or f"cli@{socket.gethostname()}"[:128]


@command(queue, "claim")
def claim(
    call: Call,
    topic: Queue,
    count: Count = 1,
    node: Node = None,
    lease: Annotated[
        int | None,
        typer.Option(parser=duration_ms, metavar="TIME", help="How long they are held; the queue's default."),
    ] = None,
    format: Format = None,
) -> None:
    """Take jobs, to be acked, given back or extended by their seqs.

    Example: topics queue claim jobs -n 2 --lease 5m
    """
    found = call.client.claim(topic, node_of(node), max_jobs=count, lease_ms=lease)
    show = printer(call, format, names_topic=False)
    for job in found.claimed:
        show(topic, job)
    if found.paused:
        display.say(f"topics queue claim: {topic} is paused; topics queue resume {topic} lets it go on")
    elif not found.claimed:
        display.say(f"topics queue claim: {topic} has no job ready")


@command(queue, "ack")
def ack(call: Call, topic: Queue, seqs: Seqs, node: Node = None) -> None:
    """Complete jobs: they are deleted.

    Example: topics queue ack jobs 1
    """
    done = call.client.ack(topic, node_of(node), seqs)
    call.show(done, f"{done.acked} done; {done.ready:,} ready, {done.in_flight:,} in flight")
    _refuse_skipped(call, done.skipped, node)


@command(queue, "nack")
def nack(
    call: Call,
    topic: Queue,
    seqs: Seqs,
    delay: Annotated[int, typer.Option(parser=duration_ms, metavar="TIME", help="Hand them out after this time.")] = 0,
    node: Node = None,
) -> None:
    """Give jobs back.

    Example: topics queue nack jobs 2 --delay 1s
    """
    done = call.client.nack(topic, node_of(node), seqs, delay_ms=delay)
    call.show(done, f"{done.nacked} given back; {done.ready:,} ready, {done.in_flight:,} in flight")
    _refuse_skipped(call, done.skipped, node)


@command(queue, "extend")
def extend(call: Call, topic: Queue, seqs: Seqs, lease: Lease = LEASE_MS, node: Node = None) -> None:
    """Hold jobs longer.

    Example: topics queue extend jobs 3 --lease 10m
    """
    done = call.client.extend(topic, node_of(node), seqs, lease_ms=lease)
    call.show(done, f"{done.extended} held for {shown_duration(lease)} from now")
    _refuse_skipped(call, done.skipped, node)


def _refuse_skipped(call: Call, skipped: Sequence[int], node: str | None) -> None:
    if skipped:
        seqs = ", ".join(map(str, skipped))
        call.fail(f"{node_of(node)} does not hold {seqs}; topics queue leases says who does", exits.REFUSED)


@command(queue, "leases")
def leases(
    call: Call,
    topic: Queue,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most this many.")] = 1000,
) -> None:
    """Say who holds which jobs, and until when.

    Example: topics queue leases jobs
    """
    found = list(islice(call.client.leases(topic), count))
    if call.is_json:
        for one in found:
            call.emit(
                {
                    "topic": topic,
                    "$seq": one.seq,
                    "node": one.node,
                    "deadline": one.deadline,
                    "deliveries": one.deliveries,
                }
            )
        return
    now = call.clock.now_ms()
    rows = [
        (one.seq, one.node, one.deliveries, shown_moment(one.deadline), shown_duration(max(0, one.deadline - now)))
        for one in found
    ]
    header = ("seq", "node", "deliveries", "until", "left")
    print("\n".join(display.table(header, rows, right=("seq", "deliveries"))))


@command(queue, "peek")
def peek(
    call: Call,
    topic: Queue,
    count: Count = 10,
    filter: Filter = None,
    format: Format = None,
) -> None:
    """Show the next jobs without taking them; those that somebody holds as well.

    Example: topics queue peek jobs -n 3
    """
    call.client.state(topic, touch=False)
    found = call.client.consume(topic, 0, follow=False, include_tags=True, filter=tag_match(filter), limit=count)
    show = printer(call, format, names_topic=False)
    for job in islice((item for item in found if not isinstance(item, Tombstone)), count):
        show(topic, job)


@command(queue, "redrive")
def redrive(
    call: Call,
    topic: Queue,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="At most this many.")] = None,
    filter: Filter = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Yes = False,
) -> None:
    """Bring dead letters back into their queue, after saying how many.

    Example: topics queue redrive jobs --dry-run

    Example: topics queue redrive jobs --yes
    """
    match = tag_match(filter)
    trial = call.client.redrive(topic, match=match, max_jobs=count, dry_run=True)
    amount = f"{trial.redriven:,} dead letters, {shown_bytes(trial.redriven_bytes or 0)}, of {trial.dead_letter}"
    if dry_run:
        call.show(trial, f"It would bring back {amount}.")
        return
    if trial.redriven:
        call.confirm(f"Bring {amount} back into {topic}?", yes=yes)
    done = call.client.redrive(topic, match=match, max_jobs=count)
    call.show(done, f"{done.redriven:,} jobs are back in {topic}; {done.remaining:,} dead letters remain")


@command(queue, "pause")
def pause(call: Call, topic: Queue) -> None:
    """Hand out no jobs until it is resumed; everything else goes on.

    Example: topics queue pause jobs
    """
    call.show(call.client.pause(topic), f"{topic}: paused")


@command(queue, "resume")
def resume(call: Call, topic: Queue) -> None:
    """Hand out jobs again.

    Example: topics queue resume jobs
    """
    call.show(call.client.resume(topic), f"{topic}: resumed")


def described(job: "Job") -> str:
    return f"job {job.seq}, delivery {job.deliveries}"
