"""Sets of seqs as bits: blocks of 1,024 seqs, an integer each."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

BLOCK = 1024  # seqs whose dead marks share one integer
SCATTERED_MIN = 32  # seqs of a block, from which on they are found bit by bit if they are no run
_SELECTORS = bytes.maketrans(b"01", b"\x00\x01")

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


def seqs_in(blocks: Iterable[tuple[int, bytes]]) -> list[Sequence[int]]:
    """The seqs whose bits are set in the blocks of a delete, ascending: runs, and lists where these would be many."""
    pieces: list[Sequence[int]] = []
    for number, packed in blocks:
        base, mask = number * BLOCK, int.from_bytes(packed, "little")
        if mask.bit_count() > SCATTERED_MIN and run_of(mask) is None:
            bits = f"{mask:b}"[::-1].encode().translate(_SELECTORS)
            pieces.append(list(compress(range(base, base + BLOCK), bits)))
            continue
        for start, stop in runs_of(mask):
            last = pieces[-1] if pieces else None
            if type(last) is range and last.stop == base + start:
                pieces[-1] = range(last.start, base + stop)
            else:
                pieces.append(range(base + start, base + stop))
    return pieces
