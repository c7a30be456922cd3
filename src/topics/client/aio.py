"""The client for asyncio: the methods of `sync.Client`, awaited. It pickles without its connections."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from topics.client import answers, calls
from topics.client.aio_streams import AsyncConsumer, AsyncExport, AsyncWatcher
from topics.client.aio_transport import AioCaller
from topics.client.answers import Job, NewRecord
from topics.client.calls import ARROW, NDJSON, Config, ConfigFields, Match
from topics.client.config import ClientConfig
from topics.client.reading import Cursor
from topics.client.watching import Watch
from topics.client.worker import AsyncWorker, Plan
from topics.clock import Clock, SystemClock

if TYPE_CHECKING:
    import pyarrow as pa


class AsyncClient:
    """A server, for asyncio. Arguments and methods are those of `Client`; `clock` is for tests."""

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_ms: int = 30_000,
        retries: int = 10,
        gzip: bool = False,
        window_ms: int = 0,
        clock: Clock | None = None,
    ) -> None:
        self._open(ClientConfig.of(url, token, timeout_ms, retries, gzip, window_ms), clock or SystemClock())

    def _open(self, config: ClientConfig, clock: Clock) -> None:
        self._config = config
        self._caller = AioCaller(config, clock)

    @property
    def url(self) -> str:
        return str(self._config.endpoint)

    async def close(self) -> None:
        """Close the idle connections."""
        self._caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r})"

    def __getstate__(self) -> ClientConfig:
        return self._config

    def __setstate__(self, config: ClientConfig) -> None:
        self._open(config, SystemClock())

    # --- topics

    async def put_topic(
        self, topic: str, config: Config | None = None, **fields: Unpack[ConfigFields]
    ) -> answers.TopicPut:
        """Create a topic or replace its whole config: what is left out returns to its default."""
        return await self._caller.run(calls.put_topic(topic, config, fields))

    async def state(self, topic: str, *, touch: bool = True) -> answers.TopicState:
        """A topic as it is now. `touch=False` does not count as a read."""
        return await self._caller.run(calls.state(topic, touch))

    async def topics(
        self, prefix: str = "", *, page_size: int = 1000, touch: bool = False
    ) -> AsyncIterator[answers.TopicListed]:
        """All topics whose names begin so, by name; pages are fetched as needed."""
        cursor = None
        while True:
            page = await self._caller.run(calls.list_topics(prefix, page_size, cursor, touch))
            for topic in page.topics:
                yield topic
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_topic(self, topic: str, *, if_empty: bool = False) -> answers.TopicDeleted:
        return await self._caller.run(calls.delete_topic(topic, if_empty))

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
    ) -> answers.Written:
        """Append records, all or none. Without a key of yours each call gets one, unless `idempotent` is False."""
        return await self._caller.run(
            calls.append(
                topic,
                records,
                node=node,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                create=create,
                config=config,
                disable_backpressure=disable_backpressure,
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
    ) -> answers.Written:
        """Append records given as JSON lines, `{"data":…}` each."""
        return await self._caller.run(
            calls.append_bulk(
                topic,
                calls.ndjson_body(lines),
                NDJSON,
                node=node,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                create=create,
                disable_backpressure=disable_backpressure,
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
    ) -> answers.Written:
        """Append the rows of an Arrow table: `data` as JSON texts, and `tag`, `node`, `meta` if there are any."""
        return await self._caller.run(
            calls.append_bulk(
                topic,
                calls.arrow_body(rows),
                ARROW,
                node=node,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                create=create,
                disable_backpressure=disable_backpressure,
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
    ) -> answers.Diff:
        """What lies above a cursor; `next_from_seq` of the answer is the next one."""
        return await self._caller.run(
            calls.diff(
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
        """Records and tombstones above a cursor, in order; for ever, or with `follow=False` up to the head."""
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
        """The live records above `after` as of now, as Arrow batches. To be used with `async with`."""
        return AsyncExport(self._caller, calls.export(topic, after, last, epoch))

    async def delete_records(
        self, topic: str, *, before_seq: int | None = None, match: Match | None = None, epoch: int | None = None
    ) -> answers.RecordsDeleted:
        """Delete the records below a seq, or whose tag matches, or both; with an epoch, of that instance only."""
        return await self._caller.run(calls.delete_records(topic, before_seq, match, epoch))

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
    ) -> answers.Router:
        """Copy what is committed to `source` from now on into `dest`."""
        fields = {
            "preserve_node": preserve_node,
            "preserve_tag": preserve_tag,
            "create_dest": create_dest,
            "allow_cycle": allow_cycle,
            "guarantee": guarantee,
        }
        return await self._caller.run(calls.put_router(router, source, dest, filter, fields))

    async def router(self, name: str) -> answers.Router:
        return await self._caller.run(calls.router(name))

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int = 1000
    ) -> AsyncIterator[answers.RouterListed]:
        """All routers that fit, by name; pages are fetched as needed."""
        cursor = None
        while True:
            page = await self._caller.run(calls.list_routers(prefix, source, dest, page_size, cursor))
            for router in page.routers:
                yield router
            cursor = page.next_cursor
            if cursor is None:
                return

    async def delete_router(self, name: str) -> answers.RouterDeleted:
        return await self._caller.run(calls.delete_router(name))

    # --- queues

    async def claim(self, topic: str, node: str, *, max_jobs: int = 1, lease_ms: int | None = None) -> answers.Claimed:
        """Lease jobs of a queue; fewer than asked for, or none, is no error."""
        return await self._caller.run(calls.claim(topic, node, max_jobs, lease_ms))

    async def ack(self, topic: str, node: str, jobs: Sequence[Job | int]) -> answers.Acked:
        """Complete jobs. Given as Job, one counts only under the very lease it was claimed with."""
        return await self._caller.run(calls.settle("ack", answers.Acked, topic, node, jobs))

    async def nack(self, topic: str, node: str, jobs: Sequence[Job | int], *, delay_ms: int = 0) -> answers.Nacked:
        """Give jobs back, to be claimed again after the delay."""
        return await self._caller.run(calls.settle("nack", answers.Nacked, topic, node, jobs, delay_ms=delay_ms))

    async def extend(self, topic: str, node: str, jobs: Sequence[Job | int], *, lease_ms: int) -> answers.Extended:
        """Let leases end `lease_ms` from now."""
        return await self._caller.run(calls.settle("extend", answers.Extended, topic, node, jobs, lease_ms=lease_ms))

    async def redrive(self, topic: str, *, match: Match | None = None, max_jobs: int | None = None) -> answers.Redriven:
        """Bring the dead letters of a queue back into it: all, those whose tag matches, or only so many."""
        return await self._caller.run(calls.redrive(topic, match, max_jobs))

    async def leases(self, topic: str, *, page_size: int = 1000) -> AsyncIterator[answers.Lease]:
        """Who holds which jobs of a queue, by seq; pages are fetched as needed."""
        cursor = None
        while True:
            page = await self._caller.run(calls.list_leases(topic, page_size, cursor))
            for lease in page.leases:
                yield lease
            cursor = page.next_cursor
            if cursor is None:
                return

    def worker(
        self,
        topic: str,
        node: str,
        handler: Callable[[Job], Awaitable[object]],
        *,
        slots: int = 1,
        lease_ms: int = 30_000,
        delay_ms: int = 1_000,
        poll_ms: int = 1_000,
    ) -> AsyncWorker:
        """A worker that runs `handler` for the jobs of a queue, `slots` at a time, once its `run` is called."""
        return AsyncWorker(self, self._caller, Plan(topic, node, slots, lease_ms, delay_ms, poll_ms), handler)

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
        """What happens in topics, pushed. They are given with the seq to start behind (None: what comes from now on),
        or as names to read from the beginning; `epochs` are the instances that these seqs belong to."""
        options = calls.watch_options(
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

    async def health(self) -> answers.Health:
        return await self._caller.run(calls.health())

    async def ready(self) -> answers.Ready:
        """Raises NotReady or ShuttingDown, after retries, if it is not."""
        return await self._caller.run(calls.ready())

    async def metrics(self) -> dict[str, Any]:
        """The metrics in their JSON form."""
        return await self._caller.run(calls.metrics())
