"""CORS: which pages of other origins may call the API from a browser; none unless TOPICS_CORS_ORIGINS names them."""

from typing import Final

from topics.errors import ConfigurationError, Refusal
from topics.server.routes import Routes
from topics.server.transport.exchange import Answer, Headers, Request

VARIABLE: Final = "TOPICS_CORS_ORIGINS"
ALLOWED_HEADERS: Final = (
    b"authorization, content-type, content-encoding, idempotency-key, idempotency-mismatch, last-event-id"
)
MAX_AGE_S: Final = b"600"


class Cors:
    def __init__(self, origins: frozenset[bytes]) -> None:
        self._origins = origins
        self._is_any = b"*" in origins

    @classmethod
    def parse(cls, text: str) -> "Cors | None":
        """Read the variable; None = CORS is off."""
        origins = frozenset(origin.strip().rstrip("/") for origin in text.split(",") if origin.strip())
        for origin in origins:
            if origin != "*" and ("://" not in origin or not origin.isascii() or not origin.isprintable()):
                raise ConfigurationError(f"{VARIABLE} holds {origin!r}; an origin is scheme://host[:port], or *")
        return cls(frozenset(origin.encode() for origin in origins)) if origins else None

    def headers(self, request: Request) -> Headers:
        """The headers for the page that asked."""
        origin = request.headers.get(b"origin")
        if self._is_any:
            return ((b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"retry-after"))
        if origin is None or not self.admits(origin):
            return ((b"vary", b"origin"),)
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"retry-after"),
            (b"vary", b"origin"),
        )

    def admits(self, origin: bytes) -> bool:
        """Whether pages of this origin may call."""
        return self._is_any or origin in self._origins

    def is_preflight(self, request: Request) -> bool:
        """A preflight carries no key, so it is answered before the key is looked at."""
        return b"origin" in request.headers and b"access-control-request-method" in request.headers

    def preflight(self, request: Request, routes: Routes) -> Answer | None:
        try:
            methods = routes.methods(request.path).encode()
        except Refusal:
            methods = b"GET"
        allowed = self.headers(request)
        if len(allowed) > 1:
            allowed = (
                *allowed,
                (b"access-control-allow-methods", methods),
                (b"access-control-allow-headers", ALLOWED_HEADERS),
                (b"access-control-max-age", MAX_AGE_S),
            )
        return Answer(200, b"", allowed, b"text/plain")
