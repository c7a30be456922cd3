"""A failing history, made smaller: less and less of its plan, as long as it fails in the same way."""

from tests.sim.history import Broken, run
from tests.sim.plan import Plan, smaller

RUNS_MAX = 300


def shrunk(broken: Broken, runs_max: int = RUNS_MAX) -> Broken:
    """The smallest history found that fails as this one does: by the same kind of error, at the same place."""
    runs, wanted = 0, place_of(broken)
    candidates = smaller(broken.plan)
    while (plan := next(candidates, None)) is not None and runs < runs_max:
        runs += 1
        found = failure_of(plan)
        if found is not None and place_of(found) == wanted:
            broken, candidates = found, smaller(found.plan)
    return broken


def failure_of(plan: Plan) -> Broken | None:
    try:
        run(plan)
    except Broken as broken:
        return broken
    return None


def place_of(broken: Broken) -> tuple[type[BaseException], str, int]:
    """Where the error was raised."""
    trace = broken.error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(broken.error), trace.tb_frame.f_code.co_filename, trace.tb_lineno
