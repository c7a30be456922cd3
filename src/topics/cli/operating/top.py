"""`topics top`: a server as a live table. Rates lie between two looks; only of topics in view is more asked for."""

import shutil
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from topics.cli.shell import display
from topics.cli.shell.invoking import Call
from topics.cli.shell.quantities import duration_ms, shown_bytes, shown_duration

if TYPE_CHECKING:
    from topics.client import Client

HOME, CLEAR_BELOW, CLEAR_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
SCREEN_ON, SCREEN_OFF = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
ROWS_MAX: Final = 50
HEAD_ROWS: Final = 6

Order = Literal["rate", "records", "bytes", "lost", "ready", "name"]


def top(
    call: Call,
    sort: Annotated[Order, typer.Option(help="Largest first, except by name.")] = "rate",
    every: Annotated[int, typer.Option(parser=duration_ms, metavar="TIME", help="Interval of the looks.")] = 1000,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="End after so many looks.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Two looks, an interval apart, and one table.")] = False,
) -> None:
    """Show a server live: rates, sizes, losses, jobs, and how the log and the disk are doing. Ctrl-C ends it.

    Example: topics top --once --every 200ms
    """
    is_screen = sys.stdout.isatty() and not (call.is_json or once)
    left, looks = 1 if once else count, _Looks(call)
    if is_screen:
        print(SCREEN_ON, end="", flush=True)
    try:
        looks.look(sort)
        while left is None or left > 0:
            threading.Event().wait(max(50, every) / 1000)
            found = looks.look(sort)
            _show(call, found, is_screen)
            left = None if left is None else left - 1
    finally:
        if is_screen:
            print(SCREEN_OFF, end="", flush=True)


class _Looks:
    """One look after the other."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._client: Client = call.client
        self._at = 0.0
        self._heads: dict[str, int] = {}
        self._wal: dict[str, Any] = {}

    def look(self, sort: Order) -> dict[str, Any]:
        clock, client = self._call.clock, self._client
        began = clock.monotonic()
        metrics = client.metrics()
        round_trip_ms = (clock.monotonic() - began) * 1000
        listed = list(client.topics())
        seconds = max(1e-9, began - self._at)
        rates = {one.topic: (one.head_seq - self._heads.get(one.topic, 0)) / seconds for one in listed}
        keys: dict[str, Any] = {
            "rate": lambda one: -rates[one.topic],
            "records": lambda one: -one.count,
            "bytes": lambda one: -one.bytes,
        }
        rows = sorted(listed, key=keys.get(sort, lambda one: one.topic))[: self._height()]
        wal, before = metrics["wal"], self._wal
        syncs = wal["fsync_count"] - before.get("fsync_count", 0)
        found: dict[str, Any] = {
            "url": client.url,
            "round_trip_ms": round(round_trip_ms, 2),
            "write_rate": round(sum(rates.values()), 1) if self._heads else 0.0,
            "log_bytes_rate": round((wal["bytes_written"] - before.get("bytes_written", 0)) / seconds) if before else 0,
            "fsync_mean_ms": round((wal["fsync_micros_total"] - before.get("fsync_micros_total", 0)) / 1000 / syncs, 2)
            if syncs
            else None,
            "metrics": metrics,
            "topics": [self._row(one, rates[one.topic]) for one in rows],
        }
        if sort in ("lost", "ready"):
            found["topics"].sort(key=lambda row: -(row[sort] or 0))
        self._at, self._heads, self._wal = began, {one.topic: one.head_seq for one in listed}, wal
        return found

    def _height(self) -> int:
        return max(1, min(ROWS_MAX, shutil.get_terminal_size().lines - HEAD_ROWS))

    def _row(self, one: Any, rate: float) -> dict[str, Any]:
        from topics.errors import NotFound

        row = {
            "topic": one.topic,
            "rate": round(rate, 1) if self._heads else 0.0,
            "records": one.count,
            "bytes": one.bytes,
        }
        try:
            state = self._client.state(one.topic, touch=False)
        except NotFound:
            return row | {"head": one.head_seq, "lost": None, "ready": None, "in_flight": None, "dead": None}
        queue = state.queue
        return row | {
            "head": one.head_seq,
            "lost": state.lost_total,
            "ready": queue.ready if queue else None,
            "in_flight": queue.in_flight if queue else None,
            "dead": queue.dead_lettered if queue else None,
        }


def _show(call: Call, found: dict[str, Any], is_screen: bool) -> None:
    if call.is_json:
        call.emit(found)
        return
    lines = [*_summary(found), "", *_table(found["topics"])]
    if is_screen:
        size = shutil.get_terminal_size()
        lines = [line[: size.columns + 20] for line in lines[: size.lines - 1]]
        print(HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in lines) + CLEAR_BELOW, end="", flush=True)
    else:
        print("\n".join(lines), flush=True)


def _summary(found: dict[str, Any]) -> list[str]:
    m = found["metrics"]
    wal = m["wal"]
    state = "ready" if m["ready"] else display.coloured("NOT READY", display.RED)
    if wal["read_only"]:
        state = display.coloured("READ-ONLY: the log takes no more writes", display.RED)
    sync = "none" if found["fsync_mean_ms"] is None else f"{found['fsync_mean_ms']} ms"
    return [
        f"{found['url']}  {state}, up {shown_duration(m['uptime_ms'])}, answers in {found['round_trip_ms']} ms",
        f"writes {found['write_rate']:,}/s, log {shown_bytes(found['log_bytes_rate'])}/s, a sync takes {sync}, "
        f"{wal['queue_depth']:,} commits wait",
        f"{m['topics']:,} topics, {m['records_live']:,} records, {shown_bytes(m['bytes_live'])}; "
        f"{m['routers']:,} routers, {m['queue_leases_in_flight']:,} leases, {m['sse_connections']:,} streams",
    ]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    header = ("topic", "rate", "records", "bytes", "head", "lost", "ready", "in_flight", "dead")
    texts = [[_cell(name, row[name]) for name in header] for row in rows]
    return display.table(header, texts, right=header[1:])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "bytes":
        return shown_bytes(value)
    return f"{value:,}" if isinstance(value, int | float) else str(value)
