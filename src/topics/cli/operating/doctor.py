"""`topics doctor`: what is wrong, or soon will be, with a server, a data directory and this machine.

Every finding says what to do about it. A check that cannot be made is left out, or is a finding itself. Nothing is
changed anywhere.
"""

import os
import platform
import resource
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from msgspec import Struct

from topics.cli.shell import display, exits
from topics.cli.shell.invoking import Call, told
from topics.cli.shell.quantities import shown_bytes, shown_duration
from topics.errors import TopicsError

if TYPE_CHECKING:
    from topics.client import Client, TopicState

DESCRIPTORS_MIN: Final = 4096
FREE_BYTES_MIN: Final = 1024**3
FREE_SHARE_MIN: Final = 0.05
SYNC_MS_MAX: Final = 50.0
SKEW_MS_MAX: Final = 5_000
SAMPLED_MS: Final = 3_000
CLOCK_UNKEPT: Final = 5  # TIME_ERROR of adjtimex
TIMEX_BYTES: Final = 512  # more than its struct has; all zero, it changes nothing
SOON_S: Final = 3600.0
TOPICS_MAX: Final = 1000
VOLATILE: Final = ("tmpfs", "ramfs")
DISTANT: Final = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")

Level = Literal["ok", "note", "fault"]


class Finding(Struct, frozen=True):
    """What was looked at, how it is, and what to do."""

    level: Level
    subject: str
    said: str
    remedy: str = ""


def doctor(
    call: Call,
    data_dir: Annotated[str | None, typer.Option(metavar="DIR", help="A data directory on this machine, too.")] = None,
    no_server: Annotated[bool, typer.Option("--no-server", help="Ask no server.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only what is not in order.")] = False,
) -> None:
    """Look at a server, its topics, a data directory and this machine; explain each finding and its remedy.

    Exit code: 0 nothing is wrong, 1 something is. Notes are worth a look and change nothing about that.

    Example: topics doctor

    Example: topics doctor --no-server --data-dir . --json
    """
    findings = list(_machine())
    if data_dir is not None:
        findings += _directory(Path(data_dir))
    if not no_server:
        findings += _server(call)
    shown = [one for one in findings if not (quiet and one.level == "ok")]
    colours = {"ok": display.GREEN, "note": display.YELLOW, "fault": display.RED}
    for one in shown:
        if call.is_json:
            call.emit(one)
        else:
            level = display.coloured(one.level.ljust(5), colours[one.level])
            print(f"{level}  {one.subject}: {display.printable(one.said)}")
            if one.remedy:
                print(f"       → {one.remedy}")
    if any(one.level == "fault" for one in findings):
        raise typer.Exit(exits.REFUSED)


# --- the machine


def _machine() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and max(soft, hard if hard > 0 else soft) < DESCRIPTORS_MIN:
        yield Finding(
            "note",
            "open files",
            f"a process here may open {soft:,}, at most {hard:,}; each connection takes one",
            "raise it with ulimit -n, LimitNOFILE= of systemd, or --ulimit nofile of docker",
        )
    else:
        yield Finding("ok", "open files", f"a process here may open {soft:,}")
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    version = platform.python_version()
    if hasattr(sys, "gettotalrefcount"):
        yield Finding("fault", "Python", f"{version} is a debug build, several times slower", "install a release build")
    elif not optimized:
        yield Finding(
            "note",
            "Python",
            f"{version} was built without profile-guided optimization, and is up to a third slower",
            "use your distribution's Python, or build with --enable-optimizations",
        )
    else:
        yield Finding("ok", "Python", f"{version}, an optimized build")
    yield from _machine_clock()


def _machine_clock() -> Iterator[Finding]:
    """Whether a time service keeps the clock, as the kernel knows it; nothing where it does not tell."""
    state = _kernel_clock()
    if state == CLOCK_UNKEPT:
        yield Finding(
            "note",
            "clock",
            "no time service keeps it: it drifts, and TTLs, delays and times of records with it",
            "run systemd-timesyncd, chrony or ntpd; timedatectl says which",
        )
    elif state is not None:
        yield Finding("ok", "clock", "a time service keeps it")


def _kernel_clock() -> int | None:
    """What adjtimex returns, asked to change nothing."""
    import ctypes

    try:
        found: int = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if found < 0 else found


# --- a data directory


def _directory(path: Path) -> Iterator[Finding]:
    subject = f"data directory {path}"
    if not path.is_dir():
        yield Finding("fault", subject, "there is no such directory", "name the one of TOPICS_DATA_DIR")
        return
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("fault", subject, "this user may not read and write it", "chown it to the user of the server")
    usage = shutil.disk_usage(path)
    free = f"{shown_bytes(usage.free)} of {shown_bytes(usage.total)} are free"
    if usage.free < FREE_BYTES_MIN or usage.free < usage.total * FREE_SHARE_MIN:
        yield Finding("fault", subject, free, "free space, or lower caps: a full disk refuses writes")
    else:
        yield Finding("ok", subject, free)
    inodes = os.statvfs(path)
    if inodes.f_files and inodes.f_favail < inodes.f_files * FREE_SHARE_MIN:
        yield Finding(
            "fault", subject, f"only {inodes.f_favail:,} inodes are free", "remove small files, or grow the disk"
        )
    kind = _file_system(path.resolve())
    if kind in VOLATILE:
        yield Finding("fault", subject, f"it lies on {kind}, in memory: a reboot takes it", "put it on a disk")
    elif kind in DISTANT:
        yield Finding(
            "note", subject, f"it lies on {kind}; syncs are slow, and may not be kept", "prefer a disk of this machine"
        )
    elif kind:
        yield Finding("ok", subject, f"it lies on {kind}")


