"""The file of keys that TOPICS_TOKEN_FILE names: a line per server, `address key`. Only its owner may read it."""

import os
import stat

from topics.client.fleets.addresses import parse_tokens
from topics.errors import ConfigurationError


def load_tokens(path: str) -> dict[str, str]:
    """The keys of a file, by address. ConfigurationError: it cannot be read, or others can read it, too."""
    try:
        mode = os.stat(path).st_mode
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the file of keys {path} cannot be read: {error}") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise ConfigurationError(f"others can read the file of keys {path}: chmod 600 {path}")
    return parse_tokens(text, path)
