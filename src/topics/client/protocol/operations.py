"""The operations of the API: the request to send, the type of the result, and whether the request may be repeated.

Only this module knows paths and fields; it knows no sockets. An operation may be repeated if carrying it out twice
leaves the same as carrying it out once, later: reads, PUT, DELETE, deletes, acks. An append may be repeated only under
an idempotency key and within the topic's window (ID1); `retries` sees to that.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, Struct, UnsetType

from topics.client import results
from topics.client.arguments import Config, Match, OnMismatch, config_body, match_of, record_of
from topics.client.errors import UnexpectedAnswer
from topics.client.protocol.http_parser import Request, Response
from topics.client.results import NewRecord, Page
from topics.client.values import encode
from topics.errors import InvalidRequest
from topics.model import TopicConfig

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

JSON: Final = (("content-type", "application/json"),)
NDJSON: Final = (("content-type", "application/x-ndjson"),)
ARROW: Final = (("content-type", "application/vnd.apache.arrow.stream"),)

Repeat = Literal["always", "keyed", "never"]


class Operation(Struct, Generic[T], frozen=True):
    """One call of the API. `type` is the type of its result; `wait_ms` is added to the time it may take."""

    request: Request
    type: type[T]
    repeat: Repeat = "always"
    wait_ms: int = 0
    topic: str = ""  # of a keyed append
    window_ms: int = TopicConfig().idempotency_window_ms  # of the topic, if this append creates it

    def parse(self, answer: Response) -> T:
        try:
            return msgspec.json.decode(answer.body, type=self.type)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnexpectedAnswer(
                f"the answer, status {answer.status}, is not what the API promises: {error}",
                method=self.request.method,
                path=self.request.path,
                was_sent=True,
            ) from None


# --- topics


def put_topic(
    topic: str, config: Config | None, fields: Mapping[str, Any], dry_run: bool
) -> Operation[results.TopicPut]:
    body = config_body(config, **fields) | given(dry_run=dry_run or None)
    return Operation(Request("PUT", topic_path(topic), encode(body), JSON), results.TopicPut)


def state(topic: str, touch: bool) -> Operation[results.TopicState]:
    return Operation(Request("GET", with_query(topic_path(topic), touch=None if touch else False)), results.TopicState)


def list_topics(
    prefix: str, page_size: int, cursor: str | None, touch: bool, **query: Any
) -> Operation[Page[results.TopicListed]]:
    asked = {"prefix": prefix or None, "page_size": page_size, "cursor": cursor, "touch": touch or None}
    path = with_query("/v0/topics", **asked, epochs=True, **{name: value or None for name, value in query.items()})
    return Operation(Request("GET", path), results.TopicPage)


def delete_topic(topic: str, if_empty: bool, epoch: int | None) -> Operation[results.TopicDeleted]:
    path = with_query(topic_path(topic), if_empty=if_empty or None, epoch=epoch)
    return Operation(Request("DELETE", path), results.TopicDeleted)


# --- records


def append(
    topic: str,
    records: Iterable[NewRecord | Mapping[str, Any]],
    *,
    node: str | None,
    idempotency_key: str | None,
    idempotent: bool,
    create: bool | None,
    config: Config | None,
    disable_backpressure: bool,
    on_mismatch: OnMismatch | None,
) -> Operation[results.Written]:
    key = key_of(idempotency_key, idempotent)
    settings = None if config is None else config_body(config)
    body = given(
        records=[record_of(record, n) for n, record in enumerate(records)],
        node=node,
        idempotency_key=key,
        create=create,
        config=settings,
        disable_backpressure=disable_backpressure or None,
        on_mismatch=None if key is None else on_mismatch,
    )
    request = Request("POST", with_query(topic_path(topic), return_seqs=False), encode(body), JSON)
    window_ms = (settings or {}).get("idempotency_window_ms", TopicConfig().idempotency_window_ms)
    return Operation(request, results.Written, repeat_of(key), topic=topic, window_ms=window_ms)


def append_texts(
    topic: str, texts: Sequence[bytes], node: str | None, key: str, on_mismatch: OnMismatch | None = "refuse"
) -> Operation[results.Written]:
    """Append records that are JSON texts already."""
    head = encode(given(node=node, idempotency_key=key, on_mismatch=on_mismatch))
    body = b'{"records":[%b],%b' % (b",".join(texts), head[1:])
    request = Request("POST", with_query(topic_path(topic), return_seqs=False), body, JSON)
    return Operation(request, results.Written, "keyed", topic=topic)


class BulkOptions(TypedDict, total=False):
    """How records that are given as one body are appended; see `append`."""

    node: str | None
    idempotency_key: str | None
    idempotent: bool
    create: bool | None
    disable_backpressure: bool
    on_mismatch: OnMismatch | None


def append_bulk(
    topic: str,
    body: bytes,
    headers: tuple[tuple[str, str], ...],
    *,
    node: str | None = None,
    idempotency_key: str | None = None,
    idempotent: bool = True,
    create: bool | None = None,
    disable_backpressure: bool = False,
    on_mismatch: OnMismatch | None = "refuse",
) -> Operation[results.Written]:
    key = key_of(idempotency_key, idempotent)
    if key is not None and on_mismatch is not None:
        headers = (*headers, ("idempotency-mismatch", on_mismatch))
    path = with_query(
        topic_path(topic),
        return_seqs=False,
        node=node,
        idempotency_key=key,
        create=create,
        disable_backpressure=disable_backpressure or None,
    )
    return Operation(Request("POST", path, body, headers), results.Written, repeat_of(key), topic=topic)


def ndjson_body(lines: bytes | str | Iterable[bytes | str]) -> bytes:
    """Lines as one body. The lines of an iterable are joined by newlines."""
    if isinstance(lines, bytes | str):
        return lines.encode() if isinstance(lines, str) else lines
    return b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)


def arrow_body(rows: "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | bytes") -> bytes:
    """Rows with a column `data` of JSON texts, as an Arrow IPC stream."""
    if isinstance(rows, bytes):
        return rows
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        batches, schema = rows.to_batches(), rows.schema
    else:
        batches = [rows] if isinstance(rows, pa.RecordBatch) else list(rows)
        if not batches:
            raise InvalidRequest("append_arrow was given no batches")
        schema = batches[0].schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def diff(
    topic: str,
    from_seq: int,
    *,
    include_tags: bool = False,
    include_meta: bool = True,
    wait_ms: int = 0,
    filter: Match | None = None,
    **fields: Any,
) -> Operation[results.Diff]:
    """`fields` are sent as they are, but for those that are None."""
    body = given(
        from_seq=from_seq,
        include_tags=include_tags or None,
        include_meta=None if include_meta else False,
        wait_ms=wait_ms or None,
        filter=match_of(filter),
        **fields,
    )
    return Operation(post(topic, "diff", body), results.Diff, wait_ms=wait_ms)


def delete_records(
    topic: str, before_seq: int | None, match: Match | None, epoch: int | None, dry_run: bool
) -> Operation[results.RecordsDeleted]:
    body = given(before_seq=before_seq, match=match_of(match), epoch=epoch, dry_run=dry_run or None)
    return Operation(post(topic, "delete", body), results.RecordsDeleted)


def export(topic: str, after: int, last: int | None, epoch: int | None) -> Request:
    path = with_query(f"{topic_path(topic)}/export", after=after, last=last, epoch=epoch)
    return Request("GET", path, headers=(("accept", "application/vnd.apache.arrow.stream"),))


def live(topic: str, after: int, last: int | None, epoch: int | None) -> Operation[results.LiveRuns]:
    path = with_query(f"{topic_path(topic)}/live", after=after, last=last, epoch=epoch)
    return Operation(Request("GET", path), results.LiveRuns)


def record(topic: str, seq: int) -> Operation[results.RecordShown]:
    return Operation(Request("GET", f"{topic_path(topic)}/records/{seq}"), results.RecordShown)


def losses(topic: str, limit: int | None) -> Operation[results.LossList]:
    return Operation(Request("GET", with_query(f"{topic_path(topic)}/losses", limit=limit)), results.LossList)


# --- named cursors


def put_cursor(
    topic: str, name: str, seq: int, epoch: int | None, if_seq: int | None | UnsetType
) -> Operation[results.CursorShown]:
    """Never repeated once sent if `if_seq` is given: the repeat would find the cursor moved by the call itself."""
    body = given(seq=seq, epoch=epoch) | ({} if if_seq is UNSET else {"if_seq": if_seq})
    repeat: Repeat = "always" if if_seq is UNSET else "never"
    return Operation(Request("PUT", cursor_path(topic, name), encode(body), JSON), results.CursorShown, repeat)


def cursor(topic: str, name: str) -> Operation[results.CursorShown]:
    return Operation(Request("GET", cursor_path(topic, name)), results.CursorShown)


def list_cursors(topic: str, page_size: int, cursor: str | None) -> Operation[Page[results.CursorShown]]:
    path = with_query(f"{topic_path(topic)}/cursors", page_size=page_size, cursor=cursor)
    return Operation(Request("GET", path), results.CursorPage)


def delete_cursor(topic: str, name: str) -> Operation[results.CursorDeleted]:
    return Operation(Request("DELETE", cursor_path(topic, name)), results.CursorDeleted)


# --- routers


def put_router(
    router: str, source: str, dest: str, filter: Match | None, fields: Mapping[str, Any]
) -> Operation[results.Router]:
    chosen = {name: value for name, value in fields.items() if value is not None}
    body = given(source=source, dest=dest, filter=match_of(filter)) | chosen
    return Operation(Request("PUT", router_path(router), encode(body), JSON), results.Router)


def router(name: str) -> Operation[results.Router]:
    return Operation(Request("GET", router_path(name)), results.Router)


def list_routers(
    prefix: str, source: str | None, dest: str | None, page_size: int, cursor: str | None
) -> Operation[Page[results.RouterListed]]:
    path = with_query(
        "/v0/routers", prefix=prefix or None, source=source, dest=dest, page_size=page_size, cursor=cursor
    )
    return Operation(Request("GET", path), results.RouterPage)


def delete_router(name: str) -> Operation[results.RouterDeleted]:
    return Operation(Request("DELETE", router_path(name)), results.RouterDeleted)


# --- queues


def claim(topic: str, node: str, max_jobs: int, lease_ms: int | None) -> Operation[results.Claimed]:
    """Never repeated once sent: the jobs of a lost answer stay leased, and another claim would lease more."""
    body = given(node=node, max=max_jobs, lease_ms=lease_ms)
    return Operation(post(topic, "claim", body), results.Claimed, "never")


def change_leases(
    verb: Literal["ack", "nack", "extend"],
    kind: type[T],
    topic: str,
    node: str,
    jobs: Sequence[results.Job | int],
    **fields: int,
) -> Operation[T]:
    """Ack, nack or extend. Jobs are named with their leases, so that a late call cannot hit a later delivery."""
    body = {
        "node": node,
        "seqs": [job.seq if isinstance(job, results.Job) else job for job in jobs],
        "lease_ids": [job.lease_id if isinstance(job, results.Job) else "" for job in jobs],
        **fields,
    }
    return Operation(post(topic, verb, body), kind)


def redrive(topic: str, match: Match | None, max_jobs: int | None, dry_run: bool) -> Operation[results.Redriven]:
    """Never repeated once sent if `max_jobs` is given: each repeat would bring back as many again."""
    body = given(match=match_of(match), max=max_jobs, dry_run=dry_run or None)
    repeat: Repeat = "always" if max_jobs is None or dry_run else "never"
    return Operation(post(topic, "redrive", body), results.Redriven, repeat)


def pause(topic: str, verb: Literal["pause", "resume"]) -> Operation[results.QueuePaused]:
    return Operation(post(topic, verb, {}), results.QueuePaused)


def list_leases(topic: str, page_size: int, cursor: str | None) -> Operation[Page[results.Lease]]:
    path = with_query(f"{topic_path(topic)}/leases", page_size=page_size, cursor=cursor)
    return Operation(Request("GET", path), results.LeasePage)


# --- watch


def watch(body: Mapping[str, Any], lenient: bool) -> Operation[results.WatchSession]:
    path = with_query("/v0/watch", lenient=lenient or None)
    return Operation(Request("POST", path, encode(body), JSON), results.WatchSession)


def watch_options(
    node: str | Sequence[str] | None,
    filter: Match | None,
    limit: int | None,
    max_batch_bytes: int | None,
    include_meta: bool,
    include_tags: bool,
    include_data: bool,
    consistency: str,
) -> dict[str, Any]:
    return given(
        filter=match_of(filter),
        node=node,
        limit=limit,
        max_batch_bytes=max_batch_bytes,
        include_meta=include_meta,
        include_tags=include_tags,
        include_data=include_data,
        consistency=consistency,
    )


# --- the server


def health() -> Operation[results.Health]:
    return Operation(Request("GET", "/v0/health"), results.Health)


def ready() -> Operation[results.Ready]:
    return Operation(Request("GET", "/v0/ready"), results.Ready)


def stats(history_ms: int | None) -> Operation[results.Stats]:
    return Operation(Request("GET", with_query("/v0/stats", history=history_ms)), results.Stats)


def metrics() -> Operation[dict[str, Any]]:
    return Operation(Request("GET", "/v0/metrics", headers=(("accept", "application/json"),)), dict[str, Any])


def me() -> Operation[results.Me]:
    return Operation(Request("GET", "/v0/me"), results.Me)


def ticket() -> Operation[results.Ticket]:
    return Operation(Request("POST", "/v0/ticket", b"{}", JSON), results.Ticket)


def list_connections(page_size: int, cursor: str | None) -> Operation[Page[results.ConnectionListed]]:
    return Operation(
        Request("GET", with_query("/v0/connections", page_size=page_size, cursor=cursor)), results.ConnectionPage
    )


def close_connection(id: str) -> Operation[results.ConnectionClosed]:
    return Operation(Request("DELETE", f"/v0/connections/{segment('connection', id)}"), results.ConnectionClosed)


# --- pieces


def post(topic: str, verb: str, body: Mapping[str, Any]) -> Request:
    return Request("POST", f"{topic_path(topic)}/{verb}", encode(body), JSON)


def topic_path(topic: str) -> str:
    return f"/v0/topics/{segment('topic', topic)}"


def cursor_path(topic: str, name: str) -> str:
    return f"{topic_path(topic)}/cursors/{segment('cursor', name)}"


def router_path(name: str) -> str:
    return f"/v0/routers/{segment('router', name)}"


def segment(what: str, name: str) -> str:
    if not name:
        raise InvalidRequest(f"the name of the {what} is empty")
    return quote(name, safe=":")


def with_query(path: str, **parameters: Any) -> str:
    query = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in parameters.items()
        if value is not None
    }
    return f"{path}?{urlencode(query)}" if query else path


def given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def key_of(idempotency_key: str | None, idempotent: bool) -> str | None:
    """The caller's key, or a new one, unless the caller opts out."""
    if idempotency_key is not None:
        return idempotency_key
    return uuid.uuid4().hex if idempotent else None


def repeat_of(key: str | None) -> Repeat:
    return "never" if key is None else "keyed"
