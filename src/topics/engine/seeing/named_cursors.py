"""Named cursors: notes of how far somebody has come in a topic, kept by the topic (NC).

Each change decides a command and commits what was decided; an answer leaves when it may be shown. Must not know: who
reads. A cursor moves no reader, and no reader moves a cursor.
"""

from bisect import bisect_right

from msgspec import UNSET, UnsetType

from topics.core import decide
from topics.core.decide import PutCursor
from topics.engine.answers import CursorState, cursor_state
from topics.engine.gate import Gate, Hall
from topics.errors import NotFound


class NamedCursors:
    """The named cursors of all topics of an instance."""

    def __init__(self, hall: Hall) -> None:
        self._ledger, self._gates, self._clock, self._caps = hall.ledger, hall.gates, hall.clock, hall.caps

    async def put(
        self, topic: str, name: str, seq: int, *, epoch: int | None = None, if_seq: int | None | UnsetType = UNSET
    ) -> tuple[bool, CursorState]:
        """Let a cursor stand at `seq`. Gives whether it is new, and what it is.

        With an `epoch`, only in this instance of the topic; with `if_seq`, only if it stands there now (None: nowhere).
        """

        def change() -> tuple[tuple[bool, CursorState], Gate]:
            current, now = self._ledger.existing(topic), self._clock.now_ms()
            is_new = name not in current.cursors
            command = PutCursor(topic, name, seq, epoch, if_seq)
            self._ledger.commit(decide.put_cursor(self._ledger.state, command, now, self._caps))
            return (is_new, cursor_state(current, name, now)), self._gates.of(current)

        return await self._gates.done(topic, change)

    async def delete(self, topic: str, name: str) -> bool:
        """Forget a cursor. False: there was none."""

        def change() -> tuple[bool, Gate]:
            current = self._ledger.existing(topic)
            decided = decide.delete_cursor(current, name)
            if decided:
                self._ledger.commit(decided)
            return bool(decided), self._gates.of(current)

        return await self._gates.done(topic, change)

    async def show(self, topic: str, name: str) -> CursorState:
        """A cursor as it is now."""

        def look(takes_what_is_warm: bool) -> tuple[CursorState, Gate]:
            current = self._ledger.existing(topic)
            if name not in current.cursors:
                raise NotFound(f'topic "{topic}" has no cursor "{name}"', topic=topic, cursor=name)
            return cursor_state(current, name, self._clock.now_ms()), self._gates.of(current)

        return await self._gates.shown(topic, look)

    async def list_after(self, topic: str, after: str, count: int) -> tuple[list[CursorState], bool]:
        """Up to `count` cursors of a topic whose names are above `after`, sorted; and whether there are more."""

        def look(takes_what_is_warm: bool) -> tuple[tuple[list[CursorState], bool], Gate]:
            current, now = self._ledger.existing(topic), self._clock.now_ms()
            names = sorted(current.cursors)
            names = names[bisect_right(names, after) :]
            states = [cursor_state(current, name, now) for name in names[:count]]
            return (states, len(names) > count), self._gates.of(current)

        return await self._gates.shown(topic, look)
