"""The engine: topics as a library, without a network.

    async with topics.Engine.open("data") as engine:
        await engine.append("orders", [{"data": {"sku": "A1"}}])
        answer = await engine.read("orders", after=0)

The asynchronous skin of an instance (instance.py): arguments as a Python program has them, and answers that are
awaited. Each call returns when what it says may be shown.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import UNSET, Raw

from topics.core.decide import Append
from topics.core.routing.table import PutRouter
from topics.core.topic.config import ConfigIn
from topics.core.topic.pages import Projection
from topics.core.topic.records import NO_META, Batch, RecordIn, batch_of
from topics.core.topic.walk import Query
from topics.engine.answers import (
    Claimed,
    DeleteResult,
    LeaseChange,
    ReadResult,
    Redriven,
    RouterState,
    TopicState,
    WriteResult,
)
from topics.engine.durability.backup_stream import BackupStream
from topics.engine.export import Export
from topics.engine.instance import Claimer, Instance
from topics.errors import InvalidRequest, Refusal
from topics.faults import fault_in
from topics.model import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    LIMIT_DEFAULT,
    Guarantee,
    RouterDefinition,
    TagMatch,
    TopicConfig,
    lease_number,
)

if TYPE_CHECKING:
    from topics.backup.receiving import Shipped

_encode_json = msgspec.json.Encoder().encode
_decode_config = msgspec.json.Decoder(ConfigIn).decode  # says what a config may be


class Engine(Instance):
    """A data directory, open. Use `Engine.open` as an async context manager."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def checkpoint(self) -> None:
        """Seal records, take a snapshot, trim the log. Waits for one that is under way."""
        await self._upkeep.checkpointing.take()

    async def tick(self) -> None:
        """Do what is due in the background, and wait for the checkpoint if that is; for an engine without one."""
        await self._upkeep.tick()

    # --- writing

    async def put_topic(
        self, name: str, config: ConfigIn | Mapping[str, Any] | None = None
    ) -> tuple[bool, TopicConfig]:
        """Create a topic or replace its config. Gives whether it was created, and its config."""
        put = await self.changes.put_topic(name, _config_in(config))
        return put.created, put.config

    async def delete_topic(self, name: str, *, if_empty: bool = False, epoch: int | None = None) -> bool:
        """Delete a topic with all it owns; with `epoch`, only that instance. False: there was none."""
        return await self.changes.remove_topic(name, if_empty, epoch) is not None

    async def append(
        self,
        name: str,
        records: Sequence[Mapping[str, Any] | RecordIn],
        *,
        node: str | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: ConfigIn | Mapping[str, Any] | None = None,
        refuse_mismatch: bool = False,
    ) -> WriteResult:
        """Append records: RecordIn with JSON texts, or mappings with the fields of a record that is written.

        With `refuse_mismatch`, other records under a key that is known are refused; otherwise they are ignored.
        """
        batch = batch_of([_record_in(record) for record in records], node, self.settings, key)
        given = None if config is None else _config_in(config)
        return await self.append_batch(Append(name, batch, key, create, given, refuse_mismatch))

    async def append_batch(self, command: Append) -> WriteResult:
        """Append a batch that was checked already. Returns when it is as durable as the topic's class asks."""
        if self._upkeep.checkpointing.is_behind:
            await self._upkeep.wait_for_room()
        gates = self._gates
        try:  # as `gates.done`, without its coroutine: every write of a library's user comes this way
            result, gate = self.append_now(command)
        except Refusal:
            await gates.wait_open(gates.of_name(command.topic))
            raise
        await gates.wait_open(gate)
        return result

    async def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: TagMatch | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        """Delete live records below `before_seq`, with a matching tag, or both; none that is committed later.

        With an `epoch`, only those of this instance of the topic. With `dry_run`, none: the answer says what would be.
        """
        return await self.changes.delete(name, before_seq, match, epoch, dry_run)

    # --- routers

    async def put_router(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        match: TagMatch | None = None,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
        may_replace: Callable[[str, str], None] = lambda source, dest: None,
    ) -> tuple[bool, RouterState]:
        """Copy what is written to `source` into `dest` from now on. Gives whether the router is new, and what it is.

        `may_replace` gets the source and dest of a router that is there already, and raises if it is to be left alone.
        """
        definition = RouterDefinition(preserve_node, preserve_tag, match, allow_cycle, guarantee)
        return await self.routing.put(PutRouter(name, source, dest, definition, create_dest), may_replace)

    async def router(self, name: str) -> RouterState:
        """A router as it is now; what its source has was forwarded before, unless it is blocked."""
        return await self.routing.show(name)

    async def delete_router(self, name: str) -> bool:
        """Delete a router; its copies stay. False: there was none."""
        return await self.routing.delete(name)

    # --- queues

    async def claim(
        self,
        name: str,
        node: str,
        count: int = 1,
        lease_ms: int | None = None,
        *,
        stop: "asyncio.Future[None] | None" = None,
    ) -> Claimed:
        """Lease up to `count` jobs of a queue to a node; when `stop` is done, wait for no window any longer."""
        return await self.workers.claim(name, Claimer(node, count, lease_ms), stop)

    async def ack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None
    ) -> LeaseChange:
        """Complete jobs that the node holds."""
        numbers = _lease_numbers(lease_ids)
        return await self._gates.done(name, lambda: self.queues.ack(name, node, seqs, numbers))

    async def nack(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None, *, delay_ms: int = 0
    ) -> LeaseChange:
        """Give jobs back that the node holds; they are claimable again after the delay."""
        numbers = _lease_numbers(lease_ids)
        return await self._gates.done(name, lambda: self.nack_now(name, node, seqs, numbers, delay_ms))

    async def extend(
        self, name: str, node: str, seqs: Sequence[int], lease_ids: Sequence[str] | None = None, *, lease_ms: int
    ) -> LeaseChange:
        """Let the node hold its jobs until `lease_ms` from now."""
        numbers = _lease_numbers(lease_ids)
        return await self._gates.done(name, lambda: self.extend_now(name, node, seqs, numbers, lease_ms))

    async def redrive(
        self, name: str, match: TagMatch | None = None, count_max: int | None = None, *, dry_run: bool = False
    ) -> Redriven:
        """Turn dead letters of a queue back into jobs: those with a matching tag, at most `count_max`."""
        return await self.queues.redrive(name, match, count_max, dry_run=dry_run)

    async def pause(self, name: str) -> None:
        """Let a queue hand out no jobs; all else goes on (QU23)."""
        await self.changes.pause(name, True)

    async def resume(self, name: str) -> None:
        """Let a queue hand out jobs again."""
        await self.changes.pause(name, False)

    # --- reading

    async def read(
        self,
        name: str,
        after: int = 0,
        limit: int = LIMIT_DEFAULT,
        *,
        nodes: Sequence[str] = (),
        match: TagMatch | None = None,
        epoch: int | None = None,
        bytes_max: int = BATCH_BYTES_DEFAULT,
        wait_ms: int = 0,
        include_tags: bool = False,
        include_meta: bool = True,
        include_data: bool = True,
    ) -> ReadResult:
        """Records above `after`, at most `limit`; with `wait_ms` wait for one if there is none."""
        if min(after, limit, bytes_max, wait_ms) < 0:
            raise InvalidRequest("after, limit, bytes_max and wait_ms must not be negative")
        limit = min(limit or LIMIT_DEFAULT, self.settings.max_limit)
        budget = min(bytes_max or BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX)
        projection = Projection(include_tags, include_meta, include_data)
        query = Query(after, limit, budget, frozenset(nodes), match, epoch, projection)
        return await self.reading.read_query(name, query, wait_ms)

    async def topic_state(self, name: str, *, touch: bool = True) -> TopicState:
        """The topic as it is now. `touch` counts as a read."""
        return await self.reading.topic_state(name, touch=touch)

    async def topic_names(self) -> list[str]:
        """All topics, sorted."""
        return await self.reading.topic_names()

    async def export(
        self, name: str, after: int = 0, last: int | None = None, epoch: int | None = None
    ) -> tuple[Export, AsyncIterator[bytes]]:
        """The live records above `after` and up to `last`, as of now, and their Arrow stream in parts."""
        return await self.reading.export(name, after, last, epoch)

    def backup_stream(self, have: set[str], stop: "asyncio.Future[None] | None" = None) -> AsyncGenerator[bytes, None]:
        """A base without what the receiver has, files by their identities; with `stop`, the log until that is done.

        Whoever does not read it to its end must close it.
        """
        store, apart = self._ledger.store, self._upkeep.checkpointing.without
        return BackupStream(store, self._disk, self.clock, apart, have).run(stop)

    async def backup(self, dest: str, *, audits: bool = True) -> "Shipped":
        """Copy everything as of now to `dest`: a directory, an archive or a URI, as `topics backup` takes it.

        Damaged: the audit of the copy has found something.
        """
        from topics.backup.copying import receive

        return await receive(self.backup_stream, dest, self._disk.path, audits=audits)


def _lease_numbers(lease_ids: Sequence[str] | None) -> list[int | None] | None:
    return None if lease_ids is None else [lease_number(text, "lease_ids") for text in lease_ids]


def _config_in(config: ConfigIn | Mapping[str, Any] | None) -> ConfigIn:
    if config is None:
        return ConfigIn()
    if isinstance(config, ConfigIn):
        return config
    try:
        return msgspec.convert(config, ConfigIn)
    except msgspec.ValidationError as error:
        raise InvalidRequest(fault_in(error, b"", _decode_config)) from None


def _record_in(record: Mapping[str, Any] | RecordIn) -> RecordIn:
    if isinstance(record, RecordIn):
        return record
    if "data" not in record:
        raise InvalidRequest("a record needs data")
    meta = record.get("meta")
    try:
        data = Raw(_encode_json(record["data"]))
        return RecordIn(
            data,
            record.get("tag"),
            record.get("node"),
            NO_META if meta is None else Raw(_encode_json(meta)),
            record.get("delay_ms", UNSET),
            record.get("deliver_at", UNSET),
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"a record is not JSON: {error}") from None


__all__ = ["Batch", "DeleteResult", "Engine", "ReadResult", "TopicState", "WriteResult"]
