"""Whether what the server said is said properly: HTTP/1.1, HTTP/2 and WebSocket, read strictly."""

import json
import re
from typing import Any, NamedTuple

from hpack import Decoder
from hyperframe.frame import ContinuationFrame, Frame, HeadersFrame

STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d) [\x20-\x7e]+")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([\x20-\x7e\t]*)")
BODILESS = (204, 304)


class Answer(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes


def http1(data: bytes, *, has_head: bool = False) -> tuple[list[Answer], bytes]:
    """The answers, and what follows a 101. With `has_head` only the first head is read: HEAD has no body."""
    answers: list[Answer] = []
    while data:
        head, found, rest = data.partition(b"\r\n\r\n")
        assert found, f"a head that does not end: {head[:80]!r}"
        first, *lines = head.split(b"\r\n")
        status_line = STATUS.fullmatch(first)
        assert status_line, f"no status line: {first!r}"
        status, headers = int(status_line[1]), {}
        for line in lines:
            header = HEADER.fullmatch(line)
            assert header, f"no header: {line!r}"
            headers[header[1].lower()] = header[2]
        if status == 101:
            return [*answers, Answer(status, headers, b"")], rest
        if status < 200:
            data = rest
            continue
        assert status != 500, f"an error of the server: {rest[:200]!r}"
        if has_head:
            return [*answers, Answer(status, headers, rest)], b""
        body, data = _body(status, headers, rest)
        answers.append(Answer(status, headers, body))
        if status >= 400:
            assert json.loads(body)["error"], body
    return answers, b""


def _body(status: int, headers: dict[bytes, bytes], rest: bytes) -> tuple[bytes, bytes]:
    if status in BODILESS:
        return b"", rest
    if b"chunked" not in headers.get(b"transfer-encoding", b""):
        size = int(headers[b"content-length"])
        assert len(rest) >= size, "a body that is cut short"
        return rest[:size], rest[size:]
    body = b""
    while rest:
        line, found, rest = rest.partition(b"\r\n")
        assert found, "a chunk without a size"
        size = int(line, 16)
        assert rest[size : size + 2] == b"\r\n", "a chunk that does not end"
        body, rest = body + rest[:size], rest[size + 2 :]
        if not size:
            return body, rest
    return body, b""  # a stream goes on until its client leaves


def http2(data: bytes) -> None:
    """Whole frames, and heads that can be decoded, in order."""
    decoder, block = Decoder(), b""
    while data:
        frame, size = Frame.parse_frame_header(memoryview(data[:9]))
        assert len(data) >= 9 + size, "a frame that is cut short"
        frame.parse_body(memoryview(data[9 : 9 + size]))
        data = data[9 + size :]
        if isinstance(frame, HeadersFrame | ContinuationFrame):
            block += frame.data
            if "END_HEADERS" in frame.flags:
                headers = dict(decoder.decode(block))
                block = b""
                assert headers.get(":status") != "500", headers


def websocket(data: bytes) -> list[Any]:
    """The messages of the server: whole frames without a mask, text that is JSON, and nothing behind a close."""
    messages: list[Any] = []
    while data:
        opcode, size, start = data[0] & 15, data[1], 2
        assert data[0] & 0x80 and not data[0] & 0x70, "a frame that is no whole message"
        assert not size & 0x80, "a frame with a mask"
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        payload, data = data[start : start + size], data[start + size :]
        assert len(payload) == size, "a frame that is cut short"
        assert opcode in (1, 8, 9, 10), f"opcode {opcode}"
        if opcode == 1:
            messages.append(json.loads(payload))
            assert messages[-1].get("code") != "internal", messages[-1]
        if opcode == 8:
            assert not data, "something behind the close"
            assert int.from_bytes(payload[:2], "big") != 1011, payload
    return messages