def _file_system(path: Path) -> str:
    """The type of the file system, by the longest mount point above the path; empty if that is not known."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = [(mount[1], mount[2]) for mount in mounts if len(mount) > 2 and path.is_relative_to(mount[1])]
    return max(above, key=lambda one: len(one[0]), default=("", ""))[1]


# --- a server


def _server(call: Call) -> Iterator[Finding]:
    from topics import __version__

    subject = f"server {call.server.url}"
    client = call.client
    try:
        health = client.health()
        yield Finding("ok", subject, f"version {health.version}, up {shown_duration(health.uptime_ms)}")
        if health.version != __version__:
            yield Finding(
                "note", subject, f"this command is version {__version__}", "use the same version on both sides"
            )
        client.ready()
        yield from _server_clock(call, subject)
        yield from _log(client.metrics(), subject)
        yield from _topics(client)
        yield from _routers(client)
    except TopicsError as error:
        yield Finding("fault", subject, told(error, call.server), "see its log; topics serve starts one")


def _server_clock(call: Call, subject: str) -> Iterator[Finding]:
    """Its clock beside this one, by the last sample of its history."""
    samples = call.client.stats(SAMPLED_MS).samples
    if not samples:
        return
    ahead_ms = samples[-1].ts - call.clock.now_ms()
    if -SKEW_MS_MAX - SAMPLED_MS <= ahead_ms <= SKEW_MS_MAX:
        yield Finding("ok", subject, "its clock and that of this machine agree")
        return
    where = "ahead of" if ahead_ms > 0 else "behind"
    yield Finding(
        "note",
        subject,
        f"its clock is {shown_duration(abs(ahead_ms))} {where} that of this machine",
        "let a time service keep both: times of records, TTLs and delays are the server's",
    )


def _log(metrics: dict[str, Any], subject: str) -> Iterator[Finding]:
    wal = metrics["wal"]
    if wal["read_only"]:
        yield Finding("fault", subject, "its log takes no more writes", "fix the disk, then restart the server")
    if wal["submit_full_total"]:
        yield Finding(
            "note",
            subject,
            f"{wal['submit_full_total']:,} writes had to wait for room in the log",
            "the disk is too slow for the load; batch writes, or use class disk for what allows it",
        )
    if wal["fsync_count"]:
        mean = wal["fsync_micros_total"] / 1000 / wal["fsync_count"]
        if mean > SYNC_MS_MAX:
            yield Finding(
                "note", subject, f"a sync takes {mean:.0f} ms on average", "a faster disk; fsync topics wait for it"
            )
        else:
            yield Finding("ok", subject, f"a sync takes {mean:.1f} ms on average")


def _topics(client: "Client") -> Iterator[Finding]:
    count = 0
    for count, one in enumerate(client.topics(), 1):
        if count > TOPICS_MAX:
            yield Finding(
                "note", "topics", f"only the first {TOPICS_MAX:,} were looked at", "name others to topics info"
            )
            break
        try:
            state = client.state(one.topic, touch=False)
            yield from _topic(state)
            yield from _cursors(client, one.topic)
        except TopicsError as error:
            if error.status != 404:
                raise
    yield Finding("ok", "topics", f"{min(count, TOPICS_MAX):,} looked at")


def _topic(state: "TopicState") -> Iterator[Finding]:
    subject, config = f"topic {state.topic}", state.config
    if state.lost_total:
        yield Finding(
            "note",
            subject,
            f"{state.lost_total:,} of {state.written_total:,} records were lost to caps or crashes",
            f"topics info {state.topic} says when; raise the caps, or read faster",
        )
    if state.seconds_until_loss is not None and state.seconds_until_loss < SOON_S:
        soon = shown_duration(state.seconds_until_loss * 1000)
        yield Finding(
            "note", subject, f"its oldest record goes in about {soon}", "read it before, or raise its cap or TTL"
        )
    if state.paused:
        yield Finding("note", subject, "this queue is paused", f"topics queue resume {state.topic}")
    if state.queue is not None and state.queue.dead_lettered:
        yield Finding(
            "note",
            subject,
            f"{state.queue.dead_lettered:,} of its jobs became dead letters",
            f"topics read {config.dead_letter} shows them, topics queue redrive {state.topic} brings them back",
        )
    if state.type == "queue" and config.max_deliveries and config.dead_letter is None:
        yield Finding(
            "note",
            subject,
            f"max_deliveries is {config.max_deliveries}, but without dead_letter jobs are delivered for ever",
            f"topics put {state.topic} --dead-letter {state.topic}.dead",
        )


def _cursors(client: "Client", topic: str) -> Iterator[Finding]:
    for cursor in client.cursors(topic):
        if cursor.lost:
            yield Finding(
                "note",
                f"cursor {topic}/{cursor.name}",
                f"{cursor.lost:,} records above it are lost, {cursor.lag:,} wait",
                "its reader is too slow or gone: start it, or topics cursor rm",
            )


def _routers(client: "Client") -> Iterator[Finding]:
    for listed in client.routers():
        one = client.router(listed.router)
        if one.state == "blocked":
            yield Finding(
                "fault",
                f"router {one.router}",
                f"blocked by {one.blocked_by}, {one.lag:,} seqs behind",
                f"make room in {one.dest}, or delete the router",
            )
