# Generated from src/topics/client/fleets/aio.py by `python -m tools.blocking_client`. Do not edit.
"""Several servers, for blocking code: finds the one that has a topic, and places new ones."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from topics import placement
from topics.client.blocking.client import Client
from topics.client.errors import ApiError, ClientError, TopicOnSeveralServers
from topics.client.fleets.addresses import addresses, checked_tokens, token_for
from topics.client.protocol import operations
from topics.client.protocol.retries import GATEWAY, REFUSED
from topics.client.results import TopicListed
from topics.errors import TopicNotFound
from topics.settings import ClientSettings


class Fleet:
    """Several servers, for blocking code.

    `of(topic)` is the client of the server that a topic lives on, or is to live on.

    `urls` is a list, or a text with commas; it defaults to TOPICS_URL. `token` is the key for all, `tokens` has those
    of single servers, by `http://host:port`, `host:port` or `host`. The other arguments are those of a Client.

    All programs that create topics must have the same list. A key needs the scope read on every server.
    """

    def __init__(
        self,
        urls: str | Iterable[str] | None = None,
        token: str | None = None,
        *,
        tokens: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        settings = ClientSettings.load()
        servers = addresses(settings.url if urls is None else urls)
        keys, otherwise = checked_tokens(servers, tokens or {}), settings.token if token is None else token
        self._clients = {url: Client(url, token_for(url, keys, otherwise), **options) for url in servers}
        self._homes: dict[str, str] = {}  # of the topics that were found

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers, as they are listed."""
        return tuple(self._clients)

    def client(self, url: str) -> Client:
        """The client of one of the servers."""
        return self._clients[addresses(url)[0]]

    def home(self, topic: str) -> Client:
        """The client of the server that a new topic of this name goes to; nobody is asked."""
        return self._clients[placement.home(topic, self._clients)]

    def of(self, topic: str) -> Client:
        """The client for a topic: of the server that has it, else of its home.

        A server that has the topic is remembered. If none of those that answer has it, all have to answer: else the
        topic could be created a second time.
        """
        return self.find(topic) or self.home(topic)

    def find(self, topic: str) -> Client | None:
        """The client of the server that has a topic; None: no server has it.

        TopicOnSeveralServers: more than one has.
        """
        if topic in self._homes:
            return self._clients[self._homes[topic]]
        found: list[str] = []
        silent: list[str] = []
        for url, client in self._clients.items():
            try:
                if has_topic(client, topic, is_patient=False):
                    found.append(url)
            except (ApiError, ClientError) as error:
                if isinstance(error, ApiError) and error.status not in (*REFUSED, *GATEWAY):
                    raise
                silent.append(url)
        if not found:
            found = [url for url in silent if has_topic(self._clients[url], topic, is_patient=True)]
        if len(found) > 1:
            raise TopicOnSeveralServers(topic, found)
        if not found:
            return None
        if not silent:
            self._homes[topic] = found[0]
        return self._clients[found[0]]

    def forget(self, topic: str) -> None:
        """Look for a topic anew when it is next asked for: it was deleted, or moved."""
        self._homes.pop(topic, None)

    def topics(self, prefix: str = "") -> list[tuple[str, TopicListed]]:
        """The topics of all servers, by name, each with the server that has it. A name on two servers comes twice."""
        listed = [(url, one) for url, client in self._clients.items() for one in client.topics(prefix)]
        return sorted(listed, key=lambda found: (found[1].topic, found[0]))

    def close(self) -> None:
        """Close the clients of all servers."""
        for client in self._clients.values():
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({','.join(self.urls)!r})"


def has_topic(client: Client, topic: str, *, is_patient: bool) -> bool:
    """Whether a server has a topic. One that does not answer is asked again if patient; a failure names the server."""
    ask, caller = operations.state(topic, False), client._caller
    try:
        (caller.run(ask) if is_patient else caller.run_once(ask))
    except TopicNotFound:
        return False
    except (ApiError, ClientError) as error:
        error.args = (f"{client.url}: {error}",)
        error.message = str(error)
        raise
    return True
