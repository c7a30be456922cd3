"""`topics put`: the config of a topic as options. It shows what would change before it changes anything."""

from typing import Annotated, Any

import typer

from topics.cli.shell import display
from topics.cli.shell.completing import Topic
from topics.cli.shell.invoking import Call, Yes
from topics.cli.shell.quantities import duration_ms, shown_bytes, size_bytes
from topics.model import Discard, Durability, TopicType

DeadLetter = Annotated[
    str | None, typer.Option(metavar="TOPIC|none", help="Queues: where jobs go that were delivered too often.")
]
LeasesDurable = Annotated[
    bool | None, typer.Option("--leases-durable/--no-leases-durable", help="Queues: leases outlive a restart.")
]
MaxDeliveries = Annotated[
    int | None, typer.Option(min=0, help="Queues: then a job goes to the dead letters; 0 = never.")
]
ClaimJitter = Annotated[
    int | None, typer.Option(parser=duration_ms, metavar="TIME", help="Queues: claims are gathered for so long.")
]


def put(
    call: Call,
    topic: Topic,
    type: Annotated[TopicType | None, typer.Option(help="log, or queue: records are jobs. Cannot be changed.")] = None,
    durability: Annotated[
        Durability | None, typer.Option(help="What a crash may take: from everything (ephemeral) to nothing (fsync).")
    ] = None,
    cap_records: Annotated[
        int | None, typer.Option(min=0, help="Keep at most this many live records; 0 = no cap.")
    ] = None,
    cap_bytes: Annotated[
        int | None,
        typer.Option(parser=size_bytes, metavar="SIZE", help="Keep at most this many bytes of records; 0 = no cap."),
    ] = None,
    ttl: Annotated[
        int | None, typer.Option(parser=duration_ms, metavar="TIME", help="Age at which a record expires; 0 = never.")
    ] = None,
    discard: Annotated[
        Discard | None, typer.Option(help="A full topic drops old records, or rejects new ones.")
    ] = None,
    priority: Annotated[
        str | None, typer.Option(metavar="NUMBER|auto", help="Who goes first under pressure, -1000 to 1000.")
    ] = None,
    idempotency_window: Annotated[
        int | None, typer.Option(parser=duration_ms, metavar="TIME", help="How long idempotency keys are remembered.")
    ] = None,
    dedupe_node: Annotated[
        bool | None, typer.Option("--dedupe-node/--no-dedupe-node", help="Whether readers' node filters apply.")
    ] = None,
    lease: Annotated[
        int | None, typer.Option(parser=duration_ms, metavar="TIME", help="Queues: how long a job is held.")
    ] = None,
    claim_jitter: ClaimJitter = None,
    max_deliveries: MaxDeliveries = None,
    dead_letter: DeadLetter = None,
    leases_durable: LeasesDurable = None,
    reset: Annotated[bool, typer.Option("--reset", help="Fields that are not given return to their defaults.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    yes: Yes = False,
) -> None:
    """Create a topic, or change its config: only the fields that are given.

    The difference and the server's warnings are shown first. If records would be dropped, it asks, with their number.

    Example: topics put prices --cap-records 1000 --durability fsync

    Example: topics put jobs --type queue --lease 1m --max-deliveries 5 --dead-letter jobs.dead

    Example: topics put prices --ttl 7d --dry-run
    """
    given: dict[str, Any] = {
        "type": type,
        "durability": durability,
        "cap_records": cap_records,
        "cap_bytes": cap_bytes,
        "ttl_ms": ttl,
        "discard": discard,
        "idempotency_window_ms": idempotency_window,
        "dedupe_node": dedupe_node,
        "lease_ms": lease,
        "claim_jitter_ms": claim_jitter,
        "max_deliveries": max_deliveries,
        "leases_durable": leases_durable,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    if priority is not None:
        fields |= {"priority": None if priority == "auto" else _number(priority)}
    if dead_letter is not None:
        fields["dead_letter"] = None if dead_letter in ("", "none") else dead_letter
    _put(call, topic, fields, resets=reset, is_dry=dry_run, yes=yes)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no priority; use -1000 to 1000, or auto") from None


def _put(call: Call, topic: str, fields: dict[str, Any], *, resets: bool, is_dry: bool, yes: bool) -> None:
    import msgspec

    from topics.errors import TopicNotFound

    before: dict[str, Any] | None
    try:
        before = msgspec.structs.asdict(call.client.state(topic, touch=False).config)
    except TopicNotFound:
        before = None
    config = {} if before is None or resets else {name: v for name, v in before.items() if name != "durable"}
    if before is not None:
        config.setdefault("type", before["type"])
    config |= fields
    trial = call.client.put_topic(topic, config, dry_run=True)
    after = msgspec.structs.asdict(trial.config)
    evicted = trial.would_evict
    if not call.is_json:
        _show_difference(topic, before, after)
    for warning in trial.warnings:
        display.say(display.coloured(f"warning: {warning.message}", display.YELLOW))
    if is_dry:
        call.show(trial, f"It would drop {evicted.records:,} records, {shown_bytes(evicted.bytes)}." if evicted else "")
        return
    if evicted is not None and evicted.records:
        drops = f"{evicted.records:,} records, {shown_bytes(evicted.bytes)}"
        call.confirm(f"This config drops {drops} of {topic} at once. Go on?", yes=yes)
    done = call.client.put_topic(topic, config)
    call.show(done, f"{topic}: {'created' if done.created else 'unchanged' if before == after else 'changed'}")


def _show_difference(topic: str, before: dict[str, Any] | None, after: dict[str, Any]) -> None:
    from topics.model import TopicConfig

    old = before
    if old is None:
        import msgspec

        old = msgspec.structs.asdict(TopicConfig())
    for name, value in after.items():
        if old[name] != value and name != "durable":
            print(f"  {name}: {display.quoted(old[name])} → {display.quoted(value)}")
