"""Who is connected: every stream and every socket that is open, by an id of its own (OB3).

Owns the entries, from the opening of a connection to its end, and what is done to all of them: the end of the server,
a change of keys. Must not know: what a connection writes, how it is ended, HTTP.

    entry = registry.enter(member, "watch", key, peer)      # it is open
    registry.leave(entry)                                   # it is over

Invariants: a connection is in here exactly while it is open; an id is random and is never given twice, so that one
that was noted ends the connection it was noted for, or none.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterator
from heapq import nsmallest
from secrets import token_bytes
from typing import Final, Literal, Protocol

from topics.clock import Clock
from topics.server.auth import Key

ID_BYTES: Final = 12

ConnectionKind = Literal["watch", "events", "work", "ws"]


class Member(Protocol):
    """What the registry asks of a connection."""

    @property
    def buffered(self) -> int:
        """Bytes that are held for the connection."""
        ...

    def followed(self) -> dict[str, int]:
        """The topics the connection follows, and how much of each it has not been sent yet."""
        ...

    def shut_down(self) -> None:
        """The server stops: say so, and end."""
        ...

    def check_key(self) -> None:
        """Keys have changed: end if the connection's own key no longer allows it."""
        ...

    def dismiss(self) -> None:
        """Somebody wants it gone: say so, and end."""
        ...


class Entry:
    """One open connection."""

    __slots__ = ("id", "key", "kind", "member", "peer", "since")

    def __init__(self, member: Member, kind: ConnectionKind, key: Key, peer: tuple[str, int], since: float) -> None:
        self.id = "conn_" + urlsafe_b64encode(token_bytes(ID_BYTES)).decode()
        self.member = member
        self.kind = kind
        self.key = key
        self.peer = peer
        self.since = since  # of the monotonic clock

    @property
    def remote(self) -> str:
        """The client's address and port."""
        host, port = self.peer
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Registry:
    """The open connections of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, Entry] = {}  # by id

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Member]:
        """All connections; they may come and go meanwhile."""
        return (entry.member for entry in list(self._entries.values()))

    def enter(self, member: Member, kind: ConnectionKind, key: Key, peer: tuple[str, int]) -> str:
        """A connection is open: its id. The entry refers to the member, so the member does not refer to the entry."""
        entry = Entry(member, kind, key, peer, self._clock.monotonic())
        self._entries[entry.id] = entry
        return entry.id

    def leave(self, connection_id: str) -> None:
        """A connection is over. Idempotent."""
        self._entries.pop(connection_id, None)

    def after(self, last_id: str, count: int) -> list[Entry]:
        """A page of entries, in the order of their ids."""
        return [self._entries[one] for one in nsmallest(count, (one for one in self._entries if one > last_id))]

    def dismiss(self, connection_id: str) -> bool:
        """End a connection. False: no connection has this id."""
        entry = self._entries.get(connection_id)
        if entry is not None:
            entry.member.dismiss()
        return entry is not None

    def age_ms(self, entry: Entry) -> int:
        return round((self._clock.monotonic() - entry.since) * 1000)

    def drain(self) -> None:
        """The server stops: end every connection."""
        for member in self:
            member.shut_down()

    def check_keys(self) -> None:
        """Keys have changed: end every connection that its key no longer allows."""
        for member in self:
            member.check_key()
