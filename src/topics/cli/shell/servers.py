"""Several servers behind one --url: the one that has the topic of a command, or that a new one goes to.

Imports the client only where there is more than one server, or a file of keys.
"""

from typing import Final

from topics.cli.shell.contexts import Server
from topics.errors import InvalidRequest

RETRIES: Final = 3
TIMEOUT_MS: Final = 30_000


def is_several(server: Server) -> bool:
    return "," in server.url


def each(server: Server) -> list[Server]:
    """The servers of a list, each with its key."""
    from topics.settings import ClientSettings

    token_file = ClientSettings.load().token_file
    if not is_several(server) and not token_file:
        return [server]
    from topics.client.fleets.addresses import addresses, token_for
    from topics.client.fleets.token_file import load_tokens

    tokens = load_tokens(token_file) if token_file else {}
    return [Server(url, token_for(url, tokens, server.key), server.origin) for url in addresses(server.url)]


def holding(server: Server, topic: str) -> Server:
    """The server that has a topic, or that a new one of this name goes to."""
    servers = each(server)
    if len(servers) == 1:
        return servers[0]
    from topics.client import Fleet

    tokens = {one.url: one.key for one in servers}
    with Fleet(list(tokens), "", tokens=tokens, retries=RETRIES, timeout_ms=TIMEOUT_MS) as fleet:
        url = fleet.of(topic).url
    return next(one for one in servers if one.url == url)


def only(server: Server) -> Server:
    """The server; an error if there are several."""
    if is_several(server):
        raise InvalidRequest(f"this works on one server: choose one of {server.url} with --url")
    return each(server)[0]
