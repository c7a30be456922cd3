"""`topics serve`: the server as a process, set by flags, a file and the environment."""

import os
import sys
from typing import Final

from topics.cli.serving.flags import Gather
from topics.errors import ConfigurationError, TopicsError
from topics.server.main import serve

REFUSED: Final = 2  # exit code of a start that was refused
OPEN_SECRET: Final = (
    "--api-keys can be read by everybody on this machine, in the list of processes: use a key file (topics keys)"
)


def run(gather: Gather) -> None:
    try:
        found = gather()
        notices = [*found.notices, *((OPEN_SECRET,) if found.origins["api_keys"].place == "flag" else ())]
        sources = {
            name: origin.name if origin.place == "environment" else str(origin)
            for name, origin in found.origins.items()
        }
        serve(found.take(), write_port_file, notices, sources)
    except TopicsError as error:
        _refuse(error.message)
    except OSError as error:
        _refuse(str(error))


def _refuse(message: str) -> None:
    """End a start, with the reason."""
    print(f"topics: {message}", file=sys.stderr)
    raise SystemExit(REFUSED) from None


def write_port_file(path: str, address: str) -> None:
    """Write `address` to `path`, so that a reader sees all of it or nothing."""
    if not path:
        return
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w") as file:
            file.write(address)
        os.replace(temporary, path)
    except OSError as error:
        raise ConfigurationError(f"TOPICS_PORT_FILE {path} cannot be written: {error.strerror}") from None
