"""TOPICS_KEY_FILE: keys by name and digest, which may change while the server runs (AU17).

    # name   scopes      prefixes       digest of the secret
    feed     read+write  -              sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    dash     read        acme:|shared.  sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752

Owns the grammar of the file, reading it, and noticing that it changed. Must not know: what keys are used for.

Invariants: a file that is refused changes nothing, whether at the start or later; each change is looked at once, so
that a bad one is logged once; nothing of a line but its number and name is ever said.
"""

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable
from typing import Final

from topics.clock import Alarm, Clock
from topics.errors import ConfigurationError
from topics.server.auth import SCOPES, Key, Keyring, prefixes_in, scopes_in

logger = logging.getLogger("topics.server")

VARIABLE: Final = "TOPICS_KEY_FILE"
POLL_MS: Final = 2000
FILE_BYTES_MAX: Final = 1 << 20
ALL: Final = "-"  # in place of scopes or prefixes
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,254}")
DIGEST: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
EMPTY_SECRET: Final = bytes.fromhex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")

Signature = tuple[int, ...]  # of a file: another one means that it has changed


class KeyFile:
    """The key file of a server. `on_change` is called when its keys have changed."""

    def __init__(self, path: str, keyring: Keyring, clock: Clock, on_change: Callable[[], None]) -> None:
        self._path = path
        self._keyring = keyring
        self._clock = clock
        self._on_change = on_change
        self._seen: Signature | None = signature(path)
        self._alarm = Alarm()
        self.reread = self._alarm.ring  # read the file soon, whether it has changed or not

    async def follow(self) -> None:
        """Read the file whenever it has changed or `reread` was called. Runs until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._alarm.sleep(self._clock, POLL_MS)
            now = await loop.run_in_executor(None, signature, self._path)
            if self._alarm.is_ringing or now != self._seen:
                self._alarm.is_ringing, self._seen = False, now
                await self._read_again()

    async def _read_again(self) -> None:
        try:
            keys = await asyncio.get_running_loop().run_in_executor(None, read_keys, self._path)
            before = self._keyring.names
            self._keyring.take(keys)
        except ConfigurationError as error:
            logger.error("%s; the keys stay as they were", error.message)
            return
        logger.info("%s was read again and holds %d keys%s", VARIABLE, len(keys), _told(before, self._keyring.names))
        try:
            self._on_change()
        except Exception:  # later changes count all the same
            logger.exception("connections could not be checked against the changed keys")


def _told(before: set[str], now: set[str]) -> str:
    """Which keys came and went, by name."""
    changes = (("new", now - before), ("gone", before - now))
    return "".join(f"; {word}: {', '.join(sorted(names))}" for word, names in changes if names)


def signature(path: str) -> Signature | None:
    """A value that changes whenever the file does; None: the file is missing or cannot be examined."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def read_keys(path: str) -> list[Key]:
    """The keys in a file. ConfigurationError: it is missing, others may read it, or it does not parse."""
    place = f"{VARIABLE} {path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigurationError(f"{place} is not a file")
            if mode & (stat.S_IROTH | stat.S_IWOTH):
                raise ConfigurationError(f"{place} can be read or written by others: chmod o= {path}")
            text = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{place} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return parse_keys(text.decode(), place)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{place} is not UTF-8") from None


def parse_keys(text: str, place: str = VARIABLE) -> list[Key]:
    lines = enumerate(re.split(r"\r?\n", text), 1)
    return [_key(fields, f"{place}, line {n}") for n, line in lines if (fields := _fields(line))]


def _fields(line: str) -> list[str]:
    """The words of a line, up to one that begins with #."""
    words = line.split()
    ends = (n for n, word in enumerate(words) if word.startswith("#"))
    return words[: next(ends, len(words))]


def _key(fields: list[str], place: str) -> Key:
    if len(fields) != 4:
        raise ConfigurationError(f"{place}: {len(fields)} words; a key is: name scopes prefixes sha256:HEX")
    name, scopes, prefixes, digest = fields
    if NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{place}: the name is not 1 to 255 of A-Z a-z 0-9 . _ : @ -, the first a letter or digit"
        )
    if DIGEST.fullmatch(digest) is None:
        raise ConfigurationError(f"{place}: the fourth word is not sha256: and 64 hex digits")
    secret = bytes.fromhex(digest.partition(":")[2])
    if secret == EMPTY_SECRET:
        raise ConfigurationError(f"{place}: the digest is that of an empty secret")
    allowed = SCOPES if scopes == ALL else scopes_in(scopes, place)
    return Key(secret, allowed, () if prefixes == ALL else prefixes_in(prefixes, place), name)
