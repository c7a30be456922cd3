"""Tickets: what a page presents in place of its key where it cannot set a header (AU18).

A ticket is good for one request within TICKET_MS, and stands for the key that asked for it. Owns those that are not
used yet. Must not know: requests, routes.

Invariants: only digests of tickets are kept, so a lookup tells nothing of them; a ticket leaves by being presented or
by its age, oldest first, and is then no longer counted for its key (`Key.tickets`).
"""

from base64 import urlsafe_b64encode
from hashlib import sha256
from secrets import token_bytes
from typing import Final

from topics.clock import Clock
from topics.errors import Throttled
from topics.server.auth import ANYONE, Key

TICKET_MS: Final = 30_000
TICKETS_MAX: Final = 1000  # unused, of one key
TICKET_BYTES: Final = 24


class Tickets:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unused: dict[bytes, tuple[Key, float]] = {}  # by digest: whose it is, and until when; oldest first

    def give(self, key: Key) -> tuple[str, int]:
        """A new ticket, and when it expires; without auth it is not kept. Throttled: the key has too many."""
        ticket = "tkt_" + urlsafe_b64encode(token_bytes(TICKET_BYTES)).decode()
        if key is not ANYONE:
            self._sweep()
            if key.tickets >= TICKETS_MAX:
                raise Throttled(
                    f"{TICKETS_MAX} tickets of this key are unused, which is the limit",
                    limit="max_tickets",
                    max=TICKETS_MAX,
                )
            key.tickets += 1
            self._unused[sha256(ticket.encode()).digest()] = (key, self._clock.monotonic() + TICKET_MS / 1000)
        return ticket, self._clock.now_ms() + TICKET_MS

    def use(self, ticket: bytes) -> Key | None:
        """The key that a ticket stands for; the ticket is used up. None: it is unknown, used or expired."""
        self._sweep()
        key, _ = self._unused.pop(sha256(ticket).digest(), (None, 0.0))
        if key is None:
            return None
        key.tickets -= 1
        return None if key.is_gone else key

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        while self._unused:
            digest, (key, end) = next(iter(self._unused.items()))
            if end > now:
                return
            del self._unused[digest]
            key.tickets -= 1
