"""Large writes, taken apart without holding anybody up: no step decodes more than one record (LM10).

Owns the walk over the text of a large write. A decoder that is given all of it would hold the interpreter until its
end, and a single value may be all of it. So the decoder is shown a window: where the value in it ends, it says which
byte comes next, and a value that does not end within the window is refused. Between two values other threads may run.
Must not know: what the fields beside the records mean, who is calling.

Invariant: work and memory are bounded by the limits and not by the body.
"""

import re
import threading
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
from msgspec import Raw

from topics.core.topic.records import Limits, RecordIn, WriteIn, decode_json, short_stack
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge, Refusal
from topics.faults import fault_in
from topics.model import check_utf8

LARGE_BYTES: Final = 1024 * 1024  # a body of more is decoded beside the loop, in windows
REST_BYTES_MAX: Final = 1024 * 1024  # of a large body beside its records
WINDOW_TIMES: Final = 4  # a record's text may be so many times what its data and meta may be, by tags and blanks
WALKED_TIMES: Final = 32  # so many times the records that are allowed are walked over, for what lies behind them
FIELD_BYTES: Final = 64  # what one of them counts beyond its text
SPACE_BYTES: Final = 64 * 1024  # passed over in one step
COPIED_BYTES_MAX: Final = 1024  # of a line; a longer one is decoded where it is
NO_RECORD: Final = RecordIn(Raw())
EMPTY: Final = b'"records":[]'
BLANKS: Final = b" \t\r\n"
BRACE: Final = b"{"[0]

_SPACE: Final = re.compile(rb"[ \t\r\n]{0,%d}" % SPACE_BYTES)
_TRAILING: Final = re.compile(r"JSON is malformed: trailing characters \(byte (\d+)\)")
_AT_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_PLACED: Final = re.compile(r" - at `\$(.*)`$", re.DOTALL)


class _Last(threading.local):
    """The record that was decoded last in this thread."""

    record: RecordIn = NO_RECORD


_last = _Last()


class _WalkedRecord(RecordIn, gc=False, omit_defaults=True):
    """A record in a window. What follows it there is an error to the decoder, so it is left here."""

    def __post_init__(self) -> None:
        _last.record = self


_decode_record = msgspec.json.Decoder(_WalkedRecord).decode
_line_decoder = msgspec.json.Decoder(RecordIn)
_decode_line, _decode_lines = _line_decoder.decode, _line_decoder.decode_lines
_decode_value = msgspec.json.Decoder(Raw).decode
_decode_key = msgspec.json.Decoder(str).decode
_decode_write = msgspec.json.Decoder(WriteIn).decode


class NoObject(InvalidRequest):
    """The text begins as JSON does, but as another value."""


class Apart(NamedTuple):
    """A write taken apart."""

    rest: bytes  # its text, without the records; as far as it was walked over, if it is refused
    records: list[RecordIn]
    refusal: Refusal | None  # why it is refused; a text that is no JSON is raised instead


def put_together(decode: Any, apart: Apart) -> Any:
    """The write that was taken apart; raises its refusal."""
    refusal = apart.refusal
    if refusal is not None:
        del apart
        try:
            raise refusal
        finally:
            del refusal  # with its traceback it would be a cycle of references, and hold the body
    given = decode_json(decode, apart.rest)
    given.records = apart.records
    return given


def take_apart(body: bytes, limits: Limits, *, goes_on: bool = False) -> Apart:
    """Walk over a write. If it `goes_on`, what lies behind records that are refused is in the rest, too."""
    try:
        if not body.isascii():
            check_utf8(body)
        with short_stack:
            return _Walk(body, limits, goes_on).apart()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidRequest(fault_in(error, body, _decode_write)) from None
    finally:
        _last.record = NO_RECORD  # it refers to the body


