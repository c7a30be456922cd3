"""Sets of seqs as bits: blocks of 1,024 seqs, an integer each."""

from collections.abc import Iterable, Iterator

BLOCK = 1024  # seqs whose dead marks share one integer

Blocks = dict[int, int]  # block number → mask of its seqs


def mask_of(number: int, first: int, last: int) -> int:
    """The bits of the seqs first..last in block `number`."""
    low, high = max(0, first - number * BLOCK), min(BLOCK - 1, last - number * BLOCK)
    return ((1 << (high + 1)) - 1) & ~((1 << low) - 1) if high >= low else 0


def lowest(mask: int) -> int:
    """The lowest set bit of a mask that has one; a negative mask has all bits set from somewhere on."""
    return (mask & -mask).bit_length() - 1


def runs_of(mask: int) -> Iterator[tuple[int, int]]:
    """Runs of set bits, as start and stop."""
    position = 0
    while mask:
        skip = lowest(mask)
        mask >>= skip
        length = (~mask & (mask + 1)).bit_length() - 1
        yield position + skip, position + skip + length
        mask >>= length
        position += skip + length


def run_of(mask: int) -> range | None:
    """The set bits of a mask, if they lie in a row and there are some."""
    start = lowest(mask)
    return None if not mask or (mask >> start) & (mask >> start) + 1 else range(start, mask.bit_length())


def blocks_of(seqs: Iterable[int]) -> Blocks:
    """The seqs as blocks."""
    bits: dict[int, bytearray] = {}
    for seq in seqs:
        number, bit = divmod(seq, BLOCK)
        block = bits.get(number)
        if block is None:
            block = bits[number] = bytearray(BLOCK // 8)
        block[bit >> 3] |= 1 << (bit & 7)
    return {number: int.from_bytes(block, "little") for number, block in bits.items()}


def seqs_in(blocks: Iterable[tuple[int, bytes]]) -> list[range]:
    """The seqs whose bits are set in the blocks of a delete, ascending, as runs that do not touch."""
    runs: list[range] = []
    for number, mask in blocks:
        base = number * BLOCK
        for start, stop in runs_of(int.from_bytes(mask, "little")):
            if runs and runs[-1].stop == base + start:
                runs[-1] = range(runs[-1].start, base + stop)
            else:
                runs.append(range(base + start, base + stop))
    return runs
