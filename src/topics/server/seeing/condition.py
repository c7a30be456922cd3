"""How the server is set up (OB4), and what about it is worth a look, with the remedy (OB5).

Owns which settings are shown how, and the words of findings. Must not know: HTTP. A secret is never shown, only that
there is one. Findings name nothing that their reader may not name: the caller says which topics and routers these are,
and whether it may see what belongs to the server as a whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from topics.engine.answers import CursorState, RouterState, Trouble, TroubleKind
from topics.server.seeing.history import seconds_until_full
from topics.server.wire.seen.surveys import CheckpointsShown, DiskShown, Finding, MemoryShown, SettingShown
from topics.settings import Settings
from topics.tuning import files_max, resident_bytes

if TYPE_CHECKING:
    from topics.server.app import App

DEFAULT: Final = "default"
GIVEN: Final = "given"  # by the program that runs this server
FORECAST_MS: Final = 3_600_000  # of the past, from which the future of the disk is read
DESCRIPTORS_MIN: Final = 4096
FREE_BYTES_MIN: Final = 1024**3
FREE_SHARE_MIN: Final = 0.05
MEMORY_SHARE_NOTED: Final = 0.8  # of the memory that there may be; from three quarters on what can be sealed is
MEMORY_SHARE_MAX: Final = 0.9
SYNC_MS_MAX: Final = 50.0
SOON_S: Final = 86_400.0
PRESSURE_MIN: Final = 0.8
NAMED_MAX: Final = 20  # findings of one kind
MIB: Final = 1024 * 1024

Troubles = Mapping[TroubleKind, tuple[int, list[Trouble]]]


def origins_of(settings: Settings, sources: Mapping[str, str]) -> dict[str, str]:
    """Where each setting comes from. `sources` says so of the environment, from which secrets may be gone."""
    origins = {}
    for one in fields(Settings):
        origin = sources.get(one.name, DEFAULT)
        if origin == DEFAULT and getattr(settings, one.name) != one.default:
            origin = str(one.metadata["variable"]) if one.metadata["secret"] else GIVEN
        origins[one.name] = origin
    return origins


def settings_shown(settings: Settings, origins: Mapping[str, str]) -> list[SettingShown]:
    return [
        SettingShown(
            name=one.name,
            variable=str(one.metadata["variable"]),
            value=None if one.metadata["secret"] else getattr(settings, one.name),
            default=None if one.metadata["secret"] else _plain(one.default),
            origin=origins.get(one.name, DEFAULT),
            secret=bool(one.metadata["secret"]),
            meaning=str(one.metadata["meaning"]),
        )
        for one in fields(Settings)
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def checkpoints_shown(app: "App") -> CheckpointsShown:
    now = app.engine.checkpoints()
    return CheckpointsShown(
        taken=now.taken,
        failed=now.failed,
        running=now.is_running,
        last_ts=now.last_ts,
        last_ms=None if now.last_ms is None else round(now.last_ms, 1),
        failure=now.failure,
        log_bytes=now.log_bytes,
        due_bytes=now.due_bytes,
        due_ms=now.due_ms,
    )


def disk_shown(app: "App") -> DiskShown:
    free, total = app.engine.figures.disk_room()
    app.history.take()
    return DiskShown(free, total, seconds_until_full(app.history.coarse.ring, app.clock.now_ms() - FORECAST_MS))


def memory_shown(app: "App") -> MemoryShown:
    held = 0 if app.connections is None else sum(one.held_bytes for one in app.connections.open)
    footprint = app.engine.footprint
    room = min(footprint.largest_write, app.settings.max_body_bytes)
    return MemoryShown(
        resident_bytes(), held, app.settings.max_held_bytes, footprint.used, footprint.limit, max(0, room)
    )


# --- findings


def of_server(app: "App") -> Iterator[Finding]:
    """The server as a whole: its log, its disk, its limits, its keys."""
    obstacle = app.engine.obstacle()
    if obstacle is not None:
        yield Finding(
            "fault", "writes", f"no write can be kept: {obstacle.message}", "see the server's log; fix the disk"
        )
    yield from _of_disk(disk_shown(app))
    yield from _of_memory(app.engine.footprint.used, app.engine.footprint.limit)
    yield from _of_log(app)
    checkpoints = app.engine.checkpoints()
    if checkpoints.failure is not None:
        said = f"the last one failed: {checkpoints.failure}"
        yield Finding("fault", "checkpoints", said, "it is tried again; until one succeeds, a start replays more log")
    else:
        yield Finding("ok", "checkpoints", f"{checkpoints.taken:,} taken")
    if files_max() < DESCRIPTORS_MIN:
        said = f"this process may open {files_max():,}; each connection takes one"
        yield Finding("note", "open files", said, "raise it with ulimit -n, or LimitNOFILE= of systemd")
    if app.pressure.level > PRESSURE_MIN:
        yield Finding(
            "note", "pressure", f"it is at {app.pressure.level:.0%}", "slow writers down, or use a faster disk"
        )
    if not app.keyring:
        said = f"auth is off, and the server listens on {app.settings.host}"
        yield Finding("note", "keys", said, "set TOPICS_KEY_FILE before others can reach it")


def _of_disk(disk: DiskShown) -> Iterator[Finding]:
    free, total, until = disk.free_bytes, disk.total_bytes, disk.seconds_until_full
    if free is None or total is None:
        yield Finding("note", "disk", "it does not say how much room it has", "see the server's log")
        return
    said = f"{_size(free)} of {_size(total)} are free"
    if free < FREE_BYTES_MIN or free < total * FREE_SHARE_MIN:
        yield Finding("fault", "disk", said, "free space, or lower caps: a full disk refuses writes")
    else:
        yield Finding("ok", "disk", said)
    if until is not None and until < SOON_S:
        yield Finding(
            "note", "disk", f"at the pace of the last hour it is full in {_time(until)}", "lower caps or TTLs"
        )


def _of_memory(used: int, limit: int) -> Iterator[Finding]:
    said = f"about {_size(used)} of the {_size(limit)} that TOPICS_MAX_MEMORY_BYTES allows are in use"
    if not limit or used <= limit * MEMORY_SHARE_NOTED:
        return
    remedy = "delete topics or records that are kept in memory, or raise the limit: at the limit, writes are refused"
    yield Finding("fault" if used > limit * MEMORY_SHARE_MAX else "note", "memory", said, remedy)


def _of_log(app: "App") -> Iterator[Finding]:
    log = app.engine.wal.counters
    if log.full_total:
        said = f"{log.full_total:,} writes had to wait for room"
        yield Finding("note", "log", said, "the disk is too slow for the load; batch writes, or use class disk")
    if log.fsyncs:
        mean = log.fsync_micros / 1000 / log.fsyncs
        if mean > SYNC_MS_MAX:
            said = f"a sync takes {mean:.0f} ms on average"
            yield Finding("note", "log", said, "use a faster disk; topics of class fsync wait for it")
        else:
            yield Finding("ok", "log", f"a sync takes {mean:.1f} ms on average")


def of_topics(troubles: Troubles, endangered: Iterable[CursorState]) -> Iterator[Finding]:
    """The topics that were looked at."""
    for cursor in endangered:
        until = cursor.seconds_until_loss
        if until is not None and until < SOON_S:
            when = "now" if until < 1 else f"in {_time(until)}"
            said = f"the cursor {cursor.name} loses unread records {when}; {cursor.lag:,} wait"
            remedy = "read faster, or raise the topic's cap or TTL"
            yield Finding("fault", f"topic {cursor.topic}", said, remedy, cursor.topic)
    for kind, (count, worst) in troubles.items():
        for one in worst:
            said, remedy = _words(one)
            yield Finding("note", f"topic {one.topic}", said, remedy, one.topic)
        if count > len(worst):
            yield Finding("note", "topics", f"{count - len(worst):,} more like the last one ({kind})")


def _words(one: Trouble) -> tuple[str, str]:
    if one.kind == "cursor_lost":
        said = f"{one.number:,} records above the cursor {one.name} are lost"
        return said, "its reader is too slow or gone: start it, or delete the cursor"
    if one.kind == "paused":
        return f"this queue is paused; {one.number:,} jobs wait", "resume it when its workers are well"
    if one.kind == "dead_letters":
        return f"{one.number:,} dead letters wait", "look at them, then redrive or delete them"
    said = f"max_deliveries is {one.number}, but without dead_letter jobs are delivered for ever"
    return said, "give it a dead_letter topic"


def of_routers(routers: Iterable[RouterState]) -> Iterator[Finding]:
    for one in routers:
        if one.state == "blocked":
            said = f"it is blocked by {one.blocked_by}, {one.lag:,} seqs behind"
            yield Finding(
                "fault", f"router {one.router}", said, f"make room in {one.dest}, or delete the router", one.dest
            )


def _size(count: float) -> str:
    return f"{count / MIB:,.0f} MiB" if count < FREE_BYTES_MIN else f"{count / FREE_BYTES_MIN:,.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
