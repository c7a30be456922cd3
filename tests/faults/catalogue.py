"""The whole catalogue, and the table of docs/reliability.md that is made of it: `python -m tests.faults.catalogue`."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.faults.areas import checkpoints, clients, damage, log, pairs, power, processes, room
from tests.faults.case import Area, Case

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- cases: made by python -m tests.faults.catalogue -->", "<!-- end of cases -->"

AREAS: list[Area] = [
    log.CHANGES,
    log.LOG,
    checkpoints.CHECKPOINT,
    checkpoints.RECLAIM,
    power.RECOVERY,
    power.POWER,
    power.LIES,
    damage.ROT,
    damage.FILES,
    clients.KEYS,
    clients.QUEUES,
    clients.ROUTERS,
    clients.CLOCKS,
    room.FULL,
    room.GONE,
    processes.HELPERS,
    processes.RIGHTS,
    pairs.PAIRS,
]
CASES: list[Case] = [case for area in AREAS for case in area.cases]


def table() -> Iterator[str]:
    for area in AREAS:
        yield f"**{area.title}** ({len(area.cases)})"
        yield ""
        yield "| case | what is injected | what must hold |"
        yield "|---|---|---|"
        yield from (f"| {case.name} | {case.injects} | {', '.join(case.holds)} |" for case in area.cases)
        yield ""


def with_table(page: str) -> str:
    made = "\n".join([BEGIN, "", *table(), END])
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: made, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
