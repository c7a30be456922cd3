"""`topics top`: a server as a live table.

The server counts and sorts: a look asks for the topics in view only, however many there are. Rates of topics lie
between two looks, or are of the last minute for one that has just come into view.
"""

import shutil
import sys
import threading
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from topics.cli.shell import display, exits
from topics.cli.shell.invoking import Call, told
from topics.cli.shell.quantities import duration_ms, shown_bytes, shown_cell, shown_duration
from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.client import Client
    from topics.client.results import TopicListed

HOME, CLEAR_BELOW, CLEAR_LINE = "\x1b[H", "\x1b[J", "\x1b[K"
SCREEN_ON, SCREEN_OFF = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
ROWS_MAX: Final = 50
HEAD_ROWS: Final = 7
SAMPLED_MS: Final = 5_000
PRESSING: Final = 0.5
HEADER: Final = ("topic", "rate", "read_rate", "records", "bytes", "head", "lag", "lost", "ready", "in_flight", "dead")
ORDERS: Final[dict[str, Any]] = {
    "rate": "-written_rate",
    "records": "-count",
    "bytes": "-bytes",
    "lost": "-lost_total",
    "ready": "-ready",
    "name": "name",
}

Order = Literal["rate", "records", "bytes", "lost", "ready", "name"]


