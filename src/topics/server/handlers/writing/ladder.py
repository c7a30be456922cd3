"""The ladder that every append climbs, whoever asks for it: decode, check, submit, wait for the gate, answer.

Unless something unusual happens (a refusal, pressure), a write climbs it without a task, and is answered from the log's
callback. Must not know: how the answer is sent.
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
from topics.model import is_topic_name
from topics.server.auth import ADMIN, Key
from topics.server.call import Call
from topics.server.handlers.topics import check_dead_letter
from topics.server.wire.advice import Warned, advice_on_inline
from topics.server.wire.rendered import write_answer, write_performance
from topics.server.wire.replies import encode

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
        key = key_of(given, header)
        if isinstance(checked, Refusal):
            raise checked
        batch = checked or check_batch(given.records, given.node, key, app.settings, body)
        command = Append(name, batch, key, given.create, given.config, refuses or given.on_mismatch is not UNSET)
        if app.pressure.is_refusing or app.pressure.slows(len(batch.body)):
            self.go_on(self._append_held(command, given))
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

    async def _append_held(self, command: Append, given: WriteIn) -> None:
        """Append after the wait that the pressure asks for."""
        pressure, size = self.app.pressure, len(command.batch.body)
        self._check_target(command.topic, given)
        if pressure.is_refusing:
            self.app.engine.figures.count_full()
        self.throttle_ms = await pressure.hold(size, self.stop, for_ever=given.disable_backpressure)
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
        result = self.result
        more = b',"mismatch":true' if result.mismatch else b""
        if result.created and self.warnings:
            more += b',"warnings":%b' % encode(self.warnings)
        return write_answer(
            result.topic.encode(),
            result.first_seq,
            result.last_seq,
            result.head_seq,
            performance(self.app, result.topic, self.started, self.submitted_at, self.throttle_ms),
            with_seqs=with_seqs,
            created=result.created,
            deduped=result.deduped,
            more=more,
        )


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


def performance(app: "App", topic: str, started: float, submitted_at: float, throttle_ms: float = 0.0) -> bytes:
    """How long a write took that is as durable as its class asks now."""
    now = app.clock.monotonic()
    total_ms = append_ms = (now - started) * 1000
    fsync_ms = 0.0
    config = app.engine.config_of(topic)
    if config is not None and config.durability == "fsync":
        fsync_ms = (now - submitted_at) * 1000
        append_ms -= fsync_ms
    return write_performance(total_ms, append_ms - throttle_ms, fsync_ms, throttle_ms)


def key_of(given: WriteIn, header: bytes | None) -> str | None:
    if given.idempotency_key is not None or header is None:
        return given.idempotency_key
    return _decoded(header) or None


def _decoded(header: bytes) -> str:
    try:
        return header.decode()
    except UnicodeDecodeError:
        raise InvalidRequest("the header Idempotency-Key is not UTF-8") from None
