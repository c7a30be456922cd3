"""`topics config show`: the settings in effect, and where each comes from. Secrets are masked."""

from topics.cli.serving.flags import Gather, shown_value
from topics.cli.shell import display, exits
from topics.cli.shell.invoking import Call
from topics.errors import ConfigurationError
from topics.settings import ALL, flag_of, is_public

MASK = "(set, not shown)"


def show(call: Call, gather: Gather) -> None:
    """Print the settings in effect and where each comes from; secrets are masked.

    It takes the flags of topics serve, to try them out.

    Example: topics config show

    Example: topics config show --cache-bytes 1GiB --json
    """
    try:
        found = gather()
    except ConfigurationError as error:
        call.fail(error.message, exits.USAGE)
    rows = []
    for setting in ALL:
        value, origin = getattr(found.settings, setting.name), found.origins[setting.name]
        if not is_public(setting) and origin.place == "default":
            continue
        is_hidden = setting.metadata["secret"] and value
        if call.is_json:
            line = {"setting": setting.name, "value": MASK if is_hidden else value, "from": origin.place}
            line |= {"name": origin.name or None, "variable": setting.metadata["variable"], "flag": flag_of(setting)}
            call.emit(line)
        rows.append((setting.metadata["variable"], MASK if is_hidden else shown_value(setting, value), str(origin)))
    if not call.is_json:
        print("\n".join(display.table(("variable", "value", "from"), rows)))
    for notice in found.notices:
        display.say(f"topics config show: {notice}")
