"""A search by coverage, one process per target: `python -m tests.fuzz --seconds 60 [--keep] [TARGET …]`.

Atheris (libFuzzer for Python) changes inputs and keeps those that reach new code of ours. What breaks is left as a file
`crash-…` in the work directory, to be repeated by `python -m tests.fuzz --replay FILE TARGET`. With `--keep`
the smallest inputs that reach all that was reached become the corpus of the repository.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

WORK = Path(".fuzz")
SLOWER = 8.0  # times that coverage makes Python
OURS = ["topics", "h2", "hpack"]
KEPT_BYTES_MAX = 30_000  # of each target
Trace = Callable[[FrameType, str, Any], Any]


def search(name: str, options: list[str]) -> None:
    """Search in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=OURS):
        from tests.fuzz import bars
        from tests.fuzz.targets import TARGETS
    bars.FACTOR = SLOWER
    target = TARGETS[name]
    seeds = WORK / name / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds():
        (seeds / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    words = WORK / name / "words"
    words.write_text("".join(f'"{spelled(word)}"\n' for word in target.words))
    target.run(next(target.seeds()))  # what is made once is made before anything is measured
    atheris.Setup([sys.argv[0], *options, f"-max_len={target.bytes_max}", f"-dict={words}"], target.run)
    atheris.Fuzz()


def spelled(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def started(name: str, *options: str) -> int:
    command = [sys.executable, "-m", "tests.fuzz", "--search", name, "--", *options]
    return subprocess.run(command, check=False).returncode


def reached(run: Callable[[bytes], None], data: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line of our modules that an input takes."""
    steps: set[tuple[str, int, int]] = set()
    last: dict[int, int] = {}

    def step(frame: FrameType, event: str, _: object) -> Trace | None:
        if event == "call" and "/topics/" not in frame.f_code.co_filename:
            return None
        line = frame.f_lineno
        steps.add((frame.f_code.co_filename, last.get(id(frame), 0), line))
        last[id(frame)] = line
        return step

    sys.settrace(step)
    try:
        run(data)
    finally:
        sys.settrace(None)
    return steps


def keep(name: str) -> None:
    """Make what was found the corpus: the smallest inputs first, each only if it reaches something new."""
    from tests.fuzz import bars
    from tests.fuzz.targets import CORPUS, TARGETS, corpus

    bars.FACTOR = SLOWER * SLOWER
    target = TARGETS[name]
    found = {path.read_bytes() for path in (WORK / name / "found").glob("*")} | set(corpus(name))
    seen: set[tuple[str, int, int]] = set()
    for seed in target.seeds():
        seen |= reached(target.run, seed)
    shutil.rmtree(CORPUS / name, ignore_errors=True)
    (CORPUS / name).mkdir(parents=True)
    kept_bytes = 0
    for data in sorted(found, key=len):
        steps = reached(target.run, data)
        if not steps <= seen and kept_bytes + len(data) <= KEPT_BYTES_MAX:
            seen |= steps
            kept_bytes += len(data)
            (CORPUS / name / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="for each target; 0 = none")
    parser.add_argument("--keep", action="store_true", help="make what was found the corpus of the repository")
    parser.add_argument("--replay", type=Path, help="repeat one input, without coverage")
    parser.add_argument("--search", help=argparse.SUPPRESS)
    given = sys.argv[1:]
    options = given[given.index("--") + 1 :] if "--" in given else []
    arguments = parser.parse_args(given[: given.index("--")] if options else given)
    if arguments.search:
        search(arguments.search, options)
        return 0
    from tests.fuzz.targets import CORPUS, TARGETS

    names = arguments.targets or list(TARGETS)
    if arguments.replay:
        TARGETS[names[0]].run(arguments.replay.read_bytes())
        return 0
    failed = []
    for name in names:
        found = WORK / name / "found"
        found.mkdir(parents=True, exist_ok=True)
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
        limits = (f"-max_total_time={arguments.seconds}", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1")
        artifacts = f"-artifact_prefix={WORK / name}/"
        directories = (str(found), str(CORPUS / name), str(WORK / name / "seeds"))
        if arguments.seconds and started(name, *limits, artifacts, *directories):
            failed.append(name)
        if arguments.keep:
            keep(name)
    if failed:
        print(f"these found something, see crash-* in {WORK}: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
