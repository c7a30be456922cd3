"""What makes a client: where the server is, the way there, the key, and how long to try.

A pickled client holds a ClientConfig and nothing else: no connections, no hooks, no TLS context.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from topics.client.protocol.http_parser import TOKEN, Endpoint
from topics.client.protocol.retries import Retries
from topics.errors import InvalidRequest
from topics.settings import ClientSettings

RETRIES_MIN: Final = 10  # and one for each second: pauses grow to 1.5 s on average, so the time is over before
OWN_HEADERS: Final = ("host", "authorization", "content-length", "content-type", "content-encoding", "connection")


class Way(Struct, frozen=True):
    """How to get to a server: directly or through a proxy, with TLS or without."""

    endpoint: Endpoint
    context: ssl.SSLContext | None
    proxy: Endpoint | None

    @property
    def first(self) -> Endpoint:
        """Whom to connect to."""
        return self.proxy or self.endpoint


class ClientConfig(Struct, frozen=True, kw_only=True):
    """The arguments of a client, checked. No repr shows the token."""

    endpoint: Endpoint
    token: str
    timeout_ms: int
    retries: int
    gzip: bool
    window_ms: int
    verify: bool | str = True
    extra_headers: tuple[tuple[str, str], ...] = ()
    proxy: Endpoint | None = None

    @classmethod
    def of(
        cls,
        url: str | None,
        token: str | None,
        *,
        timeout: float | None,
        timeout_ms: int,
        retries: int | None,
        gzip: bool,
        window_ms: int,
        verify: bool | str,
        headers: Mapping[str, str] | None,
        proxy: str | None,
    ) -> "ClientConfig":
        """Take url and token from the environment where they are None."""
        settings = ClientSettings.load() if url is None or token is None else ClientSettings()
        url = settings.url if url is None else url
        token = settings.token if token is None else token
        timeout_ms = timeout_ms if timeout is None else round(timeout * 1000)
        if retries is None:
            retries = RETRIES_MIN + max(0, timeout_ms) // 1000
        for name, number in (("timeout_ms", timeout_ms), ("retries", retries), ("window_ms", window_ms)):
            if number < 0:
                raise InvalidRequest(f"{name} is {number}; it must not be negative")
        if not token.isascii() or not token.isprintable():
            raise InvalidRequest("the token contains characters that no key has")
        through = None if proxy is None else Endpoint.parse(proxy)
        if through is not None and (through.is_tls or through.prefix or through.socket_path):
            raise InvalidRequest(f"{proxy!r} is not a proxy that this client can use, such as http://127.0.0.1:3128")
        return cls(
            endpoint=Endpoint.parse(url),
            token=token,
            timeout_ms=timeout_ms,
            retries=retries,
            gzip=gzip,
            window_ms=window_ms,
            verify=verify,
            extra_headers=checked_headers(headers or {}),
            proxy=through,
        )

    def headers(self) -> str:
        """The header lines of every request."""
        lines = "user-agent: topics-client\r\n"
        if self.gzip:
            lines += "accept-encoding: gzip\r\n"
        lines += "".join(f"{name}: {value}\r\n" for name, value in self.extra_headers)
        return f"{lines}authorization: Bearer {self.token}\r\n" if self.token else lines

    def policy(self, monotonic: Callable[[], float], random: Callable[[], float]) -> Retries:
        return Retries(self.timeout_ms, self.retries, self.window_ms, monotonic, random)

    def way(self, given: ssl.SSLContext | None) -> Way:
        """The way to the server. The TLS context is the one given, or made as `verify` says."""
        return Way(self.endpoint, (given or self._context()) if self.endpoint.is_tls else None, self.proxy)

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.verify if isinstance(self.verify, str) else None)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"verify is {self.verify!r}, which holds no certificates: {error}") from None
        if self.verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def __repr__(self) -> str:
        return f"ClientConfig({str(self.endpoint)!r})"


def checked_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Headers that can be sent with every request, and that the client does not send itself."""
    for name, value in headers.items():
        if not TOKEN.fullmatch(name) or name.lower() in OWN_HEADERS:
            raise InvalidRequest(f"{name!r} is not a header that can be set; pass a key as token")
        if not value.isascii() or not value.isprintable():
            raise InvalidRequest(f"the value of the header {name!r} contains characters that no header has")
    return tuple(headers.items())
