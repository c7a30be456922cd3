"""Names for the shell's completion: topics, queues, routers and contexts. Whatever goes wrong, nothing is offered."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from topics.cli.shell import contexts

if TYPE_CHECKING:
    from topics.client import Client

OFFERED_MAX: Final = 100
TIMEOUT_MS: Final = 1_000


def _offered(context: typer.Context, names: "Callable[[Client], Iterator[str]]") -> list[str]:
    from topics.client import Client
    from topics.errors import TopicsError

    given = context.params
    try:
        server = contexts.resolve(given.get("url"), given.get("key"), given.get("context"), url_origin="--url")
        with Client(server.url, server.key, retries=0, timeout_ms=TIMEOUT_MS) as client:
            return list(islice(names(client), OFFERED_MAX))
    except (TopicsError, OSError):
        return []


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(ctx, lambda client: (one.topic for one in client.topics(incomplete, page_size=OFFERED_MAX)))


def router_names(ctx: typer.Context, incomplete: str) -> list[str]:
    return _offered(ctx, lambda client: (one.router for one in client.routers(incomplete, page_size=OFFERED_MAX)))


def context_names(incomplete: str) -> list[str]:
    from topics.errors import TopicsError

    try:
        return [name for name in sorted(contexts.load().contexts) if name.startswith(incomplete)]
    except TopicsError:
        return []


Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names)]
Topics = Annotated[
    list[str],
    typer.Argument(
        metavar="TOPIC…", help="Names of topics; 'eu.*' is every topic that fits.", autocompletion=topic_names
    ),
]
Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", autocompletion=topic_names)]
Filter = Annotated[
    str | None, typer.Option("--filter", metavar="TAG", help="Only records with this tag; 'eu*' is a beginning.")
]
