"""How far a job has come: rows, rows per second, lag and the time left.

On a terminal one line that is rewritten, otherwise a JSON line every few seconds, both on stderr. What came out of
a job goes to stdout, as lines for people, or as one JSON line: without a terminal, and with `is_json`. Knows nothing
of what the job does.

A job calls `update` as it learns something, and may do so from any thread.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from topics.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.status import Status

LINE_EVERY_S: Final = 5.0  # between JSON lines
POLL_S: Final = 0.5
RATE_OVER_S: Final = 10.0  # rows per second are those of so many seconds


class Progress:
    """The progress of one job. Use as a context manager."""

    def __init__(
        self,
        job: str,
        *,
        stream: TextIO | None = None,
        out: TextIO | None = None,
        clock: Clock | None = None,
        is_terminal: bool | None = None,
        is_json: bool = False,
        line_every_s: float = LINE_EVERY_S,
    ) -> None:
        self.job = job
        self._stream = stream or sys.stderr
        self._out = out or sys.stdout
        self._clock = clock or SystemClock()
        self._is_terminal = self._stream.isatty() if is_terminal is None else is_terminal
        self._is_json = is_json or not self._out.isatty()
        self._line_every_s = line_every_s
        self._lock = threading.Lock()
        self._began = self._spoke = self._clock.monotonic()
        self._marks: list[tuple[float, int]] = [(self._began, 0)]  # time, rows; for the rate
        self._first_share: tuple[float, float] | None = None  # time, share: the start of Spark is no work done
        self._status: Status | None = None
        self.rows = 0  # done in this run
        self.total: int | None = None  # of this run, if it is known
        self.share: float | None = None  # 0 to 1 of the whole work, where rows cannot be known before
        self.lag: int | None = None  # rows that wait
        self.step = ""  # what is done now, by a job that has no rows to count

    # --- what a job says

    def update(
        self,
        *,
        rows: int | None = None,
        add: int = 0,
        total: int | None = None,
        share: float | None = None,
        lag: int | None = None,
        step: str | None = None,
    ) -> None:
        """Set what is known; `add` counts rows on top of those before."""
        with self._lock:
            self.rows = (self.rows if rows is None else rows) + add
            self.total = self.total if total is None else total
            self.share = self.share if share is None else min(1.0, share)
            self.lag = self.lag if lag is None else lag
            self.step = self.step if step is None else step
            now = self._clock.monotonic()
            if self._first_share is None and share is not None:
                self._first_share = (now, share)
            self._marks.append((now, self.rows))
            while len(self._marks) > 2 and self._marks[1][0] <= now - RATE_OVER_S:
                self._marks.pop(0)
            self._show(now)

    def note(self, text: str, **fields: Any) -> None:
        """Something to know that is not the progress itself, such as a gap."""
        with self._lock:
            if self._is_terminal:
                self._line(text)
            else:
                self._json(self._stream, "note", {"text": text, **fields})

    def finish(self, text: str, summary: Mapping[str, Any]) -> None:
        """What came out: `text` for people, `summary` for programs."""
        self._end_line()
        if not self._is_json:
            self._out.write(f"{text}\n")
            self._out.flush()
        else:
            self._json(self._out, "done", {"seconds": round(self.seconds, 3), **summary})

    # --- what is known

    @property
    def seconds(self) -> float:
        return self._clock.monotonic() - self._began

    @property
    def rows_per_s(self) -> float:
        """Over the last seconds."""
        (began, before), (now, rows) = self._marks[0], self._marks[-1]
        return (rows - before) / (now - began) if now > began else 0.0

    @property
    def eta_s(self) -> float | None:
        """Seconds left; None if nothing tells."""
        if self.total is not None and self.rows_per_s > 0:
            return max(0.0, (self.total - self.rows) / self.rows_per_s)
        if self.share:
            began, before = self._first_share or (self._began, 0.0)
            if self.share <= before:
                began, before = self._began, 0.0
            return (self._clock.monotonic() - began) * (1 - self.share) / (self.share - before)
        return self.lag / self.rows_per_s if self.lag and self.rows_per_s > 0 else None

    # --- while Spark works

    @contextmanager
    def polling(self, poll: Callable[[], None]) -> Iterator[None]:
        """Call `poll` now and then while the body runs; it calls `update`. Its errors are no errors of the job."""
        is_over = threading.Event()

        def run() -> None:
            while not is_over.wait(POLL_S):
                try:
                    poll()
                except Exception:
                    continue

        thread = threading.Thread(target=run, name="topics-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    # --- lines

    def __enter__(self) -> Self:
        if self._is_terminal:
            from rich.console import Console

            self._status = Console(file=self._stream).status(f"{self.job}: starting")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_line()

    def _end_line(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, now: float) -> None:
        if self._status is not None:
            self._status.update(f"{self.job}: {self._text()}")
        elif not self._is_terminal and now - self._spoke >= self._line_every_s:
            self._spoke = now
            self._json(self._stream, "progress", self._fields())

    def _line(self, text: str) -> None:
        if self._status is not None:
            self._status.console.print(text, markup=False, highlight=False)
        else:
            self._stream.write(f"{text}\n")

    def _text(self) -> str:
        if self.step:
            return self.step
        parts = [f"{self.rows:,} rows" + (f" of {self.total:,}" if self.total is not None else "")]
        if self.share is not None:
            parts.append(f"{self.share:.0%}")
        parts.append(f"{self.rows_per_s:,.0f} rows/s")
        if self.lag is not None:
            parts.append(f"{self.lag:,} behind")
        if self.eta_s is not None:
            parts.append(f"{self.eta_s:,.0f} s left")
        return ", ".join(parts)

    def _fields(self) -> dict[str, Any]:
        if self.step:
            return {"step": self.step, "seconds": round(self.seconds, 1)}
        fields = {
            "rows": self.rows,
            "total": self.total,
            "share": None if self.share is None else round(self.share, 4),
            "rows_per_s": round(self.rows_per_s, 1),
            "lag": self.lag,
            "eta_s": None if self.eta_s is None else round(self.eta_s, 1),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def _json(self, stream: TextIO, event: str, fields: Mapping[str, Any]) -> None:
        line = {"job": self.job, "event": event, **fields}
        stream.write(json.dumps(line, default=str, ensure_ascii=False) + "\n")
        stream.flush()


def lag_of(progress: Mapping[str, Any]) -> int | None:
    """How many seqs a query is behind the heads of its topics; None if its sources do not tell."""
    found = [lags for lags in map(_lags, progress["sources"]) if lags is not None]
    return sum(behind for lags in found for behind in lags.values()) if found else None


def lags_of(progress: Mapping[str, Any]) -> dict[str, int]:
    """The same for each topic; of one that is read twice, the larger number."""
    behind: dict[str, int] = {}
    for source in progress["sources"]:
        for topic, count in (_lags(source) or {}).items():
            behind[topic] = max(count, behind.get(topic, 0))
    return behind


def _lags(source: Mapping[str, Any]) -> dict[str, int] | None:
    """Of one source; None if it is none of ours. What was read of an earlier instance counts for nothing."""
    ends, heads = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
    if ends is None or heads is None:
        return None
    read = {topic: seq for topic, (epoch, seq) in ends.items() if topic in heads and heads[topic][0] == epoch}
    return {topic: max(0, head - read.get(topic, 0)) for topic, (_, head) in heads.items()}


def _offsets(text: Any) -> dict[str, tuple[Any, int]] | None:
    """Epoch and seq of each topic in offsets of `format("topics")`."""
    try:
        offsets = json.loads(text) if isinstance(text, str) else text
        return {topic: (at.get("epoch"), int(at["seq"])) for topic, at in offsets.items()}
    except (TypeError, ValueError, KeyError, AttributeError):
        return None


def share_of_tasks(spark: "SparkSession") -> float:
    """How much of what Spark runs now is done, 0 to 1; 0 where it does not tell."""
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # Spark Connect has no context
        return 0.0
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    tasks = sum(stage.numTasks for stage in stages if stage is not None)
    done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    return done / tasks if tasks else 0.0
