"""Torture: life after life of a server under load, each with deeds that it must survive and one that ends it.

    torture = Torture(directory, seed=1)
    torture.campaign()            # on a directory of its own; AssertionError: the first wrong fact

Owns the order of what happens. A campaign is a directory and some lives of a server on it; which deeds come, in which
order, on which disk and with which settings follows from the seed alone. What the clients ask follows from it and from
their answers. After each end the server is started again and all it has is held against the clients' journal.
"""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.pipelining.check import End, check, nothing_is_stuck
from tests.pipelining.crowd import FOLLOWED, Crowd, looked_at
from tests.pipelining.look import Found, drain, look
from tests.pipelining.workload import Job, Workload, class_of
from tests.torture.account import Account
from tests.torture.victim import Victim, may_mount
from topics.clock import SystemClock
from topics.testing.patience import PATIENCE_S, wait_until
from topics.testing.server import COMMAND

DEEDS = (
    "drop a connection",
    "stop the server",
    "stop the sync helper",
    "stop the sealing helper",
    "kill the sync helper",
    "kill the sync helper",
    "kill the sealing helper",
    "fill the disk",
    "limit the size of files",
    "take the descriptors",
)
ENDS = (
    "kill",
    "kill",
    "kill",
    "kill while starting",
    "kill with stopped helpers",
    "kill on a full disk",
    "kill without descriptors",
    "kill while stopping",
    "stop",
)
LIVES = 10
DEEDS_COUNTS = (0, 0, 1, 2)  # in one life
LIFE_ANSWERS = (30, 300)  # heard before the first deed, and after each
FAULT_ANSWERS = (50, 300)  # heard while something is wrong
HELPER_ANSWERS_MAX = 3000  # heard until there is a checkpoint large enough for the sealing helper
PAUSE_S = (0.0, 0.4)  # of processes that are stopped
START_S = 0.1  # after which a kill while starting comes, at most
STOP_S = 0.3  # after which a kill while stopping comes, at most


@dataclass(frozen=True)
class Scale:
    """How large records are, when a checkpoint comes, and how large a disk of its own is."""

    pad_max: int
    cache_bytes: int
    disk_mib: int


SCALES = {
    "small": Scale(3000, 1 << 20, 48),  # a checkpoint every few hundred requests, sealed on the spot
    "large": Scale(40_000, 12 << 20, 160),  # checkpoints that the sealing helper takes part in
}


class Deck:
    """Cards in random order, each as often as every other."""

    def __init__(self, cards: tuple[str, ...], rng: random.Random) -> None:
        self._cards, self._rng, self._left = cards, rng, list[str]()

    def draw(self) -> str:
        if not self._left:
            self._left = self._rng.sample(self._cards, len(self._cards))
        return self._left.pop()


class Torture:
    """All campaigns of one seed. `said` is told what goes on."""

    def __init__(self, directory: Path, seed: int, said: Callable[[str], None] = print) -> None:
        self.counts: Counter[str] = Counter()
        self.campaigns = 0
        self.may_mount = may_mount(directory)
        self._directory = directory
        self._seed = seed
        self._said = said
        self._rng = random.Random(f"{seed} deeds")  # nothing else draws from it, so that it does not depend on answers
        self._deeds, self._ends = Deck(DEEDS, self._rng), Deck(ENDS, self._rng)
        self._mounts = Deck(("own disk", "shared disk"), self._rng)
        self._scales = Deck(("small", "small", "large"), self._rng)
        self._syncs = Deck(("synced by a helper", "synced by the kernel"), random.Random(f"{seed} syncs"))

    @property
    def kills(self) -> int:
        return sum(count for name, count in self.counts.items() if name.startswith("killed: "))

    def campaign(self, lives: int = LIVES) -> None:
        """Torture a server on a directory of its own, which is removed if all is right."""
        number, self.campaigns = self.campaigns, self.campaigns + 1
        directory = self._directory / f"seed-{self._seed}-{number}"
        directory.mkdir(parents=True)
        mount, scale, syncs = self._mounts.draw(), self._scales.draw(), self._syncs.draw()
        with ExitStack() as stack:
            disk_mib = SCALES[scale].disk_mib if mount == "own disk" and self.may_mount else 0
            settings = {
                "TOPICS_CACHE_BYTES": str(SCALES[scale].cache_bytes),
                "TOPICS_SEGMENT_MAX_EVENTS": str(self._rng.choice((100, 1000, 10_000))),
                "TOPICS_LOG_LEVEL": "warning",
            }
            is_confined = syncs == "synced by a helper"
            victim = stack.enter_context(closing(Victim(directory, settings, disk_mib, is_confined=is_confined)))
            account = stack.enter_context(closing(Account(directory / "journal.jsonl", self.counts)))
            campaign = Campaign(victim, account, self._rng, f"{self._seed} {number}", SCALES[scale].pad_max)
            where = f"campaign {number} ({scale}, {mount}, {syncs})"
            with self._noted(campaign, f"seed {self._seed}, {where}, kept in {directory}"):
                for _ in range(lives):
                    campaign.life(
                        [self._deeds.draw() for _ in range(self._rng.choice(DEEDS_COUNTS))], self._ends.draw()
                    )
                campaign.end()
        shutil.rmtree(directory)
        self._said(f"{where}: {lives} lives, {self.kills} kills so far")

    @contextmanager
    def _noted(self, campaign: "Campaign", where: str) -> Iterator[None]:
        """What is wrong is said with where it was; the files stay."""
        try:
            yield
        except BaseException as error:
            error.args = tuple(re.sub("x{8,}", "x…", arg) if isinstance(arg, str) else arg for arg in error.args)
            error.add_note(f"{where}; life {campaign.lives}: {', '.join(campaign.done)}")
            raise
        finally:
            if sys.exc_info()[0] is not None and campaign.victim.is_mounted:  # they would go with the mount
                shutil.copytree(campaign.victim.server.data, campaign.victim.directory / "data", dirs_exist_ok=True)


