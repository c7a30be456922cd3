"""The catalogue: after checkpoints, merges and rewrites it names what is in force, and a broken one is found."""

from collections.abc import Callable

import pytest

from tests.engine.running import open_engine, running
from topics.engine import Engine
from topics.engine.durability.catalogue import Catalogue
from topics.model import TagMatch
from topics.settings import Settings
from topics.storage import segments
from topics.testing.disk import MemoryDisk

SMALL = Settings(segment_max_events=10)


async def fill(engine: Engine) -> Catalogue:
    """Two topics with pieces in several files, some of them rewritten, one dropped."""
    catalogue = engine._ledger.store.catalogue
    for name in ("a", "b", "gone"):
        await engine.append(name, [{"data": n, "tag": f"t{n % 4}"} for n in range(25)])
    await engine.checkpoint()
    catalogue.check()
    await engine.delete("a", match=TagMatch("Eq", "t1"))
    await engine.delete("b", before_seq=24)
    await engine.delete_topic("gone")
    await engine.checkpoint()
    catalogue.check()
    await engine.append("a", [{"data": n} for n in range(5)])
    await engine.checkpoint()
    catalogue.check()
    return catalogue


async def test_the_files_on_the_disk_are_those_of_the_catalogue() -> None:
    """ST7, ST9"""
    disk = MemoryDisk()
    async with running(disk, settings=SMALL) as engine:
        catalogue = await fill(engine)
        assert {name for name in disk.names() if segments.number_in(name)} == {
            segments.name_of(number) for number in catalogue.files
        }
        in_force = {piece for pieces in catalogue.pieces.values() for piece in pieces}
        assert in_force == {part for name in ("a", "b") for part in engine.state.topics[name].log.parts}
    async with running(disk.kill(), settings=SMALL) as engine:
        engine._ledger.store.catalogue.check()
        assert set(engine._ledger.store.catalogue.files) == set(catalogue.files)


def lose_file(catalogue: Catalogue) -> None:
    del catalogue.files[min(catalogue.pieces)]


def move_piece(catalogue: Catalogue) -> None:
    first, last = min(catalogue.pieces), max(catalogue.pieces)
    catalogue.pieces[last].add(catalogue.pieces[first].pop())


def end_piece(catalogue: Catalogue) -> None:
    catalogue.obsolete.append(next(iter(catalogue.pieces[min(catalogue.pieces)])).ref)


def count_back(catalogue: Catalogue) -> None:
    catalogue.next_segment = max(catalogue.files)


@pytest.mark.parametrize("broken", [lose_file, move_piece, end_piece, count_back])
async def test_a_broken_catalogue_is_found(broken: Callable[[Catalogue], None]) -> None:
    engine = open_engine(settings=SMALL)
    await engine.start()
    catalogue = await fill(engine)
    broken(catalogue)
    with pytest.raises(AssertionError):
        catalogue.check()