def top(
    call: Call,
    sort: Annotated[Order, typer.Option(help="Largest first, except by name.")] = "rate",
    every: Annotated[int, typer.Option(parser=duration_ms, metavar="TIME", help="Interval of the looks.")] = 1000,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many rounds.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Two looks, an interval apart, and one table.")] = False,
) -> None:
    """Show a server live: rates, p99, pressure, lag, losses, jobs, and how the log is doing. Ctrl-C ends it.

    Example: topics top --once --every 200ms
    """
    is_screen = display.is_screen(sys.stdout) and not (call.is_json or once)
    left, looks = 1 if once else count, _Looks(call)
    if is_screen:
        print(SCREEN_ON, end="", flush=True)
    try:
        first = looks.look(sort)
        if is_screen:
            _show(call, first, is_screen)
        while left is None or left > 0:
            threading.Event().wait(max(50, every) / 1000)
            try:
                _show(call, looks.look(sort), is_screen)
            except TopicsError as error:
                if not is_screen or exits.code_of(error) != exits.UNREACHABLE:
                    raise
                print(f"{HOME}{display.coloured(told(error, call.server), display.RED)}{CLEAR_LINE}", flush=True)
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
        seconds = began - self._at if self._wal else None
        rows = list(islice(client.topics(sort=ORDERS[sort], detail=True, page_size=ROWS_MAX), self._height()))
        wal = metrics["wal"]
        found: dict[str, Any] = {
            "url": client.url,
            "round_trip_ms": round(round_trip_ms, 2),
            **self._sample(),
            **self._log(wal, seconds),
            "metrics": metrics,
            "topics": [self._row(one, seconds) for one in rows],
        }
        if sort == "rate":
            found["topics"].sort(key=lambda row: -row["rate"])
        self._at, self._heads, self._wal = began, {one.topic: one.head_seq for one in rows}, wal
        return found

    def _height(self) -> int:
        return max(1, min(ROWS_MAX, shutil.get_terminal_size().lines - HEAD_ROWS))

    def _sample(self) -> dict[str, Any]:
        """What the server did in the last seconds, by its own count; null where it does not tell."""
        from topics.errors import Forbidden, NotFound

        names = ("write_rate", "read_rate", "request_rate", "error_rate", "p50_ms", "p99_ms", "pressure", "lost_rate")
        try:
            stats = self._client.stats(SAMPLED_MS)
        except (Forbidden, NotFound):
            return dict.fromkeys(names)
        if not stats.samples:
            return dict.fromkeys(names)
        seconds = len(stats.samples) * stats.interval_ms / 1000
        sums = [
            sum(counts) / seconds
            for counts in zip(
                *((one.written, one.read, one.requests, _errors(one.errors), one.lost) for one in stats.samples),
                strict=True,
            )
        ]
        slowest = {name: [getattr(one, name) for one in stats.samples] for name in ("p50_ms", "p99_ms")}
        worst = {name: max((ms for ms in times if ms is not None), default=None) for name, times in slowest.items()}
        pressure = max(one.pressure for one in stats.samples)
        rates = [round(rate, 1) for rate in sums]
        return dict(zip(names, (*rates[:4], worst["p50_ms"], worst["p99_ms"], pressure, rates[4]), strict=True))

    def _log(self, wal: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        """Between the last look and this one."""
        if seconds is None:
            return {"log_bytes_rate": 0, "fsync_mean_ms": None}
        before = self._wal
        syncs = wal["fsync_count"] - before["fsync_count"]
        spent_ms = (wal["fsync_micros_total"] - before["fsync_micros_total"]) / 1000
        return {
            "log_bytes_rate": max(0, round((wal["bytes_written"] - before["bytes_written"]) / max(1e-9, seconds))),
            "fsync_mean_ms": round(spent_ms / syncs, 2) if syncs > 0 else None,
        }

    def _row(self, one: "TopicListed", seconds: float | None) -> dict[str, Any]:
        before, queue = self._heads.get(one.topic), one.queue
        rate = one.written_rate or 0.0
        if before is not None and seconds:
            rate = max(0, one.head_seq - before) / seconds
        return {
            "topic": one.topic,
            "rate": round(rate, 1),
            "read_rate": round(one.read_rate or 0.0, 1),
            "records": one.count,
            "bytes": one.bytes,
            "head": one.head_seq,
            "lag": one.cursors.max_lag if one.cursors and one.cursors.count else None,
            "lost": one.lost_total,
            "ready": queue.ready if queue else None,
            "in_flight": queue.in_flight if queue else None,
            "dead": queue.dead if queue else None,
        }


def _errors(errors: Any) -> int:
    import msgspec

    return sum(msgspec.to_builtins(errors).values())


def _show(call: Call, found: dict[str, Any], is_screen: bool) -> None:
    if call.is_json:
        call.emit(found)
        return
    lines = [*_summary(found), "", *_table(found["topics"])]
    if is_screen:
        size = shutil.get_terminal_size()
        lines = [display.clipped(line, size.columns) for line in lines[: size.lines - 1]]
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
    lines = [f"{found['url']}  {state}, up {shown_duration(m['uptime_ms'])}, answers in {found['round_trip_ms']} ms"]
    if found["pressure"] is not None:
        p99 = "-" if found["p99_ms"] is None else f"{found['p99_ms']:.3g} ms"
        lost = f"{found['lost_rate']:,} lost/s"
        pressure = f"pressure {found['pressure']:.0%}"
        lines.append(
            f"{found['write_rate']:,} written/s, {found['read_rate']:,} read/s, "
            f"{display.coloured(lost, display.RED) if found['lost_rate'] else lost}, "
            f"{found['request_rate']:,} requests/s ({found['error_rate']:,} refused), p99 {p99}, "
            f"{display.coloured(pressure, display.RED) if found['pressure'] >= PRESSING else pressure}"
        )
    return [
        *lines,
        f"log {shown_bytes(found['log_bytes_rate'])}/s, a sync takes {sync}, {wal['queue_depth']:,} commits wait",
        f"{m['topics']:,} topics, {m['records_live']:,} records, {shown_bytes(m['bytes_live'])}; "
        f"{m['routers']:,} routers, {m['queue_leases_in_flight']:,} leases, {m['sse_connections']:,} streams",
    ]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    texts = [[shown_cell(name, row[name]) for name in HEADER] for row in rows]
    return display.table(HEADER, texts, right=HEADER[1:])
