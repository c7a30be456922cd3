"""Exit codes: what a script may rely on. One table, which the page on the command line shows, too."""

from typing import Final

from topics.errors import TopicsError

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
ABSENT: Final = 4
FORBIDDEN: Final = 5
LATER: Final = 6
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141

MEANINGS: Final = {
    DONE: "done",
    REFUSED: "the server refused it, or a check found something; the message says what",
    USAGE: "wrong arguments, or a question that nobody could answer (no terminal, no --yes)",
    UNREACHABLE: "no server there, or it is not ready",
    ABSENT: "no such topic, record, cursor or router",
    FORBIDDEN: "the key is missing, unknown, or not allowed to do this",
    LATER: "not now: the topic is full, or the server is under pressure or at a limit",
    INTERRUPTED: "ended by Ctrl-C",
    PIPE_CLOSED: "nobody reads the output any more",
}
_BY_STATUS: Final = {401: FORBIDDEN, 403: FORBIDDEN, 404: ABSENT, 422: LATER, 429: LATER, 503: UNREACHABLE}


def code_of(error: TopicsError) -> int:
    """The exit code for a failed call. An error without a status is one of the connection, or of what was given."""
    if error.code == "client":
        return UNREACHABLE
    return _BY_STATUS.get(error.status, REFUSED)
