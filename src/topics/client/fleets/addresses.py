"""A list of servers, and the keys for them. Pure: asks nobody, reads no file.

Invariant: an address has one spelling, that of `Endpoint`, so that two programs with the same list place alike.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from topics.client.protocol.http_parser import Endpoint
from topics.errors import InvalidRequest


def addresses(urls: str | Iterable[str]) -> tuple[str, ...]:
    """The servers of a list, or of a text that separates them by commas: each in its one spelling, none twice."""
    given = urls.split(",") if isinstance(urls, str) else list(urls)
    found: list[str] = []
    for url in given:
        if not url.strip():
            raise InvalidRequest(f"{urls!r} is not a list of servers such as http://a:4000,http://b:4000")
        address = str(Endpoint.parse(url.strip()))
        if address in found:
            raise InvalidRequest(f"the server {address} is listed twice")
        found.append(address)
    if not found:
        raise InvalidRequest("no server is listed")
    return tuple(found)


def token_for(address: str, tokens: Mapping[str, str], otherwise: str) -> str:
    """The key for a server: that of its address, of its host and port, of its host; else the one for all."""
    host = urlsplit(address)
    for name in (address, host.netloc, host.hostname or ""):
        if name in tokens:
            return tokens[name]
    return otherwise


def checked_tokens(servers: Iterable[str], tokens: Mapping[str, str]) -> dict[str, str]:
    """The keys, if each is for a server that is listed."""
    servers = tuple(servers)
    known = {name for url in servers for name in (url, urlsplit(url).netloc, urlsplit(url).hostname)}
    found = {}
    for name, token in tokens.items():
        spelled = str(Endpoint.parse(name)) if "://" in name else name.lower()
        if spelled not in known:
            raise InvalidRequest(f"there is a key for {name!r}, which is none of the servers {', '.join(servers)}")
        found[spelled] = token
    return found


def parse_tokens(text: str, name: str) -> dict[str, str]:
    """The keys of a file: a line per server, `address key`; `#` begins a comment. No message shows a key."""
    tokens: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise InvalidRequest(f"{name}, line {number}: it must be an address and a key, such as http://a:4000 KEY")
        if words[0] in tokens:
            raise InvalidRequest(f"{name}, line {number}: {words[0]} has a key already")
        tokens[words[0]] = words[1]
    return tokens
