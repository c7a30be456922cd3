# Generated from src/topics/client/aio/streams.py by `python -m tools.blocking_client`. Do not edit.
"""What a Client reads from over time: lists, consumers, exports, watches."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from topics.client.blocking.caller import Caller
from topics.client.blocking.connections import Body
from topics.client.errors import ApiError, ClientError
from topics.client.protocol.arrow_reader import ArrowReader
from topics.client.protocol.cursors import Cursor, Item
from topics.client.protocol.http_parser import Request
from topics.client.protocol.operations import Operation
from topics.client.protocol.watching import Ask, Emit, Open, Read, Rest, Step, Watch
from topics.client.results import ExportInfo, Page, WatchEvent

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


def listed(caller: Caller, page_after: Callable[[str | None], Operation[Page[T]]]) -> Iterator[T]:
    """The items of all pages, each page fetched when it is needed."""
    cursor = None
    while True:
        page = caller.run(page_after(cursor))
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return


class Consumer(Iterator[Item]):
    """Records and tombstones, in order. Store `cursor` and `epoch` when you are done with an item: pass both to
    `consume` to go on behind it. An error does not end a consumer: the next `next` tries again."""

    def __init__(self, caller: Caller, cursor: Cursor, wait_ms: int, follows: bool) -> None:
        self._caller = caller
        self._cursor = cursor
        self._wait_ms = wait_ms
        self._follows = follows

    @property
    def cursor(self) -> int:
        return self._cursor.seq

    @property
    def epoch(self) -> int | None:
        return self._cursor.epoch

    def __next__(self) -> Item:
        while (item := self._cursor.pop()) is None:
            if self._cursor.is_caught_up and not self._follows:
                raise StopIteration
            self._cursor.take(self._caller.run(self._cursor.next_diff(self._wait_ms)))
        return item


class Export(Iterator["pa.RecordBatch"]):
    """The batches of an export. `info` says what they cover, and what is lost."""

    info: ExportInfo

    def __init__(self, caller: Caller, request: Request) -> None:
        self._caller = caller
        self._request = request
        self._body: Body | None = None
        self._reader = ArrowReader(request.method, request.path)

    def __enter__(self) -> Self:
        if self._body is None:
            self._body = self._caller.open(self._request)
            try:
                while self._reader.schema is None:
                    self._read()
                self.info = self._reader.info()
            except BaseException:
                self.close()
                raise
        return self

    @property
    def schema(self) -> "pa.Schema":
        return self._reader.schema

    def __next__(self) -> "pa.RecordBatch":
        while (batch := self._reader.pop()) is None:
            if self._reader.is_over:
                raise StopIteration
            self._read()
        return batch

    def _read(self) -> None:
        assert self._body is not None, "an export is read within `with`"
        self._reader.feed(self._body.read(self._caller.read_deadline()))

    def read_all(self) -> "pa.Table":
        """The rest of the export, as one table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self), self.schema)

    def close(self) -> None:
        if self._body is not None:
            self._body.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class Watcher(Iterator[WatchEvent]):
    """The events of a watch. It reconnects by itself and goes on where it was. An error that it cannot recover from
    is raised; pass `positions` and `epochs` to a new watch to go on."""

    def __init__(self, caller: Caller, watch: Watch) -> None:
        self._caller = caller
        self._watch = watch
        self._steps = watch.steps()
        self._step: Step | None = None  # the step under way
        self._body: Body | None = None
        self._failure: Exception | None = None

    @property
    def positions(self) -> dict[str, int | None]:
        return dict(self._watch.positions)

    @property
    def epochs(self) -> dict[str, int]:
        return dict(self._watch.epochs)

    def __next__(self) -> WatchEvent:
        if self._failure is not None:
            raise self._failure
        try:
            while not isinstance(step := self._step or next(self._steps), Emit):
                self._step = step  # repeated if it is interrupted
                try:
                    outcome = self._do(step)
                except (ApiError, ClientError) as error:
                    self._step = self._steps.throw(error)
                else:
                    self._step = self._steps.send(outcome)
        except (ApiError, ClientError) as error:
            self._failure = error
            self._leave()
            raise
        except StopIteration:
            self._leave()
            raise StopIteration from None
        self._step = None
        return step.event

    def _do(self, step: Ask | Open | Read | Rest) -> Any:
        match step:
            case Ask():
                return self._caller.run(step.operation)
            case Open():
                self._leave()
                self._body = self._caller.open(step.request)
            case Read():
                assert self._body is not None
                return self._body.read(self._caller.monotonic() + step.seconds)
            case Rest():
                self._caller.pause(step.seconds)
        return None

    def close(self) -> None:
        """End the watch. The server ends its session after five minutes."""
        self._leave()
        self._steps.close()
        self._step = None

    def _leave(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
