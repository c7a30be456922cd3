"""A report as one HTML page: no scripts, nothing from elsewhere, light or dark as its reader likes it.

Pure: a Report in, text out. Every name that comes from a server is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from topics.spark.report import charts
from topics.spark.report.charts import COLOURS, moment, short, size, span

if TYPE_CHECKING:
    from topics.spark.jobs.reporting import Queue, Report

ROWS_MAX: Final = 30  # of a table or of bars; what follows is counted
OTHERS: Final = "others"

STYLE: Final = """
:root { color-scheme: light dark; --page:#f6f7f9; --card:#fff; --ink:#1c2330; --soft:#667085; --line:#e3e7ee;
  --c0:#3b6fd4; --c1:#12a594; --c2:#e5813a; --c3:#a255c9; --c4:#d6a419; --c5:#8a94a6; }
@media (prefers-color-scheme: dark) { :root { --page:#12161d; --card:#1b212b; --ink:#e7eaf0; --soft:#98a2b3;
  --line:#2c3441; --c0:#6b9bff; --c1:#3ccfbd; --c2:#ff9f5f; --c3:#c98be8; --c4:#f0c64f; --c5:#7d889b; } }
* { box-sizing: border-box; }
body { margin:0; background:var(--page); color:var(--ink); font:15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size:26px; margin:0 0 2px; } h2 { font-size:18px; margin:0 0 12px; } h3 { font-size:15px; margin:20px 0 6px; }
p { margin: 0 0 10px; } .soft, .none { color: var(--soft); }
section { background:var(--card); border:1px solid var(--line); border-radius:12px; padding:20px; margin-top:18px; }
.tiles { display:grid; grid-template-columns:repeat(auto-fit, minmax(130px, 1fr)); gap:12px; margin-top:18px; }
.tiles div { background:var(--card); border:1px solid var(--line); border-radius:12px; padding:12px 16px; }
.tiles b { display:block; font-size:24px; font-weight:600; } .tiles span { color:var(--soft); font-size:13px; }
svg { width:100%; height:auto; display:block; } svg text { fill:var(--soft); font-size:12px; }
svg line { stroke:var(--line); } svg rect:hover { opacity:.75; }
.legend span { margin-right:16px; font-size:13px; white-space:nowrap; }
.legend i { display:inline-block; width:10px; height:10px; border-radius:3px; margin-right:6px; }
.wide { overflow-x:auto; } table { border-collapse:collapse; width:100%; font-size:14px; }
td, th { padding:5px 16px 5px 0; border-bottom:1px solid var(--line); }
th { text-align:left; color:var(--soft); font-weight:500; }
td.n, th.n { text-align:right; font-variant-numeric:tabular-nums; }
"""


def page(made: "Report") -> str:
    parts = [
        _head(made),
        _tiles(made),
        _section("Servers", "", _servers(made)) if len(made.servers) > 1 else "",
        _section("Throughput", "Live records by the time of their writing.", _throughput(made)),
        _section("Sizes", "Live records and their bytes.", _sizes(made)),
        _section("Lag", "Pipelines by their checkpoints, and lakes, behind the heads.", _lag(made)),
        _section("Routers", "Behind the heads of their sources.", _routers(made)) if made.routers else "",
        _section("Gaps", "What caps, age or a crash took; readers are told exactly these ranges.", _gaps(made)),
        _section("Queues", "", _queues(made)) if made.queues else "",
        _section("Dead letters", "By queue and reason.", _letters(made)) if made.queues else "",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>topics: {escape(_urls(made))}</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(part for part in parts if part)
        + "</main></body></html>\n"
    )


def _urls(made: "Report") -> str:
    return ", ".join(server.url for server in made.servers)


def _head(made: "Report") -> str:
    said = escape(_urls(made))
    if len(made.servers) == 1:
        said += f", version {escape(made.servers[0].version)}, up for {span(made.servers[0].uptime_ms)}"
    return f"<h1>topics</h1><p class='soft'>{said}; {moment(made.made_ms)} UTC</p>"


def _servers(made: "Report") -> str:
    rows = []
    for server in made.servers:
        states = [state for state in made.states if made.homes[state.topic] == server.url]
        counts = len(states), sum(state.count for state in states), sum(state.bytes for state in states)
        rows.append((server.url, server.version, span(server.uptime_ms), *counts))
    return _table(("server", "version", "up for", "topics", "live", "bytes"), rows)


def _tiles(made: "Report") -> str:
    logs = [server.metrics.get("wal", {}) for server in made.servers]
    written, fsyncs, micros = (
        sum(log.get(name, 0) for log in logs) for name in ("bytes_written", "fsync_count", "fsync_micros_total")
    )
    values = {
        "topics": short(len(made.states)),
        "live records": short(sum(state.count for state in made.states)),
        "live bytes": size(sum(state.bytes for state in made.states)),
        "seqs lost": short(sum(lost.last - lost.first + 1 for gaps in made.gaps.values() for lost in gaps)),
        "jobs ready": short(sum(queue.ready for queue in made.queues)),
        "dead letters": short(sum(made.letters.values())),
        "log written": size(written),
        "per fsync": span(micros / fsyncs / 1000) if fsyncs else "–",
    }
    tiles = (f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in values.items())
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _section(title: str, said: str, body: str) -> str:
    note = f'<p class="soft">{escape(said)}</p>' if said else ""
    return f"<section><h2>{escape(title)}</h2>{note}{body}</section>"


def _throughput(made: "Report") -> str:
    each = f"per {span(made.step_ms)}"
    records, sizes = _largest(made.records), _largest(made.bytes)
    return (
        f"<h3>Records {each}</h3>{charts.stacked(records, made.start_ms, made.step_ms, 'records')}"
        f"<h3>Bytes {each}</h3>{charts.stacked(sizes, made.start_ms, made.step_ms, 'bytes')}"
    )


def _largest(series: Mapping[str, list[float]]) -> dict[str, list[float]]:
    """The largest series, and the rest as one."""
    ordered = sorted(series.items(), key=lambda item: -sum(item[1]))
    if len(ordered) <= COLOURS:
        return dict(ordered)
    rest = [sum(values) for values in zip(*(values for _, values in ordered[COLOURS - 1 :]), strict=True)]
    return {**dict(ordered[: COLOURS - 1]), OTHERS: rest}


def _sizes(made: "Report") -> str:
    states = sorted(made.states, key=lambda state: -state.bytes)
    values = {state.topic: float(state.bytes) for state in states[:ROWS_MAX]}
    shown = {state.topic: f"{size(state.bytes)}, {short(state.count)} records" for state in states}
    is_several = len(made.servers) > 1
    rows = [
        (
            state.topic,
            *((made.homes[state.topic],) if is_several else ()),
            state.type,
            state.config.durability,
            state.head_seq,
            state.count,
            state.bytes,
            "–" if state.last_write_ts is None else moment(state.last_write_ts),
        )
        for state in states
    ]
    titles = (
        "topic",
        *(("server",) if is_several else ()),
        "type",
        "durability",
        "head",
        "live",
        "bytes",
        "last write",
    )
    return charts.bars(values, shown) + _table(titles, rows)


def _lag(made: "Report") -> str:
    if not made.behind:
        return '<p class="none">No checkpoint and no lake was given: see --checkpoint and --lake.</p>'
    values = {f"{one.reader} · {one.topic}": float(one.lag) for one in made.behind}
    rows = ((one.reader, one.topic, one.seq, one.lag) for one in made.behind)
    return charts.bars(values, colour=2) + _table(("reader", "topic", "read up to", "behind"), rows)


def _routers(made: "Report") -> str:
    routers = sorted(made.routers, key=lambda one: (-one.lag, one.router))
    lags = {one.router: float(one.lag) for one in routers[:ROWS_MAX]}
    rows = (
        (one.router, one.source, one.dest, one.forwarded_total, one.lag, one.state, one.blocked_by or "–")
        for one in routers
    )
    titles = ("router", "source", "dest", "forwarded", "behind", "state", "blocked by")
    return charts.bars(lags, colour=2) + _table(titles, rows)


def _gaps(made: "Report") -> str:
    if not made.gaps:
        return '<p class="none">None: every record that was not deleted on purpose is there.</p>'
    lost = {topic: float(sum(a.last - a.first + 1 for a in gaps)) for topic, gaps in made.gaps.items()}
    rows = [(topic, a.first, a.last, a.last - a.first + 1, a.reason) for topic, gaps in made.gaps.items() for a in gaps]
    return charts.bars(dict(list(lost.items())[:ROWS_MAX]), colour=3) + _table(
        ("topic", "from seq", "to seq", "seqs", "reason"), rows
    )


def _queues(made: "Report") -> str:
    rows = ((queue.topic, queue.ready, queue.in_flight, queue.dead_lettered) for queue in made.queues)
    parts = [_table(("queue", "ready", "in flight", "dead-lettered in all"), rows)]
    for queue in made.queues:
        parts.append(f"<h3>{escape(queue.topic)}: age of the jobs that wait</h3>{charts.columns(queue.waiting)}")
        parts.append(f"<h3>{escape(queue.topic)}: age of the leases</h3>{charts.columns(queue.running, 1)}")
    if made.watched_s:
        titles = ("queue", "", "jobs", "median", "95 %", "longest")
        parts.append(f"<h3>Watched for {span(made.watched_s * 1000)}</h3>")
        parts.append(_table(titles, [row for queue in made.queues for row in _watched(queue)]))
    return "".join(parts)


def _watched(queue: "Queue") -> Iterable[Sequence[object]]:
    for name, values in (("wait until claimed", queue.waits_ms), ("run until ended", queue.runs_ms)):
        if values:
            cuts = quantiles([*values, values[-1]], n=20)
            yield queue.topic, name, len(values), span(cuts[9]), span(cuts[18]), span(max(values))
        else:
            yield queue.topic, name, 0, "–", "–", "–"


def _letters(made: "Report") -> str:
    if not made.letters:
        return '<p class="none">None.</p>'
    ordered = sorted(made.letters.items(), key=lambda item: -item[1])
    values: dict[str, float] = {}
    for (queue, reason, _), count in ordered:
        name = f"{queue} · {reason}"
        values[name] = values.get(name, 0) + count
    rows = ((*key, count) for key, count in ordered)
    return charts.bars(dict(list(values.items())[:ROWS_MAX]), colour=4) + _table(
        ("queue", "reason", "deliveries", "letters"), rows
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    rows = list(rows)
    if not rows:
        return '<p class="none">None.</p>'
    numeric = [isinstance(value, int) for value in rows[0]]
    classes = [' class="n"' if is_number else "" for is_number in numeric]
    head = "".join(f"<th{kind}>{escape(title)}</th>" for title, kind in zip(titles, classes, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(value)}</td>" for value, kind in zip(row, classes, strict=True)) + "</tr>"
        for row in rows[:ROWS_MAX]
    )
    more = f'<p class="soft">and {len(rows) - ROWS_MAX:,} more</p>' if len(rows) > ROWS_MAX else ""
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>{more}'


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else escape(str(value))
