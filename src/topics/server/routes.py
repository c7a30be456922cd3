"""The table of routes: which paths exist, what each takes, and which scopes it needs (Appendix A.1).

A path is matched segment by segment; `:name` stands for one segment, percent-decoded once (CV14). A path has one name,
and may end in a second one, of something within the first (`item_of`). To add an endpoint, add a row to ROUTES in
`api`. Must not know: requests beyond method and path, handlers beyond their type.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from topics.errors import InvalidRequest, MethodNotAllowed, NotFound, Refusal
from topics.server.transport.encoding import JSON_TYPE

NO_SCOPES: Final[frozenset[str]] = frozenset()
PATHS_KEPT_MAX: Final = 10_000  # paths whose resource is remembered, except those of sessions and items …
PATH_KEPT_BYTES_MAX: Final = 512  # … and only paths up to this length
PATH_BYTES_MAX: Final = 8192  # no path with names that are valid is longer
HEX: Final = frozenset(b"0123456789abcdefABCDEF")


@dataclass(frozen=True, eq=False)
class Route:
    """One method of one path."""

    method: str
    path: str
    handle: Callable[[Any], Any] | None  # takes a Call; a coroutine runs as a task. None: not built yet
    scopes: frozenset[str] = NO_SCOPES
    summary: str = ""
    media: tuple[str, ...] = ()  # media types that it takes; none = it takes no body
    may_be_empty: bool = False  # an empty body stands for {} (CV3)
    takes_bulk: bool = False  # a body as large as the server takes; others are small (LM9)
    is_stream: bool = False  # has no HEAD
    is_probe: bool = False  # for anybody, whatever page sent it; needs no key unless TOPICS_PROBE_AUTH is on
    is_linked: bool = False  # of those: no probe; a page of another site can lead to it, by a link, but not ask it
    is_page: bool = False  # holds nothing but the console's own files: needs no key, and links from anywhere lead to it
    is_always_on: bool = False  # answers during replay and shutdown as well
    takes_token: bool = False  # the key may come as ?token=
    takes_ticket: bool = False  # a ticket may stand for the key, as ?ticket=
    checks_itself: bool = False  # has its own order of checks, from the key on
    openapi: Any = field(default=None)  # what the OpenAPI document says beyond this


def json_body(**more: Any) -> dict[str, Any]:
    return {"media": (JSON_TYPE,), **more}


@dataclass(frozen=True, eq=False)
class Resource:
    """A path that exists: its methods, and the name in it."""

    methods: dict[str, Route]
    name: str


class Routes:
    def __init__(self, routes: Iterable[Route]) -> None:
        self.rows = list(routes)
        self._paths: dict[tuple[str | None, ...], dict[str, Route]] = {}  # None stands for a name
        self._resources: dict[bytes, Resource] = {}
        for row in self.rows:
            segments = tuple(None if part.startswith(":") else part for part in row.path.split("/")[1:])
            methods = self._paths.setdefault(segments, {})
            methods[row.method] = row
            if row.method == "GET" and not row.is_stream:
                methods["HEAD"] = row
        self._segments_max = max(map(len, self._paths), default=0)

    def find(self, method: str, path: bytes) -> tuple[Route, str]:
        """The route, and the decoded name in its path."""
        resource = self._resources.get(path) or self._resource(path)
        route = resource.methods.get(method)
        if route is None:
            raise MethodNotAllowed(f"{method} is not a method of this path; use {allow(resource.methods)}")
        return route, resource.name

    def methods(self, path: bytes) -> str:
        """The Allow header of a path that exists."""
        return allow(self._resource(path).methods)

    def is_probe(self, path: bytes) -> bool:
        """Whether a path may be requested without a key."""
        try:
            return any(row.is_probe for row in self._resource(path).methods.values())
        except Refusal:
            return False

    def row(self, method: str, path: bytes) -> Route | None:
        """The route; None: there is no such path, or it has no such method."""
        try:
            return self.find(method, path)[0]
        except Refusal:
            return None

    def _resource(self, path: bytes) -> Resource:
        if len(path) > PATH_BYTES_MAX:
            raise InvalidRequest(f"the path has {len(path)} bytes, at most {PATH_BYTES_MAX}")
        segments = [_decoded(segment) for segment in path.split(b"/")[1:]]
        if len(segments) > self._segments_max:  # the search below takes the square of them
            raise NotFound("there is no such path")
        methods, name = self._paths.get(tuple(segments)), ""
        for n in range(len(segments)):
            if methods is None and segments[n]:
                methods = self._paths.get((*segments[:n], None, *segments[n + 1 :]))
                name = segments[n]
        has_item = False
        for n in range(len(segments) - 1):
            if methods is None and segments[n] and segments[-1]:
                methods = self._paths.get((*segments[:n], None, *segments[n + 1 : -1], None))
                name, has_item = segments[n], True
        if methods is None:
            raise NotFound("there is no such path")
        resource = Resource(methods, name)
        is_kept = not has_item and not any(row.checks_itself for row in methods.values())
        if len(path) <= PATH_KEPT_BYTES_MAX and is_kept:
            if len(self._resources) >= PATHS_KEPT_MAX:
                self._resources.clear()
            self._resources[path] = resource
        return resource


def item_of(path: bytes) -> str:
    """The last segment of a path, decoded: what it names within the topic that it names."""
    return _decoded(path.rpartition(b"/")[2])


def allow(methods: Iterable[str]) -> str:
    return ", ".join(sorted(methods))


def _decoded(segment: bytes) -> str:
    """A path segment, percent-decoded once, as UTF-8."""
    try:
        if b"%" in segment:
            for escape in segment.split(b"%")[1:]:
                if len(escape) < 2 or not HEX.issuperset(escape[:2]):
                    raise ValueError("a % is not followed by two hex digits")
            segment = unquote_to_bytes(segment)
        return segment.decode()
    except ValueError as error:
        raise InvalidRequest(f"the path cannot be decoded: {error}") from None
