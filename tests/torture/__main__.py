"""Real kills: torture a server for some time.

    python -m tests.torture --minutes 5 --seed 1

It prints what was done and counted, and exits with 1 at the first wrong fact, with the seed and where the files are.
"""

import argparse
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from tests.torture.run import Torture
from topics.clock import SystemClock


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="Kill a server over and over.")
    parser.add_argument("--minutes", type=float, default=5.0, help="for how long; the last campaign is finished")
    parser.add_argument("--kills", type=int, default=sys.maxsize, help="end after so many kills")
    parser.add_argument("--seed", type=int, default=1, help="of all that is chosen")
    parser.add_argument("--directory", type=Path, help="for data and journals; a new one by default")
    wanted = parser.parse_args()
    directory = wanted.directory or Path(tempfile.mkdtemp(prefix="topics-torture-"))
    clock = SystemClock()
    torture = Torture(directory, wanted.seed, lambda line: print(line, flush=True))
    if not torture.may_mount:
        print("no file system can be mounted here: disks are not filled, files are limited in size instead")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))  # so that nothing is left behind
    until = clock.monotonic() + wanted.minutes * 60
    try:
        while clock.monotonic() < until and torture.kills < wanted.kills:
            torture.campaign()
    except AssertionError:
        traceback.print_exc()
        report(torture.counts, torture.kills)
        return 1
    report(torture.counts, torture.kills)
    print("lost: 0, contradicted: 0")
    return 0


def report(counts: Counter[str], kills: int) -> None:
    print(f"{kills} kills")
    for name, count in sorted(counts.items()):
        print(f"{count:>12,}  {name}")


if __name__ == "__main__":
    sys.exit(main())
