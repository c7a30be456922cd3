"""Arrow batches out of the bytes of an export, as they arrive. Knows no socket; pyarrow is imported on first use.

An Arrow stream is a row of messages:

    0xFFFFFFFF    u32
    length        i32    of the metadata; 0 ends the stream
    metadata             a flatbuffer `Message`, one of whose fields is the length of the body
    body
"""

import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics.client.errors import UnexpectedAnswer
from topics.client.results import ExportInfo
from topics.model import Tombstone

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX: Final = struct.Struct("<Ii")
CONTINUATION: Final = 0xFFFFFFFF
BODY_LENGTH: Final = 3  # field of Message
NUMBERS: Final = (b"epoch", b"head_seq", b"earliest_seq", b"after", b"last")  # of the schema's metadata


class ArrowReader:
    """Cuts an Arrow stream into batches as its bytes arrive."""

    def __init__(self, method: str, path: str) -> None:
        self._method, self._path = method, path
        self._pending = bytearray()
        self._need_bytes = PREFIX.size
        self._has_end = False
        self._batches: deque[pa.RecordBatch] = deque()
        self.schema: pa.Schema | None = None
        self.is_over = False

    def feed(self, parts: list[bytes]) -> None:
        """Take the next bytes of the stream; an empty list is its end."""
        import pyarrow as pa

        if not parts:
            if not self._has_end:
                raise self.broken("it ends too early")
            self.is_over = True
        for part in parts:
            self._pending += part
        try:
            while (message := self._message()) is not None:
                self._read(pa, pa.ipc.read_message(message))
        except (pa.ArrowException, struct.error, OSError, ValueError) as error:
            raise self.broken(f"it is not Arrow: {error}") from None

    def pop(self) -> "pa.RecordBatch | None":
        """The next batch, or None if more bytes are needed first."""
        return self._batches.popleft() if self._batches else None

    def _read(self, pa: Any, message: Any) -> None:
        """Read a message. pyarrow reads it as whatever it is told to, so its type is checked here."""
        if message.type != ("schema" if self.schema is None else "record batch"):
            raise ValueError(f"a message of type {message.type!r} is out of place")
        if self.schema is None:
            self.schema = pa.ipc.read_schema(message)
            return
        batch = pa.ipc.read_record_batch(message, self.schema)
        batch.validate()
        self._batches.append(batch)

    def _message(self) -> bytes | None:
        """The next message, if all of it has arrived."""
        pending = self._pending
        if self._has_end or len(pending) < self._need_bytes:
            return None
        marker, metadata_bytes = PREFIX.unpack_from(pending)
        if marker != CONTINUATION or metadata_bytes < 0:
            raise ValueError("a message does not start like one")
        if not metadata_bytes:
            self._has_end = True
            return None
        whole = PREFIX.size + metadata_bytes
        if len(pending) >= whole:
            whole += _body_bytes(pending)
        if len(pending) < whole:
            self._need_bytes = whole
            return None
        self._need_bytes = PREFIX.size
        text = bytes(memoryview(pending)[:whole])
        del pending[:whole]
        return text

    def info(self) -> ExportInfo:
        """What the export covers, from the metadata of its schema."""
        said: dict[bytes, bytes] = (self.schema.metadata if self.schema is not None else None) or {}
        try:
            epoch, head, earliest, after, last = (int(said[b"topics.%b" % name]) for name in NUMBERS)
            lost = msgspec.json.decode(said[b"topics.lost"], type=tuple[Tombstone, ...])
            return ExportInfo(said[b"topics.topic"].decode(), epoch, head, earliest, after, last, lost)
        except (KeyError, ValueError) as error:  # msgspec's errors are ValueErrors
            raise self.broken(f"its schema does not say what it covers: {error}") from None

    def broken(self, how: str) -> UnexpectedAnswer:
        return UnexpectedAnswer(f"the export cannot be read: {how}", method=self._method, path=self._path)


def _body_bytes(message: bytearray) -> int:
    """The length of a message's body, from its flatbuffer."""
    base = PREFIX.size
    table = base + struct.unpack_from("<I", message, base)[0]
    vtable = table - struct.unpack_from("<i", message, table)[0]
    slot = 4 + 2 * BODY_LENGTH
    if vtable < base or slot >= struct.unpack_from("<H", message, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", message, vtable + slot)[0]
    length: int = struct.unpack_from("<q", message, table + offset)[0] if offset else 0
    if length < 0:
        raise ValueError(f"a message's body has {length} bytes")
    return length
