"""Process-wide settings that suit the engine. For whoever owns the process: the server, a benchmark, you.

Measured on two cores (bench/RESULTS.md): rendering a thousand records takes a
third of the time when glibc neither maps nor returns each large block on its
own; a storage thread waits up to a second for a busy event loop at the default
switch interval, and tens of milliseconds at this one; full collections of
objects that live for ever are pauses for nothing. One heap for all threads:
what a large body left free on the loop's is where a thread decodes it, and a
write of 53 MiB takes 50 MiB less. The interpreter's lock keeps them apart anyway.
"""

import ctypes
import gc
import os
import resource
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
LARGE_BYTES = 32 * 1024 * 1024  # blocks below this come from the heap
KEPT_BYTES = 256 * 1024 * 1024  # free memory at the heap's end that is kept
FILES_RESERVE_MIN = 48  # descriptors that connections leave to the engine; an eighth, if that is more
CONNECTIONS_MIN = 8
MEMORY_SHARE = (3, 4)  # of what there is; caches, connections and the interpreter need the rest
SWITCH_SECONDS = 0.0001
GC_THRESHOLDS = (50_000, 50, 1_000)


def tune_process() -> None:
    """Tune allocator, threads, collection and open files of this process. Harmless where something does not apply."""
    keep_memory(KEPT_BYTES)
    _set_allocator(_M_ARENA_MAX, 1)
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def keep_memory(kept_bytes: int) -> None:
    """Let the allocator take blocks of megabytes from its heap, and leave so much free memory at the heap's end.

    Otherwise glibc maps each of them anew, and the kernel clears its pages: for a copy of a megabyte that is most of
    the work. For processes that make such blocks over and over.
    """
    _set_allocator(_M_MMAP_THRESHOLD, LARGE_BYTES)
    _set_allocator(_M_TRIM_THRESHOLD, kept_bytes)


def _set_allocator(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).mallopt(option, value)
    except (OSError, AttributeError):
        pass  # not glibc


def connections_allowed() -> int:
    """How many connections the limit of open files leaves room for, with a reserve for files of the engine's own."""
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(CONNECTIONS_MIN, files_max - max(FILES_RESERVE_MIN, files_max // 8))


def memory_allowed(root: str = "/sys/fs/cgroup") -> int:
    """How much memory the engine may keep what it holds in: a share of what the machine, or its control group, has."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share, of = MEMORY_SHARE
    return min([most, *control_group_limits(root)]) * share // of


def control_group_limits(root: str = "/sys/fs/cgroup", membership: str = "/proc/self/cgroup") -> list[int]:
    """What the control groups of this process, and those above them, allow it to have; versions 1 and 2."""
    limits = []
    for line in _lines(membership):
        _, _, group = line.partition(":")
        controllers, _, path = group.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (f"{root}/memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        while True:  # a container may see its own group as the root
            limits += [int(text) for text in _lines(f"{top}{path.rstrip('/')}/{name}") if text.isdigit()]
            if path in ("", "/"):
                break
            path = path.rpartition("/")[0]
    return limits


def _lines(path: str) -> list[str]:
    """The lines of a file of the system's; none, if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def resident_bytes() -> int:
    """How much memory this process has; where the system does not say, the most that it ever had."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_files() -> int | None:
    """How many descriptors this process has open; None: the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # less the one that lists them
    except OSError:
        return None


def files_max() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def cpu_seconds() -> float:
    """How much processor time this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def give_memory_back() -> None:
    """Return free memory to the system: what a rush needed is not kept for ever. Takes some milliseconds."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # not glibc
