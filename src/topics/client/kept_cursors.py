"""Where a consumer keeps how far it has come, so that the next run goes on there.

    consume("orders", cursor=FileCursor("orders.cursor"))
    consume("orders", cursor=SQLiteCursor(connection, "mailer"))
    consume("orders", cursor=NamedCursor("mailer"))

A position is kept after the body of the loop has run for an item, every few items, and whenever the consumer asks
the server for more. What was handed out behind the position kept last is handed out again: at least once. A class of
your own needs `every`, `load` and `save`.
"""

import json
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple, Protocol

from topics.errors import InvalidRequest


class Position(NamedTuple):
    """Behind the last item that is done, in one instance of a topic."""

    seq: int
    epoch: int | None


class KeptCursor(Protocol):
    """A place for positions, one per topic. It is kept after every `every` items at the latest."""

    every: int

    def load(self, topic: str) -> Position | None:
        """The position kept last; None if there is none."""
        ...

    def save(self, topic: str, position: Position) -> None:
        """Keep a position, so that it outlives a crash as well as this place allows."""
        ...


class FileCursor:
    """Positions in a file, synced to the disk. At every moment the file is whole: the old one or the new one."""

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        self.every = every
        self._path = Path(path)

    def load(self, topic: str) -> Position | None:
        """The position that the file has for a topic."""
        return self._read().get(topic)

    def save(self, topic: str, position: Position) -> None:
        """Write the file anew, and sync it."""
        kept = self._read() | {topic: position}
        new = self._path.with_name(f".{self._path.name}.new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read(self) -> dict[str, Position]:
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if not all(isinstance(seq, int) and isinstance(epoch, int | None) for seq, epoch in kept.values()):
                raise ValueError("it holds no positions")
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError) as error:
            raise InvalidRequest(f"{self._path} is not a file of cursors: {error}") from None
        return {topic: Position(*position) for topic, position in kept.items()}

    def __repr__(self) -> str:
        return f"FileCursor({str(self._path)!r})"


class SQLiteCursor:
    """Positions in a table `topics_cursors` of a database.

    `save` commits. What the body of the loop has written through the same connection, and not committed, is committed
    with the position: each item takes effect once, whatever is killed when.
    """

    def __init__(self, connection: sqlite3.Connection, name: str, *, every: int = 1) -> None:
        self.every = every
        self._connection = connection
        self._name = name
        connection.execute(
            "CREATE TABLE IF NOT EXISTS topics_cursors"
            " (name TEXT, topic TEXT, seq INTEGER NOT NULL, epoch INTEGER, PRIMARY KEY (name, topic))"
        )
        connection.commit()

    def load(self, topic: str) -> Position | None:
        """The position that the table has for a topic, under this name."""
        row = self._connection.execute(
            "SELECT seq, epoch FROM topics_cursors WHERE name = ? AND topic = ?", (self._name, topic)
        ).fetchone()
        return None if row is None else Position(*row)

    def save(self, topic: str, position: Position) -> None:
        """Commit a position, with all that the connection has not committed."""
        self._connection.execute(
            "INSERT OR REPLACE INTO topics_cursors (name, topic, seq, epoch) VALUES (?, ?, ?, ?)",
            (self._name, topic, *position),
        )
        self._connection.commit()

    def __repr__(self) -> str:
        return f"SQLiteCursor({self._name!r})"


class NamedCursor:
    """Positions kept by the server, as a named cursor of the topic; others see how far you are."""

    def __init__(self, name: str, *, every: int = 100) -> None:
        self.every = every
        self.name = name

    def __repr__(self) -> str:
        return f"NamedCursor({self.name!r})"
