"""topics: a persistent event engine. Named append-only logs where lost data is always announced."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client import AsyncClient as AsyncClient
    from topics.client import Client as Client
    from topics.engine import Engine as Engine

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "Engine", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from topics.engine import Engine

        return Engine
    if name in ("AsyncClient", "Client"):
        import topics.client

        return getattr(topics.client, name)
    raise AttributeError(f"module 'topics' has no attribute {name!r}")
