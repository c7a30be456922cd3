"""`topics context` and `topics completion`: servers by name, and the shell's completion."""

import sys
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from topics.cli.shell import contexts, display, exits
from topics.cli.shell.completing import context_names
from topics.cli.shell.invoking import Call, command
from topics.cli.shell.manual import Sections
from topics.errors import TopicsError

# bash ends words at colons, which names of topics may have: words are made of the line itself, and of what is offered
# only what lies behind the last colon is handed over.
BASH: Final = r"""
_topics_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" word start
    local -a words
    IFS=$' \t' read -ra words <<< "$line"
    [[ "$line" == *[[:blank:]] ]] && words+=("")
    word="${words[${#words[@]}-1]}"
    local IFS=$'\n'
    COMPREPLY=( $( env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \
                   _TOPICS_COMPLETE=complete_bash "$1" ) )
    if [[ "$word" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
        start="${word%"${word##*:}"}"
        COMPREPLY=( "${COMPREPLY[@]#"$start"}" )
    fi
}

complete -o default -F _topics_completion topics
""".strip()

context = typer.Typer(name="context", cls=Sections, no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", autocompletion=context_names)]


@command(context, "add", offline=True)
def add(
    call: Call,
    name: Name,
    url: Annotated[str, typer.Option("--url", metavar="URL", help="Address of the server.")],
    key_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file that holds the API key; - reads it from stdin.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Remember a server under a name, or change it. Only you may read the file that keeps it.

    The first context is used at once.

    Example: topics context add prod --url https://topics.example --use
    """
    from topics.client import Client
    from topics.client.fleets.addresses import addresses

    key = ""
    if key_file is not None:
        key = (sys.stdin.read() if key_file == "-" else Path(key_file).read_text(errors="replace")).strip()
        if not key:
            call.fail(f"{key_file} holds no key", exits.USAGE)
    if not name or not name.isprintable() or name.startswith("-"):
        call.fail(f"{name!r} is no name for a context", exits.USAGE)
    try:
        for one in addresses(url):
            Client(one, key).close()
    except TopicsError as error:
        call.fail(error.message, exits.USAGE)
    found = contexts.load()
    found.contexts[name] = contexts.Saved(url, key)
    if use or not found.current:
        found.current = name
    contexts.save(found)
    call.show(_shown(found, name), f"{name}: {url}" + (", in use" if found.current == name else ""))


@command(context, "use", offline=True)
def use(call: Call, name: Name) -> None:
    """Use a context from now on.

    Example: topics context use prod
    """
    found = contexts.load()
    contexts.named(found, name)
    found.current = name
    contexts.save(found)
    call.show(_shown(found, name), f"{name} is in use: {found.contexts[name].url}")


@command(context, "ls", offline=True)
def ls(call: Call) -> None:
    """List the contexts; * marks the one in use. Keys are not shown.

    Example: topics context ls
    """
    found = contexts.load()
    if call.is_json:
        for name in sorted(found.contexts):
            call.emit(_shown(found, name))
        return
    rows = [
        ("*" if name == found.current else "", name, one.url, "yes" if one.key else "no")
        for name, one in sorted(found.contexts.items())
    ]
    print("\n".join(display.table(("", "name", "url", "key"), rows)))


@command(context, "rm", offline=True)
def rm(call: Call, name: Name) -> None:
    """Forget a context.

    Example: topics context rm prod
    """
    found = contexts.load()
    contexts.named(found, name)
    shown = _shown(found, name)
    del found.contexts[name]
    if found.current == name:
        found.current = ""
    contexts.save(found)
    call.show(shown, f"{name}: forgotten")


def _shown(found: contexts.Contexts, name: str) -> dict[str, object]:
    one = found.contexts[name]
    return {"name": name, "url": one.url, "has_key": bool(one.key), "current": found.current == name}


def completion(call: Call, shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")]) -> None:
    """Print a script that completes commands, options and the names of topics.

    In ~/.bashrc: eval "$(topics completion bash)"; in ~/.zshrc, behind compinit: eval "$(topics completion zsh)"; for
    fish: topics completion fish > ~/.config/fish/completions/topics.fish

    Example: topics completion bash
    """
    from typer._completion_shared import get_completion_script

    script = BASH
    if shell != "bash":
        script = get_completion_script(prog_name="topics", complete_var="_TOPICS_COMPLETE", shell=shell)
    call.show({"shell": shell, "script": script}, script)
