"""`topics rm` and `topics delete`: topics and records go, after a question that says how many."""

from typing import Annotated

import typer

from topics.cli.shell import display, exits
from topics.cli.shell.completing import Topic, topic_names
from topics.cli.shell.invoking import Call, Yes
from topics.cli.shell.quantities import shown_bytes, tag_match


def rm(
    call: Call,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC…", help="Topics.", autocompletion=topic_names)],
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only topics without live records.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Yes = False,
) -> None:
    """Delete topics with all their records, cursors and routers.

    Example: topics rm scratch --yes

    Example: topics rm orders --dry-run
    """
    states = [call.client.state(topic, touch=False) for topic in dict.fromkeys(topics)]
    records, size = sum(state.count for state in states), sum(state.bytes for state in states)
    names = ", ".join(state.topic for state in states)
    amount = f"{records:,} record{'' if records == 1 else 's'}, {shown_bytes(size)}"
    if dry_run:
        call.show(
            {"topics": [state.topic for state in states], "records": records, "bytes": size, "dry_run": True},
            f"It would delete {names}: {amount}.",
        )
        return
    if not (if_empty and not records):
        call.confirm(f"Delete {names} with {amount}?", yes=yes)
    for state in states:
        done = call.client.delete_topic(state.topic, if_empty=if_empty, epoch=state.epoch)
        routers = f", and the routers {', '.join(done.routers_removed)}" if done.routers_removed else ""
        call.show(done, f"{state.topic}: deleted with {state.count:,} records{routers}")


def delete(
    call: Call,
    topic: Topic,
    before: Annotated[
        int | None, typer.Option("--before", min=1, metavar="SEQ", help="Records with a smaller seq.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Records with this tag.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Records whose tag begins so.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All records; the topic stays.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    yes: Yes = False,
) -> None:
    """Delete records: below a seq, by tag, or by the beginning of a tag; if both are given, records that fit both.

    They are gone for every reader, and no reader is told. It says first how many records and bytes that would be.

    Example: topics delete orders --prefix eu --dry-run

    Example: topics delete orders --before 3 --yes
    """
    if tag is not None and prefix is not None:
        call.fail("give --tag or --prefix, not both", exits.USAGE)
    if every and (before is not None or tag is not None or prefix is not None):
        call.fail("--all goes with no other choice", exits.USAGE)
    state = call.client.state(topic, touch=False)
    before = state.head_seq + 1 if every else before
    match = tag_match(f"{prefix}*") if prefix is not None else None if tag is None else ["tag", "Eq", tag]
    if before is None and match is None:
        call.fail("say which records: --before SEQ, --tag, --prefix or --all", exits.USAGE)
    trial = call.client.delete_records(topic, before_seq=before, match=match, epoch=state.epoch, dry_run=True)
    amount = f"{trial.deleted:,} of {state.count:,} records, {shown_bytes(trial.deleted_bytes or 0)}"
    if dry_run:
        call.show(trial, f"It would delete {amount} of {topic}.")
        return
    if trial.deleted:
        call.confirm(f"Delete {amount} of {topic}?", yes=yes)
    done = call.client.delete_records(topic, before_seq=before, match=match, epoch=state.epoch)
    call.show(done, f"{topic}: {done.deleted:,} records deleted, {done.count:,} left")
    if done.deleted != trial.deleted and not call.is_json:
        display.say(f"topics delete: {trial.deleted:,} were announced; the topic has changed since")
