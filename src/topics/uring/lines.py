"""Sockets that are written to past their transport while that holds nothing. Must not know: what is sent."""

import asyncio


class Line:
    """One connection, as those see it who send the same bytes to many.

    Invariant: while `is_clear`, all that was written was sent, and `descriptor` is that of the connection's own socket:
    a transport closes its socket only after it has said that the connection is lost. Whoever writes through the
    transport, or ends the connection, sets `is_clear` to False before.
    """

    __slots__ = ("descriptor", "is_clear")

    def __init__(self) -> None:
        self.descriptor = -1  # of the socket; -1: it is not known, which saves memory while nothing is sent
        self.is_clear = False

    def clear(self, transport: asyncio.Transport) -> bool:
        """Clear the line if its transport holds nothing, and has a socket."""
        if not transport.get_write_buffer_size():
            if self.descriptor < 0:
                end = transport.get_extra_info("socket")
                self.descriptor = -1 if end is None else int(end.fileno())
            self.is_clear = self.descriptor >= 0
        return self.is_clear

    def part(self, data: bytes) -> bytes:
        """Whoever has just written `data` asks how others are sent the same: the bytes, if the line is clear now.

        Empty: it is not, or what is sent is not the same for others.
        """
        return b""

    def write_rest(self, rest: bytes) -> None:
        """The socket did not take all: this goes through the transport, as it is."""
        raise NotImplementedError
