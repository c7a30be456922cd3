"""`topics backup`: a server or a data directory is copied, once or for as long as it runs."""

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from topics.backup.places import Place
    from topics.backup.receiving import Shipped
    from topics.reader import Check

SAID_S: Final = 10.0  # between two lines of a follower
LATE_S: Final = 5.0  # a copy that is further behind is worth a line


def backup(
    source: Annotated[str, typer.Argument(metavar="URL_OR_DIR", help="A server, a data directory, or the word prune.")],
    dest: Annotated[str, typer.Argument(help="A directory, a file (.tar, .tar.gz, .tar.zst), or a URI: s3://, gs://.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: ship the log every second, until interrupted.")
    ] = False,
    no_audit: Annotated[bool, typer.Option("--no-audit", help="Do not read the copy again to audit it.")] = False,
    keep: Annotated[
        str,
        typer.Option(
            metavar="7d|10", help="With prune: keep what restores to any moment since then need, or this many points."
        ),
    ] = "",
    young: Annotated[
        str, typer.Option(metavar="1h", help="With prune: leave objects alone that were put since then.")
    ] = "1h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With prune: only say what would go.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout; --follow: one per line.")] = False,
) -> None:
    """Back up everything, without stopping the server.

    The copy is consistent as of one position of the log. What arrives is held against its checksums, then the copy is
    audited. A second backup into the same place ships only what is new, and each one can be restored. What is damaged
    or missing there is shipped again. Nothing there is ever changed, and nothing is removed but by prune.

    A server needs a key with the scope admin and without prefixes, in TOPICS_TOKEN. A data directory may be one that a
    server is using.

    With the word prune for the source, points of the backup go that --keep does not keep, and all that no other point
    needs. The newest point of each source stays. Backups may be running.

    Exit code: 0 done and sound, 1 the copy is not sound, 2 it could not be done.

    Example: topics backup http://127.0.0.1:4000 s3://bucket/topics --follow

    Example: topics backup prune s3://bucket/topics --keep 30d
    """
    from topics.backup.places import open_place
    from topics.cli.backups.prune import check_given, run_prune
    from topics.cli.backups.showing import IMPOSSIBLE, UNSOUND, ending

    try:
        with ending("backup"):
            check_given(source, keep, follows=follow, is_dry=dry_run)
            with closing(open_place(dest, writes=source != "prune")) as place:
                if source == "prune":
                    run_prune(place, keep, young, is_dry=dry_run, is_json=json)
                    return
                is_sound = _run(source, dest, place, follows=follow, audits=not no_audit, is_json=json)
    except KeyboardInterrupt:
        raise SystemExit(0 if follow else IMPOSSIBLE) from None
    if not is_sound:
        raise SystemExit(UNSOUND)


def _run(source: str, dest: str, place: "Place", *, follows: bool, audits: bool, is_json: bool) -> bool:
    from topics.backup.copying import back_up, back_up_and_audit
    from topics.backup.places import ArchiveWriter, Unwritable, open_place
    from topics.backup.receiving import Receiver
    from topics.backup.sources import DirectorySource, ServerSource, is_server
    from topics.cli.backups.showing import Line
    from topics.clock import SystemClock

    line = Line()
    origin = ServerSource(source) if is_server(source) else DirectorySource(source, SystemClock())
    receiver = Receiver(place, source if not is_server(source) else source.partition("?")[0], line_of(line))
    if follows:
        if isinstance(place, ArchiveWriter):
            raise Unwritable(f"{dest} is an archive, which is written once; --follow needs a directory or a URI")
        _follow(origin, receiver, place, line, audits=audits, is_json=is_json)
        return True
    check = None
    if audits and not isinstance(place, ArchiveWriter):
        shipped, check = back_up_and_audit(origin, receiver, place, line.show)
    else:
        shipped = back_up(origin, receiver)
        place.finish()
    if audits and check is None:
        line.show("auditing the copy")
        with closing(open_place(dest)) as copy:
            check = _audited(copy, shipped.point)
    line.clear()
    _report(shipped, check, dest, is_json=is_json)
    return check is None or not any(fault.is_certain for fault in check.faults)


