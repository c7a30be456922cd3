# Generated from src/topics/client/aio/producer.py by `python -m tools.blocking_client`. Do not edit.
"""A producer: takes records one by one and sends them in batches, beside its user.

Records arrive in the order of `send`. One batch is under way at a time, under an idempotency key that stays the same
however often it is sent, so none is doubled or lost over restarts of the server. A batch that the server refuses is
halved until the record at fault is alone. What waits is bounded: `send` waits for room.
"""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Self

from msgspec.structs import replace

from topics.client.arguments import record_of
from topics.client.blocking.caller import Caller
from topics.client.blocking.concurrency import Condition, Receipt, Side, new_receipt, resolve, wait_for
from topics.client.errors import ApiError, BatchTooLarge, ClientClosed, ClientError, InvalidRequest, PayloadTooLarge
from topics.client.hooks import logger
from topics.client.protocol import operations
from topics.client.protocol.operations import Operation
from topics.client.protocol.outbox import BATCH_RECORDS_MAX, SPLIT_BYTES, Batch, Outbox, OutboxPlan, parts_of
from topics.client.results import NewRecord, Written
from topics.client.values import encode


class Producer:
    """Use it in a `with`: leaving it sends what is left, and raises if a record was not written.

    `send` returns a receipt: a future whose result is the record's seq. Threads and threads may share a producer.
    """

    def __init__(self, caller: Caller, plan: OutboxPlan, give_up_ms: int) -> None:
        self._caller = caller
        self._plan = plan
        self._policy = replace(caller.retries, timeout_ms=give_up_ms, retries=1 << 30)
        self._outbox: Outbox[Receipt] = Outbox(plan, caller.monotonic, lambda: uuid.uuid4().hex)
        self._changed = Condition()
        self._side: Side | None = None
        self._is_closing = False
        self._failure: Exception | None = None  # the first since the last flush

    def send(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        delay_ms: int | None = None,
        deliver_at: int | None = None,
    ) -> Receipt:
        """Take a record, to be sent soon. Waits while too much is on its way. The receipt tells its seq, or why not."""
        text = encode(NewRecord(data, tag, node, meta, delay_ms, deliver_at))
        with self._changed:
            self._refuse_if_closed()
            while not self._outbox.has_room(len(text)):
                self._outbox.flush()
                self._changed.notify_all()
                wait_for(self._changed, None)
                self._refuse_if_closed()
            if self._side is None:
                self._side = Side(self._run, self.close)
            receipt = new_receipt()
            if self._outbox.add(text, receipt):
                self._changed.notify_all()
        return receipt

    def _refuse_if_closed(self) -> None:
        if self._is_closing or self._caller.is_closed:
            raise ClientClosed("the producer is closed" if self._is_closing else "the client is closed")

    def flush(self) -> None:
        """Wait until all records taken so far are written. Raises the first failure since the last flush, if any."""
        with self._changed:
            goal = self._outbox.flush()
            self._changed.notify_all()
            while self._outbox.answered_total < goal:
                wait_for(self._changed, None)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Send what is left, and end. Raises as `flush` does."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._side is not None:
            self._side.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self.close()
        except (ApiError, ClientError) as failure:
            if kind is None:
                raise
            logger.error("records of %s were not written: %s", self._plan.topic, failure)

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._deliver(batch)
            with self._changed:
                self._outbox.answered(batch)
                self._changed.notify_all()

    def _next_batch(self) -> Batch[Receipt] | None:
        with self._changed:
            while (wait_s := self._outbox.due_in_s()) != 0.0:
                if self._is_closing:
                    if self._outbox.is_empty:
                        return None
                    break
                wait_for(self._changed, wait_s)
            return self._outbox.take()

    def _deliver(self, batch: Batch[Receipt]) -> None:
        """Send a batch, and tell its receipts."""
        try:
            written: Written = self._caller.run(
                operations.append_texts(self._plan.topic, batch.texts, self._plan.node, batch.key), self._policy
            )
        except (InvalidRequest, PayloadTooLarge) as error:
            if len(batch.texts) == 1:
                self._fail(batch, error)
                return
            for half in batch.halves():
                self._deliver(half)
        except Exception as error:
            self._fail(batch, error)
        else:
            for receipt, seq in zip(batch.receipts, written.seqs, strict=False):
                resolve(receipt, seq, None)

    def _fail(self, batch: Batch[Receipt], failure: Exception) -> None:
        self._failure = self._failure or failure
        for receipt in batch.receipts:
            resolve(receipt, None, failure)


def append_parts(
    caller: Caller, append: Callable[..., Operation[Written]], records: Iterable[Any], key: str | None
) -> Written:
    """Append records in as many writes as it takes. Each is under a key made of `key` and its place."""
    rest = list(records)
    sizes = [encode(record_of(record, n)) for n, record in enumerate(rest)]
    parts = parts_of(sizes, BATCH_RECORDS_MAX, SPLIT_BYTES)[::-1]
    done: list[Written] = []
    while parts:
        part = parts.pop()
        part_key = None if key is None else f"{key}/{part.start}"
        try:
            operation = append(rest[part.start : part.stop], idempotency_key=part_key)
            done.append(caller.run(operation))
        except (BatchTooLarge, PayloadTooLarge):
            if len(part) < 2:
                raise
            half = (part.start + part.stop) // 2
            parts += [range(half, part.stop), range(part.start, half)]
    return replace(
        done[0],
        last_seq=done[-1].last_seq,
        head_seq=done[-1].head_seq,
        count=sum(one.count for one in done),
        deduped=all(one.deduped for one in done),
        mismatch=any(one.mismatch for one in done),
    )
