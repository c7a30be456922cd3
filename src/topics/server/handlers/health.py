"""How the server is: alive (HM1), ready (HM2, HM7)."""

from topics import __version__
from topics.errors import NotReady
from topics.server.call import Call
from topics.server.wire.replies import Health, Ready


def health(call: Call) -> None:
    call.answer(200, Health("ok", __version__, call.app.uptime_ms))


def ready(call: Call) -> None:
    if not call.app.is_serving:
        raise call.app.unavailable()
    if (obstacle := call.app.engine.obstacle()) is not None:
        raise NotReady(f"no write can be kept: {obstacle.message}", reason=obstacle.reason)
    call.answer(200, Ready("ready", True, call.app.engine.topic_count))