def lines_in(body: bytes, limits: Limits) -> list[RecordIn]:
    """The records of a large body with one in each line; blank lines are skipped."""
    records: list[RecordIn] = []
    start = 0
    window_bytes, view = _window_bytes(limits), memoryview(body)
    try:
        if not body.isascii():
            check_utf8(body)
        with short_stack:
            while start < len(body):
                stop = body.find(b"\n", start, start + window_bytes)
                if stop < 0:
                    stop = min(start + window_bytes, len(body))
                    if stop < len(body):
                        raise _too_long(len(records), limits)
                is_long = stop - start > COPIED_BYTES_MAX and body[start] == BRACE and body.find(b"\r", start, stop) < 0
                lines = (view[start:stop],) if is_long else body[start:stop].splitlines(keepends=True)
                for text in lines:  # a carriage return ends one, too
                    if not isinstance(text, bytes) or text.strip(BLANKS):
                        if len(records) == limits.max_batch_records:
                            raise BatchTooLarge(f"records has more than {limits.max_batch_records} records")
                        records.append(_line_in(text, start, len(records)))
                    start += len(text)
                start = stop + 1
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InvalidRequest(fault_in(error, body, _decode_write)) from None
    return records


def _line_in(text: bytes | memoryview, start: int, number: int) -> RecordIn:
    """The record of a line that begins at `start` of the body."""
    try:
        return _decode_line(text)
    except msgspec.ValidationError as error:
        said = fault_in(_placed(error, "[0]"), bytes(text), _decode_lines)
        raise InvalidRequest(f"records[{number}]{said.removeprefix('[0]')}") from None
    except msgspec.DecodeError as error:
        raise _shifted(error, start) from None


def _shifted(error: msgspec.DecodeError, start: int) -> msgspec.DecodeError:
    """What is wrong with a part of a text that begins at `start`, with its place in the whole."""
    return msgspec.DecodeError(_AT_BYTE.sub(lambda byte: f"(byte {int(byte[1]) + start})", str(error)))


def _placed(error: msgspec.ValidationError, within: str) -> msgspec.ValidationError:
    """What is wrong with a record, as it would be said of the whole, in which it stands at `within`."""
    said = str(error)
    placed = _PLACED.search(said)
    place = "" if placed is None else placed[1]
    what = said if placed is None else said[: placed.start()]
    return msgspec.ValidationError(f"{what} - at `${within}{place}`")


def _window_bytes(limits: Limits) -> int:
    return WINDOW_TIMES * limits.max_record_bytes + LARGE_BYTES


def _too_long(number: int, limits: Limits) -> RecordTooLarge:
    text_max = _window_bytes(limits)
    return RecordTooLarge(
        f"records[{number}] is more than {text_max} bytes of text; its data and meta may be {limits.max_record_bytes}"
    )


class _TooLong(Exception):
    """A value does not end within the window."""


