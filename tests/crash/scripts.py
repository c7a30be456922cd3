"""The scripts. Together they make every kind of mutation, under every durability class."""

from tests.crash.script import (
    Advance,
    Append,
    Checkpoint,
    Delete,
    Drop,
    Put,
    Read,
    Restart,
    Script,
    StepClock,
    Tick,
    Together,
    records,
)
from topics.model import TagMatch

FSYNC, DISK, MEMORY, EPHEMERAL = ({"durability": name} for name in ("fsync", "disk", "memory", "ephemeral"))


def eq(tag: str) -> TagMatch:
    return TagMatch("Eq", tag)


def glob(prefix: str) -> TagMatch:
    return TagMatch("Glob", prefix)


CLASSES = Script(
    "topics of every class come, change and go",
    [
        Put("f", FSYNC),
        Append("f", records("f1", "f2@t", "f3@t/n"), key="k1"),
        Append("d", records("d1@a:1"), config=DISK),
        Append("d", records("d2@a:2", "d3@b:1/n"), key="k2"),
        Append("m", records("m1"), config=MEMORY, key="k3"),
        Append("e", records("e1", "e2"), config=EPHEMERAL, key="k4"),
        Read("d"),
        Put("d", {**DISK, "cap_records": 4}),
        Append("d", records("d4", "d5", "d6")),
        Append("d", records("again"), key="k2"),
        Put("d", FSYNC),
        Append("d", records("d7")),
        Drop("m"),
        Append("m", records("m1 of the second life"), config=MEMORY),
        Read("m"),
        Put("f", DISK),
        Append("f", records("f4")),
        Drop("f"),
        Append("f", records("f1 of the second life")),
    ],
)

CHECKPOINTS = Script(
    "records are sealed, merged, cleared and rewritten by checkpoints",
    [
        Append("a", records("1@x:1", "2@x:2", "3@y"), config=FSYNC),
        Append("b", records("1@x:1"), config=DISK),
        Append("c", records("1"), config=DISK, key="k1"),
        Checkpoint(),
        Append("b", records("2@x:2", "3@x:20")),
        Append("a", records("4@x:1", "5")),
        Checkpoint(),
        Delete("a", match=eq("x:1")),
        Append("b", records("4@x:2")),
        Append("c", records("2@z"), key="k2"),
        Checkpoint(),
        Delete("b", match=glob("x:2")),
        Append("b", records("5@x:2")),
        Delete("a", before=4),
        Append("c", records("3", "4", "5", "6", "7")),
        Checkpoint(),
        Append("c", records("8@z")),
        Delete("c", before=7),
        Checkpoint(),
        Append("c", records("9")),
        Delete("c", match=eq("z")),
        Checkpoint(),
        Read("c"),
    ],
)

RESTARTS = Script(
    "graceful stops and kills between the writes",
    [
        Append("a", records("1@x", "2", "3"), config=FSYNC, key="k1"),
        Append("b", records("1@x", "2@y", "3@x"), config=DISK, key="k2"),
        Append("e", records("1", "2"), config=EPHEMERAL),
        Restart(),
        Append("b", records("4@x")),
        Append("b", records("again"), key="k2"),
        Append("e", records("3")),
        Delete("b", match=eq("x")),
        Restart("kill"),
        Append("b", records("5", "6")),
        Delete("b", before=3),
        Checkpoint(),
        Append("e", records("1")),
        Append("b", records("7")),
        Restart("kill"),
        Append("a", records("4")),
        Restart(),
        Append("a", records("5")),
        Read("b"),
    ],
)

LOSSES = Script(
    "caps and age take records, before and after they are sealed",
    [
        Put("cap", {**DISK, "cap_records": 3}),
        Put("ttl", {**FSYNC, "ttl_ms": 100}),
        Append("cap", records("1", "2@t")),
        Append("ttl", records("1", "2")),
        Append("cap", records("3", "4")),
        Advance(60),
        Append("ttl", records("3")),
        Checkpoint(),
        Advance(60),
        Read("ttl"),
        Append("cap", records("5", "6@t")),
        Append("ttl", records("4")),
        Put("ttl", {**FSYNC, "ttl_ms": 10_000}),
        Read("ttl"),
        Delete("cap", match=eq("t")),
        Append("cap", records("7")),
        Checkpoint(),
        Put("cap", {**DISK, "cap_bytes": 20}),
        Append("cap", records("8", "9", "10", "11")),
        Put("ttl", {**DISK, "ttl_ms": 50}),
        Advance(200),
        Tick(),
        Append("ttl", records("5")),
        Checkpoint(),
        Read("ttl"),
    ],
)

