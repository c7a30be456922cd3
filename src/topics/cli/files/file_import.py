"""One file, or stdin, into a topic, each row once.

Rows go in batches that depend on the file alone. Before a batch is sent, a ledger says so; afterwards, that it is done.
Run again with the same arguments, an import goes on behind the last batch that is done. A batch of which that is not
known is sent again under its key, if the topic still remembers keys of that age; otherwise it is looked for in the
topic, above the head that the ledger has. Knows nothing of Spark.
"""

import csv
import hashlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct

from topics.errors import InvalidRequest, NotFound
from topics.model import Tombstone
from topics.spark.tables.file_formats import ENDINGS, ImportFormat

if TYPE_CHECKING:
    from topics.cli.shell.invoking import Call
    from topics.client import Client

BATCH_ROWS: Final = 1000
BATCH_BYTES: Final = 8 * 1024 * 1024
SIZE_MAX: Final = 1024**3  # of a file that needs no Spark
RETRIES: Final = 10
STDIN: Final = "-"


class Mapped(Struct, frozen=True):
    """Which field or column is what; None: the whole row is the data."""

    data: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None
    is_text: bool = False


class Pending(Struct, frozen=True):
    """A batch that was sent; whether it arrived is not known yet."""

    rows: int
    head_seq: int
    epoch: int
    at_ms: int


class Ledger(Struct):
    """How far an import has come."""

    rows_done: int = 0
    pending: Pending | None = None
    epoch: int = 0  # of the topic, once rows are in it
    size: int = 0  # of the file, and
    mtime_ns: int = 0


def is_for_one_process(source: str, format: ImportFormat | None) -> bool:
    """Whether this module takes it: a plain file of a known format that is not too large, or stdin."""
    if source == STDIN:
        return True
    path = Path(source)
    return (
        path.is_file() and (format or ENDINGS.get(path.suffix.lower())) is not None and path.stat().st_size <= SIZE_MAX
    )


def import_file(
    call: "Call", source: str, topic: str, format: ImportFormat | None, mapped: Mapped, *, state: str | None, name: str
) -> None:
    format = format or ("ndjson" if source == STDIN else ENDINGS[Path(source).suffix.lower()])
    ledger = None
    if source == STDIN:
        rows = _rows(sys.stdin.buffer, STDIN, format, mapped)
        done = _Import(call, topic, None, "").run(rows)
    else:
        path = Path(source).resolve()
        identity = _identity(call, path, topic, format, mapped, name)
        ledger = _LedgerFile(Path(state) if state else Path.home() / ".topics" / "imports", identity, path.stat())
        with path.open("rb") as file:
            done = _Import(call, topic, ledger, identity).run(_rows(file, source, format, mapped))
    before = 0 if ledger is None else ledger.found.rows_done - done
    found = {"topic": topic, "rows": done, "rows_total": done + before, "source": source}
    again = f"; {before:,} were imported before" if before else ""
    call.show(found, f"{done:,} rows imported into {topic}{again}")


def _identity(call: "Call", path: Path, topic: str, format: str, mapped: Mapped, name: str) -> str:
    parts = [call.client.url, str(path), topic, format, msgspec.to_builtins(mapped), name]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


class _LedgerFile:
    """A ledger on the disk, replaced as a whole."""

    def __init__(self, directory: Path, identity: str, stat: os.stat_result) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{identity}.json"
        try:
            self.found = msgspec.json.decode(self._path.read_bytes(), type=Ledger)
        except FileNotFoundError:
            self.found = Ledger(size=stat.st_size, mtime_ns=stat.st_mtime_ns)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"{self._path} is not a ledger: {error}; remove it to import the file anew") from None
        if (self.found.size, self.found.mtime_ns) != (stat.st_size, stat.st_mtime_ns):
            raise InvalidRequest(
                "the file has changed since its import began, and nobody knows which of its rows are in the topic; "
                "import what is missing as another file, or all of it under another --name"
            )

    def put(self, found: Ledger) -> None:
        self.found = found
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("wb") as out:
            out.write(msgspec.json.encode(found))
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, self._path)


