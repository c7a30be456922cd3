"""How the server is: alive (HM1), ready (HM2, HM7), how it is set up (OB4), what is worth a look (OB5)."""

import platform
from typing import Final

from topics import __version__
from topics.engine.instance import TopicFilter
from topics.errors import Forbidden, NotReady
from topics.server.auth import ADMIN
from topics.server.call import Call
from topics.server.handlers.routers import may_see
from topics.server.seeing import condition
from topics.server.wire.replies import Health, Ready
from topics.server.wire.seen.surveys import Diagnosis, Finding, ServerShown

BLOCKED_MAX: Final = 100  # routers whose findings are told
LEVELS: Final = ("fault", "note", "ok")


def health(call: Call) -> None:
    call.answer(200, Health("ok", __version__, call.app.uptime_ms))


def ready(call: Call) -> None:
    if not call.app.is_serving:
        raise call.app.unavailable()
    if (obstacle := call.app.engine.obstacle()) is not None:
        raise NotReady(f"no write can be kept: {obstacle.message}", reason=obstacle.reason)
    call.answer(200, Ready("ready", True, call.app.engine.figures.topic_count))


def show_server(call: Call) -> None:
    """For keys that may see everything: settings hold paths and addresses."""
    if call.key.prefixes:
        raise Forbidden("this key is limited to prefixes; the server is shown to keys that may name every topic")
    app = call.app
    answer = ServerShown(
        version=__version__,
        python=platform.python_version(),
        uptime_ms=app.uptime_ms,
        started_ts=app.clock.now_ms() - app.uptime_ms,
        settings=condition.settings_shown(app.settings, app.origins),
        checkpoints=condition.checkpoints_shown(app),
        disk=condition.disk_shown(app),
        memory=condition.memory_shown(app),
        performance=call.performance(),
    )
    call.answer(200, answer)


async def diagnose(call: Call) -> None:
    """What is worth a look among the topics that the key may name; of the server itself, if it may see that."""
    app, key = call.app, call.key
    engine, wanted = app.engine, TopicFilter(allowed=key.prefixes)
    findings: list[Finding] = []
    if ADMIN in key.scopes and not key.prefixes:
        findings += condition.of_server(app)
    troubles = await engine.survey.troubles(condition.NAMED_MAX, wanted)
    endangered = await engine.survey.endangered(condition.NAMED_MAX, wanted)
    findings += condition.of_topics(troubles, endangered)
    blocked, _ = await engine.routing.list_after(
        "", BLOCKED_MAX, lambda router: router.state == "blocked" and may_see(key, router)
    )
    findings += condition.of_routers(blocked)
    findings.sort(key=lambda one: LEVELS.index(one.level))
    call.answer(200, Diagnosis(findings, call.performance()))
