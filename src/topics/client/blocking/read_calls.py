# Generated from src/topics/client/aio/read_calls.py by `python -m tools.blocking_client`. Do not edit.
"""Calls of a Client that read: diffs, consumers, exports, frames, watches, losses and named cursors."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType

from topics.client import results
from topics.client.arguments import Match
from topics.client.blocking.caller import Caller
from topics.client.blocking.concurrency import beside, started
from topics.client.blocking.streams import Consumer, Export, Listing, Watcher
from topics.client.data_frames import Library, frame_of, require
from topics.client.kept_cursors import KeptCursor, NamedCursor
from topics.client.protocol import operations
from topics.client.protocol.cursors import Cursor, ReadOptions, checked
from topics.client.protocol.watching import Watch
from topics.client.results import Lost, Record, TypedRecord

T = TypeVar("T")

READ_RECORDS: Final = 1000  # of a consumer, at a time


class ReadCalls:
    """What a Client reads."""

    _caller: Caller

    def diff(self, topic: str, from_seq: int = 0, *, wait_ms: int = 0, **options: Unpack[ReadOptions]) -> results.Diff:
        """Read what lies above a cursor. The next cursor is `next_from_seq` of the result.

        With `wait_ms`, a read that finds nothing waits for something for so long.
        """
        return self._caller.run(operations.diff(topic, from_seq, wait_ms=wait_ms, **checked(options)))

    @overload
    def consume(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        follow: bool = True,
        wait_ms: int = 20_000,
        cursor: KeptCursor | NamedCursor | None = None,
        type: None = None,
        **options: Unpack[ReadOptions],
    ) -> Consumer[Record]: ...

    @overload
    def consume(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        follow: bool = True,
        wait_ms: int = 20_000,
        cursor: KeptCursor | NamedCursor | None = None,
        type: type[T],
        **options: Unpack[ReadOptions],
    ) -> Consumer[TypedRecord[T]]: ...

    def consume(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        follow: bool = True,
        wait_ms: int = 20_000,
        cursor: KeptCursor | NamedCursor | None = None,
        type: Any = None,
        **options: Unpack[ReadOptions],
    ) -> Consumer[Any]:
        """Records and tombstones above a cursor, in order: for ever, or up to the head with `follow=False`.

        `cursor` keeps the position from run to run: a FileCursor, SQLiteCursor or NamedCursor; `from_seq` counts only
        where it has none yet. `type` is that of the records' values: a struct, a dataclass, a Pydantic model. `limit`
        is that of each read, 1000 unless given; `from_ts` applies to the first read only.
        """
        place: Cursor[Any] = Cursor(topic, from_seq, type, {"limit": READ_RECORDS} | options)
        return Consumer(self._caller, place, wait_ms if follow else 0, follow, cursor)

    def export(self, topic: str, after: int = 0, *, last: int | None = None, epoch: int | None = None) -> Export:
        """The live records above `after` as of now, as Arrow batches. Use it in a `with`."""
        return started(Export(self._caller, operations.export(topic, after, last, epoch)))

    def frame(
        self,
        topic: str,
        library: Library = "pandas",
        *,
        after: int = 0,
        last: int | None = None,
        epoch: int | None = None,
        expand: bool = True,
    ) -> Any:
        """The live records above `after` as of now, as a data frame: of pandas or Polars, or as a pyarrow Table.

        Each field of the data becomes a column, those with values of several types as JSON texts; data that are no
        objects are in a column `data`. With `expand=False`, `data` has all of them, as JSON texts. The frame holds
        everything in memory. What was lost is told to `on_gap`, and in `attrs["topics"]` of a pandas frame.
        """
        require(library)
        with self.export(topic, after, last=last, epoch=epoch) as export:
            table = export.read_all()
        for lost in export.info.lost:
            self._caller.hooks.gap(Lost.of(topic, lost))
        return beside(frame_of, table, export.info, library, expand)

    def live(
        self, topic: str, after: int = 0, *, last: int | None = None, epoch: int | None = None
    ) -> results.LiveRuns:
        """Which seqs an export would have now, as runs, without the records. It counts as no read."""
        return self._caller.run(operations.live(topic, after, last, epoch))

    def record(self, topic: str, seq: int) -> results.RecordShown:
        """One record. NotFound says in `detail` whether it was deleted, lost or never written."""
        return self._caller.run(operations.record(topic, seq))

    def losses(self, topic: str, *, limit: int | None = None) -> list[results.Loss]:
        """What the topic has lost, the newest first: 100 ranges unless `limit` says otherwise."""
        return (self._caller.run(operations.losses(topic, limit))).losses

    # --- named cursors

    def put_cursor(
        self, topic: str, name: str, seq: int, *, epoch: int | None = None, if_seq: int | None | UnsetType = UNSET
    ) -> results.CursorShown:
        """Let a cursor stand at `seq`. CursorMoved: it does not stand at `if_seq` (None: there is one)."""
        return self._caller.run(operations.put_cursor(topic, name, seq, epoch, if_seq))

    def cursor(self, topic: str, name: str) -> results.CursorShown:
        """Where a named cursor stands, how far behind, and what it has lost. NotFound: there is none."""
        return self._caller.run(operations.cursor(topic, name))

    def cursors(self, topic: str, *, page_size: int = 1000) -> Listing[results.CursorShown]:
        """The named cursors of a topic, by name; pages are fetched as needed."""
        return Listing(self._caller, lambda cursor: operations.list_cursors(topic, page_size, cursor))

    def delete_cursor(self, topic: str, name: str) -> results.CursorDeleted:
        """Delete a named cursor; nothing happens if there is none."""
        return self._caller.run(operations.delete_cursor(topic, name))

    # --- watch

    def watch(
        self,
        topics: Mapping[str, int | None] | Sequence[str],
        *,
        epochs: Mapping[str, int] | None = None,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        limit: int | None = None,
        max_batch_bytes: int | None = None,
        heartbeat_ms: int = 15_000,
        include_meta: bool = True,
        include_tags: bool = False,
        include_data: bool = True,
        consistency: Literal["eventual", "strong"] = "eventual",
        lenient: bool = False,
    ) -> Watcher:
        """What happens in topics, pushed by the server.

        Map each topic to the seq to start behind, or to None for what comes from now on. A list of names reads each
        from the beginning. `epochs` are the instances that the seqs belong to.
        """
        options = operations.watch_options(
            node, filter, limit, max_batch_bytes, include_meta, include_tags, include_data, consistency
        )
        watch = Watch(
            topics if isinstance(topics, Mapping) else dict.fromkeys(topics, 0),
            epochs,
            options,
            lenient=lenient,
            heartbeat_ms=heartbeat_ms,
            retries=self._caller.retries.retries,
            wait_s=self._caller.retries.backoff_s,
        )
        return Watcher(self._caller, watch)
