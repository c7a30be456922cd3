"""`topics keys`: the keys in a key file (AU17). A running server takes a change over within seconds.

The file is replaced as a whole, under a lock on its directory, so that neither a server nor another command sees or
undoes half a change; comments, order and owner stay. A secret is shown once, and nowhere written.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from topics.cli.serving.flags import Config, key_file_of
from topics.cli.shell import display, exits
from topics.cli.shell.invoking import Call, Yes, command
from topics.cli.shell.manual import Sections
from topics.errors import ConfigurationError
from topics.faults import nearest, quoted

if TYPE_CHECKING:
    from topics.server.auth import Key

MODE: Final = 0o600  # of a file that is new
SECRET_BYTES: Final = 32
SECRET_START: Final = "tpk_"  # so that one is known where it should not be
ALL: Final = "-"
HEAD: Final = "# name scopes prefixes digest\n"

keys = typer.Typer(name="keys", cls=Sections, no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key.")]
KeyFileOption = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help="The key file; by default that of the settings: TOPICS_KEY_FILE."),
]


@command(keys, "new", offline=True)
def new(
    call: Call,
    name: Name,
    scopes: Annotated[
        str, typer.Option(metavar="SCOPES", help="What it may do: read, write, delete, admin, joined by +; or all.")
    ],
    prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="PREFIX", help="Only names that begin so; may be repeated. Without one, every name."),
    ] = None,
    key_file: KeyFileOption = None,
    config: Config = None,
) -> None:
    """Make a key: its secret is printed, this once, and its digest is added to the key file.

    A file that is not there yet is made, readable only by you.

    Example: topics keys new dash --scopes read --prefix acme: --key-file keys

    Example: topics keys new ops --scopes all --key-file keys
    """
    path = key_file_of(key_file, config)
    secret = SECRET_START + secrets.token_urlsafe(SECRET_BYTES)
    line = _line(name, scopes, prefix or [], secret)
    with _locked(path):
        text = _text_of(path) if path.exists() else HEAD
        if any(one.name == name for one in _parsed(text, path)):
            call.fail(f"{path} has a key {quoted(name)} already; to renew its secret, make one of another name")
        _replace(path, f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    made = _parsed(line, path)[0]
    display.say(f"{path} now has the key {name}. Keep its secret, which is shown only this once:")
    call.show({**_fields(made), "secret": secret, "key_file": str(path)}, secret)


@command(keys, "ls", offline=True)
def ls(call: Call, key_file: KeyFileOption = None, config: Config = None) -> None:
    """List the keys in a key file. Secrets are not in it.

    Example: topics keys ls --key-file keys
    """
    path = key_file_of(key_file, config)
    found = _parsed(_text_of(path), path)
    if call.is_json:
        for one in found:
            call.emit(_fields(one))
        return
    rows = [
        (one.name, "+".join(sorted(one.scopes)), "|".join(one.prefixes) or "(all)", f"sha256:{one.digest.hex()[:12]}…")
        for one in found
    ]
    print("\n".join(display.table(("name", "scopes", "prefixes", "digest"), rows)))


@command(keys, "rm", offline=True)
def rm(call: Call, name: Name, yes: Yes = False, key_file: KeyFileOption = None, config: Config = None) -> None:
    """Take a key out of a key file. Its next request is refused, and its streams end.

    Example: topics keys rm dash --yes --key-file keys
    """
    path = key_file_of(key_file, config)
    _check_known(call, name, path)
    call.confirm(f"Take the key {name} out of {path}? Whoever uses it is locked out.", yes=yes)
    with _locked(path):
        _check_known(call, name, path)
        kept = [line for line in _text_of(path).splitlines(keepends=True) if line.split()[:1] != [name]]
        _replace(path, "".join(kept))
    call.show({"name": name, "removed": True, "key_file": str(path)}, f"{path} has no key {name} any more")


def _check_known(call: Call, name: str, path: Path) -> None:
    names = [str(one.name) for one in _parsed(_text_of(path), path)]
    if name not in names:
        close = nearest(name, names)
        call.fail(f"{path} has no key {quoted(name)}" + (f"; did you mean {close}?" if close else ""), exits.ABSENT)


def _line(name: str, scopes: str, prefixes: list[str], secret: str) -> str:
    """A key as the file has it. Whatever would be read as something else is refused."""
    from topics.server.access.key_file import parse_keys
    from topics.server.auth import SCOPE_WORDS

    words = "+".join(scopes.replace(",", " ").replace("+", " ").split())
    if not words:
        raise ConfigurationError("a scope is empty; use read, write, delete, admin, joined by +, or all")
    if words != "all" and (wrong := [one for one in words.split("+") if one not in SCOPE_WORDS]):
        raise ConfigurationError(f"there is no scope {quoted(wrong[0])}; use read, write, delete, admin, or all")
    allowed = "|".join(prefixes) or ALL
    line = f"{name} {ALL if words == 'all' else words} {allowed} sha256:{sha256(secret.encode()).hexdigest()}"
    if any(not one or one == ALL or one.startswith("#") or "|" in one or one.split() != [one] for one in prefixes):
        raise ConfigurationError("a prefix must not be empty or -, begin with #, or have a blank or | in it")
    if [name] != name.split() or name.startswith("#"):
        raise ConfigurationError(
            f"{quoted(name)} cannot name a key: use a word without blanks that does not begin with #"
        )
    try:
        parse_keys(line, quoted(name))
    except ConfigurationError as error:
        raise ConfigurationError(error.message.replace(", line 1:", ":", 1)) from None
    return line


def _fields(key: "Key") -> dict[str, object]:
    digest = f"sha256:{key.digest.hex()}"
    return {"name": key.name, "scopes": sorted(key.scopes), "prefixes": list(key.prefixes), "digest": digest}


def _parsed(text: str, path: Path) -> "list[Key]":
    from topics.server.access.key_file import parse_keys

    return parse_keys(text, f"key file {path}")


def _text_of(path: Path) -> str:
    """The file, if a server would take it."""
    from topics.server.access.key_file import read_keys

    read_keys(str(path))
    return path.read_text()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone with the directory of the file."""
    descriptor = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Put this text in place of the file, durably; a link stays one."""
    file = path.resolve()
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        with open(descriptor, "w") as out:
            if file.exists():
                was = file.stat()
                os.fchown(descriptor, was.st_uid, was.st_gid)
                os.fchmod(descriptor, was.st_mode & 0o7777)
            out.write(text)
            out.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
