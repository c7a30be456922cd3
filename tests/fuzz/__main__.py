"""A search by coverage, one process per target: `python -m tests.fuzz --seconds 60 [--keep] [TARGET …]`.

Atheris (libFuzzer for Python) changes inputs and keeps those that reach new code of ours. What breaks is left as a file
`crash-…` in the work directory, to be repeated by `python -m tests.fuzz --replay FILE TARGET`. With `--keep` the
smallest set of inputs that reaches all that was reached becomes the corpus of the repository.
"""

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path

WORK = Path(".fuzz")
SLOWER = 8.0  # times that coverage makes Python
OURS = ["topics", "h2", "hpack"]


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


def keep(name: str) -> None:
    """Make what was found the corpus, each input under the digest of its bytes."""
    from tests.fuzz.targets import CORPUS

    found, small, kept = WORK / name / "found", WORK / name / "small", CORPUS / name
    small.mkdir(exist_ok=True)
    kept.mkdir(parents=True, exist_ok=True)
    started(name, "-merge=1", str(small), str(kept), str(found), str(WORK / name / "seeds"))
    for old in kept.iterdir():
        old.unlink()
    for path in small.iterdir():
        content = path.read_bytes()
        (kept / hashlib.sha1(content).hexdigest()[:16]).write_bytes(content)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
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
        if started(name, *limits, artifacts, str(found), str(CORPUS / name), str(WORK / name / "seeds")):
            failed.append(name)
        if arguments.keep:
            keep(name)
    if failed:
        print(f"these found something, see crash-* in {WORK}: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
