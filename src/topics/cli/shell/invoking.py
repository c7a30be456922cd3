"""A function as a command: the options that all commands have, and what becomes of an error.

`command` registers a function whose first parameter is the `Call`: the server that was chosen, the output that was
asked for, questions. Its docstring is the help; paragraphs that begin with `Example:` are shown as they stand, and the
tests run them. Invariants: an error is one line on stderr and an exit code of `exits`, never a traceback; nobody is
asked without a terminal; Ctrl-C and a closed pipe end a command quietly.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, get_args

import typer

from topics.cli.shell import contexts, display, exits, servers
from topics.cli.shell.manual import Command
from topics.cli.shell.servers import RETRIES, TIMEOUT_MS
from topics.errors import TopicsError
from topics.model import is_topic_name

if TYPE_CHECKING:
    from topics.client import Client
    from topics.clock import SystemClock


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="TOPICS_URL",
        show_envvar=True,
        metavar="URL",
        help="Address of the server; of several, with commas between them.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option("--key", envvar="TOPICS_TOKEN", show_envvar=True, metavar="KEY", help="API key of the server."),
]
ContextName = Annotated[str | None, typer.Option("--context", metavar="NAME", help="A server from topics context ls.")]
Json = Annotated[bool, typer.Option("--json", help="JSON, one object per line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_OF_SERVER: Final = {"url": Url, "key": Key, "context": ContextName}


class Call:
    """One run of a command."""

    def __init__(self, name: str, server: contexts.Server | None, *, is_json: bool) -> None:
        self.name = name
        self.is_json = is_json
        self._server = server
        self._clients: list[Client] = []

    def close(self) -> None:
        for client in self._clients:
            client.close()

    @property
    def server(self) -> contexts.Server:
        assert self._server is not None, "this command has no server"
        return self._server

    @cached_property
    def clock(self) -> "SystemClock":
        from topics.clock import SystemClock

        return SystemClock()

    @cached_property
    def client(self) -> "Client":
        return self.new_client()

    def new_client(self, retries: int = RETRIES, timeout_ms: int = TIMEOUT_MS) -> "Client":
        return self._client_of(servers.only(self.server), retries, timeout_ms)

    @cached_property
    def clients(self) -> "list[Client]":
        """One for each server."""
        return [self._client_of(server) for server in servers.each(self.server)]

    def _client_of(self, server: contexts.Server, retries: int = RETRIES, timeout_ms: int = TIMEOUT_MS) -> "Client":
        from topics.client import Client

        client = Client(server.url, server.key, retries=retries, timeout_ms=timeout_ms)
        self._clients.append(client)
        return client

    # --- output

    def emit(self, found: Any) -> None:
        """One JSON line. Of a result of the client, without the server's times."""
        import msgspec

        if isinstance(found, msgspec.Struct):
            found = {name: value for name, value in msgspec.to_builtins(found).items() if name != "performance"}
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        sys.stdout.flush()

    def show(self, found: Any, text: str) -> None:
        """A result: as JSON if that was asked for, else this text."""
        if self.is_json:
            self.emit(found)
        else:
            print(text)

    def fail(self, message: str, code: int = exits.REFUSED) -> NoReturn:
        tell(self.name, message, is_json=self.is_json)
        raise typer.Exit(code)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Go on only if somebody wants it."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self.fail(f"{question} Nobody can be asked here: repeat it with --yes", exits.USAGE)
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            self.fail("nothing was done", exits.REFUSED)


def tell(name: str, message: str, *, is_json: bool = False, code: str = "failed") -> None:
    """An error, to people or as a JSON line; on stderr."""
    if is_json:
        import msgspec

        display.say(msgspec.json.encode({"error": {"code": code, "message": message}}).decode())
    else:
        display.say(f"topics {name}: {message}")


