"""The engine: the only place where the core meets storage. `Engine` and its answers are imported when asked for."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.engine.answers import DeleteResult as DeleteResult
    from topics.engine.answers import ReadResult as ReadResult
    from topics.engine.answers import TopicState as TopicState
    from topics.engine.answers import WriteResult as WriteResult
    from topics.engine.engine import Engine as Engine

__all__ = ["DeleteResult", "Engine", "ReadResult", "TopicState", "WriteResult"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from topics.engine.engine import Engine

        return Engine
    if name in __all__:
        from topics.engine import answers

        return getattr(answers, name)
    raise AttributeError(f"module 'topics.engine' has no attribute {name!r}")
