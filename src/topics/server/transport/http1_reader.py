"""HTTP/1 input: bytes in, requests out. No socket, no clock but the cached one.

Owns: llhttp (httptools), the framing checks, the size and time that one message may take. Must not know: how and
when answers are sent, routes, JSON.

Invariants
- A message is under way while `target` (its head) or `request` (its body) is set.
- llhttp runs in its strict mode: it refuses bare LF, folded or malformed headers, and a Content-Length that is
  doubled, malformed or beside Transfer-Encoding. `_examine` refuses what llhttp lets through.
- After `Sink.broken` nothing may be fed any more; while `has_stopped`, nothing before `go_on`.
- While `_is_between`, the parser stands between two messages. A message whose head is known, byte for byte, and whose
  body is at hand then passes without the parser, to the effect that the parser would have. The parser stays the law:
  heads become known by it alone, and what is unusual takes it each time.
"""

from typing import Final, Protocol

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from topics.server.paced import TURN_S
from topics.server.transport.encoding import FILLED_BYTES_MIN, Filling, add_part, joined
from topics.server.transport.exchange import (
    HEAD_TOO_LARGE,
    INTERNAL,
    KIB,
    SINGLE_HEADERS,
    TOO_LARGE,
    Answer,
    Connections,
    Request,
    logger,
    malformed,
)

FULL_BYTES: Final = 128 * KIB  # behind a read of more the loop may do another in the same turn, up to 32 …
READ_S: Final = TURN_S / 32  # … unless it took so long
WORK_MAX: Final = 4096  # parts of a body, which may be a byte each, that are taken in one turn of the loop
SLASH: Final = ord("/")
UNUSUAL: Final = frozenset((b"connection", b"expect", b"transfer-encoding", b"upgrade"))
NEVER_KEPT: Final = UNUSUAL - {b"connection"}  # heads with one of these are parsed each time
HEAD_KEPT_BYTES_MAX: Final = 2048
HEAD_END: Final = b"\r\n\r\n"


class Sink(Protocol):
    """Where requests go."""

    def received(self, request: Request, keeps_alive: bool, is_http10: bool, answer: Answer | None) -> None:
        """A complete request; or, with `answer`, one refused from its head, whose body is being skipped."""
        ...

    def broken(self, answer: Answer | None) -> None:
        """The framing is lost or not worth following. None: the message was answered already."""
        ...

    def push_back(self, data: bytes) -> None:
        """Input after which the reader has stopped; it goes on with `Http1Reader.go_on`."""
        ...


