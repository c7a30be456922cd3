"""A consumer that is used like that of aiokafka, for programs that come from there.

    consumer = TopicConsumer("orders", "prices", url="http://127.0.0.1:4000", group_id="mailer")
    await consumer.start()
    try:
        async for message in consumer:
            print(message.topic, message.offset, message.key, message.value)
    finally:
        await consumer.stop()

What is the same: `start`, `stop`, `async for`, `getmany`, `commit`, `committed`, `position`, `seek`, `group_id`,
`auto_offset_reset`, `enable_auto_commit`. An offset is a seq, a key is a tag, headers are the meta, and a group's
offsets are named cursors. What is not: a topic has one partition, and a group one member; to share the work, see
`consumer_group`. And one thing more: what was lost comes as a message whose `lost` says so.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, Self

from topics import AsyncClient, Lost
from topics.client import AsyncWatcher, Records, WatchEvent
from topics.errors import NotFound


@dataclass(frozen=True)
class Message:
    """A record, or with `lost` the range that was missed in front of the next one."""

    topic: str
    offset: int
    timestamp: int = 0
    key: str | None = None
    value: Any = None
    headers: dict[str, Any] | None = None
    lost: Lost | None = None


class TopicConsumer:
    """Reads topics from where its group is. With auto commit, a message is committed once the next is asked for."""

    def __init__(
        self,
        *topics: str,
        url: str | None = None,
        token: str | None = None,
        group_id: str | None = None,
        auto_offset_reset: Literal["earliest", "latest"] = "latest",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = 5000,
    ) -> None:
        self._topics = topics
        self._client = AsyncClient(url, token)
        self._group = group_id
        self._starts_at_end = auto_offset_reset == "latest"
        self._commits = enable_auto_commit and group_id is not None
        self._commit_s = auto_commit_interval_ms / 1000
        self._commit_at = 0.0
        self._watch: AsyncWatcher | None = None
        self._pending: deque[Message] = deque()
        self._coming: asyncio.Future[WatchEvent] | None = None  # the event that is waited for
        self._positions: dict[str, int] = {}  # behind the last message handed out
        self._saved: dict[str, int] = {}

    async def start(self) -> None:
        """Connect, and find out where the group is."""
        starts: dict[str, int | None] = {}
        epochs: dict[str, int] = {}
        for topic in self._topics:
            starts[topic] = None if self._starts_at_end else 0
            if self._group is not None:
                try:
                    kept = await self._client.cursor(topic, self._group)
                    starts[topic], epochs[topic] = kept.seq, kept.epoch
                except NotFound:
                    pass
        self._watch = self._client.watch(starts, epochs=epochs, include_tags=True)

    async def stop(self) -> None:
        """Commit, and close the connections. A loop that waits ends."""
        try:
            if self._commits and self._watch is not None:
                await self.commit()
        finally:
            self._forget()
            await self._client.close()

    async def commit(self) -> None:
        """Let the group go on behind the messages that were handed out."""
        if self._group is None or self._watch is None:
            raise ValueError("a consumer without a group_id, or one that was not started, has nothing to commit")
        for topic, seq in self._positions.items():
            if self._saved.get(topic) != seq:
                await self._client.put_cursor(topic, self._group, seq, epoch=self._watch.epochs.get(topic))
                self._saved[topic] = seq

    async def committed(self, topic: str) -> int | None:
        """With which offset the group goes on; None if it has committed nothing."""
        try:
            return (await self._client.cursor(topic, self._group or "")).seq + 1
        except NotFound:
            return None

    def position(self, topic: str) -> int | None:
        """The offset behind the last message handed out; None before the first."""
        return self._positions[topic] + 1 if topic in self._positions else None

    async def seek(self, topic: str, offset: int) -> None:
        """Go on in a topic with the message at `offset`."""
        assert self._watch is not None, "start first"
        at = self._watch.positions
        for message in reversed(self._pending):  # read, and not handed out: to be read again
            first = message.offset if message.lost is None else message.lost.gap_from
            at[message.topic] = first - 1
        at[topic] = max(0, offset - 1)
        epochs = self._watch.epochs
        self._forget()
        self._watch.close()
        self._watch = self._client.watch(at, epochs=epochs, include_tags=True)

    def _forget(self) -> None:
        self._pending.clear()
        if self._coming is not None:
            self._coming.cancel()
            self._coming = None

    async def getmany(self, *, timeout_ms: int = 0, max_records: int = 500) -> dict[str, list[Message]]:
        """What there is, by topic; if there is nothing, what comes within the time."""
        await self._auto_commit()
        await self._fetch(timeout_ms / 1000)
        found: dict[str, list[Message]] = {}
        for _ in range(min(max_records, len(self._pending))):
            message = self._hand_out()
            found.setdefault(message.topic, []).append(message)
        return found

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        await self._auto_commit()
        while not self._pending:
            await self._fetch(None)
        return self._hand_out()

    def _hand_out(self) -> Message:
        message = self._pending.popleft()
        self._positions[message.topic] = message.offset
        return message

    async def _fetch(self, seconds: float | None) -> None:
        """Wait for an event if there are no messages. One that does not come in time is waited for the next time."""
        assert self._watch is not None, "start first"
        ends_at = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while not self._pending:
            left_s = None if ends_at is None else max(0.0, ends_at - asyncio.get_running_loop().time())
            coming = self._coming = self._coming or asyncio.ensure_future(anext(self._watch))
            done, _ = await asyncio.wait((coming,), timeout=left_s)
            if not done:
                return
            if coming.cancelled():
                raise StopAsyncIteration  # it was stopped meanwhile
            event, self._coming = coming.result(), None
            if isinstance(event, Lost):
                self._pending.append(Message(event.topic, event.gap_to, lost=event))
            elif isinstance(event, Records):
                self._pending += [
                    Message(event.topic, one.seq, one.ts, one.tag, one.value, one.meta_value) for one in event.records
                ]

    async def _auto_commit(self) -> None:
        at = asyncio.get_running_loop().time()
        if self._commits and self._positions and at >= self._commit_at:
            self._commit_at = at + self._commit_s
            await self.commit()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()
