"""HTTP/1.1 as a client speaks it: requests to bytes, answers from bytes. Knows no sockets, no routes and no time.

Invariant: an answer is complete only when its own framing says so. A connection that ends earlier never counts as the
end of the answer.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

from topics.client.errors import UnexpectedAnswer
from topics.errors import InvalidRequest

PATH: Final = re.compile(r"[!-~]*", re.ASCII)
HOST: Final = re.compile(r"[^\s/\\@\x00-\x1f]+")
TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)  # the name of a header
UNIX: Final = "unix:"
HEAD_BYTES_MAX: Final = 256 * 1024
JOINED_BYTES_MAX: Final = 64 * 1024  # up to here, head and body are sent as one part
TLS_ALERT: Final = b"\x15\x03"
GZIP: Final = 16 + zlib.MAX_WBITS
GZIP_BYTES_MIN: Final = 1024  # of a body; below this size gzip saves nothing
GZIP_LEVEL: Final = 1  # most of the gain at a fraction of the time


class Endpoint(Struct, frozen=True):
    """Where a server is. `prefix` is a path in front of /v0, for servers behind a proxy.

    A server on a Unix socket is `unix:/path/of/the/socket`.
    """

    host: str
    port: int
    is_tls: bool
    prefix: str = ""
    socket_path: str = ""

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        if url.startswith(UNIX):
            path = url.removeprefix(UNIX).removeprefix("//")
            if not path or "\0" in path:
                raise InvalidRequest(f"{url!r} names no Unix socket, such as unix:/run/topics.sock")
            return cls("localhost", 80, False, socket_path=path)
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise InvalidRequest("the URL of a server has no user, query or fragment; pass the key as token")
        try:
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError:
            port = 0
        is_server = parts.scheme in ("http", "https") and port != 0 and HOST.fullmatch(parts.hostname or "")
        if not is_server or not parts.hostname or not PATH.fullmatch(parts.path):
            raise InvalidRequest(f"{url!r} is not the URL of a server, such as http://127.0.0.1:4000")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def __str__(self) -> str:
        if self.socket_path:
            return f"{UNIX}{self.socket_path}"
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.prefix}"


class Request(Struct, frozen=True):
    """`path` includes the query; `headers` holds what this request has beyond the common ones."""

    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Response(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


def encode_request(
    request: Request, endpoint: Endpoint, common: str, *, gzip: bool, absolute: bool = False
) -> tuple[bytes, ...]:
    """A request, in the parts to send. `common` holds the header lines of every request.

    `absolute`: the target names the server, too, for a proxy that forwards it.
    """
    body = request.body
    target = f"{endpoint if absolute else endpoint.prefix}{request.path}"
    lines = [f"{request.method} {target} HTTP/1.1\r\nhost: {endpoint.authority}\r\n{common}"]
    lines += [f"{name}: {value}\r\n" for name, value in request.headers]
    if gzip and len(body) >= GZIP_BYTES_MIN:
        body = _compress(body)
        lines.append("content-encoding: gzip\r\n")
    if body or request.method in ("POST", "PUT"):
        lines.append(f"content-length: {len(body)}\r\n")
    head = ("".join(lines) + "\r\n").encode("latin-1")
    return (head + body,) if len(body) <= JOINED_BYTES_MAX else (head, body)


def connect_request(endpoint: Endpoint) -> bytes:
    """What asks a proxy for a tunnel to a server."""
    return f"CONNECT {endpoint.authority} HTTP/1.1\r\nhost: {endpoint.authority}\r\n\r\n".encode()


def refuse_tunnel(endpoint: Endpoint, answer: bytes) -> None:
    """Raise unless the proxy has opened the tunnel."""
    status = answer.partition(b"\r\n")[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        raise OSError(f"the proxy opens no tunnel to {endpoint.authority}: {status}")


def _compress(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP)
    return packer.compress(body) + packer.flush()


class ResponseReader:
    """One answer: feed it bytes, take what has arrived of the body."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._inflater: zlib._Decompress | None = None
        self._fault = ""  # what a callback of the parser found wrong
        self._head_bytes = 0
        self._is_framed = False  # by a length or by chunks; otherwise the connection ends with it
        self.headers: dict[str, str] = {}
        self.status = 0
        self.has_head = False
        self.is_complete = False
        self.has_begun = False  # its first byte has arrived
        self.keeps_alive = False

    def feed(self, data: bytes | memoryview) -> None:
        self.has_begun = True
        if not self.has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            hint = "it is TLS; use https://" if self._is_tls(data) else str(error)
            raise self._unexpected(self._fault or f"the answer is not HTTP: {hint}") from None
        if not self.has_head and self._head_bytes > HEAD_BYTES_MAX:
            raise self._unexpected(f"the head of the answer is longer than {HEAD_BYTES_MAX} bytes")

    def _is_tls(self, data: bytes | memoryview) -> bool:
        return not self.has_head and bytes(data[:2]) == TLS_ALERT

    def feed_eof(self) -> None:
        """The connection has ended. `is_complete` stays False if the answer has not."""
        if self.has_head and not self._is_framed and not self.is_complete:
            try:
                self._complete()
            except ValueError:
                raise self._unexpected(self._fault) from None

    def take_parts(self) -> list[bytes]:
        """What has arrived of the body since the last call."""
        parts, self._parts = self._parts, []
        return parts

    # --- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self.has_head = True
        chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._is_framed = chunked or "content-length" in self.headers or self.status in (204, 304)
        self.keeps_alive = self._is_framed and self._parser.should_keep_alive()
        if self.headers.get("content-encoding", "").lower() == "gzip":
            self._inflater = zlib.decompressobj(GZIP)

    def on_body(self, body: bytes) -> None:
        if self._inflater is None:
            self._parts.append(body)
            return
        try:
            self._parts.append(self._inflater.decompress(body))
        except zlib.error as error:
            self._fault = f"the answer's gzip is corrupt: {error}"
            raise

    def on_message_complete(self) -> None:
        if self.has_head:
            self._complete()
        else:  # 100 Continue and the like
            self.headers.clear()

    def _complete(self) -> None:
        if self._inflater is not None and not self._inflater.eof:
            self._fault = "the answer's gzip ends too early"
            raise ValueError(self._fault)
        self.is_complete = True

    def _unexpected(self, message: str) -> UnexpectedAnswer:
        return UnexpectedAnswer(message, method=self._request.method, path=self._request.path, was_sent=True)
