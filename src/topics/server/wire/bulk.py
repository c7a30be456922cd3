"""Bulk bodies: records as NDJSON or as an Arrow stream (additive).

Both give the same RecordIn as JSON does, so all limits, positions in errors and atomicity are those of any write.
An Arrow stream comes from outside: it is validated in full, and compressed buffers are refused, since nothing bounds
what they inflate to.
"""

import struct
from typing import Any, Final

import msgspec
from msgspec import Raw

from topics.core.topic.records import NO_META, Limits, RecordIn, decode_json
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.server.wire.counts import UNCOUNTED_TIMES, CountedRecord, decode_counted, exceeds, may_exceed
from topics.server.wire.large import LARGE_BYTES, lines_in

_decode_lines = msgspec.json.Decoder(RecordIn).decode_lines
_decode_counted_lines = msgspec.json.Decoder(CountedRecord).decode_lines
_decode_raw = msgspec.json.Decoder(Raw).decode

COLUMNS: Final = ("data", "tag", "node", "meta")


def ndjson_in(body: bytes, limits: Limits) -> list[RecordIn]:
    """One record object per line; blank lines are skipped."""
    records_max = limits.max_batch_records
    breaks_max = UNCOUNTED_TIMES * (records_max + 1)
    if exceeds(body, b"\n", breaks_max) or exceeds(body, b"\r", breaks_max):
        raise BatchTooLarge(f"the body has far more lines, blank ones included, than the {records_max} records allowed")
    if len(body) > LARGE_BYTES:
        return lines_in(body, limits)
    try:
        records: list[RecordIn]
        if may_exceed(body, records_max):
            records = decode_counted(_decode_counted_lines, body, records_max)
        else:
            records = decode_json(_decode_lines, body)
    except BatchTooLarge:
        raise
    except InvalidRequest as error:
        message = error.message
        raise InvalidRequest(f"records{message}" if message.startswith("[") else message) from None
    if len(records) != sum(1 for line in body.splitlines() if line.strip()):
        raise InvalidRequest("the body is not one record per line")
    return records


def arrow_in(body: bytes, limits: Limits) -> list[RecordIn]:
    """The rows of an Arrow IPC stream: `data` (JSON text), and optionally `tag`, `node`, `meta` (JSON text)."""
    import pyarrow as pa

    try:
        _refuse_compressed(pa, body)
        columns = _columns(pa, body, limits.max_batch_records)
    except (pa.ArrowException, struct.error, OSError, ValueError) as error:
        raise InvalidRequest(f"the body is not a valid Arrow stream: {error}") from None
    data, tags, nodes, meta = columns
    if (found := _longer(data, limits.max_record_bytes)) is not None:
        raise RecordTooLarge(f"records[{found[0]}] is {found[1]} bytes, at most {limits.max_record_bytes}")
    if (found := _longer(meta, limits.max_meta_bytes)) is not None:
        raise InvalidRequest(f"records[{found[0]}].meta is {found[1]} bytes, at most {limits.max_meta_bytes}")
    try:
        values = list(map(_decode_raw, data))
        if meta.count(None) == len(meta):
            return list(map(RecordIn, values, tags, nodes))
        metas = [NO_META if text is None else _decode_raw(text) for text in meta]
    except (TypeError, msgspec.MsgspecError, RecursionError):
        raise _first_bad(data, meta) from None
    return list(map(RecordIn, values, tags, nodes, metas))


def _longer(texts: list[bytes | None], bytes_max: int) -> tuple[int, int] | None:
    """The number and the size of the first text that is too long. Whole columns first: none is, as a rule."""
    if max(map(len, filter(None, texts)), default=0) <= bytes_max:
        return None
    return next((n, len(text)) for n, text in enumerate(texts) if text is not None and len(text) > bytes_max)


def _first_bad(data: list[bytes | None], meta: list[bytes | None]) -> InvalidRequest:
    """The error of the first record that is none."""
    for n, texts in enumerate(zip(data, meta, strict=True)):
        for field, text in zip(("data", "meta"), texts, strict=True):
            if text is None:
                if field == "data":
                    return InvalidRequest(f"records[{n}].data is missing; a JSON null is the text null")
                continue
            try:
                _decode_raw(text)
            except (msgspec.MsgspecError, RecursionError) as error:
                return InvalidRequest(f"records[{n}].{field} is not JSON: {error}")
    raise AssertionError("every record can be decoded")


def _columns(pa: Any, body: bytes, records_max: int) -> list[list[Any]]:
    """The four columns: data and meta as bytes, tag and node as texts; a column that is not there is all None."""
    with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
        schema = reader.schema
    places = {name: schema.get_all_field_indices(name) for name in COLUMNS if name in schema.names}
    if "data" not in places:
        raise InvalidRequest("the Arrow stream has no column data")
    for name, indices in places.items():
        kind = schema.field(indices[0]).type
        if len(indices) > 1:
            raise InvalidRequest(f"column {name} comes twice")
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise InvalidRequest(f"column {name} is of type {kind}; it must be a string")
    included = [indices[0] for indices in places.values()]
    columns: list[list[Any]] = [[] for _ in COLUMNS]
    count = 0
    options = pa.ipc.IpcReadOptions(included_fields=included, ensure_alignment=pa.ipc.Alignment.DataTypeSpecific)
    with pa.ipc.open_stream(pa.py_buffer(body), options=options) as reader:
        for batch in reader:
            count += batch.num_rows
            if count > records_max:
                raise BatchTooLarge(f"records has more than {records_max} records")
            batch.validate(full=True)
            for column, name in zip(columns, COLUMNS, strict=True):
                column += _values(pa, batch.column(name), name) if name in places else [None] * batch.num_rows
    return columns


def _values(pa: Any, column: Any, name: str) -> list[Any]:
    """JSON stays bytes: what is decoded and kept is bytes, and a text would be made for nothing."""
    if name in ("tag", "node"):
        return list(column.to_pylist())
    return list(column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()).to_pylist())


# --- Arrow messages. Layout: 0xFFFFFFFF, metadata length (i32), metadata (a flatbuffer `Message`), body. Of the tables
# only what leads to RecordBatch.compression is read; every offset is checked by struct, pyarrow has verified the rest.

HEADER = 2  # field of Message
COMPRESSION = 3  # field of RecordBatch


def _refuse_compressed(pa: Any, body: bytes) -> None:
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    for message in messages:
        if message.type == "dictionary":
            raise InvalidRequest("the Arrow stream has dictionaries; send plain strings")
        if message.type == "record batch" and _is_compressed(message.metadata.to_pybytes()):
            raise InvalidRequest("the Arrow stream is compressed; send it plain, or with Content-Encoding: gzip")


def _is_compressed(metadata: bytes) -> bool:
    message = struct.unpack_from("<I", metadata, 0)[0]
    header = _field(metadata, message, HEADER)
    if header is None:
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, batch, COMPRESSION) is not None


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where field `number` of the flatbuffer table at `table` lies; None if it is not set."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else None
