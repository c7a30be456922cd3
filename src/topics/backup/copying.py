"""Backing up: a source is received into a place, once or for as long as it goes on, and the copy is audited.

A follower is a backup that does not end. When its source goes away, it asks again until the source is back, and begins
with a new point; what is there already is not shipped again. An object that the audit finds damaged or missing is: if
the source still has it, the backup is mended.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from topics.backup.places import ArchiveWriter, Place, open_place
from topics.backup.points import Backup
from topics.backup.receiving import Receiver, Shipped
from topics.backup.sources import DirectorySource, ServerSource
from topics.client.errors import ApiError, ClientError
from topics.clock import Clock
from topics.engine.durability.shipping import BadStream
from topics.errors import Damaged
from topics.reader import Check

PAUSE_S = 1.0  # before a source that is gone is asked again
ATTEMPTS_MAX = 5  # of a backup that does not follow
MENDED_MAX = 3  # times that damaged objects are shipped again

Source = ServerSource | DirectorySource


def back_up(source: Source, receiver: Receiver) -> Shipped:
    """Ship one point. A stream that breaks off is asked for again: what has arrived is there."""
    for attempt in range(ATTEMPTS_MAX):
        receiver.begin()
        try:
            for data in source.stream(receiver.have, follows=False):
                receiver.feed(data)
        except ApiError:
            raise
        except (ClientError, BadStream):
            if attempt == ATTEMPTS_MAX - 1:
                raise
            continue
        if receiver.shipped.points:
            return receiver.shipped
    raise BadStream(f"{source.name} ends its stream before the backup is complete")


def back_up_and_audit(
    source: Source, receiver: Receiver, place: Place, said: Callable[[str], None] = lambda text: None
) -> tuple[Shipped, Check]:
    """Ship a point and audit it, until none of its objects is damaged. Damaged: the source has no others."""
    for _ in range(MENDED_MAX):
        shipped = back_up(source, receiver)
        said("auditing the copy")
        damaged, check = audit_or_find(place, shipped.point)
        if check is not None and not damaged:
            return shipped, check
        receiver.distrust(damaged)
        receiver.retract()
        said(f"shipping {len(damaged)} damaged objects again")
    shipped = back_up(source, receiver)
    return shipped, audit(place, shipped.point)


def audit_or_find(place: Place, point: str) -> tuple[list[str], Check | None]:
    """What the audit of a point says; and the objects of it that are damaged, which another backup may mend."""
    try:
        check = audit(place, point)
    except Damaged:
        damaged = Backup(place).damaged(point)
        if not damaged:
            raise
        return damaged, None
    is_sound = not any(fault.is_certain for fault in check.faults)
    return [] if is_sound else Backup(place).damaged(point), check


async def receive(
    stream: Callable[[set[str]], AsyncGenerator[bytes, None]], dest: str, source: str, *, audits: bool
) -> Shipped:
    """Receive the stream of an engine in this process. Damaged: the audit of the copy has found something."""
    place = await asyncio.to_thread(open_place, dest, writes=True)
    try:
        receiver = await asyncio.to_thread(Receiver, place, source)
        for attempt in range(MENDED_MAX + 1):
            await asyncio.to_thread(receiver.begin)
            async with aclosing(stream(receiver.have)) as parts:
                async for data in parts:
                    await asyncio.to_thread(receiver.feed, data)
            await asyncio.to_thread(place.finish)
            damaged = await asyncio.to_thread(_damaged, dest, receiver.shipped.point) if audits else []
            if not damaged or attempt == MENDED_MAX or isinstance(place, ArchiveWriter):
                break
            receiver.distrust(damaged)
            await asyncio.to_thread(receiver.retract)
        if audits:
            await asyncio.to_thread(_must_be_sound, dest, receiver.shipped.point)
        return receiver.shipped
    finally:
        await asyncio.to_thread(place.close)


def _damaged(dest: str, point: str) -> list[str]:
    place = open_place(dest)
    try:
        return Backup(place).damaged(point)
    finally:
        place.close()


def _must_be_sound(dest: str, point: str) -> None:
    place = open_place(dest)
    try:
        for fault in audit(place, point).faults:
            if fault.is_certain:
                raise Damaged(f"{place.name}: {fault.file or fault.topic}", 0, fault.message)
    finally:
        place.close()


class Follower:
    """Ships points and the log for as long as it runs."""

    def __init__(self, source: Source, receiver: Receiver, clock: Clock) -> None:
        self._source = source
        self._damaged: list[str] = []
        self._receiver = receiver
        self._clock = clock
        self._at = 0.0  # monotonic, when the copy last was as of `shipped.ts`
        self._seen_ts = 0
        self.trouble = ""  # why nothing comes; "" = all is well

    @property
    def lag_s(self) -> float | None:
        """How long ago all that the source had kept was in the copy; None: there is no copy yet."""
        return self._clock.monotonic() - self._at if self._seen_ts else None

    def mend(self, damaged: list[str]) -> None:
        """Ship these objects again, with a new point. For another thread."""
        self._damaged = damaged

    def run(self, on_change: Callable[[], None], pause: Callable[[float], object]) -> None:
        """Follow until an error that waiting does not help against, or an exception of the caller's own."""
        while True:
            self._receiver.begin()
            try:
                for data in self._source.stream(self._receiver.have, follows=True):
                    self._receiver.feed(data)
                    self._note()
                    on_change()
                    if self._damaged:
                        break
                self.trouble = f"{self._source.name} has ended the stream"
                if self._damaged:
                    self.trouble = f"{len(self._damaged)} objects are damaged and are shipped again"
                    self._receiver.distrust(self._damaged)
                    self._damaged = []
            except ApiError as error:
                if error.status not in (429, 500, 503):
                    raise
                self.trouble = str(error)
            except (ClientError, BadStream) as error:
                self.trouble = str(error)
            except OSError as error:  # of the place: it may come back, if it ever was there
                if not self._receiver.shipped.points:
                    raise
                self.trouble = str(error)
            on_change()
            pause(PAUSE_S)

    def _note(self) -> None:
        shipped = self._receiver.shipped
        self._source.is_steady = self._source.is_steady or shipped.points > 0
        if shipped.ts != self._seen_ts:
            self._seen_ts, self._at, self.trouble = shipped.ts, self._clock.monotonic(), ""


def audit(place: Place, name: str) -> Check:
    """Hold a point of a backup, as it lies there, against its checksums and itself. Damaged: an object is not whole."""
    backup = Backup(place)
    point = backup.point(name)
    for entry in (*point.snapshot, *point.segments):
        for path in filter(None, (entry.path, entry.flags)):
            if path not in backup.sizes:
                raise Damaged(f"{place.name}/{path}", 0, "this object is missing")
    return backup.open(name, point).check()
