"""Inputs made of others by chance: the part of a search that needs no coverage, repeated exactly by its seed."""

import random
from collections.abc import Iterator, Sequence

NUMBERS = (0, 1, 2, 7, 8, 16, 127, 128, 255, 256, 32767, 65535, 1 << 31, (1 << 32) - 1, (1 << 63) - 1)


def mutations(inputs: Sequence[bytes], words: Sequence[bytes], size_max: int, rng: random.Random) -> Iterator[bytes]:
    """Without end."""
    while True:
        data = bytearray(rng.choice(inputs))
        for _ in range(1 << rng.randrange(4)):
            rng.choice(CHANGES)(data, rng, inputs, words)
        yield bytes(data[:size_max])


def flip(data: bytearray, rng: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def steer(data: bytearray, rng: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    """The first bytes say how an input is used."""
    if data:
        data[rng.randrange(min(2, len(data)))] = rng.randrange(256)


def remove(data: bytearray, rng: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randrange(1, 20)]


def repeat(data: bytearray, rng: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = data[start : start + rng.randrange(1, 60)] * rng.choice((1, 2, 8))


def insert(data: bytearray, rng: random.Random, _: Sequence[bytes], words: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.choice((*words, rng.randbytes(rng.randrange(1, 5))))


def overwrite(data: bytearray, rng: random.Random, _: Sequence[bytes], words: Sequence[bytes]) -> None:
    start, word = rng.randrange(len(data) + 1), rng.choice(words)
    data[start : start + len(word)] = word


def number(data: bytearray, rng: random.Random, _: Sequence[bytes], __: Sequence[bytes]) -> None:
    value, start = rng.choice(NUMBERS), rng.randrange(len(data) + 1)
    size = max(1, rng.choice((1, 2, 4, 8, (value.bit_length() + 7) // 8)))
    image = (value & (1 << 8 * size) - 1).to_bytes(size, rng.choice(("little", "big")))
    data[start : start + size] = rng.choice((image, str(value).encode()))


def cross(data: bytearray, rng: random.Random, inputs: Sequence[bytes], __: Sequence[bytes]) -> None:
    other = rng.choice(inputs)
    start = rng.randrange(len(other) + 1)
    data[rng.randrange(len(data) + 1) :] = other[start:]


CHANGES = (flip, flip, steer, remove, repeat, insert, overwrite, number, cross)
