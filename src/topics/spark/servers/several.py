"""The places of several servers, seen as one: each topic is read where it lives.

Has the methods of `Origins`, and one `Origins` for each server. A name on two servers is an error that names both.
A server that is down fails the read, or is waited for (`onServerDown`): then a look of a stream passes over it
(`silent`), so that the topics of the others go on, and all else waits.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Self, TypeVar

from topics.client import ApiError, CannotConnect, ClientError, TopicOnSeveralServers
from topics.errors import InvalidRequest
from topics.spark.options import Cursor, Edge, ReadOptions
from topics.spark.origins import Origins, check_found
from topics.spark.plan import Look, Stretch, Wanted
from topics.spark.servers.connection import SILENCE, Connection

T = TypeVar("T")


def origins_of(options: ReadOptions) -> "Origins | Several":
    """Where a read takes its records from."""
    server = options.server
    is_plain = server is None or not (server.is_several or server.waits)
    return Origins(options) if is_plain else Several(options)


def not_listed(topic: str, server: str, servers: Iterable[str]) -> InvalidRequest:
    """The error of an offset whose server is not among those that are read."""
    return InvalidRequest(
        f"the checkpoint has topic {topic} on {server}, which option url does not name "
        f"({', '.join(servers) or 'it is not given'}): list it as it was, or begin with a new checkpoint"
    )


class Several:
    """The places of several servers. Use as a context manager, or close."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.server is not None
        self._options = options
        self._server: Connection = options.server
        self._places: dict[str, Origins] = {}
        self.silent: frozenset[str] = frozenset()  # the servers that the last look passed over
        for url in self._server.urls:
            server = self._server.at(url)
            self._places[url] = Origins(replace(options, server=server.glancing() if server.waits else server))

    def close(self) -> None:
        for place in self._places.values():
            place.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> None:
        for place in self._places.values():
            place.refresh()

    # --- which topics, and how far they have come

    def looks(self, known: Mapping[str, Look] | None = None, *, is_patient: bool = False) -> dict[str, Look]:
        """The topics to read, by name; unless patient, of the servers that answer, or the read fails."""
        found: dict[str, Look] = {}
        silent = set()
        for url, place in self._places.items():
            here = {name: look for name, look in (known or {}).items() if look.server == url}

            def look(place: Origins = place, here: dict[str, Look] = here) -> dict[str, Look]:
                return place.looks(here)

            try:
                looks = self._asked(url, look, waits=is_patient)
            except CannotConnect:
                raise
            except SILENCE:
                if not self._server.waits:
                    raise
                silent.add(url)
                continue
            for name in looks.keys() & found.keys():
                raise TopicOnSeveralServers(name, [found[name].server, url])
            found |= looks
        self.silent = frozenset(silent)
        return found

    def all_looks(self) -> dict[str, Look]:
        """The same for the start of a read, when all servers have to answer, and each name has to be there."""
        looks = self.looks(is_patient=True)
        check_found(self._options, looks, " and ".join(self._places))
        return looks

    def look(self, name: str) -> Look | None:
        """One topic, whether or not the options select it; None: there is none. All servers have to answer."""
        found = [self._asked(url, lambda place=place: place.look(name)) for url, place in self._places.items()]  # type: ignore[misc]
        looks = [look for look in found if look is not None]
        if len(looks) > 1:
            raise TopicOnSeveralServers(name, [look.server for look in looks])
        return looks[0] if looks else None

    # --- one topic, where it is

    def start(self, look: Look, default: Edge) -> Cursor:
        return self._at(look, lambda place: place.start(look, default))

    def end(self, look: Look) -> int:
        return self._at(look, lambda place: place.end(look))

    def narrowed(self, look: Look, start: Cursor, last: int, wanted: Wanted) -> tuple[Cursor, int]:
        return self._at(look, lambda place: place.narrowed(look, start, last, wanted))

    def through_gap(self, look: Look, seq: int) -> int:
        return self._at(look, lambda place: place.through_gap(look, seq))

    def is_as_of(self, look: Look, seq: int, ts: int) -> bool:
        return self._at(look, lambda place: place.is_as_of(look, seq, ts))

    def stretch(self, look: Look, start: Cursor, last: int) -> Stretch:
        return self._at(look, lambda place: place.stretch(look, start, last))

    def _at(self, look: Look, call: Callable[[Origins], T]) -> T:
        url = look.server or next(iter(self._places))  # without a server, it is a topic that none of them has
        place = self._places.get(url)
        if place is None:
            raise not_listed(look.topic, look.server, self._places)
        return self._asked(url, lambda: call(place))

    def _asked(self, url: str, call: Callable[[], T], *, waits: bool = True) -> T:
        """What a server answers; a failure names it."""
        try:
            return self._server.until_answered(call) if waits else call()
        except (ApiError, ClientError) as error:
            error.args = (f"{url}: {error}",)
            raise
