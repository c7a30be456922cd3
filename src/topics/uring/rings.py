"""The rings of io_uring: memory that is shared with the kernel, and the two system calls.

Owned here: the numbers and structures of the system calls, and maps of descriptors. Must not know: what is requested.
Where the kernel has no such queue, or a container forbids it, `Rings` raises OSError.
"""

import ctypes
import errno
import mmap
import os
import weakref
from typing import Final

# With the GIL: no call waits for anything, and who lets go of the GIL may wait long to get it back.
_with_gil = ctypes.PyDLL(None, use_errno=True)
_setup, _enter = _with_gil["syscall"], _with_gil["syscall"]
_setup.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p)
_enter.argtypes = (*(ctypes.c_long,) * 5, ctypes.c_void_p, ctypes.c_size_t)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_longlong),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_SETUP, _ENTER = 425, 426  # on every architecture
_ONE_MAP: Final = 1  # a feature: both rings lie in one map
_SHARED: Final = mmap.PROT_READ | mmap.PROT_WRITE
_REQUESTS_AT: Final = 0x10000000  # offset of the map of requests
_WAIT: Final = 1  # a flag of `enter`
REQUEST_BYTES: Final = 64


class _Parameters(ctypes.Structure):
    """struct io_uring_params. The offsets: head, tail, mask, entries, flags or overflow, dropped or results, array."""

    _fields_ = (
        *(("requests", ctypes.c_uint32), ("results", ctypes.c_uint32), ("flags", ctypes.c_uint32)),
        *(("thread", ctypes.c_uint32 * 2), ("features", ctypes.c_uint32), ("reserved", ctypes.c_uint32 * 4)),
        *(("request_offsets", ctypes.c_uint32 * 10), ("result_offsets", ctypes.c_uint32 * 10)),
    )


class Rings:
    """One queue of the kernel's, for `entries` requests at a time, a power of 2.

    `words` are the rings: at `tail` how many requests there ever were, at `places` which request lies where in their
    ring, at `result_head` how many results were taken, at `result_tail` how many there are; a result has four words
    from `results` on, the third of which is what the call gave. `requests` is the memory of the requests.
    """

    def __init__(self, entries: int) -> None:
        parameters = _Parameters()
        self.descriptor: int = _setup(_SETUP, entries, ctypes.byref(parameters))
        if self.descriptor < 0:
            raise failure_of(ctypes.get_errno())
        try:
            if not parameters.features & _ONE_MAP:
                raise OSError(errno.ENOSYS, "the kernel is too old")
            requests, results = parameters.request_offsets, parameters.result_offsets
            size = max(requests[6] + 4 * parameters.requests, results[5] + 16 * parameters.results)
            self.words = memoryview(map_memory(self.descriptor, size, _SHARED, 0)).cast("B").cast("I")
            self.requests = map_memory(self.descriptor, REQUEST_BYTES * parameters.requests, _SHARED, _REQUESTS_AT)
        except BaseException:
            self.close()
            raise
        self.tail, self.places = requests[1] // 4, requests[6] // 4
        self.result_head, self.result_tail = results[0] // 4, results[1] // 4
        self.results, self.mask = results[5] // 4, parameters.results - 1

    def enter(self, count: int, awaited: int = 0) -> int:
        """Hand requests to the kernel, and wait for as many results; gives how many it took, below 0 an errno."""
        taken: int = _enter(_ENTER, self.descriptor, count, awaited, _WAIT if awaited else 0, None, 0)
        return -ctypes.get_errno() if taken < 0 else taken

    def close(self) -> None:
        os.close(self.descriptor)


def map_memory(
    descriptor: int, size: int, protection: int, offset: int, flags: int = 0
) -> "ctypes.Array[ctypes.c_char]":
    """Memory of a file or of the kernel, for as long as anything refers to it; it holds no descriptor, either."""
    address = _libc.mmap(None, size, protection, mmap.MAP_SHARED | flags, descriptor, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        raise failure_of(ctypes.get_errno())
    area = (ctypes.c_char * size).from_address(address)  # which every view of it keeps alive
    weakref.finalize(area, _libc.munmap, address, size).atexit = False
    return area


def release_memory(area: "ctypes.Array[ctypes.c_char]") -> None:
    """Give back what a map of a file takes: what is touched again is read again."""
    _libc.madvise(ctypes.byref(area), len(area), mmap.MADV_DONTNEED)


def failure_of(number: int, name: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), name)
