"""Sets of seqs as bits: blocks of 1,024 seqs, an integer each."""

from collections.abc import Iterable, Iterator

BLOCK = 1024  # seqs whose dead marks share one integer

Blocks = dict[int, int]  # block number → mask of its seqs


def mask_of(number: int, first: int, last: int) -> int:
    """The bits of the seqs first..last in block `number`."""
    low, high = max(0, first - number * BLOCK), min(BLOCK - 1, last - number * BLOCK)
    return ((1 << (high + 1)) - 1) & ~((1 << low) - 1) if high >= low else 0


def runs_of(mask: int) -> Iterator[tuple[int, int]]:
    """Runs of set bits, as start and stop."""
    position = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        length = (~mask & (mask + 1)).bit_length() - 1
        yield position + skip, position + skip + length
        mask >>= length
        position += skip + length


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
    """The seqs whose bits are set in the blocks of a delete, as runs."""
    return [
        range(number * BLOCK + start, number * BLOCK + stop)
        for number, mask in blocks
        for start, stop in runs_of(int.from_bytes(mask, "little"))
    ]
