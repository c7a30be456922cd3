"""The Python client: `Client` for blocking code, `AsyncClient` for asyncio, with the same methods.

    errors, results     what a client raises and returns; record_types: records, jobs, events
    client_config       where the server is, the key, how long to try
    hooks               what is logged and told
    arguments           configs, records and matches as callers pass them
    tracing             spans of OpenTelemetry
    values              Python types from and to JSON
    data_frames         a topic as a data frame
    kept_cursors        where a consumer keeps its place
    protocol/           requests, answers, retries, cursors and watches, without a socket
    aio/                AsyncClient, its streams and workers
    blocking/           the same for blocking code, generated from aio
    fleets/             several servers as one set of topics, both kinds

The client knows the server by its API alone. Threads may share a Client; an AsyncClient serves one event loop at a
time. pyarrow is imported only by what needs it.
"""

from topics.client.aio.client import AsyncClient
from topics.client.aio.producer import AsyncProducer
from topics.client.aio.streams import AsyncConsumer, AsyncExport, AsyncListing, AsyncWatcher
from topics.client.aio.worker import AsyncJobContext, AsyncWorker
from topics.client.blocking.client import Client
from topics.client.blocking.producer import Producer
from topics.client.blocking.streams import Consumer, Export, Listing, Watcher
from topics.client.blocking.worker import JobContext, Worker
from topics.client.errors import (
    ApiError,
    CannotConnect,
    ClientClosed,
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    TopicOnSeveralServers,
    UnexpectedAnswer,
    WatchEnded,
)
from topics.client.fleets.aio import AsyncFleet
from topics.client.fleets.blocking import Fleet
from topics.client.hooks import Reconnecting, Retrying
from topics.client.kept_cursors import FileCursor, KeptCursor, NamedCursor, Position, SQLiteCursor
from topics.client.protocol.leases import JobDone, Reject, Retry
from topics.client.results import (
    Acked,
    CaughtUp,
    Claimed,
    ConfigWarning,
    ConnectionClosed,
    ConnectionListed,
    CursorCounts,
    CursorDeleted,
    CursorShown,
    Diff,
    Evicting,
    ExportInfo,
    Extended,
    Health,
    Job,
    JobCounts,
    Lease,
    LiveRuns,
    Loss,
    Lost,
    Me,
    Nacked,
    NewRecord,
    Performance,
    QueueCounts,
    QueuePaused,
    Ready,
    Record,
    Records,
    RecordsDeleted,
    RecordShown,
    Redriven,
    RequestErrors,
    Router,
    RouterDeleted,
    RouterListed,
    Sample,
    Stats,
    Ticket,
    TopicDeleted,
    TopicGone,
    TopicListed,
    TopicPut,
    TopicState,
    TypedRecord,
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
    "AsyncFleet",
    "AsyncJobContext",
    "AsyncListing",
    "AsyncProducer",
    "AsyncWatcher",
    "AsyncWorker",
    "CannotConnect",
    "CaughtUp",
    "Claimed",
    "Client",
    "ClientClosed",
    "ClientError",
    "ConfigWarning",
    "ConnectionClosed",
    "ConnectionFailed",
    "ConnectionListed",
    "Consumer",
    "CursorCounts",
    "CursorDeleted",
    "CursorShown",
    "DeadlineExceeded",
    "Diff",
    "Evicting",
    "Export",
    "ExportInfo",
    "Extended",
    "FileCursor",
    "Fleet",
    "Health",
    "Job",
    "JobContext",
    "JobCounts",
    "JobDone",
    "KeptCursor",
    "Lease",
    "Listing",
    "LiveRuns",
    "Loss",
    "Lost",
    "Me",
    "Nacked",
    "NamedCursor",
    "NewRecord",
    "Performance",
    "Position",
    "Producer",
    "QueueCounts",
    "QueuePaused",
    "Ready",
    "Reconnecting",
    "Record",
    "RecordShown",
    "Records",
    "RecordsDeleted",
    "Redriven",
    "Reject",
    "RequestErrors",
    "Retry",
    "Retrying",
    "Router",
    "RouterDeleted",
    "RouterListed",
    "SQLiteCursor",
    "Sample",
    "Stats",
    "Ticket",
    "Tombstone",
    "TopicConfig",
    "TopicDeleted",
    "TopicGone",
    "TopicListed",
    "TopicOnSeveralServers",
    "TopicPut",
    "TopicState",
    "TypedRecord",
    "UnexpectedAnswer",
    "WatchEnded",
    "WatchEvent",
    "Watcher",
    "Worker",
    "Written",
]
