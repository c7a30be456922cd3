"""Ranges of seqs, `(first, last)`, both inclusive: lists of them are sorted and do not overlap. Pure arithmetic."""

from collections.abc import Iterable, Iterator, Sequence

Range = tuple[int, int]


def union(ranges: Iterable[Range]) -> list[Range]:
    """The same seqs, sorted, what overlaps or adjoins being one range."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if first > last:
            continue
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def intersect(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The seqs that are in both."""
    common = ((max(a[0], b[0]), min(a[1], b[1])) for a in some for b in others)
    return [(first, last) for first, last in sorted(common) if first <= last]


def subtract(some: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """The seqs of `some` that are not in `others`."""
    left: list[Range] = []
    for first, last in some:
        for start, end in others:
            if end < first or start > last:
                continue
            if start > first:
                left.append((first, start - 1))
            first = max(first, end + 1)
        if first <= last:
            left.append((first, last))
    return left


def total(ranges: Iterable[Range]) -> int:
    """How many seqs there are."""
    return sum(last - first + 1 for first, last in ranges)


def split(after: int, last: int, parts: int) -> Iterator[tuple[int, int]]:
    """`after`..`last` in at most `parts` stretches of about the same length, as (after, last)."""
    seqs = last - after
    parts = max(1, min(parts, seqs))
    for n in range(parts):
        yield after + seqs * n // parts, after + seqs * (n + 1) // parts


def aligned(after: int, last: int, parts: int, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The same, cut only at the seqs `ends` (ascending), each cut where it is nearest to an even split."""
    cuts = sorted(
        {min(ends, key=lambda end: abs(end - cut)) for _, cut in list(split(after, last, parts))[:-1] if ends}
    )
    inner = [cut for cut in cuts if after < cut < last]
    return list(zip([after, *inner], [*inner, last], strict=True))