class _Import:
    """The batches of one import."""

    def __init__(self, call: "Call", topic: str, ledger: _LedgerFile | None, identity: str) -> None:
        self._call = call
        self._client: Client = call.new_client(RETRIES)
        self._topic = topic
        self._ledger = ledger
        self._identity = identity

    def run(self, rows: Iterable[dict[str, Any]]) -> int:
        """Send what is not there yet; the number of rows that were sent."""
        self._refuse_another_instance()
        skipped = 0 if self._ledger is None else self._ledger.found.rows_done
        at = sent = 0
        for batch in _batches(rows):
            start, at = at, at + len(batch)
            if at <= skipped:
                continue
            sent += self._send(batch, start, at)
            if sys.stderr.isatty():
                print(f"\r{at:,} rows", end="", file=sys.stderr, flush=True)
        return sent

    def _refuse_another_instance(self) -> None:
        if self._ledger is None or not self._ledger.found.epoch:
            return
        try:
            epoch = self._client.state(self._topic, touch=False).epoch
        except NotFound:
            epoch = 0
        if epoch != self._ledger.found.epoch:
            raise InvalidRequest(
                f"{self._topic} was deleted since this file was imported; another --name imports it anew"
            )

    def _send(self, batch: list[dict[str, Any]], start: int, end: int) -> int:
        if self._ledger is None:
            self._client.append(self._topic, batch)
            return len(batch)
        pending = self._ledger.found.pending
        if pending is None or not self._is_there(pending, batch):
            if pending is None:
                self._note(start, self._pending(len(batch)))
            key = f"import-{self._identity}-{start}"
            self._client.append(self._topic, batch, idempotency_key=key)
        self._note(end, None)
        return len(batch)

    def _note(self, rows_done: int, pending: Pending | None) -> None:
        assert self._ledger is not None
        found = self._ledger.found
        epoch = found.epoch
        if pending is None and not epoch:
            epoch = self._client.state(self._topic, touch=False).epoch
        self._ledger.put(Ledger(rows_done, pending, epoch, found.size, found.mtime_ns))

    def _pending(self, rows: int) -> Pending:
        now = self._call.clock.now_ms()
        try:
            state = self._client.state(self._topic, touch=False)
        except NotFound:
            return Pending(rows, 0, 0, now)
        return Pending(rows, state.head_seq, state.epoch, now)

    def _is_there(self, pending: Pending, batch: list[dict[str, Any]]) -> bool:
        """Whether a batch, of which it is not known, lies in the topic; False if sending it again is harmless."""
        try:
            state = self._client.state(self._topic, touch=False)
        except NotFound:
            return False
        age = self._call.clock.now_ms() - pending.at_ms
        if pending.epoch not in (0, state.epoch) or 0 <= age < state.config.idempotency_window_ms // 2:
            return False  # another instance; or the key is remembered, and a repeat appends nothing
        wanted = [bytes(row["data"]) for row in batch]
        seen: list[bytes] = []
        for item in self._client.consume(self._topic, pending.head_seq, follow=False, limit=1000):
            if isinstance(item, Tombstone):
                raise InvalidRequest(
                    f"nobody knows whether rows were imported: seqs {item.gap_from} to {item.gap_to} of {self._topic} "
                    "are lost; import the rest of the file under another --name"
                )
            seen = [*seen[-(len(wanted) - 1) :], bytes(item.data)] if len(wanted) > 1 else [bytes(item.data)]
            if seen == wanted:
                return True
        return False


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += len(memoryview(row["data"]))
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# --- rows


