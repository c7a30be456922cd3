"""The process that Spark's Python workers are forked from: PySpark's own, with another end for a worker nobody reads.

A query that has enough rows (`limit`, `show`) closes the socket of a task while its worker still writes. Over a Unix
domain socket the worker's last flush then fails at once, and PySpark prints the traceback of a worker that has done
nothing wrong. Here such a worker ends without a word, and Spark starts another when it needs one.

Spark runs it as `python -m`, see `session`.
"""

import socket

from pyspark import daemon

_work = daemon.worker


def work(sock: socket.socket, authenticated: bool) -> int:
    """Do the tasks that come over a socket; another code than 0 ends the worker."""
    try:
        return _work(sock, authenticated)
    except (BrokenPipeError, ConnectionResetError):
        return 1


if __name__ == "__main__":
    daemon.worker = work
    daemon.manager()
