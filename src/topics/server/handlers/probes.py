"""Health and readiness (HM1, HM2)."""

from topics import __version__
from topics.server.call import Call
from topics.server.wire.replies import Health, Ready


def health(call: Call) -> None:
    uptime_ms = int((call.app.clock.monotonic() - call.app.started_at) * 1000)
    call.answer(200, Health("ok", __version__, uptime_ms))


def ready(call: Call) -> None:
    if not call.app.is_serving:
        raise call.app.unavailable()
    call.answer(200, Ready("ready", True, call.app.engine.topic_count))
