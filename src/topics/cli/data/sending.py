"""`topics send`: records from arguments, lines and files into a topic.

Lines that come from a pipe or a terminal are sent as soon as no more are waiting; a file, and anything under an
idempotency key, in batches of a fixed size, so that a repeat has the same batches.
"""

import select
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.shell import display, exits
from topics.cli.shell.completing import Topic
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import duration_ms

if TYPE_CHECKING:
    from topics.client import Client

BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
PROGRESS_EVERY: Final = 10_000
RETRIES: Final = 10


def send(
    call: Call,
    topic: Topic,
    data: Annotated[list[str] | None, typer.Argument(metavar="[JSON…]", help="Data; - reads lines of stdin.")] = None,
    file: Annotated[list[str] | None, typer.Option(help="A file of lines; may be repeated.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of all records.")] = None,
    node: Annotated[str | None, typer.Option(help="Origin of all records.")] = None,
    meta: Annotated[str | None, typer.Option(metavar="JSON", help="An object of small headers, for all.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Arguments and lines are plain text, not JSON.")] = False,
    records: Annotated[
        bool, typer.Option("--records", help='Arguments and lines are whole records: {"data":…,"tag":…}.')
    ] = False,
    delay: Annotated[
        int | None, typer.Option(parser=duration_ms, metavar="TIME", help="For queues: hand it out after this time.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Sent again under the same key, the records are not appended again.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Records in one write: all or none.")] = 1000,
    no_create: Annotated[bool, typer.Option("--no-create", help="Fail if the topic does not exist.")] = False,
) -> None:
    """Append records to a topic, which is created if need be.

    Each argument, and each line of a file or of stdin, is the data of one record, as JSON. Without arguments and files,
    lines are read from stdin. What was sent is counted at the end, with the seqs.

    Example: topics send orders '{"sku":"A","n":1}' '{"sku":"B","n":2}' --tag eu

    Example: seq 1 100 | topics send numbers -

    Example: topics send jobs --text 'resize cat.png' --delay 10s
    """
    sender = _Sender(call, topic, _shared(call, tag, node, meta, delay), is_text=text, is_whole=records)
    sender.batch, sender.key, sender.create = batch, idempotency_key, False if no_create else None
    for item in data or ():
        if item == "-":
            sender.lines(sys.stdin.buffer, "stdin", is_live=idempotency_key is None)
        else:
            sender.add(item.encode("utf-8", "surrogateescape"), "argument")
    for name in file or ():
        with open(name, "rb") as lines:
            sender.lines(lines, name, is_live=False)
    if not data and not file:
        if sys.stdin.isatty():
            display.say("Reading lines from the terminal; end with Ctrl-D.")
        sender.lines(sys.stdin.buffer, "stdin", is_live=idempotency_key is None)
    sender.finish()


def _shared(call: Call, tag: str | None, node: str | None, meta: str | None, delay: int | None) -> dict[str, Any]:
    import msgspec

    shared: dict[str, Any] = {"tag": tag, "node": node, "delay_ms": delay}
    if meta is not None:
        try:
            shared["meta"] = msgspec.json.decode(meta, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            call.fail(f"--meta {meta!r} is not a JSON object: {error}", exits.USAGE)
    return {name: value for name, value in shared.items() if value is not None}


class _Sender:
    """Gathers records and writes them in batches."""

    batch: int
    key: str | None
    create: bool | None

    def __init__(self, call: Call, topic: str, shared: dict[str, Any], *, is_text: bool, is_whole: bool) -> None:
        self._call = call
        self._topic = topic
        self._shared = shared
        self._is_text = is_text
        self._is_whole = is_whole
        self._client: Client = call.new_client(RETRIES)
        self._pending: list[dict[str, Any]] = []
        self._bytes = 0
        self._writes = 0
        self._sent = 0
        self._deduped = 0
        self._first = self._last = 0

    def lines(self, stream: IO[bytes], name: str, *, is_live: bool) -> None:
        for number, line in enumerate(_read_lines(stream, self.flush if is_live else None), 1):
            if line.strip():
                self.add(line.rstrip(b"\r\n"), f"{name}, line {number}")

    def add(self, text: bytes, place: str) -> None:
        record = self._record(text, place)
        self._pending.append(record)
        self._bytes += len(text)
        if len(self._pending) >= self.batch or self._bytes >= BATCH_BYTES_MAX:
            self.flush()

    def _record(self, text: bytes, place: str) -> dict[str, Any]:
        import msgspec

        if self._is_text:
            return {**self._shared, "data": text.decode("utf-8", "replace")}
        try:
            if self._is_whole:
                return {**self._shared, **msgspec.json.decode(text, type=dict[str, msgspec.Raw])}
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.flush()
            if self._sent:
                self._summary()
            shown = text[:60].decode("utf-8", "replace")
            hint = "" if self._is_whole else "; quote strings as '\"text\"', or send plain text with --text"
            self._call.fail(f"{place}: {shown!r} is not {'a record' if self._is_whole else 'JSON'}: {error}{hint}", 2)
        return {**self._shared, "data": msgspec.Raw(text)}

    def flush(self) -> None:
        if not self._pending:
            return
        self._writes += 1
        key = self.key if self.key is None or self._writes == 1 else f"{self.key}/{self._writes}"
        written = self._client.append(self._topic, self._pending, idempotency_key=key, create=self.create)
        before = self._sent
        self._sent += len(self._pending)
        self._deduped += len(self._pending) if written.deduped else 0
        self._first = self._first or written.first_seq
        self._last = written.last_seq
        self._pending, self._bytes = [], 0
        if sys.stderr.isatty() and self._sent // PROGRESS_EVERY > before // PROGRESS_EVERY:
            print(f"\r{self._sent:,} records sent", end="", file=sys.stderr, flush=True)

    def finish(self) -> None:
        self.flush()
        self._summary()

    def _summary(self) -> None:
        found = {
            "topic": self._topic,
            "records": self._sent,
            "deduped": self._deduped,
            "first_seq": self._first,
            "last_seq": self._last,
        }
        seqs = f", seqs {self._first:,} to {self._last:,}" if self._sent > 1 else f", seq {self._last:,}"
        again = f"; {self._deduped:,} of them were there already" if self._deduped else ""
        start = "\r" if sys.stderr.isatty() and self._sent >= PROGRESS_EVERY else ""
        records = f"{self._sent:,} record{'' if self._sent == 1 else 's'}"
        self._call.show(found, f"{start}{records} in {self._topic}{seqs if self._sent else ''}{again}")


def _read_lines(stream: IO[bytes], idle: Any) -> Iterator[bytes]:
    """The lines of a stream; `idle` is called when the next one is not there yet."""
    if idle is None:
        yield from stream
        return
    rest = b""
    read = getattr(stream, "read1", stream.read)
    while True:
        if not _is_waiting(stream):
            idle()
        part = read(65536)
        if not part:
            break
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _is_waiting(stream: IO[bytes]) -> bool:
    try:
        return bool(select.select([stream], [], [], 0)[0])
    except (OSError, ValueError):
        return True
