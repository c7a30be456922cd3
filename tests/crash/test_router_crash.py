"""The sweep with routers: copies keep their seqs whatever crashes, and none is a link to its source.

The scripts forward after every operation, and time passes between them: a copy that was lost and made again would
have another time, so that the state would be that after no commit.
"""

import pytest

from tests.crash.script import Script
from tests.crash.scripts import ROUTED_SCRIPTS
from tests.crash.test_crash import QUICK_POINTS, check_crash, ids, operations_of, quiet
from topics.testing.disk import crash_points


@pytest.mark.parametrize("script", ROUTED_SCRIPTS, ids=ids(ROUTED_SCRIPTS))
async def test_without_a_crash_every_answer_is_the_oracles(script: Script) -> None:
    """RT9, RT10, RT12, RT15, RT20, RT21, RT22, RT24, DU6: the scripts themselves, with their restarts."""
    quiet()
    assert len(await operations_of(script)) > 20


@pytest.mark.parametrize("script", ROUTED_SCRIPTS, ids=ids(ROUTED_SCRIPTS))
async def test_after_a_crash_at_some_operations_copies_are_where_they_were(script: Script) -> None:
    """G14, RT9, RT13, RT20, RT21, RT22, RT24, ST8, S3, S4, S15, S28: a sample of the full sweep below."""
    quiet()
    points = list(crash_points(await operations_of(script)))
    for point in points[:: len(points) // QUICK_POINTS]:
        await check_crash(script, point, seeds=[point.n], depth=0)


@pytest.mark.full
@pytest.mark.parametrize("script", ROUTED_SCRIPTS, ids=ids(ROUTED_SCRIPTS))
async def test_after_a_crash_at_any_operation_copies_are_where_they_were(script: Script) -> None:
    """G14, RT9, RT13, RT20, RT21, RT22, RT24, ST8, S3, S4, S15, S28"""
    quiet()
    for point in crash_points(await operations_of(script)):
        await check_crash(script, point, seeds=[point.n, -point.n], depth=0)