class _Walk:
    """The way through the text of one write. `_at` is where the next token begins, once blanks are passed over."""

    def __init__(self, body: bytes, limits: Limits, goes_on: bool) -> None:
        self._body = body
        self._view = memoryview(body)
        self._limits = limits
        self._goes_on = goes_on
        self._window_bytes = _window_bytes(limits)
        self._at = 0
        self._fields: list[bytes] = []
        self._rest_bytes = 0
        self._records: list[RecordIn] = []
        self._refusal: Refusal | None = None

    def apart(self) -> Apart:
        if self._token() != b"{":
            text = self._body[self._at : self._at + SPACE_BYTES]
            self._refuse_other(b'""' if text.startswith(b'"') else text)  # whose end may not be there
        self._at += 1
        if self._token() != b"}":
            while self._field() == b",":
                self._at += 1
        if self._refusal is None or self._goes_on:
            self._at += 1
            if self._token(may_end=True):
                raise self._malformed("trailing characters")
        return Apart(b"{%b}" % b",".join(self._fields), self._records, self._refusal)

    def _refuse_other(self, text: bytes) -> NoReturn:
        """Say what it is, if it is no object."""
        try:
            _decode_write(text)
        except msgspec.ValidationError as error:
            raise NoObject(fault_in(error, text, _decode_write)) from None
        raise AssertionError("a write is an object")

    def _field(self) -> bytes:
        """Take one field; gives the token behind it, which is a comma or the end of the object."""
        if self._token() != b'"':
            raise self._malformed("object keys must be strings")
        try:
            key = self._pass(_decode_key)
            if self._token() != b":":
                raise self._malformed("expected ':'")
            self._at += 1
            if _decode_key(key) == "records" and self._token() == b"[":
                self._fields.append(EMPTY)
                self._take_records()
            else:
                self._token()
                self._keep(key, self._pass(_decode_value))
        except _TooLong:
            self._refuse(InvalidRequest(f"the body has more than {REST_BYTES_MAX} bytes beside its records"))
            self._goes_on = False
        if self._refusal is not None and not self._goes_on:
            return b"}"
        token = self._token()
        if token not in (b",", b"}"):
            raise self._malformed("expected ',' or '}'")
        return token

    def _keep(self, key: bytes, value: bytes) -> None:
        self._rest_bytes += len(key) + len(value) + FIELD_BYTES
        if self._rest_bytes > REST_BYTES_MAX:
            raise _TooLong
        self._fields.append(b"%b:%b" % (key, value))

    def _take_records(self) -> None:
        """Take the list of records, which begins here."""
        records, limits, number = self._records, self._limits, 0
        records.clear()
        self._at += 1
        token = self._token()
        while token != b"]":
            try:
                if number == limits.max_batch_records:
                    self._refuse(BatchTooLarge(f"records has more than {number} records"))
                if self._refusal is None:
                    self._take_record(number)
                elif self._goes_on and number < WALKED_TIMES * limits.max_batch_records:
                    self._pass(_decode_value)
                else:
                    self._goes_on = False
                    return
            except _TooLong:
                self._refuse(_too_long(number, limits))
                self._goes_on = False
                return
            number += 1
            token = self._token()
            if token == b",":
                self._at += 1
                if self._token() == b"]":
                    raise self._malformed("trailing comma in array")
            elif token != b"]":
                raise self._malformed("expected ',' or ']'")
        self._at += 1

    def _take_record(self, number: int) -> None:
        try:
            self._pass(_decode_record)
        except msgspec.ValidationError as error:
            placed = _placed(error, f".records[{number}]")
            self._refuse(InvalidRequest(fault_in(placed, self._body, _decode_write)))
            self._pass(_decode_value)
        else:
            self._records.append(_last.record)

    def _refuse(self, refusal: Refusal) -> None:
        if self._refusal is None:
            self._refusal = refusal
            self._records.clear()

    def _pass(self, decode: Any) -> bytes:
        """Decode the value that begins here, and go to the token behind it. Gives its text; of a record, nothing."""
        start = self._at
        stop = min(start + self._window_bytes, len(self._body))
        try:
            decode(self._view[start:stop])
            self._at = stop
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            said = str(error)
            trailing = _TRAILING.fullmatch(said)
            if trailing is None:
                at = _AT_BYTE.search(said)
                is_cut = "truncated" in said if at is None else int(at[1]) >= stop - start  # the latter: in a number
                if is_cut and stop < len(self._body):
                    raise _TooLong from None
                raise _shifted(error, start) from None
            self._at = start + int(trailing[1]) - 1
        if decode is _decode_record:
            return b""
        if self._at == stop < len(self._body) and self._body[stop - 1] not in BLANKS:
            raise _TooLong  # or a number goes on there
        if self._at - start <= REST_BYTES_MAX:
            return self._body[start : self._at]
        if decode is _decode_value and self._refusal is not None:
            return b""
        text = self._body[start : self._at].rstrip(BLANKS)
        if len(text) > REST_BYTES_MAX:
            raise _TooLong
        return text

    def _token(self, *, may_end: bool = False) -> bytes:
        """Pass over blanks; gives the byte that is there then."""
        body = self._body
        while body[self._at : self._at + 1] in b" \t\r\n" and self._at < len(body):
            found = _SPACE.match(body, self._at)
            assert found is not None
            self._at = found.end()
        if self._at == len(body) and not may_end:
            raise msgspec.DecodeError("Input data was truncated")
        return body[self._at : self._at + 1]

    def _malformed(self, what: str) -> msgspec.DecodeError:
        return msgspec.DecodeError(f"JSON is malformed: {what} (byte {self._at + 1})")
