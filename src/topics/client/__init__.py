"""The Python client: `Client` for blocking code, `AsyncClient` for asyncio, with the same methods.

    errors, results     what a client raises and returns
    client_config       where the server is, the key, how long to try
    protocol/           requests, answers, retries, cursors and watches, without a socket
    aio/                AsyncClient, its streams and workers
    blocking/           the same for blocking code, generated from aio

The client knows the server by its API alone. Threads may share a Client; an AsyncClient serves one event loop at a
time. pyarrow is imported only by what needs it.
"""

from topics.client.aio.client import AsyncClient
from topics.client.aio.streams import AsyncConsumer, AsyncExport, AsyncWatcher
from topics.client.aio.worker import AsyncWorker
from topics.client.blocking.client import Client
from topics.client.blocking.streams import Consumer, Export, Watcher
from topics.client.blocking.worker import Worker
from topics.client.errors import (
    ApiError,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    UnexpectedAnswer,
    WatchEnded,
)
from topics.client.results import (
    Acked,
    CaughtUp,
    Claimed,
    CursorDeleted,
    Diff,
    ExportInfo,
    Extended,
    Health,
    Job,
    Lease,
    LiveRuns,
    Loss,
    Lost,
    Nacked,
    NamedCursor,
    NewRecord,
    Performance,
    QueueCounts,
    Ready,
    Record,
    Records,
    RecordsDeleted,
    RecordShown,
    Redriven,
    Router,
    RouterDeleted,
    RouterListed,
    TopicDeleted,
    TopicGone,
    TopicListed,
    TopicPut,
    TopicState,
    WatchEvent,
    Written,
)
from topics.model import Tombstone, TopicConfig

__all__ = [
    "Acked",
    "ApiError",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncExport",
    "AsyncWatcher",
    "AsyncWorker",
    "CaughtUp",
    "Claimed",
    "Client",
    "ClientError",
    "ConnectionFailed",
    "Consumer",
    "CursorDeleted",
    "DeadlineExceeded",
    "Diff",
    "Export",
    "ExportInfo",
    "Extended",
    "Health",
    "Job",
    "Lease",
    "LiveRuns",
    "Loss",
    "Lost",
    "Nacked",
    "NamedCursor",
    "NewRecord",
    "Performance",
    "QueueCounts",
    "Ready",
    "Record",
    "RecordShown",
    "Records",
    "RecordsDeleted",
    "Redriven",
    "Router",
    "RouterDeleted",
    "RouterListed",
    "Tombstone",
    "TopicConfig",
    "TopicDeleted",
    "TopicGone",
    "TopicListed",
    "TopicPut",
    "TopicState",
    "UnexpectedAnswer",
    "WatchEnded",
    "WatchEvent",
    "Watcher",
    "Worker",
    "Written",
]
