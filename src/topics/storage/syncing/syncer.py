"""The helper process that calls fdatasync.

`fdatasync` releases the GIL, but a thread that returns from it waits for the GIL again while the event loop is busy. A
process of its own does not.

Owned here: the protocol on the socket, and the helper's half of the talk. `processes.py` starts the helper, with its
end of a Unix socket pair as stdin:

    request   kind u8 · file number u64        the first SYNC of a file carries its descriptor (SCM_RIGHTS)
    answer    errno i32                        0 = done; one per request, in the order of the requests

The helper keeps a file's descriptor until FORGET, or until a sync of the file fails. It ends when the other end of the
socket closes, also when its server is killed.

This file runs as a script under `python -I -S`: it imports nothing of the package, and little else, to start fast.
"""

import errno
import os
import socket
import struct
import sys

REQUEST = struct.Struct("=BQ")
ANSWER = struct.Struct("=i")
SYNC, FORGET = 1, 2


def sync_data(descriptor: int) -> None:
    """Return when the bytes of the file, and what is needed to find them, are on the disk."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def serve(connection: socket.socket) -> None:
    """Answer requests until the other end is closed."""
    descriptors: dict[int, int] = {}
    while (received := _receive(connection)) is not None:
        kind, file, handed = received
        if handed is not None:
            descriptors[file] = handed
        failure = _sync(descriptors, file) if kind == SYNC else 0
        if (kind == FORGET or failure) and file in descriptors:
            os.close(descriptors.pop(file))
        connection.sendall(ANSWER.pack(failure))


def _receive(connection: socket.socket) -> tuple[int, int, int | None] | None:
    request, descriptors, _, _ = socket.recv_fds(connection, REQUEST.size, 1)
    while 0 < len(request) < REQUEST.size:
        more = connection.recv(REQUEST.size - len(request))
        request = request + more if more else b""
    if not request:
        return None
    kind, file = REQUEST.unpack(request)
    return kind, file, descriptors[0] if descriptors else None


def _sync(descriptors: dict[int, int], file: int) -> int:
    """The errno of the sync: 0 when it worked."""
    try:
        sync_data(descriptors[file])
    except KeyError:  # an earlier sync of the file failed, or its descriptor was one too many for this process
        return errno.EIO
    except OSError as error:
        return error.errno or errno.EIO
    return 0


if __name__ == "__main__":
    try:
        serve(socket.socket(fileno=0))
    except ConnectionError:
        pass  # nobody is left to hear the answer
