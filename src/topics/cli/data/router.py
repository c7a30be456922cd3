"""`topics router`: the routers of a server, and what a filter would take."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.data.reading import before_last
from topics.cli.shell import display
from topics.cli.shell.completing import Filter, Topic, router_names, topic_names
from topics.cli.shell.invoking import Call, Yes, command
from topics.cli.shell.manual import Sections
from topics.cli.shell.quantities import tag_match
from topics.model import TagMatch, Tombstone

if TYPE_CHECKING:
    from topics.client import Router

router = typer.Typer(name="router", cls=Sections, no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the router.", autocompletion=router_names)]


@command(router, "ls")
def ls(
    call: Call,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only names that begin so.")] = "",
    source: Annotated[str | None, typer.Option(help="Only from this topic.")] = None,
    dest: Annotated[str | None, typer.Option(help="Only into this topic.")] = None,
) -> None:
    """List routers, with their lag and whether they are blocked.

    Example: topics router ls
    """
    listed = call.client.routers(prefix, source=source, dest=dest)
    found = [call.client.router(one.router) for one in listed]
    if call.is_json:
        for one in found:
            call.emit(one)
        return
    rows = [
        (one.router, one.source, one.dest, _filter(one), f"{one.forwarded_total:,}", f"{one.lag:,}", _state(one))
        for one in found
    ]
    header = ("router", "source", "dest", "filter", "forwarded", "lag", "state")
    print("\n".join(display.table(header, rows, right=("forwarded", "lag"))))


def _filter(one: "Router") -> str:
    return "-" if one.filter is None else one.filter[2]


def _state(one: "Router") -> str:
    return one.state if one.blocked_by is None else f"{one.state}: {one.blocked_by}"


@command(router, "put")
def put(
    call: Call,
    name: Name,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="From this topic.", autocompletion=topic_names)],
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Into this topic.", autocompletion=topic_names)],
    filter: Filter = None,
    exactly_once: Annotated[bool, typer.Option("--exactly-once", help="A copy that exists is not made again.")] = False,
    drop_node: Annotated[bool, typer.Option("--drop-node", help="Copies have no node.")] = False,
    drop_tag: Annotated[bool, typer.Option("--drop-tag", help="Copies have no tag.")] = False,
    no_create: Annotated[bool, typer.Option("--no-create", help="Fail if the dest does not exist.")] = False,
    allow_cycle: Annotated[bool, typer.Option("--allow-cycle", help="Accept a router that closes a cycle.")] = False,
) -> None:
    """Copy what is written to a topic from now on into another.

    Example: topics router put 'orders->eu' orders eu --filter 'eu*'
    """
    guarantee: Literal["at_least_once", "exactly_once"] = "exactly_once" if exactly_once else "at_least_once"
    done = call.client.put_router(
        name,
        source,
        dest,
        filter=tag_match(filter),
        preserve_node=not drop_node,
        preserve_tag=not drop_tag,
        create_dest=not no_create,
        allow_cycle=allow_cycle,
        guarantee=guarantee,
    )
    call.show(done, f"{name}: {'created' if done.created else 'changed'}, {source} to {dest}")


@command(router, "rm")
def rm(call: Call, name: Name, yes: Yes = False) -> None:
    """Delete a router; the copies stay.

    Example: topics router rm 'orders->eu' --yes
    """
    one = call.client.router(name)
    call.confirm(f"Delete {name}, which copies {one.source} to {one.dest}, {one.lag:,} seqs behind?", yes=yes)
    done = call.client.delete_router(name)
    call.show(done, f"{name}: " + ("deleted" if done.deleted else "there was none"))


@command(router, "test")
def try_filter(
    call: Call,
    topic: Topic,
    filter: Annotated[str, typer.Argument(metavar="TAG", help="A tag; 'eu*' is a beginning.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=100_000, help="So many of the last records.")] = 100,
) -> None:
    """Say which of the last records a filter would take, by tag.

    Example: topics router test orders 'eu*'
    """
    match = TagMatch.parse(tag_match(filter))
    head = call.client.state(topic, touch=False).head_seq
    after = before_last(call.client, topic, head, count, None)
    tags: Counter[str | None] = Counter()
    for item in call.client.consume(topic, after, follow=False, include_tags=True, include_meta=False):
        if not isinstance(item, Tombstone):
            tags[item.tag] += 1
    rows = [(tag, number, match.matches(tag)) for tag, number in tags.most_common()]
    if call.is_json:
        for tag, number, fits in rows:
            call.emit({"topic": topic, "tag": tag, "records": number, "matches": fits})
        return
    texts = [("yes" if fits else "no", f"{n:,}", "(none)" if tag is None else tag) for tag, n, fits in rows]
    print("\n".join(display.table(("taken", "records", "tag"), texts, right=("records",))))
    taken = sum(n for _, n, fits in rows if fits)
    print(f"{filter} takes {taken:,} of the last {tags.total():,} records")
