"""Records: append and delete (WR, ID, DL).

Appending is the hottest path of the server. HTTP and WebSocket climb one ladder (`Write`): decode, check, submit, wait
for the gate, answer. Unless something unusual happens (a refusal, pressure), a write climbs it without a task, and is
answered from the log's callback.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import UNSET

from topics.core.topic.config import resolve
from topics.core.topic.records import Batch, WriteIn, check_batch
from topics.engine.answers import WriteResult
from topics.engine.instance import Append
from topics.errors import CommitFailed, InvalidRequest, Refusal, TopicNotFound
from topics.faults import quoted
from topics.model import is_topic_name
from topics.server.auth import ADMIN, Key
from topics.server.call import Call
from topics.server.handlers.topics import check_dead_letter
from topics.server.transport.encoding import JSON_TYPE, NDJSON_TYPE
from topics.server.transport.exchange import Request
from topics.server.wire.advice import Warned, advice_on_inline
from topics.server.wire.bulk import arrow_in, ndjson_in
from topics.server.wire.large import LARGE_BYTES
from topics.server.wire.rendered import record_answer, write_answer
from topics.server.wire.replies import RecordsDeleted, SyncPerformance, encode
from topics.server.wire.requests import delete_in, seq_in_path, write_in

if TYPE_CHECKING:
    from topics.server.app import App

ADMINS: Final = frozenset((ADMIN,))

Checked = Batch | Refusal | None


class Write:
    """One append, from its checks to its answer. Subclasses know who asked for it."""

    __slots__ = ("app", "key", "result", "started", "submitted_at", "throttle_ms", "warnings")

    has_order: ClassVar[bool] = False  # answers are sent in the order of the writes, so each gets its place in time
    needs_admin_for_any_config: ClassVar[bool] = False  # also for one that is not going to be used

    # A subclass sets these itself: one call less for every request.
    app: "App"
    key: Key
    started: float  # when it was asked for
    throttle_ms: float  # how long it was parked
    warnings: Sequence[Warned]  # about its config, if that counts
    # Set on the way.
    submitted_at: float
    result: WriteResult

    # --- what a subclass gives

    @property
    def stop(self) -> "asyncio.Future[None]":
        """Done when nobody waits for the answer any more."""
        raise NotImplementedError

    def expect(self) -> None:
        """The write is submitted, and `opened` will be called. Only where `has_order` is set."""

    def opened(self, failure: CommitFailed | None) -> None:
        """The log has the write, as durable as its class asks, or has failed: answer."""
        raise NotImplementedError

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task; then answer with the result, or with what `work` raised."""
        raise NotImplementedError

    # --- the ladder

    def submit(
        self,
        name: str,
        given: WriteIn,
        body: bytes | None,
        header: bytes | None = None,
        checked: Checked = None,
        *,
        refuses: bool = False,
    ) -> None:
        """Check a write and append it. `body` is its text if that is JSON, `header` an Idempotency-Key. If it `refuses`
        a mismatch, other records under a known key are an error.

        `checked` is what a check of the records gave, if they were checked already. Raises what the checks refuse;
        whatever comes after them is told through `opened` and `go_on`.
        """
        app = self.app
        if given.config is not None:
            self._check_config(name, given, body)
        key = _key_of(given, header)
        if isinstance(checked, Refusal):
            raise checked
        batch = checked or check_batch(given.records, given.node, key, app.settings, body)
        command = Append(name, batch, key, given.create, given.config, refuses or given.on_mismatch is not UNSET)
        if app.pressure.is_refusing:
            self.go_on(self._append_parked(command, given))
            return
        try:
            self.result, gate = app.engine.append_now(command)
        except Refusal:
            self.go_on(self._append_again(command))
            return
        self.submitted_at = app.clock.monotonic()
        if self.has_order:
            self.expect()
        app.engine.when_open(gate, self.opened)

    def _check_config(self, name: str, given: WriteIn, body: bytes | None) -> None:
        """Check an inline config, before the records; one that will be used needs the scope admin (AU7, AU8)."""
        assert given.config is not None
        config = resolve(name, given.config)
        if self.needs_admin_for_any_config or self.app.engine.config_of(name) is None:
            self.key.check_scopes(ADMINS)
        check_dead_letter(self.key, given.config)
        if body is not None and self.app.engine.config_of(name) is None:
            self.warnings = advice_on_inline(body, given.config, config)

    async def _append_again(self, command: Append) -> None:
        """Decide a refused write once more; the refusal leaves when the state that it depends on may be shown."""
        self.submitted_at = self.app.clock.monotonic()
        self.result = await self.app.engine.append_batch(command)

    async def _append_parked(self, command: Append, given: WriteIn) -> None:
        self._check_target(command.topic, given)
        self.app.engine.count_full()
        self.throttle_ms = await self.app.pressure.park(self.stop, for_ever=given.disable_backpressure)
        await self._append_again(command)

    def _check_target(self, name: str, given: WriteIn) -> None:
        """Refuse what is refused before pressure is considered: 404, or 400 for a bad name (WR14)."""
        if self.app.engine.config_of(name) is not None:
            return
        auto_create = given.config.auto_create if given.config is not None else UNSET
        if not (given.create if given.create is not None else auto_create is not False):
            raise TopicNotFound(name)
        if not is_topic_name(name):
            raise InvalidRequest(f'"{name}" is not a valid topic name')

    def body(self, with_seqs: bool) -> bytes:
        """The answer to a write that is as durable as its class asks, with the times it took."""
        result, app = self.result, self.app
        now = app.clock.monotonic()
        total_ms = append_ms = (now - self.started) * 1000
        fsync_ms = 0.0
        config = app.engine.config_of(result.topic)
        if config is not None and config.durability == "fsync":
            fsync_ms = (now - self.submitted_at) * 1000
            append_ms -= fsync_ms
        if self.throttle_ms:
            append_ms -= self.throttle_ms
        more = b',"mismatch":true' if result.mismatch else b""
        if result.created and self.warnings:
            more += b',"warnings":%b' % encode(self.warnings)
        return write_answer(result, with_seqs, more, total_ms, append_ms, fsync_ms, self.throttle_ms)


