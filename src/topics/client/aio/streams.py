"""What an AsyncClient reads from over time: lists, consumers, exports, watches.

Each is an iterator and a context manager. `close` ends it from any thread, task or signal handler, also in the middle
of a read: the loop over it then ends as if there were no more. So does `close` of the client.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from msgspec import UNSET

from topics.client.aio.caller import AsyncCaller
from topics.client.aio.concurrency import INTERRUPTIONS
from topics.client.aio.connections import AsyncBody
from topics.client.errors import ApiError, ClientClosed, ClientError, EpochMismatch, InvalidRequest, NotFound
from topics.client.hooks import Reconnecting, logger
from topics.client.kept_cursors import KeptCursor, NamedCursor, Position
from topics.client.protocol import operations
from topics.client.protocol.arrow_reader import ArrowReader
from topics.client.protocol.cursors import Cursor, R
from topics.client.protocol.http_parser import Request
from topics.client.protocol.operations import Operation
from topics.client.protocol.watching import Ask, Emit, Open, Read, Rest, Step, Watch
from topics.client.results import ExportInfo, Lost, Page, WatchEvent

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class AsyncStream(AsyncIterator[T]):
    """An iterator that can be closed. One task at a time reads it.

    The reader releases what it holds, if it finds on its way out that the stream was closed; `close` does so only if
    there is no reader. So nothing is taken from under a reader's hands.
    """

    def __init__(self, caller: AsyncCaller) -> None:
        self._client_caller = caller
        self._caller = caller.apart()
        self._is_reading = False

    async def __anext__(self) -> T:
        self._is_reading = True
        try:
            if self._caller.is_closed:
                await self._done()
                raise StopAsyncIteration
            return await self._next()
        except ClientClosed:
            raise StopAsyncIteration from None
        except INTERRUPTIONS as error:
            raise error.with_traceback(None)  # noqa: B904 - the frames below say nothing to its reader
        finally:
            self._is_reading = False
            if self._caller.is_closed:
                self._release()

    @abstractmethod
    async def _next(self) -> T:
        """The next item. ClientClosed if the stream is closed meanwhile."""

    async def _done(self) -> None:
        """The body of the loop has run for the last item."""

    def _release(self) -> None:
        """Let go of connections. May be called twice."""

    def close(self) -> None:
        """End the loop over this stream, now. Any thread and any signal handler may call it."""
        self._caller.stop()
        if not self._is_reading:
            self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                await self._done()
        finally:
            self.close()


class AsyncListing(AsyncStream[T]):
    """The items of all pages of a list, each page fetched when it is needed."""

    def __init__(self, caller: AsyncCaller, page_after: Callable[[str | None], Operation[Page[T]]]) -> None:
        super().__init__(caller)
        self._page_after = page_after
        self._cursor: str | None = None
        self._items: list[T] = []  # the last one comes first
        self._is_over = False

    async def _next(self) -> T:
        while not self._items:
            if self._is_over:
                raise StopAsyncIteration
            page = await self._caller.run(self._page_after(self._cursor))
            self._items, self._cursor = page.items[::-1], page.next_cursor
            self._is_over = self._cursor is None
        return self._items.pop()


class AsyncConsumer(AsyncStream[R | Lost], Generic[R]):
    """Records and tombstones, in order. An error does not end a consumer: the next `anext` tries again.

    Given a kept cursor, it continues from there, and moves the cursor when the body of the loop has run. Without one,
    store `cursor` and `epoch` when you are done with an item: pass both to `consume` to go on behind it.
    """

    def __init__(
        self, caller: AsyncCaller, cursor: Cursor[R], wait_ms: int, follows: bool, kept: KeptCursor | NamedCursor | None
    ) -> None:
        super().__init__(caller)
        self._cursor = cursor
        self._wait_ms = wait_ms
        self._follows = follows
        self._kept = kept
        self._is_loaded = kept is None
        self._saved = Position(cursor.seq, cursor.epoch)
        self._handed_out = 0  # since the position was saved

    @property
    def cursor(self) -> int:
        """The seq behind the last item handed out."""
        return self._cursor.seq

    @property
    def epoch(self) -> int | None:
        """The instance of the topic that `cursor` belongs to; None before the first read."""
        return self._cursor.epoch

    async def _next(self) -> R | Lost:
        if not self._is_loaded:
            await self._load()
        while (item := self._cursor.pop()) is None:
            await self._done()
            if self._cursor.is_caught_up and not self._follows:
                raise StopAsyncIteration
            self._cursor.take(await self._caller.run(self._cursor.next_diff(self._wait_ms)))
        self._handed_out += 1
        if isinstance(item, Lost):
            self._caller.hooks.gap(item)
        return item

    async def __anext__(self) -> R | Lost:
        if self._kept is not None and self._handed_out >= self._kept.every:
            await self._done()
        return await super().__anext__()

    async def _load(self) -> None:
        topic, kept = self._cursor.topic, self._kept
        if isinstance(kept, NamedCursor):
            try:
                found = await self._caller.run(operations.cursor(topic, kept.name))
                position: Position | None = Position(found.seq, found.epoch)
            except NotFound:
                position = None
        else:
            assert kept is not None
            position = kept.load(topic)
        if position is not None:
            self._cursor.go_to(*position)
            self._saved = position
        self._is_loaded = True

    async def _done(self) -> None:
        """Keep the position: everything handed out is done."""
        position = Position(self._cursor.seq, self._cursor.epoch)
        if self._kept is None or not self._is_loaded or position == self._saved or position.epoch is None:
            return
        if isinstance(self._kept, NamedCursor):
            await self._save_named(self._kept.name, position)
        else:
            self._kept.save(self._cursor.topic, position)
        self._saved, self._handed_out = position, 0

    async def _save_named(self, name: str, position: Position) -> None:
        """By the client's own calls: a consumer that was closed still keeps what is done."""
        topic = self._cursor.topic
        try:
            await self._client_caller.run(operations.put_cursor(topic, name, position.seq, position.epoch, UNSET))
        except (ClientClosed, EpochMismatch, InvalidRequest, NotFound) as error:  # a topic that is another one, tells
            logger.warning("cursor %s of %s does not move to %d: %s", name, topic, position.seq, error)


