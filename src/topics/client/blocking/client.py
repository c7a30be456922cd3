# Generated from src/topics/client/aio/client.py by `python -m tools.blocking_client`. Do not edit.
"""The client for blocking code. Each method is an operation, a stream or a worker. Connections are not pickled."""

import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from topics.client import results
from topics.client.arguments import Config, ConfigFields, Match, OnMismatch, TopicOrder
from topics.client.blocking.caller import Caller
from topics.client.blocking.concurrency import BlockingClock, system_clock
from topics.client.blocking.producer import Producer, append_parts
from topics.client.blocking.queue_calls import QueueCalls
from topics.client.blocking.read_calls import ReadCalls
from topics.client.blocking.streams import Listing
from topics.client.client_config import ClientConfig
from topics.client.hooks import Hooks, Reconnecting, Retrying
from topics.client.protocol import operations
from topics.client.protocol.operations import ARROW, NDJSON, BulkOptions
from topics.client.protocol.outbox import (
    BATCH_BYTES,
    BATCH_RECORDS_MAX,
    GIVE_UP_MS,
    LINGER_MS,
    PENDING_BYTES,
    OutboxPlan,
)
from topics.client.results import Lost, NewRecord
from topics.model import Durability, TopicType

if TYPE_CHECKING:
    import pyarrow as pa


