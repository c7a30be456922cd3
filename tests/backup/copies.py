"""What the tests of backups share: an engine on a real directory, and all that can be seen of one, to be compared."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from topics.backup.copying import back_up
from topics.backup.places import open_place
from topics.backup.points import Backup
from topics.backup.receiving import Receiver, Shipped
from topics.backup.restoring import Restored, restore
from topics.backup.sources import DirectorySource
from topics.engine import Engine
from topics.settings import Settings
from topics.testing.clock import ManualClock

SMALL = Settings(segment_max_events=100)  # many segments


@asynccontextmanager
async def engine_on(path: Path, clock: ManualClock | None = None, settings: Settings = SMALL) -> AsyncIterator[Engine]:
    async with Engine.open(str(path), settings, clock=clock or ManualClock(), background=False) as engine:
        yield engine


async def seen(engine: Engine) -> dict[str, Any]:
    """Topics with their records, losses, configs and queues, routers, leases; without epochs and times of reading."""
    found: dict[str, Any] = {}
    for name in await engine.topic_names():
        info, parts = await engine.export(name)
        stream = b"".join([part async for part in parts])
        with pa.ipc.open_stream(stream) as reader:
            rows = reader.read_all().to_pylist()
        state = await engine.topic_state(name, touch=False)
        leases = []
        if state.config.type == "queue":
            leases = [
                (one.seq, one.node, one.deadline, one.deliveries)
                for one in (await engine.queues.leases(name, 0, 1000))[0]
            ]
        lost = [(one.gap_from, one.gap_to, one.reason) for one in info.lost]
        found[name] = (state.config, state.head_seq, state.earliest_seq, rows, lost, leases)
    routers, _ = await engine.routing.list_after("", 1000)
    found["routers"] = [(one.router, one.source, one.dest, one.forwarded_total) for one in routers]
    return found


def directory_backup(source: Path, dest: Path | str, clock: ManualClock | None = None) -> Shipped:
    """Back up a directory, stopped or not."""
    place = open_place(str(dest), writes=True)
    shipped = back_up(DirectorySource(source, clock or ManualClock()), Receiver(place, "test"))
    place.finish()
    place.close()
    return shipped


def restored(source: Path | str, path: Path, **options: Any) -> Restored:
    place = open_place(str(source))
    try:
        return restore(Backup(place), str(path), ManualClock(), **options)
    finally:
        place.close()


def objects(dest: Path) -> list[Path]:
    return sorted(path for path in dest.rglob("*") if path.is_file())