class HttpWrite(Write):
    """A POST to a topic."""

    __slots__ = ("call",)

    def __init__(self, call: Call) -> None:
        self.app = call.app
        self.key = call.key
        self.started = call.started
        self.throttle_ms = 0.0
        self.warnings = ()
        self.call = call

    @property
    def stop(self) -> "asyncio.Future[None]":
        return self.call.stop

    def opened(self, failure: CommitFailed | None) -> None:
        call = self.call
        if failure is not None:
            call.refuse(failure)
            return
        with_seqs = not call.request.query or call.parameters.flag("return_seqs", True)
        call.respond(201 if self.result.created else 200, self.body(with_seqs))

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        self.app.spawn(self._answer_after(work), self.call)

    async def _answer_after(self, work: Coroutine[Any, Any, None]) -> None:
        await work
        self.opened(None)


def append(call: Call) -> None:
    request = call.request
    if len(request.body) > LARGE_BYTES:
        call.app.spawn(_append_large(call), call)
        return
    is_json = call.media == JSON_TYPE
    given = write_in(request.body, call.app.settings) if is_json else _bulk_in(call)
    header = request.headers.get(b"idempotency-key")
    refuses = _refuses(request)
    HttpWrite(call).submit(call.name, given, request.body if is_json else None, header, refuses=refuses)


async def _append_large(call: Call) -> None:
    """Append what takes long to decode and check: that is done by a thread, one at a time (LM10)."""
    app, header = call.app, call.request.headers.get(b"idempotency-key")
    async with app.decoding:
        if call.exchange.is_lost:
            raise InvalidRequest("the client was gone before its body was decoded")
        given, checked = await asyncio.get_running_loop().run_in_executor(None, _decode_large, call)
    config = app.engine.config_of(call.name)
    if isinstance(checked, Batch) and (config is None or config.durability != "ephemeral"):
        await app.engine.make_room(len(checked.body))
    call.check_key()
    if not app.is_serving:
        raise app.unavailable()
    body = call.request.body or None
    HttpWrite(call).submit(call.name, given, body, header, checked, refuses=_refuses(call.request))


def _decode_large(call: Call) -> tuple[WriteIn, Checked]:
    """Decode and check a large write; blocking. Its body is let go of unless it is kept as it is, or its config is yet
    to be looked at: what replaces it may be as large."""
    settings, request = call.app.settings, call.request
    header = request.headers.get(b"idempotency-key")
    given = write_in(request.body, settings) if call.media == JSON_TYPE else _bulk_in(call)
    text = [request.body if call.media == JSON_TYPE else None]
    if given.config is None:
        request.body = b""
    try:
        batch = check_batch(given.records, given.node, _key_of(given, header), settings, text.pop())
    except Refusal as refusal:
        return given, refusal  # other checks come first
    return given, batch


def is_synced(app: "App", name: str) -> bool:
    """Whether writes to a topic wait for a sync."""
    config = app.engine.config_of(name)
    return config is not None and config.durability == "fsync"


def _refuses(request: Request) -> bool:
    """Whether a header says that other records under a known key are refused (ID9)."""
    header = request.headers.get(b"idempotency-mismatch")
    if header is None:
        return False
    if header != b"refuse":
        shown = quoted(header.decode("latin-1"))
        raise InvalidRequest(f"the header Idempotency-Mismatch is {shown}; it must be refuse, or left out")
    return True


def _key_of(given: WriteIn, header: bytes | None) -> str | None:
    if given.idempotency_key is not None or header is None:
        return given.idempotency_key
    return _decoded(header) or None


def _decoded(header: bytes) -> str:
    try:
        return header.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the header Idempotency-Key is not UTF-8") from None


def _bulk_in(call: Call) -> WriteIn:
    """A write whose body holds only records; the rest is in the query."""
    parameters, body, settings = call.parameters, call.request.body, call.app.settings
    return WriteIn(
        ndjson_in(body, settings) if call.media == NDJSON_TYPE else arrow_in(body, settings),
        parameters.text("node"),
        parameters.text("idempotency_key"),
        parameters.flag("create", True) if parameters.text("create") is not None else None,
        None,
        parameters.flag("disable_backpressure", False),
    )


async def delete_records(call: Call) -> None:
    before_seq, match, epoch, is_dry = delete_in(call.request.body)
    selected_ms = call.total_ms
    done = await call.app.engine.delete(call.name, before_seq=before_seq, match=match, epoch=epoch, dry_run=is_dry)
    total_ms = call.total_ms
    is_waiting = done.deleted and not is_dry and is_synced(call.app, call.name)
    fsync_ms = total_ms - selected_ms if is_waiting else 0.0
    answer = RecordsDeleted(
        topic=done.topic,
        deleted=done.deleted,
        earliest_seq=done.earliest_seq,
        head_seq=done.head_seq,
        count=done.count,
        bytes=done.bytes,
        dry_run=True if is_dry else UNSET,
        deleted_bytes=done.deleted_bytes if is_dry else UNSET,
        performance=SyncPerformance(round(total_ms, 3), round(fsync_ms, 3)),
    )
    call.answer(200, answer)


async def show_record(call: Call) -> None:
    seq = seq_in_path(call.item)
    result = await call.app.engine.totals.record(call.name, seq)
    call.respond(200, record_answer(result, call.total_ms))
