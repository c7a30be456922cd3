"""Redis on the wire: commands as bytes, and whether an answer is whole."""

from bench.wire.epoll import IsWhole


def request(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def has_lines(count: int) -> IsWhole:
    return lambda answer: answer.count(b"\r\n") == count
