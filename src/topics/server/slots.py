"""Slots: how many requests, streams and sessions there may be at once, per key and in all.

Owns the limits of LM1 that belong to no topic. Taking a slot either succeeds or raises Throttled; whoever took one
gives it back, however the request or stream ends (LM5). Limits per key apply only with auth.
"""

from topics.errors import Throttled
from topics.server.auth import ANYONE, Key
from topics.settings import Settings


class Slots:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.running = 0  # requests
        self.streams = 0  # open streams and sockets
        self.sessions = 0  # watch sessions
        self._sessions_of: dict[Key, int] = {}

    def check_request(self, key: Key) -> None:
        """Refuse a request if its key has reached its limit of running requests."""
        cap = self._settings.max_inflight_per_key
        if cap and key is not ANYONE and key.inflight >= cap:
            raise _full("max_inflight_per_key", cap, "requests of this key are running")

    def take_stream(self, key: Key) -> None:
        cap, key_cap = self._settings.max_sse_connections, self._settings.max_sse_connections_per_key
        if cap and self.streams >= cap:
            raise _full("max_sse_connections", cap, "streams are open")
        if key_cap and key is not ANYONE and key.streams >= key_cap:
            raise _full("max_sse_connections_per_key", key_cap, "streams of this key are open")
        self.streams += 1
        key.streams += 1

    def give_stream(self, key: Key) -> None:
        self.streams -= 1
        key.streams -= 1

    def take_session(self, key: Key) -> None:
        cap, key_cap = self._settings.max_watch_sessions, self._settings.max_watch_sessions_per_key
        held = self._sessions_of.get(key, 0)
        if cap and self.sessions >= cap:
            raise _full("max_watch_sessions", cap, "watch sessions exist")
        if key_cap and key is not ANYONE and held >= key_cap:
            raise _full("max_watch_sessions_per_key", key_cap, "watch sessions of this key exist")
        self.sessions += 1
        self._sessions_of[key] = held + 1

    def give_session(self, key: Key) -> None:
        self.sessions -= 1
        self._sessions_of[key] -= 1
        if not self._sessions_of[key]:
            del self._sessions_of[key]


def _full(limit: str, cap: int, what: str) -> Throttled:
    return Throttled(f"{cap} {what} already, which is the limit", limit=limit, max=cap)