class Campaign:
    """The lives of a server on one directory."""

    def __init__(self, victim: Victim, account: Account, rng: random.Random, seed: str, pad_max: int) -> None:
        self.victim = victim
        self.account = account
        self.counts = account.counts
        self.lives = 0
        self.done: list[str] = []  # in this life
        self._rng = rng
        self._seed = seed
        self._pad_max = pad_max
        self._is_large = pad_max == SCALES["large"].pad_max
        self._workload = Workload(random.Random(), "")
        self._clock = SystemClock()

    def life(self, deeds: list[str], end: str) -> None:
        self.lives += 1
        self.done = []
        answers = [self._rng.randint(*LIFE_ANSWERS) for _ in range(len(deeds) + 1)]
        chance = [self._rng.random() for _ in range(3)]
        if self.victim.server.process is None:
            self.victim.start()
        before, rng = self._workload, random.Random(f"{self._seed} {self.lives}")
        self._workload = Workload(rng, f"r{self.lives}", pad_max=self._pad_max)
        self._workload.held = [job for job in before.held if self._is_held(job)]
        # What had no answer is asked again; a topic in memory has forgotten it, and would copy it again.
        self._workload.keyed = [one for one in before.keyed if class_of(one.topic) != "ephemeral"]
        crowd = Crowd(self.victim.server.address, self.account, self._workload, rng)
        with crowd.connected():
            for deed, count in zip(deeds, answers, strict=False):
                crowd.run_until(crowd.answers + count)
                self._do(deed, crowd)
            crowd.run_until(crowd.answers + answers[-1])
            if chance[0] < 0.3:
                self._check_alive(crowd)
            kind = self._end(end, crowd, chance[1:])
        self._next_life(kind)

    def _is_held(self, job: Job) -> bool:
        return job.seq in self.account.held[job.topic]

    def _did(self, what: str, *more: object) -> None:
        self.done.append(what)
        self.counts[what] += 1
        self.account.did(self.lives, what, *more)

    # --- deeds

    def _do(self, deed: str, crowd: Crowd) -> None:
        """Something that the server must survive."""
        while_wrong = crowd.answers + self._rng.randint(*FAULT_ANSWERS)
        pause_s = self._rng.uniform(*PAUSE_S)
        verb, _, whom = deed.replace(" the ", "  ").partition("  ")
        if whom == "sealing helper" and self._is_large:
            most = crowd.answers + HELPER_ANSWERS_MAX
            crowd.run_while(lambda: crowd.answers < most and not self.victim.helpers(whom))
        if deed == "drop a connection":
            self._did(deed)
            crowd.drop_one()
        elif verb == "stop":
            with self.victim.stopped(whom) as count:
                self._did(f"stopped: {whom}" if count else f"no {whom} to stop", pause_s)
                crowd.run_for(pause_s)
        elif verb == "kill":
            self.account.fails()
            self._did(f"killed: {whom}" if self.victim.kill_helpers(whom) else f"no {whom} to kill")
        else:
            self.account.fails()
            with self._fault(deed):
                crowd.run_until(while_wrong)
            crowd.run_while(lambda: not self.victim.is_ready)

    @contextmanager
    def _fault(self, deed: str) -> Iterator[None]:
        """What is wrong for a while; a disk that cannot be filled has a limit on its files instead."""
        if deed == "fill the disk" and self.victim.is_mounted:
            self._did("disk full")
            with self.victim.full_disk():
                yield
        elif deed == "take the descriptors":
            self._did("descriptors taken")
            with self.victim.few_descriptors():
                yield
        else:
            size = self._rng.choice((0, 1 << 16, 1 << 20))
            self._did("files limited", size)
            with self.victim.small_files(size):
                yield

    def _check_alive(self, crowd: Crowd) -> None:
        """All is answered, and what was told is there, in the same life; whoever follows a topic has all of it."""
        crowd.settle()
        wait_until("routers are at the end of their sources", lambda: self.victim.router_lag == 0)
        found = looked_at(self.victim.server.address, look())
        self._did("checked alive")
        check(self.account, found, "alive")
        crowd.follow({name: found[name].records.keys() for name in FOLLOWED})

    # --- ends

    def _end(self, end: str, crowd: Crowd, chance: list[float]) -> End:
        """End the life; what kind of end it was. The clients have heard all that they were told by then."""
        server = self.victim.server
        if end == "kill on a full disk" and not self.victim.is_mounted:
            end = "kill"  # a disk that takes nothing, not even marks on refused frames, may show them after a kill
        if end in ("stop", "kill while stopping"):
            self.account.stops()
            crowd.may_end = True
            crowd.hang_up()
            server.signal(signal.SIGTERM)
            if end == "stop":
                crowd.run_while(lambda: not self.victim.has_exited)
                code = server.wait()
                self._did("stopped with SIGTERM")
                assert code == 0, f"SIGTERM ended it with {code}:\n{server.output[-2000:]}"
            else:
                crowd.run_for(chance[0] * STOP_S)
                self._killed("server, while it stops")
            crowd.hear_the_rest()
            return "stop"
        with ExitStack() as stack:
            if end in ("kill on a full disk", "kill without descriptors"):
                self.account.fails()
                is_disk = end == "kill on a full disk"
                stack.enter_context(self._fault("fill the disk" if is_disk else "take the descriptors"))
                crowd.run_until(crowd.answers + int(chance[0] * 300))
            if end == "kill with stopped helpers":
                self.victim.orphan_helpers()
                crowd.run_for(chance[0] * PAUSE_S[1])
            self._killed("server")
            crowd.hear_the_rest()
            if end == "kill on a full disk":
                self.victim.start_somehow()
                self._did("started on a full disk")
        if end == "kill while starting":
            server.start(until_ready=False)
            self._pause(chance[1] * START_S)
            self._killed("server, while it starts")
        return "kill"

    def _killed(self, who: str) -> None:
        self.victim.server.kill()
        self._did(f"killed: {who}")

    def _pause(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        wait_until("time passes", lambda: self._clock.monotonic() >= until)

    def _next_life(self, kind: End) -> None:
        """Start again, and hold what is there against what was told."""
        if self.victim.server.process is None:
            self.victim.start()
        else:
            wait_until("it is ready", lambda: self.victim.is_ready)
        self.victim.release_orphans()
        wait_until("routers are at the end of their sources", lambda: self.victim.router_lag == 0)
        found = looked_at(self.victim.server.address, look())
        check(self.account, found, kind)
        self.account.adopt(found)
        self.counts["lives checked"] += 1

    def end(self) -> None:
        """No job is stuck; the server stops, and the audit of its directory finds nothing."""
        address = self.victim.server.address
        found: Found = looked_at(address, look())
        claimed = looked_at(address, drain(found))
        nothing_is_stuck(found, claimed, looked_at(address, look()))
        code = self.victim.server.stop()
        assert code == 0, f"SIGTERM ended it with {code}"
        traces = [line for line in self.victim.server.output.splitlines() if line.startswith("{") and '"trace"' in line]
        assert not traces, traces[0][:3000]
        audit = subprocess.run(
            [*COMMAND, "audit", "--json", "--path", str(self.victim.server.data)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert audit.returncode == 0, f"the audit ended with {audit.returncode}: {audit.stdout[-3000:]} {audit.stderr}"
        assert json.loads(audit.stdout)["is_sound"], audit.stdout
        self.counts["directories audited"] += 1
