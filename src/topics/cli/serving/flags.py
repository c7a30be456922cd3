"""Settings from a command line: a flag for each, and the settings file.

Owns what flags look like, and reading the file. Which settings there are, and what a value may be, is the table's in
`topics.settings`. Invariant: a file that holds keys and that others may read is refused.
"""

import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from topics.cli.shell.invoking import with_options
from topics.errors import ConfigurationError
from topics.settings import PUBLIC, Gathered, flag_of, gather, variable_of
from topics.units import plain_duration, plain_size

DEFAULT_FILE: Final = "topics.toml"
FILE_BYTES_MAX: Final = 1 << 20
_METAVARS: Final = {
    "text": "TEXT",
    "path": "PATH",
    "address": "ADDRESS",
    "list": "A,B,…",
    "level": "LEVEL",
    "count": "N",
    "port": "PORT",
    "size": "SIZE",
    "time": "TIME",
}

Gather = Callable[[], Gathered]
Config = Annotated[
    str | None, typer.Option("--config", metavar="FILE", help=f"The settings file; ./{DEFAULT_FILE} if there is one.")
]


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """A command with all settings as options: in place of its parameter `gather` it gets a call that gathers them."""
    return with_options(function, "gather", {"config": Config} | {one.name: _option(one) for one in PUBLIC}, _gatherer)


def _gatherer(flags: dict[str, Any]) -> Gather:
    path = flags.pop("config")

    def gather_once() -> Gathered:
        found = gathered(path, flags)
        flags.clear()  # they may hold secrets
        return found

    return gather_once


def _option(setting: Field[Any]) -> Any:
    flag, kind = flag_of(setting), setting.metadata["kind"]
    shown = shown_value(setting, setting.default)
    meaning = setting.metadata["meaning"]
    text = f"{meaning[:1].upper()}{meaning[1:]}.  [{variable_of(setting)}; default: {shown}]"
    if kind == "flag":
        return Annotated[bool | None, typer.Option(f"{flag}/--no{flag[1:]}", help=text, show_default=False)]
    return Annotated[str | None, typer.Option(flag, metavar=_METAVARS[kind], help=text, show_default=False)]


def shown_value(setting: Field[Any], value: Any) -> str:
    """A value in its unit, and as one would write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value == "":
        return "unset"
    forms = {"size": plain_size, "time": plain_duration}
    form = forms.get(setting.metadata["kind"], str)(value) if value else str(value)
    return form if form == str(value) else f"{value} ({form})"


def gathered(path: str | None, flags: Mapping[str, Any] | None = None) -> Gathered:
    """What the flags, the file and the environment say. ConfigurationError: one of them is wrong."""
    file = read_file(path)
    return gather(flags, file, file_name=path or DEFAULT_FILE)


def read_file(path: str | None) -> dict[str, Any]:
    """The keys of a settings file; without a path those of the one in this directory, if there is one."""
    name = path or DEFAULT_FILE
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            mode = os.fstat(descriptor).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise ConfigurationError(f"{name} is not a file")
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        if path is None:
            return {}
        raise ConfigurationError(f"the settings file {name} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the settings file {name} cannot be read: {reason}") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigurationError(f"the settings file {name} is larger than {FILE_BYTES_MAX} bytes")
    try:
        found = tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ConfigurationError(f"the settings file {name} is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"the settings file {name} is not TOML: {error}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH) and any(found.get(one.name) for one in PUBLIC if one.metadata["secret"]):
        raise ConfigurationError(f"{name} holds keys and can be read or written by others: chmod o= {name}")
    return found


def key_file_of(given: str | None, config: str | None) -> Path:
    """The key file that a command is about."""
    path = gathered(config, {"key_file": given}).settings.key_file
    if not path:
        raise ConfigurationError("which key file? Name it with --key-file, TOPICS_KEY_FILE or in the settings file")
    return Path(path)
