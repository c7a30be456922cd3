"""How to reach the server, or the servers, that a read, a write or a job talks to. No repr shows a key.

Asks nobody but where it says so. With several servers, a topic is on the one that has it; a new one goes to its home
(`topics.placement`).
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from topics.client import CannotConnect, Client, ConnectionFailed, DeadlineExceeded, Fleet
from topics.client.fleets.addresses import addresses, token_for
from topics.client.fleets.token_file import load_tokens
from topics.errors import InvalidRequest, NotReady, ShuttingDown
from topics.settings import ClientSettings

T = TypeVar("T")

RETRIES: Final = 60  # with pauses of up to 2 s: a restart of the server is waited for
TIMEOUT_MS: Final = 120_000
LOOK_MS: Final = 10_000  # for a look at a server that others do not wait for
PAUSE_S: Final = 0.5  # between looks at a server that is waited for
SILENCE: Final = (ConnectionFailed, DeadlineExceeded, NotReady, ShuttingDown)


class Surroundings(ClientSettings):
    """TOPICS_URL, TOPICS_TOKEN and TOPICS_TOKEN_FILE; empty if they are not set."""

    url = ""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach one server, or several."""

    url: str  # of several: separated by commas
    token: str = field(default="", repr=False)  # empty = none
    tokens: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # of single servers: address, key
    retries: int = RETRIES
    timeout_ms: int = TIMEOUT_MS
    waits: bool = False  # for a server that is down, however long it takes

    @property
    def urls(self) -> tuple[str, ...]:
        return addresses(self.url)

    @property
    def is_several(self) -> bool:
        return "," in self.url

    def at(self, url: str) -> "Connection":
        """One of the servers."""
        return replace(self, url=url, token=token_for(url, dict(self.tokens), self.token), tokens=())

    def among(self, urls: Iterable[str]) -> "Connection":
        """Some of the servers."""
        chosen = sorted(urls)
        if len(chosen) == 1:
            return self.at(chosen[0])
        keys = {url: token_for(url, dict(self.tokens), self.token) for url in chosen}
        return replace(self, url=",".join(chosen), tokens=tuple((url, key) for url, key in keys.items() if key))

    def only(self) -> "Connection":
        """The server; an error if there are several."""
        if self.is_several:
            raise InvalidRequest(f"this works on one server, and {self.url} are {len(self.urls)}: name one of them")
        return self.at(self.urls[0]) if self.tokens else self

    def holding(self, topic: str) -> "Connection":
        """The server that has a topic, or that a new one goes to. Asks all, if there are several."""
        if not self.is_several:
            return self.only()
        with self.fleet() as fleet:
            return self.at(self.until_answered(lambda: fleet.of(topic)).url)

    def open(self) -> Client:
        server = self.only()
        return Client(server.url, server.token, retries=self.retries, timeout_ms=self.timeout_ms)

    def fleet(self) -> Fleet:
        return Fleet(self.urls, self.token, tokens=dict(self.tokens), retries=self.retries, timeout_ms=self.timeout_ms)

    def glancing(self) -> "Connection":
        """The same for a look that tries once, and not for long."""
        return replace(self, retries=0, timeout_ms=min(self.timeout_ms, LOOK_MS))

    def until_answered(self, call: Callable[[], T], *, is_harmless: bool = True) -> T:
        """What a call gives; if a server that is down is waited for, as soon as it answers.

        A call that is not harmless is repeated only if it cannot have been carried out.
        """
        while True:
            try:
                return call()
            except CannotConnect:
                raise
            except SILENCE as error:
                if not self.waits or (getattr(error, "was_sent", False) and not is_harmless):
                    raise
            threading.Event().wait(PAUSE_S)

    def options(self) -> dict[str, str]:
        """The same as options of a read or write."""
        token = {"token": self.token} if self.token else {}
        tokens = {f"token.{address}": key for address, key in self.tokens}
        waits = {"onServerDown": "wait"} if self.waits else {}
        numbers = {"retries": str(self.retries), "timeoutMs": str(self.timeout_ms)}
        return {"url": self.url, **token, **tokens, **numbers, **waits}

    @classmethod
    def load(cls, url: str | None = None) -> "Connection":
        """The server at `url`, or the one that the environment names; the token is the environment's."""
        settings = ClientSettings.load()
        return cls(url=url or settings.url, token=settings.token).with_tokens(settings.token_file)

    def with_tokens(self, token_file: str) -> "Connection":
        """The same with the keys that a file has for its servers; "" = no file."""
        if not token_file:
            return self
        tokens = load_tokens(token_file)
        keys = ((url, token_for(url, tokens, "")) for url in self.urls)
        return replace(self, tokens=tuple((url, key) for url, key in keys if key) + self.tokens)

    @classmethod
    def load_beside(cls, path: str | None, url: str | None = None) -> "Connection | None":
        """The same for a job that reads the data directory `path`: no server at all if neither names one."""
        return cls.load(url) if path is None or url or Surroundings.load().url else None
