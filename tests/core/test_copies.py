"""How rows of a source become batches of a dest."""

from array import array

import pytest
from msgspec import Raw

from topics.core.routing.copies import MERGED_MIN, Copier
from topics.core.topic.records import Batch, RecordIn, batch_of, decode_body
from topics.settings import Settings


def batch(*values: int, node: str | None = None, tag: str | None = None) -> Batch:
    records = [RecordIn(Raw(b"%d" % value), tag, None, Raw(b'{"v":%d}' % value)) for value in values]
    return batch_of(records, node, Settings())


def copied(batches: list[Batch]) -> list[Batch]:
    copier, seq = Copier(1, False, False, None), 1
    for one in batches:
        count = len(one.sizes)
        copier.take_body(one.body, 0, count, count, one.sizes, one.has_tags, seq)
        seq += count
    return copier.batches()


def rows(batches: list[Batch]) -> list[tuple[bytes, str | None, str | None, bytes, int]]:
    found = []
    for one in batches:
        body = decode_body(one.body)
        for record, size in zip(body.records, one.sizes, strict=True):
            found.append((bytes(record.data), record.tag, record.node or body.node, bytes(record.meta), size))
    return found


def test_a_few_bodies_are_the_same_objects_in_the_dest() -> None:
    """RT9"""
    batches = [batch(value) for value in range(MERGED_MIN - 1)]
    assert all(mine.body is theirs.body for mine, theirs in zip(batches, copied(batches), strict=True))


@pytest.mark.parametrize("counts", [[1] * 100, [1, 2, 3] * 10, [1] * 20 + [500] + [2] * 20, [MERGED_MIN] * 20])
def test_many_small_bodies_become_few_with_the_same_records(counts: list[int]) -> None:
    """RT10"""
    batches = [
        batch(*range(n, n + count), node=f"n{n}" if n % 2 else None, tag="t" if n % 3 == 0 else None)
        for n, count in enumerate(counts)
    ]
    merged = copied(batches)
    assert rows(merged) == rows(batches)
    small = [count for count in counts if count < MERGED_MIN]
    assert len(merged) <= len(counts) - len(small) + 2
    assert all(one.has_tags for one in merged if any(row[1] for row in rows([one])))
    assert all(isinstance(one.sizes, array) for one in merged)
