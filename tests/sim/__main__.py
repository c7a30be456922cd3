"""Simulated histories by command: `make sim SEED=17`, `make sim SEEDS=10000`, `python -m tests.sim --help`."""

import argparse
import os
import re
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

from tests.pipelining.workload import DEAD, TIMED, TOPICS
from tests.sim.history import Broken, run
from tests.sim.plan import plan_of
from tests.sim.planted import BUGS, planted
from tests.sim.shrink import failure_of, shrunk

SLICE = 25  # seeds that a worker takes at a time
LINES = 60  # of a trace


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make sim", description="Play simulated histories of a server, and check them."
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--verbose", action="store_true", help="print the whole trace, of a history that is right, too")
    parser.add_argument("--shrink", action="store_true", help="make a history that fails smaller before it is shown")
    parser.add_argument("--bug", choices=sorted(BUGS), help="with this bug planted")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes, for many seeds")
    return parser.parse_args()


def failing(seeds: range, bug: str | None) -> list[tuple[int, str]]:
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(planted(bug))
        found = [(seed, failure_of(plan_of(seed))) for seed in seeds]
    return [(seed, str(broken)) for seed, broken in found if broken is not None]


def play_many(seeds: range, bug: str | None, jobs: int) -> int:
    slices = [seeds[start : start + SLICE] for start in range(0, len(seeds), SLICE)]
    count = 0
    with ProcessPoolExecutor(jobs) as pool:
        for failures in pool.map(failing, slices, [bug] * len(slices)):
            for _, text in failures:
                print(text[:300], flush=True)
            count += len(failures)
    print(f"{len(seeds)} histories, {count} of them wrong")
    return min(count, 1)


def play_one(seed: int, bug: str | None, *, verbose: bool, shrinks: bool) -> int:
    with ExitStack() as stack:
        if bug is not None:
            stack.enter_context(planted(bug))
        try:
            trace = run(plan_of(seed))
        except Broken as broken:
            show(shrunk(broken) if shrinks else broken, LINES if not verbose else sys.maxsize)
            return 1
    if verbose:
        print("\n".join(map(str, trace.lines)))
    print(f"seed {seed}: {len(trace.lines)} events, all as it should be")
    return 0


def show(broken: Broken, lines: int) -> None:
    """The plan, the last lines of the trace that concern what is wrong, and what that is."""
    print(f"seed {broken.plan.seed}: {broken.plan}")
    print(f"clients {', '.join(broken.plan.clients)}; events {', '.join(broken.plan.events)}")
    print("life, ms, who, what:")
    print("\n".join(broken.trace.about(set() if lines == sys.maxsize else topics_in(str(broken.error)), lines)))
    traceback.print_exception(broken.error, limit=-3)


def topics_in(message: str) -> set[str]:
    """The topics that a message names."""
    names = {*TOPICS, *TIMED, *DEAD.values()}
    return {word for word in re.findall(r"[\w.]+", message) if word in names or word.startswith("new.")}


if __name__ == "__main__":
    given = arguments()
    if given.seeds > 1:
        sys.exit(play_many(range(given.seed, given.seed + given.seeds), given.bug, given.jobs))
    sys.exit(play_one(given.seed, given.bug, verbose=given.verbose, shrinks=given.shrink))
