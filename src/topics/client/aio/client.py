"""The client for asyncio. Each method is an operation, a stream or a worker. Connections are not pickled."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from msgspec import UNSET, UnsetType

from topics.client import results
from topics.client.aio.caller import AsyncCaller
from topics.client.aio.concurrency import AsyncClock, AsyncHandler, started, system_clock
from topics.client.aio.streams import AsyncConsumer, AsyncExport, AsyncWatcher, listed
from topics.client.aio.worker import AsyncWorker
from topics.client.client_config import ClientConfig
from topics.client.protocol import operations
from topics.client.protocol.cursors import Cursor
from topics.client.protocol.leases import WorkerPlan
from topics.client.protocol.operations import ARROW, NDJSON, Config, ConfigFields, Match, OnMismatch
from topics.client.protocol.watching import Watch
from topics.client.results import Job, NewRecord

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncClient:
    """A server, for asyncio.

    `url` and `token` default to TOPICS_URL and TOPICS_TOKEN. `timeout_ms` bounds a call with all its retries; the wait
    of a long poll comes on top. `retries` bounds how often a call is tried again. `gzip` compresses both ways, for slow
    networks. `window_ms` stands in for a topic's idempotency window where the key may not read it; without it, such an
    append is not repeated once it may have been carried out. `clock` is for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_ms: int = 30_000,
        retries: int = 10,
        gzip: bool = False,
        window_ms: int = 0,
        clock: AsyncClock | None = None,
    ) -> None:
        self._open(ClientConfig.of(url, token, timeout_ms, retries, gzip, window_ms), clock or system_clock())

    def _open(self, config: ClientConfig, clock: AsyncClock) -> None:
        self._config = config
        self._caller = AsyncCaller(config, clock)

    @property
    def url(self) -> str:
        return str(self._config.endpoint)

    async def close(self) -> None:
        """Close the idle connections, and end the waits of other tasks before a retry."""
        self._caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __getstate__(self) -> ClientConfig:
        return self._config

    def __setstate__(self, config: ClientConfig) -> None:
        self._open(config, system_clock())

    # --- topics

    async def put_topic(
        self, topic: str, config: Config | None = None, *, dry_run: bool = False, **fields: Unpack[ConfigFields]
    ) -> results.TopicPut:
        """Create a topic, or replace its whole config: a field left out returns to its default.

        With `dry_run`, nothing changes: the result says what would. `warnings` of the result are worth a look.
        """
        return await self._caller.run(operations.put_topic(topic, config, fields, dry_run))

    async def state(self, topic: str, *, touch: bool = True) -> results.TopicState:
        """The topic as it is now. With `touch=False` this does not count as a read."""
        return await self._caller.run(operations.state(topic, touch))

    def topics(
        self, prefix: str = "", *, page_size: int = 1000, touch: bool = False
    ) -> AsyncIterator[results.TopicListed]:
        """All topics whose names start with the prefix, by name; pages are fetched as needed."""
        return listed(self._caller, lambda cursor: operations.list_topics(prefix, page_size, cursor, touch))

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> results.TopicDeleted:
        return await self._caller.run(operations.delete_topic(topic, if_empty))

    # --- records

    async def append(
        self,
        topic: str,
        records: Iterable[NewRecord | Mapping[str, Any]],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = True,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
        on_mismatch: OnMismatch | None = "refuse",
    ) -> results.Written:
        """Append records, all or none. A call without a key gets one, unless `idempotent` is False.

        A key that stands for other records raises IdempotencyMismatch; with `on_mismatch=None` these are ignored.
        """
        return await self._caller.run(
            operations.append(
                topic,
                records,
                node=node,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                create=create,
                config=config,
                disable_backpressure=disable_backpressure,
                on_mismatch=on_mismatch,
            )
        )

    async def append_ndjson(
        self,
        topic: str,
        lines: bytes | str | Iterable[bytes | str],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = True,
        create: bool | None = None,
        disable_backpressure: bool = False,
        on_mismatch: OnMismatch | None = "refuse",
    ) -> results.Written:
        """Append records given as JSON lines, each of them `{"data":…}`."""
        return await self._caller.run(
            operations.append_bulk(
                topic,
                operations.ndjson_body(lines),
                NDJSON,
                node=node,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                create=create,
                disable_backpressure=disable_backpressure,
                on_mismatch=on_mismatch,
            )
        )

    async def append_arrow(
        self,
        topic: str,
        rows: "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | bytes",
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = True,
        create: bool | None = None,
        disable_backpressure: bool = False,
        on_mismatch: OnMismatch | None = "refuse",
    ) -> results.Written:
        """Append the rows of an Arrow table: `data` as JSON texts, and optionally `tag`, `node` and `meta`."""
        return await self._caller.run(
            operations.append_bulk(
                topic,
                operations.arrow_body(rows),
                ARROW,
                node=node,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                create=create,
                disable_backpressure=disable_backpressure,
                on_mismatch=on_mismatch,
            )
        )

    async def diff(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int | None = None,
        node: str | Sequence[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        wait_ms: int = 0,
        max_batch_bytes: int | None = None,
        epoch: int | None = None,
        filter: Match | None = None,
        from_ts: int | None = None,
    ) -> results.Diff:
        """Read what lies above a cursor. The next cursor is `next_from_seq` of the result."""
        return await self._caller.run(
            operations.diff(
                topic,
                from_seq,
                limit=limit,
                node=node,
                include_tags=include_tags,
                include_meta=include_meta,
                wait_ms=wait_ms,
                max_batch_bytes=max_batch_bytes,
                epoch=epoch,
                filter=filter,
                from_ts=from_ts,
            )
        )

    def consume(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        epoch: int | None = None,
        follow: bool = True,
        limit: int | None = 1000,
        node: str | Sequence[str] | None = None,
        include_tags: bool = False,
        include_meta: bool = True,
        wait_ms: int = 20_000,
        max_batch_bytes: int | None = None,
        filter: Match | None = None,
        from_ts: int | None = None,
    ) -> AsyncConsumer:
        """Records and tombstones above a cursor, in order: for ever, or up to the head with `follow=False`."""
        cursor = Cursor(
            topic,
            from_seq,
            epoch,
            from_ts,
            limit=limit,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            max_batch_bytes=max_batch_bytes,
            filter=filter,
        )
        return AsyncConsumer(self._caller, cursor, wait_ms if follow else 0, follow)

    def export(self, topic: str, after: int = 0, *, last: int | None = None, epoch: int | None = None) -> AsyncExport:
        """The live records above `after` as of now, as Arrow batches. Use it in an `async with`."""
        return started(AsyncExport(self._caller, operations.export(topic, after, last, epoch)))

    async def live(
        self, topic: str, after: int = 0, *, last: int | None = None, epoch: int | None = None
    ) -> results.LiveRuns:
        """Which seqs an export would have now, as runs, without the records. It counts as no read."""
        return await self._caller.run(operations.live(topic, after, last, epoch))

    async def delete_records(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> results.RecordsDeleted:
        """Delete records below a seq, records whose tag matches, or both. With an epoch, only of that instance.

        With `dry_run`, none: the result says what would go.
        """
        return await self._caller.run(operations.delete_records(topic, before_seq, match, epoch, dry_run))

    async def record(self, topic: str, seq: int) -> results.RecordShown:
        """One record. NotFound says in `detail` whether it was deleted, lost or never written."""
        return await self._caller.run(operations.record(topic, seq))

    async def losses(self, topic: str, *, limit: int | None = None) -> list[results.Loss]:
        """What the topic has lost, the newest first: 100 ranges unless `limit` says otherwise."""
        return (await self._caller.run(operations.losses(topic, limit))).losses

    # --- named cursors

    async def put_cursor(
        self, topic: str, name: str, seq: int, *, epoch: int | None = None, if_seq: int | None | UnsetType = UNSET
    ) -> results.NamedCursor:
        """Let a cursor stand at `seq`. CursorMoved: it does not stand at `if_seq` (None: there is one)."""
        return await self._caller.run(operations.put_cursor(topic, name, seq, epoch, if_seq))

    async def cursor(self, topic: str, name: str) -> results.NamedCursor:
        return await self._caller.run(operations.cursor(topic, name))

    def cursors(self, topic: str, *, page_size: int = 1000) -> AsyncIterator[results.NamedCursor]:
        """The named cursors of a topic, by name; pages are fetched as needed."""
        return listed(self._caller, lambda cursor: operations.list_cursors(topic, page_size, cursor))

    async def delete_cursor(self, topic: str, name: str) -> results.CursorDeleted:
        return await self._caller.run(operations.delete_cursor(topic, name))

    # --- routers

    async def put_router(
        self,
        router: str,
        source: str,
        dest: str,
        *,
        filter: Match | None = None,
        preserve_node: bool | None = None,
        preserve_tag: bool | None = None,
        create_dest: bool | None = None,
        allow_cycle: bool | None = None,
        guarantee: Literal["at_least_once", "exactly_once"] | None = None,
    ) -> results.Router:
        """Copy into `dest` what is committed to `source` from now on."""
        fields = {
            "preserve_node": preserve_node,
            "preserve_tag": preserve_tag,
            "create_dest": create_dest,
            "allow_cycle": allow_cycle,
            "guarantee": guarantee,
        }
        return await self._caller.run(operations.put_router(router, source, dest, filter, fields))

    async def router(self, name: str) -> results.Router:
        return await self._caller.run(operations.router(name))

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int = 1000
    ) -> AsyncIterator[results.RouterListed]:
        """All routers that match, by name; pages are fetched as needed."""
        return listed(self._caller, lambda cursor: operations.list_routers(prefix, source, dest, page_size, cursor))

    async def delete_router(self, name: str) -> results.RouterDeleted:
        return await self._caller.run(operations.delete_router(name))

    # --- queues

    async def claim(self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None) -> results.Claimed:
        """Lease up to `max_jobs` jobs of a queue. It may have fewer, or none."""
        return await self._caller.run(operations.claim(topic, node, max_jobs, lease_ms))

    async def ack(self, topic: str, node: str, jobs: Sequence[Job | int]) -> results.Acked:
        """Complete jobs. A Job, unlike a seq, counts only under the lease it was claimed with."""
        return await self._caller.run(operations.settle("ack", results.Acked, topic, node, jobs))

    async def nack(self, topic: str, node: str, jobs: Sequence[Job | int], *, delay_ms: int = 0) -> results.Nacked:
        """Give jobs back, to be claimed again after the delay."""
        return await self._caller.run(operations.settle("nack", results.Nacked, topic, node, jobs, delay_ms=delay_ms))

    async def extend(self, topic: str, node: str, jobs: Sequence[Job | int], *, lease_ms: int) -> results.Extended:
        """Make leases end `lease_ms` from now."""
        return await self._caller.run(
            operations.settle("extend", results.Extended, topic, node, jobs, lease_ms=lease_ms)
        )

    async def redrive(
        self, topic: str, *, match: Match | None = None, max_jobs: int | None = None, dry_run: bool = False
    ) -> results.Redriven:
        """Bring dead letters back into their queue: all, those whose tag matches, or at most `max_jobs`.

        With `dry_run`, none: the result says what would come back.
        """
        return await self._caller.run(operations.redrive(topic, match, max_jobs, dry_run))

    async def pause(self, topic: str) -> results.QueuePaused:
        """Let a queue hand out no jobs until it is resumed; it takes everything else."""
        return await self._caller.run(operations.pause(topic, "pause"))

    async def resume(self, topic: str) -> results.QueuePaused:
        """Let a queue hand out jobs again."""
        return await self._caller.run(operations.pause(topic, "resume"))

    def leases(self, topic: str, *, page_size: int = 1000) -> AsyncIterator[results.Lease]:
        """Who holds which jobs of a queue, by seq; pages are fetched as needed."""
        return listed(self._caller, lambda cursor: operations.list_leases(topic, page_size, cursor))

    def worker(
        self,
        topic: str,
        node: str,
        handler: AsyncHandler,
        *,
        slots: int = 1,
        lease_ms: int = 30_000,
        delay_ms: int = 1_000,
        poll_ms: int = 1_000,
    ) -> AsyncWorker:
        """A worker that runs `handler` for the jobs of a queue, `slots` at a time. Call its `run` to start."""
        return AsyncWorker(self, self._caller, WorkerPlan(topic, node, slots, lease_ms, delay_ms, poll_ms), handler)

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
    ) -> AsyncWatcher:
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
            retries=self._config.retries,
            wait_s=self._caller.retries.backoff_s,
        )
        return AsyncWatcher(self._caller, watch)

    # --- the server

    async def health(self) -> results.Health:
        return await self._caller.run(operations.health())

    async def ready(self) -> results.Ready:
        """Raise NotReady or ShuttingDown, after retries, if the server is not ready."""
        return await self._caller.run(operations.ready())

    async def metrics(self) -> dict[str, Any]:
        """The metrics, as JSON."""
        return await self._caller.run(operations.metrics())
