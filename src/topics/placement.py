"""On which of several servers a new topic goes: rendezvous hashing, the same for every program that has the same list.

    weight(server, topic) = the first 8 bytes of SHA-256 over `server`, a line feed and `topic`, as a big-endian number
    home(topic)           = the server of the greatest weight; of equal ones, the first in the order of their texts

Both are UTF-8. A server is its address as `scheme://host:port`, with a lower-case host, the port always there, and the
path before /v0 if it has one. The order of the list does not matter. A server more takes over one topic in n, from all
others alike; a server less gives away its own topics only.

A topic that is there already stays where it is: this decides for new ones alone. Pure; asks nobody.
"""

from collections.abc import Iterable
from hashlib import sha256


def weight(server: str, topic: str) -> int:
    """How much a server wants a topic."""
    return int.from_bytes(sha256(f"{server}\n{topic}".encode()).digest()[:8], "big")


def ranked(topic: str, servers: Iterable[str]) -> list[str]:
    """The servers, the home of the topic first."""
    return sorted(servers, key=lambda server: (-weight(server, topic), server))


def home(topic: str, servers: Iterable[str]) -> str:
    """Where a new topic of this name goes."""
    return ranked(topic, servers)[0]
