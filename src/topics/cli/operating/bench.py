"""`topics bench`: a quick load on a server, with a histogram of how long writes took.

It writes into a topic of its own, which it deletes at the end, however that comes. It measures client and server
together, on one connection per client thread.
"""

import os
import threading
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from topics.cli.shell import display
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import duration_ms, shown_bytes, size_bytes
from topics.model import Durability

if TYPE_CHECKING:
    from topics.client import Client

BAR: Final = 40
SIZE_MAX: Final = 1_000_000
STEP: Final = 2**0.5  # between the bounds of the histogram


def bench(
    call: Call,
    durability: Annotated[Durability, typer.Option(help="Class of the topic.")] = "disk",
    seconds: Annotated[
        int, typer.Option("--for", parser=duration_ms, metavar="TIME", help="How long to write.")
    ] = 3000,
    clients: Annotated[int, typer.Option("--clients", "-c", min=1, max=64, help="Writers at a time.")] = 4,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Records in one write.")] = 1,
    size: Annotated[int, typer.Option(parser=size_bytes, metavar="SIZE", help="Data of one record.")] = 256,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many writes.")] = None,
) -> None:
    """Write to a topic of its own for a few seconds, read it back, and show how long that took.

    Example: topics bench --for 200ms --clients 2

    Example: topics bench -n 100 --batch 10 --durability fsync --json
    """
    size = min(size, SIZE_MAX)
    topic = f"topics-bench-{os.urandom(6).hex()}"
    call.client.put_topic(topic, durability=durability)
    try:
        load = _Load(call, topic, batch, size, count, seconds / 1000)
        found = load.run(clients) | {"durability": durability, "clients": clients, "batch": batch, "size": size}
        found |= _read(call, topic)
    finally:
        call.client.delete_topic(topic)
    if call.is_json:
        call.emit(found)
        return
    print(f"{found['writes']:,} writes of {batch} × {shown_bytes(size)}, class {durability}, {clients} clients")
    print(f"  {found['writes_per_s']:,.0f} writes/s, {found['records_per_s']:,.0f} records/s")
    print(f"  p50 {found['p50_ms']} ms, p90 {found['p90_ms']} ms, p99 {found['p99_ms']} ms, max {found['max_ms']} ms")
    print(f"  read back at {found['read_records_per_s']:,.0f} records/s\n")
    print("\n".join(_bars(load.times)))


class _Load:
    """Writers in threads, until the time is over or enough is written."""

    def __init__(self, call: Call, topic: str, batch: int, size: int, count: int | None, seconds: float) -> None:
        self._call = call
        self._topic = topic
        self._records = [{"data": "x" * max(0, size - 2)}] * batch
        self._left = count
        self._seconds = seconds
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self.times: list[float] = []

    def run(self, clients: int) -> dict[str, Any]:
        began = self._call.clock.monotonic()
        threads = [threading.Thread(target=self._write, args=(began,), daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        seconds = max(1e-9, self._call.clock.monotonic() - began)
        self.times.sort()
        found: dict[str, Any] = {"writes": len(self.times), "seconds": round(seconds, 3)}
        found["writes_per_s"] = round(len(self.times) / seconds, 1)
        found["records_per_s"] = round(len(self.times) * len(self._records) / seconds, 1)
        for name, share in (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("max_ms", 1.0)):
            found[name] = round(self.times[min(len(self.times) - 1, int(share * len(self.times)))] * 1000, 3)
        return found

    def _write(self, began: float) -> None:
        clock = self._call.clock
        try:
            with self._call.new_client() as client:
                while self._goes_on():
                    start = clock.monotonic()
                    client.append(self._topic, self._records, idempotent=False)
                    end = clock.monotonic()
                    self.times.append(end - start)
                    if end - began >= self._seconds and self._left is None:
                        return
        except BaseException as error:
            self._failure = error

    def _goes_on(self) -> bool:
        with self._lock:
            if self._failure is not None or self._left == 0:
                return False
            if self._left is not None:
                self._left -= 1
            return True


def _read(call: Call, topic: str) -> dict[str, Any]:
    client: Client = call.client
    began, records, after = call.clock.monotonic(), 0, 0
    while True:
        diff = client.diff(topic, after, limit=1000)
        records, after = records + len(diff.records), diff.next_from_seq
        if diff.caught_up:
            break
    seconds = max(1e-9, call.clock.monotonic() - began)
    return {"read_records": records, "read_records_per_s": round(records / seconds, 1)}


def _bars(times: list[float]) -> list[str]:
    """A histogram with bounds that grow."""
    import math

    slots = Counter(math.floor(math.log(max(t, 1e-6) * 1000, STEP)) for t in times)
    most = max(slots.values())
    lines = []
    for slot in range(min(slots), max(slots) + 1):
        if number := slots[slot]:
            bar = display.coloured("█" * max(1, round(number / most * BAR)), display.CYAN)
            lines.append(f"  {STEP**slot:>9.3f} ms  {bar} {number:,}")
    return lines