class Client(ReadCalls, QueueCalls):
    """A server, for blocking code.

    `url` and `token` default to TOPICS_URL and TOPICS_TOKEN; `unix:/path` is a server on a Unix socket. `timeout`, in
    seconds, or `timeout_ms` bounds a call with all its retries; the wait of a long poll comes on top. `retries` bounds
    how often a call is tried again; if it is not given, the time decides. `gzip` compresses both ways, for slow
    networks. `window_ms` stands in for a topic's idempotency window where the key may not read it; without it, such an
    append is not repeated once it may have been carried out.

    `verify` is a file of certificates to trust, or False to trust anybody; `ssl_context` replaces it. `headers` go with
    every request, `proxy` is the URL of an HTTP proxy. `on_retry`, `on_reconnect` and `on_gap` are called with what
    happens. `clock` is for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float | None = None,
        timeout_ms: int = 30_000,
        retries: int | None = None,
        gzip: bool = False,
        window_ms: int = 0,
        verify: bool | str = True,
        ssl_context: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        on_retry: Callable[[Retrying], object] | None = None,
        on_reconnect: Callable[[Reconnecting], object] | None = None,
        on_gap: Callable[[Lost], object] | None = None,
        clock: BlockingClock | None = None,
    ) -> None:
        config = ClientConfig.of(
            url,
            token,
            timeout=timeout,
            timeout_ms=timeout_ms,
            retries=retries,
            gzip=gzip,
            window_ms=window_ms,
            verify=verify,
            headers=headers,
            proxy=proxy,
        )
        self._open(config, clock or system_clock(), Hooks(on_retry, on_reconnect, on_gap), ssl_context)

    def _open(
        self, config: ClientConfig, clock: BlockingClock, hooks: Hooks, context: ssl.SSLContext | None = None
    ) -> None:
        self._config = config
        self._context = context
        self._caller = Caller.of(config, clock, hooks, context)

    @property
    def url(self) -> str:
        """Where the server is."""
        return str(self._config.endpoint)

    @property
    def is_closed(self) -> bool:
        """Was `close` called? A closed client refuses every call."""
        return self._caller.is_closed

    def close(self) -> None:
        """Close all connections. Calls under way raise ClientClosed, and so does every later one; loops end."""
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __getstate__(self) -> ClientConfig:
        if self._context is not None:
            raise TypeError("a client with an ssl_context cannot be pickled; pass its certificates as verify")
        return self._config

    def __setstate__(self, config: ClientConfig) -> None:
        self._open(config, system_clock(), Hooks())

    # --- topics

    def put_topic(
        self, topic: str, config: Config | None = None, *, dry_run: bool = False, **fields: Unpack[ConfigFields]
    ) -> results.TopicPut:
        """Create a topic, or replace its whole config: a field left out returns to its default.

        With `dry_run`, nothing changes: the result says what would. `warnings` of the result are worth a look.
        """
        return self._caller.run(operations.put_topic(topic, config, fields, dry_run))

    def state(self, topic: str, *, touch: bool = True) -> results.TopicState:
        """The topic as it is now. With `touch=False` this does not count as a read."""
        return self._caller.run(operations.state(topic, touch))

    def topics(
        self,
        prefix: str = "",
        *,
        contains: str = "",
        type: TopicType | None = None,
        durability: Durability | None = None,
        sort: TopicOrder = "name",
        detail: bool = False,
        page_size: int = 1000,
        touch: bool = False,
    ) -> Listing[results.TopicListed]:
        """All topics that fit, in an order; pages are fetched as needed. No topic comes twice.

        `detail` fills rates, totals, jobs and cursors in. In another order than by name, an iteration that pauses for
        minutes is refused with InvalidRequest: the server does not keep the order any more.
        """
        query = {
            "contains": contains,
            "type": type,
            "class": durability,
            "detail": detail,
            "sort": sort if sort != "name" else None,
        }
        return Listing(self._caller, lambda cursor: operations.list_topics(prefix, page_size, cursor, touch, **query))

    def delete_topic(self, topic: str, *, if_empty: bool = False, epoch: int | None = None) -> results.TopicDeleted:
        """Delete a topic with its records and cursors; with `if_empty`, only if it has no records.

        With `epoch`, only that instance: EpochMismatch if the topic was created again.
        """
        return self._caller.run(operations.delete_topic(topic, if_empty, epoch))

    # --- records

    def append(
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
        split: bool = False,
    ) -> results.Written:
        """Append records, all or none. A call without a key gets one, unless `idempotent` is False.

        A key that stands for other records raises IdempotencyMismatch; with `on_mismatch=None` these are ignored.
        With `split`, more than fits into one write is written in parts, under keys made of this one: what was written
        before an error stays, and the same call with the same key goes on behind it.
        """
        append = partial(
            operations.append,
            topic,
            node=node,
            idempotent=idempotent,
            create=create,
            config=config,
            disable_backpressure=disable_backpressure,
            on_mismatch=on_mismatch,
        )
        if split:
            return append_parts(self._caller, append, records, operations.key_of(idempotency_key, idempotent))
        return self._caller.run(append(records, idempotency_key=idempotency_key))

    def send(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        delay_ms: int | None = None,
        deliver_at: int | None = None,
        idempotency_key: str | None = None,
    ) -> results.Written:
        """Append one record. For many, take a `producer`, or `append` them together."""
        record = NewRecord(data, tag, node, meta, delay_ms, deliver_at)
        return self.append(topic, [record], idempotency_key=idempotency_key)

    def producer(
        self,
        topic: str,
        *,
        node: str | None = None,
        linger_ms: float = LINGER_MS,
        max_records: int = BATCH_RECORDS_MAX,
        max_bytes: int = BATCH_BYTES,
        max_pending_bytes: int = PENDING_BYTES,
        give_up_ms: int = GIVE_UP_MS,
    ) -> Producer:
        """A producer, which takes records one by one and sends them in batches. Use it in a `with`.

        A batch goes when it has `max_records` or `max_bytes`, or when its first record has waited for `linger_ms`. It
        is tried again for `give_up_ms`. When `max_pending_bytes` are on their way, `send` waits.
        """
        plan = OutboxPlan(topic, node, linger_ms, max_records, max_bytes, max_pending_bytes)
        return Producer(self._caller, plan, give_up_ms)

    def append_ndjson(
        self,
        topic: str,
        lines: bytes | str | Iterable[bytes | str],
        **options: Unpack[BulkOptions],
    ) -> results.Written:
        """Append records given as JSON lines, each of them `{"data":…}`."""
        return self._caller.run(operations.append_bulk(topic, operations.ndjson_body(lines), NDJSON, **options))

    def append_arrow(
        self,
        topic: str,
        rows: "pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | bytes",
        **options: Unpack[BulkOptions],
    ) -> results.Written:
        """Append the rows of an Arrow table: `data` as JSON texts, and optionally `tag`, `node` and `meta`."""
        return self._caller.run(operations.append_bulk(topic, operations.arrow_body(rows), ARROW, **options))

    def delete_records(
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
        return self._caller.run(operations.delete_records(topic, before_seq, match, epoch, dry_run))

    # --- routers

    def put_router(
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
        return self._caller.run(operations.put_router(router, source, dest, filter, fields))

    def router(self, name: str) -> results.Router:
        """A router, how far it is, and what holds it up."""
        return self._caller.run(operations.router(name))

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None, page_size: int = 1000
    ) -> Listing[results.RouterListed]:
        """All routers that match, by name; pages are fetched as needed."""
        return Listing(self._caller, lambda cursor: operations.list_routers(prefix, source, dest, page_size, cursor))

    def delete_router(self, name: str) -> results.RouterDeleted:
        """Delete a router. What it has copied stays."""
        return self._caller.run(operations.delete_router(name))

    # --- the server

    def me(self) -> results.Me:
        """What the key may do, and its name."""
        return self._caller.run(operations.me())

    def ticket(self) -> results.Ticket:
        """A ticket for one URL of a browser, `?ticket=…`, in place of the key; it lasts for half a minute."""
        return self._caller.run(operations.ticket())

    def connections(self, *, page_size: int = 1000) -> Listing[results.ConnectionListed]:
        """The streams that are open at the server, of all clients; pages are fetched as needed."""
        return Listing(self._caller, lambda cursor: operations.list_connections(page_size, cursor))

    def close_connection(self, id: str) -> results.ConnectionClosed:
        """End a stream that somebody has open."""
        return self._caller.run(operations.close_connection(id))

    def health(self) -> results.Health:
        """Whether the server runs, its version, and for how long."""
        return self._caller.run(operations.health())

    def ready(self) -> results.Ready:
        """Raise NotReady or ShuttingDown, after retries, if the server is not ready."""
        return self._caller.run(operations.ready())

    def stats(self, history_ms: int | None = None) -> results.Stats:
        """What the server did in the last minute, or in the last `history_ms`: samples of 1 s, or of 10 s beyond ten
        minutes."""
        return self._caller.run(operations.stats(history_ms))

    def metrics(self) -> dict[str, Any]:
        """The metrics, as JSON."""
        return self._caller.run(operations.metrics())