def _rows(file: IO[bytes], source: str, format: ImportFormat, mapped: Mapped) -> Iterator[dict[str, Any]]:
    """Records as they are appended; `data` is a JSON text."""
    match format:
        case "ndjson":
            for number, line in enumerate(file, 1):
                if text := line.strip():
                    yield _of_json(text, mapped, f"{source}, line {number}")
        case "json":
            text = file.read().strip().removeprefix(b"\xef\xbb\xbf")
            try:
                items = msgspec.json.decode(text, type=list[Raw]) if text.startswith(b"[") else [Raw(text)]
            except msgspec.MsgspecError as error:
                raise InvalidRequest(f"{source} is not JSON: {error}") from None
            for number, item in enumerate(items, 1):
                yield _of_json(bytes(item), mapped, f"{source}, row {number}")
        case "csv":
            text_file = io.TextIOWrapper(file, "utf-8-sig", newline="")
            try:
                table = csv.DictReader(text_file, delimiter="\t" if source.lower().endswith(".tsv") else ",")
                for number, row in enumerate(table, 1):
                    yield _of_row({name: value or None for name, value in row.items() if name}, mapped, source, number)
            except (csv.Error, UnicodeDecodeError) as error:
                raise InvalidRequest(f"{source} is not CSV in UTF-8: {error}") from None
            finally:
                text_file.detach()
        case "parquet":
            import pyarrow.parquet as pq

            try:
                rows = (row for batch in pq.ParquetFile(file).iter_batches() for row in batch.to_pylist())
                for number, row in enumerate(rows, 1):
                    yield _of_row(row, mapped, source, number)
            except (OSError, ValueError) as error:
                raise InvalidRequest(f"{source} is not Parquet: {error}") from None


def _of_json(text: bytes, mapped: Mapped, place: str) -> dict[str, Any]:
    is_whole = (mapped.data, mapped.tag, mapped.node, mapped.meta) == (None, None, None, None)
    try:
        fields = {} if is_whole else msgspec.json.decode(text, type=dict[str, Raw])
        if is_whole:
            msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{place} is not {'JSON' if is_whole else 'a JSON object'}: {error}") from None
    if mapped.data is not None and mapped.data not in fields:
        raise InvalidRequest(f"{place} has no field {mapped.data!r}, which is to be the data")
    record: dict[str, Any] = {"data": Raw(text) if mapped.data is None else fields[mapped.data]}
    for label, name in (("tag", mapped.tag), ("node", mapped.node)):
        if name in fields and (value := msgspec.json.decode(fields[name])) is not None:
            record[label] = value if isinstance(value, str) else bytes(fields[name]).decode()
    if mapped.meta in fields and bytes(fields[mapped.meta]) != b"null":
        record["meta"] = fields[mapped.meta]
    return record


def _of_row(row: dict[str, Any], mapped: Mapped, source: str, number: int) -> dict[str, Any]:
    for name in (mapped.data, mapped.tag, mapped.node, mapped.meta):
        if name is not None and name not in row:
            raise InvalidRequest(f"{source} has no column {name!r}; the columns are {', '.join(row)}")
    record: dict[str, Any] = {"data": _data(row, mapped, f"{source}, row {number}")}
    for label, name in (("tag", mapped.tag), ("node", mapped.node)):
        if name is not None and row[name] is not None:
            record[label] = str(row[name])
    if mapped.meta is not None and row[mapped.meta] is not None:
        meta = row[mapped.meta]
        record["meta"] = Raw(meta.encode()) if isinstance(meta, str) else Raw(_encoded(meta))
    return record


def _data(row: dict[str, Any], mapped: Mapped, place: str) -> Raw:
    if mapped.data is None:
        return Raw(_encoded({name: value for name, value in row.items() if value is not None}))
    value = row[mapped.data]
    if value is None:
        return Raw(b"null")
    if not isinstance(value, str) or mapped.is_text:
        return Raw(_encoded(value))
    try:
        msgspec.json.decode(value)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"{place}: {mapped.data} is not JSON: {error}; pass --text if it is plain text") from None
    return Raw(value.encode())


_encoded = msgspec.json.Encoder(decimal_format="number").encode
