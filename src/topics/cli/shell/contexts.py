"""Contexts: servers by name, with their keys, in one file that only its owner may read.

The file is replaced as a whole, so that a reader sees the old one or the new one. `Server` says where an address came
from, so that an error can name it; no repr shows a key.
"""

import os
from pathlib import Path
from typing import Final

import msgspec
import typer
from msgspec import Struct

from topics.errors import ConfigurationError
from topics.faults import nearest

DEFAULT_URL: Final = "http://127.0.0.1:4000"


class Saved(Struct, omit_defaults=True):
    """One context."""

    url: str
    key: str = ""

    def __repr__(self) -> str:
        return f"Saved({self.url!r})"


class Contexts(Struct, omit_defaults=True):
    """All of them, and the one in use."""

    current: str = ""
    contexts: dict[str, Saved] = {}


class Server(Struct, frozen=True):
    """Where a command goes, and why there."""

    url: str
    key: str
    origin: str

    def __repr__(self) -> str:
        return f"Server({self.url!r}, {self.origin!r})"


def path() -> Path:
    folder = Path(typer.get_app_dir("topics"))
    if not folder.is_absolute():  # XDG_CONFIG_HOME is empty
        folder = Path.home() / ".config" / "topics"
    return folder / "contexts.json"


def load() -> Contexts:
    file = path()
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigurationError(f"the contexts in {file} cannot be read: {error.strerror}") from None
    try:
        return msgspec.json.decode(text, type=Contexts)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} is not a file of contexts: {error}; repair or remove it") from None


def save(found: Contexts) -> None:
    file = path()
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
        os.replace(temporary, file)
    except OSError as error:
        raise ConfigurationError(f"the contexts cannot be written to {file}: {error.strerror}") from None


def named(found: Contexts, name: str) -> Saved:
    """The context of this name. Raises if there is none, with the nearest name."""
    if (saved := found.contexts.get(name)) is not None:
        return saved
    close = nearest(name, found.contexts)
    known = ", ".join(sorted(found.contexts)) or "none yet; make one with topics context add"
    raise ConfigurationError(
        f"there is no context {name!r}; " + (f"did you mean {close}?" if close else f"there are: {known}")
    )


def resolve(url: str | None, key: str | None, name: str | None, *, url_origin: str) -> Server:
    """Options, then variables, then the context in use, then the default."""
    if name is None and url is not None:
        return Server(url, key or "", url_origin)
    found = load()
    chosen = name or found.current
    if not chosen:
        return Server(DEFAULT_URL, key or "", "the default")
    saved = named(found, chosen)
    return Server(url or saved.url, key or saved.key, f"context {chosen}")
