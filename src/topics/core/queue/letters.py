"""Dead letters: how a job looks in the dead-letter topic, and how it gets back (QU14).

A letter is the job with three members more at the end of its `meta`; everything else is kept to the byte. Taking the
three away again gives the job. Pure text; knows nothing of topics or queues.
"""

import re
from array import array
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics.core.topic.records import NO_META, Batch, Body, RecordIn

FROM, DELIVERIES, SRC_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
_MEMBERS = (FROM, DELIVERIES, SRC_SEQ)
_STAMP = re.compile(
    rb',?"\$dead_letter_from":"([^"\\]*)","\$dead_letter_deliveries":"\d+","\$dead_letter_src_seq":"\d+"\}$'
)


class Job(Struct, gc=False):
    """A record as a page has it, with all that is copied."""

    data: Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: Raw = NO_META


class _Origin(Struct, gc=False):
    queue: Any = msgspec.field(name=FROM, default=UNSET)


decode_job = msgspec.json.Decoder(Job).decode
_decode_origin = msgspec.json.Decoder(_Origin).decode
_decode_meta = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


def letter(job: Job, queue: str, deliveries: int, seq: int) -> RecordIn:
    """The dead letter that a job becomes."""
    stamp = b'"%b":"%b","%b":"%d","%b":"%d"}' % (
        FROM.encode(),
        queue.encode(),
        DELIVERIES.encode(),
        deliveries,
        SRC_SEQ.encode(),
        seq,
    )
    meta = bytes(_without_stamp(job.meta))
    open_part = meta[:-1].rstrip() if meta else b"{"
    text = open_part + (b"" if open_part.endswith(b"{") else b",") + stamp
    return RecordIn(job.data, job.tag, job.node, Raw(text))


def origin(job: Job) -> str | None:
    """The queue that a letter came from; None if it is none."""
    if not len(job.meta):
        return None
    queue: str | UnsetType | Any = _decode_origin(job.meta).queue
    return queue if isinstance(queue, str) else None


def restored(job: Job) -> RecordIn:
    """The job that a letter was."""
    return RecordIn(job.data, job.tag, job.node, _without_stamp(job.meta))


def batch_of_copies(records: list[RecordIn]) -> Batch:
    """Records that are in another topic already, as a batch; no limit of a write applies to them."""
    body = bytes(memoryview(_encode(Body(records))))
    sizes = array("I", [len(record.data) + len(record.meta) for record in records])
    return Batch(body, sizes, any(record.tag is not None for record in records))


def _without_stamp(meta: Raw) -> Raw:
    """The meta without the members of a letter; none if nothing is left."""
    text = bytes(meta)
    if FROM.encode() not in text:
        return meta
    found = _STAMP.search(text)
    if found is not None:
        rest = text[: found.start()] + b"}"
    else:  # something was added behind them
        members = _decode_meta(text)
        rest = _encode({name: value for name, value in members.items() if name not in _MEMBERS})
    return NO_META if rest.strip() == b"{}" else Raw(rest)
