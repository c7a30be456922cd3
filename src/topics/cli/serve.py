"""`topics serve`: the server as a process, set by the environment."""

import os
import sys

from topics.cli.environment import REFUSED
from topics.errors import ConfigurationError, TopicsError
from topics.server.main import serve
from topics.settings import Settings


def run() -> None:
    try:
        serve(_take_settings(), write_port_file)
    except TopicsError as error:
        print(f"topics: {error.message}", file=sys.stderr)
        raise SystemExit(REFUSED) from None
    except OSError as error:
        print(f"topics: {error}", file=sys.stderr)
        raise SystemExit(REFUSED) from None


def _take_settings() -> Settings:
    """The settings; secrets are in the environment no longer."""
    settings = Settings.load()
    Settings.forget_secrets()
    return settings


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
