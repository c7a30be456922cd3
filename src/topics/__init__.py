"""topics: a persistent event engine. Named append-only logs where lost data is always announced."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client import AsyncClient as AsyncClient
    from topics.client import AsyncFleet as AsyncFleet
    from topics.client import Client as Client
    from topics.client import ClientClosed as ClientClosed
    from topics.client import FileCursor as FileCursor
    from topics.client import Fleet as Fleet
    from topics.client import Job as Job
    from topics.client import Lost as Lost
    from topics.client import NamedCursor as NamedCursor
    from topics.client import NewRecord as NewRecord
    from topics.client import Record as Record
    from topics.client import Reject as Reject
    from topics.client import Retry as Retry
    from topics.client import SQLiteCursor as SQLiteCursor
    from topics.client import Tombstone as Tombstone
    from topics.client import TopicConfig as TopicConfig
    from topics.engine import Engine as Engine
    from topics.errors import TopicsError as TopicsError

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "AsyncFleet",
    "Client",
    "ClientClosed",
    "Engine",
    "FileCursor",
    "Fleet",
    "Job",
    "Lost",
    "NamedCursor",
    "NewRecord",
    "Record",
    "Reject",
    "Retry",
    "SQLiteCursor",
    "Tombstone",
    "TopicConfig",
    "TopicsError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Loads what is asked for, and nothing else: an import of `topics` costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    homes = {"Engine": "topics.engine", "TopicsError": "topics.errors"}
    return getattr(import_module(homes.get(name, "topics.client")), name)