def _audited(place: "Place", point: str) -> "Check":
    from topics.backup.copying import audit

    return audit(place, point)


def line_of(line: Any) -> Any:
    from topics.cli.backups.showing import size_text

    def show(shipped: "Shipped") -> None:
        line.show(f"{shipped.files:,} files, {size_text(shipped.bytes)} shipped")

    return show


def _report(shipped: "Shipped", check: "Check | None", dest: str, *, is_json: bool) -> None:
    from topics.backup.layout import time_text
    from topics.backup.places import hidden
    from topics.cli.backups.showing import size_text

    faults = [] if check is None else [fault for fault in check.faults if fault.is_certain]
    if is_json:
        print(_document(shipped, dest, check))
        return
    print(f"{shipped.point} in {hidden(dest)}: as of {time_text(shipped.ts)}, position {shipped.position}")
    print(
        f"{_count(shipped.files, 'file')} and {size_text(shipped.bytes)} shipped, "
        f"of which {size_text(shipped.log_bytes)} of log; there before: {_count(shipped.files_known, 'file')}"
    )
    for fault in faults:
        print(f"FOUND {fault.file or fault.topic}: {fault.message}")
    if check is not None:
        print(
            "Not sound."
            if faults
            else f"Sound: {_count(check.segments, 'segment')}, {_count(len(check.accounts), 'topic')}."
        )


def _document(shipped: "Shipped", dest: str, check: "Check | None", lag_s: float | None = None) -> str:
    import msgspec

    from topics.backup.places import hidden

    said = {"dest": hidden(dest), **msgspec.to_builtins(shipped)}
    if lag_s is not None:
        said["lag_s"] = round(lag_s, 3)
    if check is not None:
        faults = [fault for fault in check.faults if fault.is_certain]
        said |= {"is_sound": not faults, "faults": msgspec.to_builtins(faults)}
    return msgspec.json.encode(said).decode()


def _say_audit(place: "Place", point: str, line: Any, mend: "Callable[[list[str]], None]") -> None:
    from topics.backup.copying import audit_or_find
    from topics.errors import TopicsError

    try:
        damaged, check = audit_or_find(place, point)
    except (TopicsError, OSError) as error:
        line.say(f"FOUND {error}")
        return
    faults = [] if check is None else [fault for fault in check.faults if fault.is_certain]
    if damaged:
        line.say(f"FOUND {place.name}/{damaged[0]}: the object is damaged or missing")
        mend(damaged)
    else:
        line.say(f"FOUND {faults[0].file}: {faults[0].message}" if faults else f"{point}: the copy is sound")


def _follow(source: Any, receiver: Any, place: "Place", line: Any, *, audits: bool, is_json: bool) -> None:
    from threading import Event, Thread

    from topics.backup.copying import Follower
    from topics.backup.layout import time_text
    from topics.clock import SystemClock

    clock = SystemClock()
    follower = Follower(source, receiver, clock)
    said_at, audited, told, is_due = -SAID_S, "", "", audits

    def mend(damaged: list[str]) -> None:
        nonlocal is_due
        follower.mend(damaged)
        is_due = True  # the next point is looked at again

    def changed() -> None:
        nonlocal said_at, audited, told, is_due
        shipped, lag = receiver.shipped, follower.lag_s
        if is_due and shipped.point != audited:
            audited, is_due = shipped.point, False
            Thread(target=_say_audit, args=(place, audited, line, mend), daemon=True).start()  # the log goes on
        text = "no copy yet" if lag is None else f"as of {time_text(shipped.ts)}, {lag:.1f} s behind"
        if follower.trouble != told:
            told = follower.trouble
            line.say(f"{told}; trying again; {text}" if told else f"going on; {text}")
        line.show(text)
        if clock.monotonic() - said_at >= SAID_S or (lag or 0.0) > LATE_S:
            said_at = clock.monotonic()
            if is_json:
                print(_document(shipped, place.name, None, lag), flush=True)
            elif not sys.stderr.isatty():
                line.say(text)

    never = Event()
    follower.run(changed, never.wait)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
