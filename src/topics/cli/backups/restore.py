"""`topics restore`: a backup becomes a data directory again."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from topics.backup.points import Backup
    from topics.backup.restoring import Restored
    from topics.cli.backups.showing import Line


def restore(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Where topics backup has put it.")],
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The data directory: empty, or not there yet.")] = "",
    until: Annotated[
        str | None,
        typer.Option(metavar="TS", help="As of this time: 2026-11-17T06:15:00Z, or milliseconds since 1970."),
    ] = None,
    same_epoch: Annotated[
        bool, typer.Option("--same-epoch", help="Keep the epochs: readers go on without being told.")
    ] = False,
    list_points: Annotated[
        bool, typer.Option("--list", help="Show what can be restored, and restore nothing.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Make a data directory of a backup.

    Everything is held against its checksums, recovered and audited before it is put into place. Every topic gets a new
    epoch: readers are told that it was recreated, as they may have seen more than the backup has. An interrupted
    restore is done again with the same command.

    Exit code: 0 done and sound, 1 the backup is damaged, 2 it could not be done.

    Example: topics restore s3://bucket/topics topics-data --until 2026-11-17T06:15:00Z
    """
    from topics.backup.places import open_place
    from topics.backup.points import Backup
    from topics.cli.backups.showing import Line, ending
    from topics.errors import InvalidRequest

    with ending("restore"):
        moment = None if until is None else _moment(until)
        if not directory and not list_points:
            raise InvalidRequest("give the directory to restore into, or --list")
        with closing(open_place(source)) as place:
            if list_points:
                _list(Backup(place), is_json=json)
            else:
                _restore(Backup(place), directory, moment, not same_epoch, Line(), is_json=json)


def _restore(
    backup: "Backup", directory: str, until: int | None, raises_epochs: bool, line: "Line", *, is_json: bool
) -> None:
    from topics.backup.layout import time_text
    from topics.backup.restoring import restore as run
    from topics.clock import SystemClock

    done = run(backup, directory, SystemClock(), until=until, raises_epochs=raises_epochs, said=line.show)
    line.clear()
    if is_json:
        print(_document(directory, done))
        return
    epochs = "new epochs" if done.raised else "the epochs they had"
    print(f"{done.topics:,} topics with {done.records:,} records in {directory}: as of {time_text(done.ts)}, {epochs}")
    print(f"from point {done.point} of {done.source}, log position {done.position}")
    print("Sound: every seq is accounted for.")


def _document(directory: str, done: "Restored") -> str:
    import msgspec

    said = {**msgspec.to_builtins(done), "directory": directory}
    del said["check"]
    return msgspec.json.encode(said).decode()


def _list(backup: "Backup", *, is_json: bool) -> None:
    import msgspec

    from topics.backup.layout import time_text

    rows = []
    for name in sorted(backup.points):
        point = backup.point(name)
        log = backup.log_of(name, point)
        rows.append((name, point, log[-1].end if log else point.position))
    if is_json:
        listed = [
            {"point": name, "source": point.source, "ts": point.ts, "position": point.position, "log_end": end}
            for name, point, end in rows
        ]
        print(msgspec.json.encode({"points": listed}).decode())
        return
    for name, point, end in rows:
        print(f"{name}  from {time_text(point.ts)} on, log positions {point.position} to {end}, of {point.source}")


def _moment(text: str) -> int:
    """Epoch-milliseconds; a time without a zone is local time."""
    from datetime import datetime

    from topics.errors import InvalidRequest

    if text.isdigit() and len(text) > 8:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise InvalidRequest(
            f"--until is {text!r}; it is a time such as 2026-11-17T06:15:00Z, or milliseconds since 1970"
        ) from None