class Refused(Exception):
    """Raised inside a parser callback to stop the parser, which reports it as an error of its own."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer = answer


class Http1Reader:
    __slots__ = (
        "_body_bytes",
        "_body_bytes_max",
        "_fed_bytes",
        "_filling",
        "_head",
        "_headers",
        "_idle_bytes",
        "_is_between",
        "_is_http10",
        "_is_refused",
        "_is_upgrade",
        "_keeps_alive",
        "_parser",
        "_parts",
        "_peer",
        "_refused",
        "_repeated",
        "_seen_bytes",
        "_shared",
        "_since",
        "_sink",
        "has_stopped",
        "is_continue_due",
        "request",
        "rests",
        "target",
        "work",
    )

    def __init__(self, sink: Sink, shared: Connections, peer: tuple[str, int]) -> None:
        self._sink = sink
        self._shared = shared
        self._peer = peer
        self._parser: HttpRequestParser | None = None  # made when it is needed
        self._is_between = True
        self._head = b""  # of the message that is parsed next, if it lies in one read and may be kept
        self.target = b""
        self.request: Request | None = None
        self.is_continue_due = False  # the client waits for 100 Continue
        self.work = 0  # parts of bodies seen; whoever feeds sets it back
        self.rests = False  # no input is expected for long: the parser need not be kept
        self.has_stopped = False  # behind a head that asks for an upgrade: what follows may not be HTTP
        self._headers: dict[bytes, bytes] = {}
        self._repeated: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes | bytearray] = []
        self._filling: Filling | None = None  # the body, once it is large
        self._body_bytes = self._body_bytes_max = 0
        self._seen_bytes = 0  # of the body, when a read last brought some
        self._idle_bytes = 0  # input since then
        self._fed_bytes = -1  # input since the read in which the message began; -1 = it began in this one
        self._since = 0.0  # when the message was first seen to be incomplete
        self._keeps_alive = True
        self._is_http10 = False
        self._is_upgrade = False  # llhttp takes the message for bodyless and stops after its head
        self._is_refused = False  # the message is answered, its body skipped
        self._refused: Refused | None = None  # why a callback stopped the parser

    @property
    def is_midway(self) -> bool:
        return self.request is not None or bool(self.target)

    @property
    def held_bytes(self) -> int:
        """What is kept of the message under way."""
        return max(0, self._fed_bytes) if self.request is None else 0 if self._is_refused else self._body_bytes

    @property
    def deadline(self) -> float:
        """When the message under way must be complete."""
        limits = self._shared.limits
        if self.request is None:
            return self._since + limits.head_s
        return self._since + limits.body_s + self._body_bytes / limits.body_rate_min

    def restart_clock(self) -> None:
        """The message could not go on, through no fault of the peer: its time starts over."""
        self._since = self._shared.now

    def close(self) -> None:
        """Drop the references that lead back to this object."""
        self._parser = self._filling = None
        self._parts = []
        del self._sink

    def feed(self, data: bytes | memoryview) -> None:
        self.rests = False
        end = data[-4:]
        while data:
            if self._is_between:
                data = self._take_known(bytes(data))
            if data:
                data = self._feed_parser(data)
        if self.rests and not self.is_midway and (self._is_between or end == HEAD_END):  # no next message has begun
            self._parser, self._is_between = None, True

    def _take_known(self, data: bytes) -> bytes:
        """Take messages with known heads; gives the input from the first other one on."""
        shared, start = self._shared, 0
        while True:
            stop = data.find(HEAD_END, start) + 4
            head = data[start:stop] if stop >= 4 else b""
            known = shared.known_heads.get(head) or shared.known_by_digest(head)
            if known is None or stop + known.content_length > len(data) or not shared.app.still_holds(known.admission):
                self._head = head
                return data[start:] if start else data
            start = stop + known.content_length
            request = Request(
                known.method,
                known.target,
                known.path,
                known.query,
                known.headers,
                (),
                known.content_length,
                False,
                self._peer,
                known.body_bytes_max,
                False,
                data[stop:start],
                None,
                known.admission,
            )
            self._sink.received(request, True, False, shared.refusal(request))
            if start == len(data):
                return b""

    def _feed_parser(self, data: bytes | memoryview) -> bytes | memoryview:
        """Feed the parser up to the end of the message under way, where that is known; gives the input behind it."""
        if self._is_between:
            size = len(self._head)
        elif self.request is not None:
            size = self.request.content_length - self._body_bytes
        else:
            size = 0
        is_known, self._is_between = 0 < size <= len(data), False
        if not is_known:
            size = len(data)
        rest = data[size:]
        if not self._parse(data[:size], rest):
            return b""
        if self.request is None and not self.target:
            self._is_between = is_known and self._keeps_alive
        elif not rest:
            self._bound(size)
        return rest

    def _parse(self, data: bytes | memoryview, rest: bytes | memoryview) -> bool:
        """Feed the parser. False: it has stopped, or the framing is lost. `rest` comes after `data`."""
        if self._parser is None:
            self._parser = HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as error:
            self.has_stopped = True
            self._sink.push_back(bytes(data[error.args[0] :]) + bytes(rest))
            return False
        except HttpParserCallbackError as error:
            self._stopped(error)
            return False
        except HttpParserError as error:
            self.break_off(malformed(f"malformed HTTP: {error}"))
            return False
        return True

    def _stopped(self, error: HttpParserCallbackError) -> None:
        if self._refused is not None:
            self.break_off(self._refused.answer)
        else:
            logger.error("an HTTP/1 callback failed", exc_info=error)
            self.break_off(INTERNAL)

    def _refuse_to_go_on(self, answer: Answer | None) -> Refused:
        self._refused = Refused(answer)
        return self._refused

    def break_off(self, answer: Answer | None) -> None:
        """End the connection with this answer, unless the message under way has had one."""
        self._sink.broken(None if self._is_refused else answer)

    def _bound(self, fed_bytes: int) -> None:
        """A message goes on beyond this read: bound its size, and note when it began."""
        self._shared.grew(fed_bytes)
        if self._fed_bytes < 0:
            self._fed_bytes = 0
            self._since = self._shared.now
            return
        self._fed_bytes += fed_bytes
        head_bytes_max = self._shared.limits.head_bytes_max
        if self.request is None:
            if self._fed_bytes > head_bytes_max:
                self.break_off(HEAD_TOO_LARGE)
        elif self._body_bytes != self._seen_bytes:
            self._seen_bytes, self._idle_bytes = self._body_bytes, 0
            if self._fed_bytes > 2 * head_bytes_max + 8 * self._body_bytes:
                # Chunk headers and extensions may be a multiple of the data, but not an unbounded one.
                self.break_off(malformed("the framing of the body is larger than its content"))
        else:
            self._idle_bytes += fed_bytes
            if self._idle_bytes > head_bytes_max:  # of an extension or of trailers, which the parser puts together
                self.break_off(malformed("the framing of the body is larger than its content"))

    def go_on(self) -> None:
        """After a head that asks for an upgrade: llhttp took it for bodyless and stopped.

        A client may ask in passing and send a body (`Upgrade: h2c`): a fresh parser is shown the framing of this
        message and reads on, whatever comes of the upgrade.
        """
        request = self.request
        assert request is not None
        self.has_stopped = self._is_upgrade = False
        self._parser = HttpRequestParser(self)
        if request.content_length == 0:
            self._is_between = True
            self.on_message_complete()
        elif request.content_length < 0:
            self._parse(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"")
        else:
            self._parse(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % request.content_length, b"")

    # --- what the parser calls

    def on_url(self, url: bytes) -> None:
        self.target = self.target + url if self.target else url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.request is not None:  # a trailer: nobody asks for it
            return
        name = name.lower()
        if name in self._headers:
            self._repeated.append((name, value.rstrip()))
            lines = len(self._repeated)
        else:
            self._headers[name] = value.rstrip()
            lines = len(self._headers)
        if lines > self._shared.limits.headers_max:  # a line of four bytes takes thirty times as much memory
            raise self._refuse_to_go_on(HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        parser, target, headers, repeated = self._parser, self.target, self._headers, self._repeated or ()
        assert parser is not None
        self.target = b""
        if self.request is not None:  # the stand-in head of go_on
            return
        self._headers = {}
        path, _, query = target.partition(b"?")
        length = int(headers.get(b"content-length", 0))
        method = parser.get_method().decode()
        self.request = request = Request(method, target, path, query, headers, repeated, length, False, self._peer)
        self._keeps_alive = parser.should_keep_alive()
        self._is_http10 = False
        if repeated:
            self._repeated = []
        if not self._keeps_alive or b"host" not in headers or repeated or not UNUSUAL.isdisjoint(headers):
            self._examine(request, parser)
        if method == "CONNECT":
            raise self._refuse_to_go_on(malformed("CONNECT is for proxies, and this is none"))
        if target[0] != SLASH or b"#" in target:
            self._normalise_target(request)
        limits = self._shared.limits
        if len(target) > limits.target_bytes_max or len(headers) + len(repeated) > limits.headers_max:
            raise self._refuse_to_go_on(HEAD_TOO_LARGE)
        answer = self._shared.refusal(request)
        self._body_bytes_max = request.body_bytes_max
        if answer is not None:
            self._refuse(request, answer)
        elif self._head and request.admission is not None:
            self._remember(request)
        self._head = b""

    def _remember(self, request: Request) -> None:
        """Keep a plain head. Where each LF follows a CR, the head ends at its first empty line and not before."""
        head = self._head
        if (
            self._keeps_alive
            and not self._is_http10
            and not request.repeated
            and len(head) <= HEAD_KEPT_BYTES_MAX
            and NEVER_KEPT.isdisjoint(request.headers)
            and head.count(b"\n") == head.count(b"\r\n") == head.count(b"\r")
        ):
            self._shared.remember(head, request)

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        self.work += 1
        if self._is_refused:
            if self._body_bytes > self._shared.limits.refused_body_bytes_max:
                raise self._refuse_to_go_on(None)
        elif self._body_bytes > self._shared.limits.body_bytes_max or self._body_bytes > self._body_bytes_max:
            raise self._refuse_to_go_on(TOO_LARGE)
        elif self._body_bytes <= FILLED_BYTES_MIN:
            add_part(self._parts, data)
        else:
            self._fill(data)

    def _fill(self, data: bytes) -> None:
        if self._filling is None:
            assert self.request is not None
            self._filling = Filling(self.request.content_length, self._parts)
            self._parts = []
        self._filling.add(data)

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        request, parts = self.request, self._parts
        assert request is not None
        if parts:
            request.body = joined(parts)
            self._parts = []
        elif self._filling is not None:
            request.body = self._filling.take()
            self._filling = None
        self.request = None
        self._body_bytes = self._seen_bytes = self._idle_bytes = 0
        self._fed_bytes = -1
        self.is_continue_due = False
        if self._is_refused:
            self._is_refused = False
        else:
            self._sink.received(request, self._keeps_alive, self._is_http10, None)

    # --- judging a head

    def _examine(self, request: Request, parser: HttpRequestParser) -> None:
        """Heads that are not plain HTTP/1.1 with one Host: refuse what is ambiguous, note what is special."""
        headers = request.headers
        version = parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise self._refuse_to_go_on(malformed(f"HTTP/{version} is not spoken here"))
        self._is_http10 = version == "1.0"
        if b"host" not in headers and not self._is_http10:
            raise self._refuse_to_go_on(malformed("the Host header is missing"))
        for name, _ in request.repeated:
            if name in SINGLE_HEADERS:
                raise self._refuse_to_go_on(malformed(f"more than one {name.decode('latin-1')} header"))
        if b"transfer-encoding" in headers:
            if headers[b"transfer-encoding"].lower() != b"chunked" or self._is_http10:
                raise self._refuse_to_go_on(malformed("the only transfer coding is chunked, in HTTP/1.1"))
            request.content_length = -1
        if b"expect" in headers:
            if headers[b"expect"].lower() != b"100-continue":
                raise self._refuse_to_go_on(malformed("the only expectation is 100-continue"))
            self.is_continue_due = not self._is_http10 and request.content_length != 0
        self._is_upgrade = parser.should_upgrade()
        request.wants_upgrade = self._is_upgrade and request.content_length == 0 and not self._is_http10

    def _normalise_target(self, request: Request) -> None:
        """Origin form is the rule; absolute form loses its authority; `*` is left for OPTIONS."""
        if b"#" not in request.target:
            if request.target == b"*" and request.method == "OPTIONS":
                return
            scheme, separator, rest = request.target.partition(b"://")
            if separator and scheme.lower() in (b"http", b"https"):
                authority, slash, tail = rest.partition(b"/")
                if b"?" not in authority:
                    request.path, _, request.query = (slash + tail or b"/").partition(b"?")
                    return
        raise self._refuse_to_go_on(malformed("the request target is not a path"))

    def _refuse(self, request: Request, answer: Answer) -> None:
        """Answer from the head alone. A short body is skipped and the connection kept."""
        is_waiting, self.is_continue_due = self.is_continue_due, False
        if is_waiting or request.content_length > self._shared.limits.refused_body_bytes_max:
            raise self._refuse_to_go_on(answer)
        self._is_refused = True
        self._sink.received(request, self._keeps_alive, self._is_http10, answer)


def is_one_known(reader: Http1Reader, data: bytes) -> bool:
    """Whether this input is one message with a known head, from its first byte to its last."""
    if not reader._is_between:
        return False
    stop = data.find(HEAD_END, 0, HEAD_KEPT_BYTES_MAX + 4) + 4
    head = data[:stop] if stop >= 4 else b""
    known = reader._shared.known_heads.get(head) or reader._shared.known_by_digest(head)
    return known is not None and stop + known.content_length == len(data)
