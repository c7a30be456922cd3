"""`topics cursor`: the named cursors of a topic."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from topics.cli.shell import display
from topics.cli.shell.completing import Topic
from topics.cli.shell.invoking import Call, command
from topics.cli.shell.manual import Sections
from topics.cli.shell.quantities import shown_duration, shown_moment

if TYPE_CHECKING:
    from topics.client import CursorShown

cursor = typer.Typer(name="cursor", cls=Sections, no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the cursor.")]


@command(cursor, "ls")
def ls(call: Call, topic: Topic) -> None:
    """List the named cursors of a topic, with their lag and what was lost above them.

    Example: topics cursor ls orders
    """
    found = list(call.client.cursors(topic))
    if call.is_json:
        for one in found:
            call.emit(one)
        return
    header = ("name", "seq", "lag", "lost", "next loss", "moved")
    rows = [
        (one.name, f"{one.seq:,}", f"{one.lag:,}", f"{one.lost:,}", _soon(one), shown_moment(one.updated_ts))
        for one in found
    ]
    print("\n".join(display.table(header, rows, right=("seq", "lag", "lost"))))


def _soon(one: "CursorShown") -> str:
    return "-" if one.seconds_until_loss is None else f"in {shown_duration(one.seconds_until_loss * 1000)}"


@command(cursor, "get")
def get(call: Call, topic: Topic, name: Name) -> None:
    """Print where a cursor stands.

    Example: topics cursor get orders mailer
    """
    one = call.client.cursor(topic, name)
    call.show(one, str(one.seq))


@command(cursor, "put")
def put(
    call: Call,
    topic: Topic,
    name: Name,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=0, help="The last seq that is done.")],
    if_seq: Annotated[
        str | None, typer.Option(metavar="SEQ|none", help="Only if it stands there now; none: only if there is none.")
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="Only of this instance of the topic.")] = None,
) -> None:
    """Let a cursor stand at a seq, forward or back.

    Example: topics cursor put orders mailer 2

    Example: topics cursor put orders mailer 3 --if-seq 2
    """
    expected: dict[str, Any] = {}
    if if_seq is not None:
        if if_seq != "none" and not if_seq.isdigit():
            raise typer.BadParameter(f"{if_seq!r} is no seq; use a number, or none", param_hint="--if-seq")
        expected["if_seq"] = None if if_seq == "none" else int(if_seq)
    one = call.client.put_cursor(topic, name, seq, epoch=epoch, **expected)
    call.show(one, f"{name}: at {one.seq:,}, lag {one.lag:,}")


@command(cursor, "rm")
def rm(call: Call, topic: Topic, name: Name) -> None:
    """Delete a named cursor. No record goes.

    Example: topics cursor rm orders mailer
    """
    done = call.client.delete_cursor(topic, name)
    call.show(done, f"{name}: " + ("deleted" if done.deleted else "there was none"))