class AsyncExport(AsyncStream["pa.RecordBatch"]):
    """The batches of an export. `info` says what they cover, and what is lost."""

    info: ExportInfo

    def __init__(self, caller: AsyncCaller, request: Request) -> None:
        super().__init__(caller)
        self._request = request
        self._body: AsyncBody | None = None
        self._reader = ArrowReader(request.method, request.path)

    async def __aenter__(self) -> Self:
        if self._body is None:
            self._body = await self._caller.open(self._request)
            try:
                while self._reader.schema is None:
                    await self._read()
                self.info = self._reader.info()
            except BaseException:
                self.close()
                raise
        return self

    @property
    def schema(self) -> "pa.Schema":
        """The columns of the batches."""
        return self._reader.schema

    async def _next(self) -> "pa.RecordBatch":
        while (batch := self._reader.pop()) is None:
            if self._reader.is_over:
                raise StopAsyncIteration
            await self._read()
        return batch

    async def _read(self) -> None:
        assert self._body is not None, "an export is read within `async with`"
        self._reader.feed(await self._body.read(self._caller.read_deadline()))

    async def read_all(self) -> "pa.Table":
        """The rest of the export, as one table. ClientClosed if it is closed meanwhile."""
        import pyarrow as pa

        batches = [batch async for batch in self]
        if self._caller.is_closed:
            raise ClientClosed("the export was closed before its end")
        return pa.Table.from_batches(batches, self.schema)

    def _release(self) -> None:
        if self._body is not None:
            self._body.close()


class AsyncWatcher(AsyncStream[WatchEvent]):
    """The events of a watch. It reconnects by itself and continues where it left off. An error that it cannot recover
    from is raised; pass `positions` and `epochs` to a new watch to go on. The server ends the session of a watch that
    was closed after five minutes."""

    def __init__(self, caller: AsyncCaller, watch: Watch) -> None:
        super().__init__(caller)
        self._watch = watch
        self._steps = watch.steps()
        self._step: Step | None = None  # the step under way
        self._body: AsyncBody | None = None
        self._failure: Exception | None = None
        self._broke: ApiError | ClientError | None = None  # what ended the last stream
        self._has_streamed = False

    @property
    def positions(self) -> dict[str, int | None]:
        """Topic → the seq behind the last event handed out; None: nothing is known of it yet."""
        return dict(self._watch.positions)

    @property
    def epochs(self) -> dict[str, int]:
        """Topic → the instance that its position belongs to."""
        return dict(self._watch.epochs)

    async def _next(self) -> WatchEvent:
        if self._failure is not None:
            raise self._failure
        try:
            while not isinstance(step := self._step or next(self._steps), Emit):
                self._step = step  # repeated if it is interrupted
                try:
                    outcome = await self._do(step)
                except ClientClosed:
                    raise
                except (ApiError, ClientError) as error:
                    self._broke = error
                    self._step = self._steps.throw(error)
                else:
                    self._step = self._steps.send(outcome)
        except ClientClosed:
            raise
        except (ApiError, ClientError) as error:
            self._failure = error
            self._release()
            raise
        except StopIteration:
            self._release()
            raise StopAsyncIteration from None
        self._step = None
        if isinstance(step.event, Lost):
            self._caller.hooks.gap(step.event)
        return step.event

    async def _do(self, step: Ask | Open | Read | Rest) -> Any:
        match step:
            case Ask():
                return await self._caller.run(step.operation)
            case Open():
                self._release()
                if self._has_streamed:
                    self._caller.hooks.reconnecting(Reconnecting(tuple(self._watch.positions), self._broke))
                self._body = await self._caller.open(step.request)
                self._has_streamed, self._broke = True, None
            case Read():
                assert self._body is not None
                return await self._body.read(self._caller.monotonic() + step.seconds)
            case Rest():
                await self._caller.pause(step.seconds)
        return None

    def _release(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