def command(app: typer.Typer, name: str, *, section: str | None = None, offline: bool = False) -> Callable[..., Any]:
    """Register a function as a command; an `offline` one has no server."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        title = f"{app.info.name} {name}" if app.info.name and app.info.name != "topics" else name
        app.command(name, cls=Command, help=help_of(function.__doc__ or ""), rich_help_panel=section)(
            _adapted(function, title, offline=offline)
        )
        return function

    return register


def help_of(text: str) -> str:
    """A docstring whose examples are not rewrapped."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    examples = [" ".join(p.split("\n")).removeprefix("Example: ") for p in paragraphs if p.startswith("Example:")]
    rest = [p for p in paragraphs if not p.startswith("Example:")]
    if examples:
        rest.append("\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples))
    return "\n\n".join(rest)


def _adapted(function: Callable[..., None], title: str, *, offline: bool) -> Callable[..., None]:
    """The function as the command line calls it: with the options of all in place of the call."""
    _, *own = inspect.signature(function, eval_str=True).parameters.values()
    shared: dict[str, Any] = {} if offline else dict(_OF_SERVER)
    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("typer_context", keyword, annotation=typer.Context)
    added = [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in shared.items()]
    added.append(inspect.Parameter("json", keyword, default=False, annotation=Json))
    own = [parameter.replace(kind=keyword) for parameter in own]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        typer_context, is_json = given.pop("typer_context"), given.pop("json")
        picked = {name: given.pop(name) for name in shared}
        origin = "TOPICS_URL" if _is_from_environment(typer_context) else "--url"
        _guarded(lambda call: function(call, **given), title, picked, origin, is_json, _topic_of(given))

    return _with_parameters(run, [context, *own, *added])


def with_options(
    function: Callable[..., None], given_as: str, options: Mapping[str, Any], make: Callable[[dict[str, Any]], Any]
) -> Callable[..., None]:
    """The function with more options, by name; in place of its parameter `given_as` it gets what `make` makes of them.

    An option is the annotation of a parameter; one of type bool is off unless given, any other one is None.
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    own = [one for one in parameters if one.name != given_as]
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=False if get_args(kind)[0] is bool else None, annotation=kind)
        for name, kind in options.items()
    ]

    @functools.wraps(function)
    def run(*arguments: Any, **given: Any) -> None:
        taken = {name: given.pop(name) for name in options}
        function(*arguments, **given, **{given_as: make(taken)})

    return _with_parameters(run, [*own, *added])


def _with_parameters(run: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    """The function, with these parameters for whoever looks at them."""
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def run_alone(
    title: str,
    run: Callable[[Call], None],
    url: str | None,
    key: str | None,
    context: str | None,
    *,
    is_json: bool,
    topic: str | None = None,
) -> None:
    """Run what a command does without Spark; such a command declares the options of all by itself."""
    picked, origin = with_environment(url, key, context)
    _guarded(run, title, picked, origin, is_json, topic)


def with_environment(url: str | None, key: str | None, context: str | None) -> tuple[dict[str, str | None], str]:
    """Options of which --url does not look at its variable, and where the address is from."""
    from topics.settings import ClientSettings

    settings = ClientSettings.load()
    is_set = url is None and context is None and settings.url != contexts.DEFAULT_URL
    picked = {"url": settings.url if is_set else url, "key": key or settings.token or None, "context": context}
    return picked, "TOPICS_URL" if is_set else "--url"


def _is_from_environment(context: typer.Context) -> bool:
    source = context.get_parameter_source("url")
    return source is not None and source.name == "ENVIRONMENT"


def _topic_of(given: dict[str, Any]) -> str | None:
    """The one topic that a command is about, if there is one."""
    named = given.get("topic", given.get("topics"))
    if isinstance(named, list):
        named = named[0] if len(named) == 1 else None
    return named if isinstance(named, str) and is_topic_name(named) else None


def _guarded(
    run: Callable[[Call], None],
    title: str,
    picked: dict[str, Any],
    origin: str,
    is_json: bool,
    topic: str | None = None,
) -> None:
    """Run it, on the server that has the topic if there are several; what goes wrong is a message and an exit code."""
    server = None
    try:
        if picked:
            server = contexts.resolve(picked["url"], picked["key"], picked["context"], url_origin=origin)
            server = server if topic is None else servers.holding(server, topic)
        with closing(Call(title, server, is_json=is_json)) as call:
            run(call)
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None
    except BrokenPipeError:
        # What is still buffered would be written at the end of the process, to nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(exits.PIPE_CLOSED) from None
    except TopicsError as error:
        code = exits.code_of(error)
        tell(title, told(error, server), is_json=is_json, code=error.code)
        raise typer.Exit(code) from None
    except OSError as error:
        tell(title, f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), is_json=is_json)
        raise typer.Exit(exits.REFUSED) from None


def told(error: TopicsError, server: contexts.Server | None) -> str:
    """What went wrong, and with which server."""
    message = error.message
    if server is None or error.code == "configuration":
        return message
    place = f"{server.url} ({server.origin})"
    code = exits.code_of(error)
    if code == exits.UNREACHABLE:
        return f"{message}; the server is {place}: start one with topics serve, or name another with --url or --context"
    if code == exits.FORBIDDEN:
        return f"{message}; the server is {place}: give a key with --key, TOPICS_TOKEN or a context"
    return f"{message} [{place}]" if server.origin.startswith("context") else message
