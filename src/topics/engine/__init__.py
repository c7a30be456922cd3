"""The engine: the only place where the core meets storage. `Engine` and its answers are imported when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.engine.engine import DeleteResult as DeleteResult
    from topics.engine.engine import Engine as Engine
    from topics.engine.engine import ReadResult as ReadResult
    from topics.engine.engine import TopicState as TopicState
    from topics.engine.engine import WriteResult as WriteResult

__all__ = ["DeleteResult", "Engine", "ReadResult", "TopicState", "WriteResult"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topics.engine' has no attribute {name!r}")
    return getattr(import_module("topics.engine.engine"), name)