RESERVATIONS = Script(
    "seqs are reserved ahead of the sync, and a power loss leaves a gap",
    [
        Append("a", records("1", "2"), config=DISK),
        *(Append("a", records(f"x{n}", f"y{n}")) for n in range(5)),
        Append("b", records(*(f"z{n}" for n in range(12))), config=MEMORY),
        Restart("lost"),
        Append("a", records("after", "the gap")),
        Checkpoint(),
        Append("a", records("more", "of", "it", "and", "more")),
        Restart("torn"),
        Append("a", records("again")),
        Append("b", records("again")),
        Delete("a", before=5),
        Restart("kept"),
        Append("a", records("the last")),
        Checkpoint(),
        Read("a"),
    ],
)

TOGETHER = Script(
    "many writers, and checkpoints under way meanwhile",
    [
        Together([Put("f", FSYNC), Append("f", records("1", "2")), Append("d", records("1"), config=DISK)]),
        Together([Append("d", records("2")), Append("f", records("3")), Append("d", records("3", "4")), Read("f")]),
        Together(
            [
                Checkpoint(),
                Append("f", records("4@t")),
                Append("d", records("5@t")),
                Delete("f", before=2),
                Append("new", records("1"), config=DISK),
                Append("new", records("2"), key="k"),
                Append("new", records("3"), key="k"),
                Read("new"),
            ],
            turns=2,
        ),
        Together(
            [
                Delete("f", match=eq("t")),
                Checkpoint(),
                Append("f", records("5", "6")),
                Delete("d", match=eq("t")),
                Put("d", {**FSYNC, "cap_records": 3}),
                Append("d", records("6", "7")),
                Drop("new"),
                Append("f", records("7")),
            ],
            turns=1,
        ),
        Together([Append("f", records(f"{n}")) for n in range(6)]),
        Together([Checkpoint(), *(Append("f", records(f"{n}")) for n in range(8))], turns=3),
    ],
)

CHANGES = Script(
    "the class of a topic changes back and forth",
    [
        Append("t", records("1", "2"), config=EPHEMERAL),
        Put("t", DISK),
        Append("t", records("3"), key="k1"),
        Checkpoint(),
        Append("t", records("4")),
        Put("t", EPHEMERAL),
        Append("t", records("5")),
        Checkpoint(),
        Append("t", records("6")),
        Put("t", FSYNC),
        Append("t", records("7", "8")),
        Delete("t", before=8),
        Checkpoint(),
        Put("t", MEMORY),
        Append("t", records("9")),
        Drop("t"),
        Checkpoint(),
        Append("t", records("1 of the second life"), config=EPHEMERAL),
        Restart("kill"),
        Append("t", records("1 of the third epoch")),
    ],
)

LOGGED_CHANGES = Script(
    "the class of a logged topic changes under its writers",
    [
        Together([Append("t", records("1", "2"), config=DISK), Append("t", records("3")), Put("t", FSYNC)]),
        Together([Append("t", records("4"), key="k1"), Put("t", MEMORY), Append("t", records("5"))]),
        Checkpoint(),
        Together([Put("t", FSYNC), Append("t", records("6")), Put("t", {**DISK, "cap_records": 4})], turns=1),
        Together([Append("t", records("7", "8")), Append("t", records("9"), key="k2"), Read("t")]),
        Together([Drop("t"), Append("t", records("1 of the second life"), config=DISK)]),
        Together([Append("t", records(f"x{n}", f"y{n}", f"z{n}")) for n in range(4)]),
        Checkpoint(),
        Read("t"),
    ],
)

SPARSE = Script(
    "a file shared by many topics is rewritten when little of it is in force",
    [
        *(Append(f"t{n}", records(f"{n}@a", f"{n}@b"), config=FSYNC if n % 2 else DISK) for n in range(4)),
        Checkpoint(),
        *(Delete(f"t{n}", before=3) for n in range(3)),
        Append("t3", records("3")),
        Checkpoint(),
        Drop("t0"),
        Checkpoint(),
        Delete("t3", match=eq("a")),
        Append("t0", records("second life")),
        Checkpoint(),
        Drop("t3"),
        Checkpoint(),
        Restart(),
        Checkpoint(),
    ],
    segment_max_events=100,
)

FINAL = Script(
    "what has expired stays gone, whatever the clock and the config do",
    [
        Append("f", records("1", "2", "3"), config={**FSYNC, "ttl_ms": 100}),
        Append("d", records("1", "2"), config={**DISK, "ttl_ms": 100}),
        Advance(150),
        Read("f"),
        Read("d"),
        StepClock(-100),
        Put("f", {**FSYNC, "ttl_ms": 10_000}),
        Append("f", records("4")),
        Read("f"),
        Checkpoint(),
        StepClock(-1000),
        Append("d", records("3")),
        Restart("kill"),
        Read("d"),
    ],
)

SCRIPTS = [CLASSES, CHECKPOINTS, RESTARTS, LOSSES, RESERVATIONS, TOGETHER, CHANGES, LOGGED_CHANGES, SPARSE, FINAL]
