"""What a job says when it fails: one sentence on what was wrong, and the whole trace in a file that it names.

Spark wraps an error of ours in several layers and pages of Java. The sentence is found again in them by the name of
its class. A token that was given is in neither of both.
"""

import os
import re
import tempfile
import traceback
from dataclasses import dataclass
from typing import Final

from topics.errors import TopicsError

# The line of a Python traceback that says what was wrong: `package.module.Name: message`.
RAISED: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*): (?P<message>.*)$")
# Where Spark goes on after a message: its own traces, states and plans.
REST: Final = re.compile(
    r"\s*(?:SQLSTATE: \w+|\n\s*at [\w.$]+\(|\n== SQL|\n'?[A-Z]\w+ \[|\nJVM stacktrace:|;\n).*", re.DOTALL
)
CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
OURS: Final = "topics."
NO_SPARK: Final = "this needs Spark: pip install 'topics-engine[spark]'"
MESSAGE_MAX: Final = 2000  # characters


@dataclass(frozen=True)
class Failure:
    """A failed job: what was wrong, and where the whole trace is; an empty path if it could not be written."""

    message: str
    trace_path: str = ""

    def __str__(self) -> str:
        return f"{self.message}\nThe full trace is in {self.trace_path}" if self.trace_path else self.message


def failure_of(error: BaseException, *, token: str = "", directory: str | None = None) -> Failure:
    """The failure of a job. What we refused ourselves needs no trace; what Spark raised is kept in `directory`."""
    message = hidden(shortened(error), token)
    if isinstance(error, TopicsError):
        return Failure(message)
    trace = hidden("".join(traceback.format_exception(error)), token)
    return Failure(message, _written(trace, directory))


def shortened(error: BaseException) -> str:
    """What the user did wrong, as far as the error tells."""
    if isinstance(error, TopicsError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == "pyspark":
        return NO_SPARK
    text = str(error).strip()
    found = _raised(text)
    if found is None:
        found = CLASS.sub("", REST.sub("", text)).strip()
    return (found or type(error).__name__)[:MESSAGE_MAX]


def _raised(text: str) -> str | None:
    """The message of the Python error within Spark's text: the last of ours, else the last one at all."""
    if "Traceback (most recent call last)" not in text:
        return None
    last: str | None = None
    ours: str | None = None
    for line in text.splitlines():
        match = RAISED.match(line)
        if match is not None and not line.startswith(("Traceback ", "org.", "java.", "py4j.", "Caused by")):
            message = REST.sub("", match["message"]).strip()
            if match["kind"].startswith(OURS):
                ours = message
            last = f"{match['kind'].rpartition('.')[2]}: {message}"
    return ours or last


def hidden(text: str, token: str) -> str:
    """The text without the token."""
    return text.replace(token, "(hidden)") if token else text


def _written(trace: str, directory: str | None) -> str:
    try:
        if directory is not None:
            os.makedirs(directory, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix="topics-trace-", suffix=".txt", dir=directory)
        with open(descriptor, "w") as file:
            file.write(trace)
    except OSError:
        return ""
    return path
