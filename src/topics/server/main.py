"""The server as a process: bind, recover, serve, drain.

`Server` is one engine behind one listener; `serve` runs it until a signal. The port is bound before the log is
replayed (HM2). Whatever prevents a start is raised before anything is served.
"""

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import uvloop

from topics import __version__
from topics.clock import Clock
from topics.engine.engine import Engine
from topics.errors import ConfigurationError
from topics.server.access.key_file import KeyFile, read_keys
from topics.server.access.visitors import is_loopback
from topics.server.api import ROUTES
from topics.server.app import App
from topics.server.auth import Keyring
from topics.server.live.pressure import RESUMING_AT, Pressure
from topics.server.logs import set_up_logging
from topics.server.seeing.condition import origins_of
from topics.server.transport.exchange import Limits
from topics.server.transport.listener import Listener
from topics.settings import Settings
from topics.tuning import give_memory_back, tune_process

logger = logging.getLogger("topics.server")

STOP_S: Final = 7.5  # for all of a stop: what is under way then is soon done, and 10 s is what there may be
DRAIN_S: Final = 4.0  # of it for running requests
SAVE_MEMORY_S: Final = 30.0
CLOSE_S: Final = 1.0  # of it for connections after that
OUTPUT_BYTES_MAX: Final = 32 * 1024 * 1024  # held for one connection, beyond the largest body
MEMORY_LEAST_BYTES: Final = 1024 * 1024  # beside the largest record
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Bound = Callable[[str, str], None]


class Server:
    """An engine on the network. Use as an async context manager: entered it is ready, left it has drained."""

    def __init__(
        self, settings: Settings, engine: Engine, keyring: Keyring, source: Callable[[], float] | None = None
    ) -> None:
        self.engine = engine
        self._settings = settings
        self.pressure = Pressure(engine.clock, lambda: engine.fill, source)
        self.app = App(engine, ROUTES, keyring, self.pressure)
        self.key_file: KeyFile | None = None
        if settings.key_file:
            self.key_file = KeyFile(settings.key_file, keyring, engine.clock, self.app.keys_changed)
        self._following: asyncio.Task[None] | None = None
        self.listener = Listener(self.app, _limits(settings), turns_monotonic=engine.clock.monotonic)
        self.app.connections = self.listener.connections

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        engine: Engine | None = None,
        clock: Clock | None = None,
        source: Callable[[], float] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> "Server":
        """A server for these settings. It keeps only the digests of the keys in them.

        `sources` says which of them come from where; those left out have their defaults, or were given in code.
        """
        keyring = Keyring.parse(settings.api_keys)
        if settings.key_file:
            keyring.take(read_keys(settings.key_file))
        check_bind(settings, keyring)
        origins = origins_of(settings, sources or {})
        settings = settings.without_secrets()
        engine = engine or Engine.open(settings.data_dir, settings, clock=clock)
        server = cls(settings, engine, keyring, source)
        server.app.origins = origins
        return server

    async def __aenter__(self) -> "Server":
        await self.bind()
        await self.recover()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """host:port as bound."""
        host, port = self.listener.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def bind(self) -> None:
        """Accept connections; until `recover` is done only probes and metrics are answered."""
        try:
            await self.listener.start(self._settings.host, self._settings.port)
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(
                f"cannot bind {self._settings.host}:{self._settings.port}: {_reason(error)}"
            ) from None
        if path := self._settings.unix_socket:
            try:
                await self.listener.start_unix(path)
            except (OSError, ValueError) as error:
                await self.listener.close()
                raise ConfigurationError(f"cannot bind TOPICS_UNIX_SOCKET {path}: {_reason(error)}") from None
        self.pressure.start()
        if self.key_file is not None:
            self._following = asyncio.create_task(self.key_file.follow())

    async def recover(self) -> None:
        try:
            await self.engine.start()
        except BaseException:
            await self.listener.close()
            self._stop_following()
            self.pressure.stop()
            raise
        self.app.ready()

    async def close(self) -> None:
        """Drain (SC3): new requests get 503, running ones finish or are cut off; then comes the last checkpoint."""
        began = self.engine.clock.monotonic()
        self.app.drain()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.app.wait_until_idle()
        except TimeoutError:
            logger.warning("%d requests were still running after %d s", self.app.slots.running, DRAIN_S)
        await self.listener.drain(CLOSE_S)
        await self.app.cancel_tasks()
        self._stop_following()
        self.pressure.stop()
        await self.engine.close(STOP_S - (self.engine.clock.monotonic() - began))

    def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()


def _limits(settings: Settings) -> Limits:
    return Limits(
        body_bytes_max=settings.max_body_bytes,
        connections_max=settings.max_connections,
        held_bytes_max=settings.max_held_bytes,
        connection_held_bytes_max=min(settings.max_held_bytes, settings.max_body_bytes + OUTPUT_BYTES_MAX),
    )


def check_bind(settings: Settings, keyring: Keyring) -> None:
    """Without keys the server binds loopback addresses only, unless told otherwise (SC1)."""
    if keyring or settings.allow_insecure_no_auth or is_loopback(settings.host):
        return
    raise ConfigurationError(
        f"TOPICS_HOST is {settings.host}, which is not a loopback address, and there are no keys: anyone could "
        "read and write everything. Set TOPICS_KEY_FILE or TOPICS_API_KEYS, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 if "
        "that is meant"
    )


def check_memory(settings: Settings) -> None:
    """A limit on memory has room for a topic with a record of the largest size, and for those who follow it (LM14)."""
    least = MEMORY_LEAST_BYTES + 2 * settings.max_record_bytes  # a write weighs twice its size until it is decided
    if 0 < settings.max_memory_bytes < least:
        raise ConfigurationError(
            f"TOPICS_MAX_MEMORY_BYTES is {settings.max_memory_bytes}, in which a record of TOPICS_MAX_RECORD_BYTES "
            f"({settings.max_record_bytes}) has no room; use at least {least}, or 0 for three quarters of what there is"
        )


def _reason(error: Exception) -> str:
    """Why a bind failed, without the address that asyncio repeats."""
    text = str(getattr(error, "strerror", None) or error)
    return text.rpartition("): ")[2] or text


def serve(
    settings: Settings,
    on_bound: Bound = lambda port_file, address: None,
    notices: Iterable[str] = (),
    sources: Mapping[str, str] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. `on_bound` gets the port file and host:port. Raises what stops the start.

    `notices` on the settings are logged as warnings; `sources` says which of them come from where.
    """
    set_up_logging(settings.log_level)
    for notice in notices:
        logger.warning("%s", notice)
    check_memory(settings)
    server = Server.open(settings, sources=sources)
    del settings  # it holds the keys
    tune_process()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(server, on_bound))


async def _serve(server: Server, on_bound: Bound) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in SIGNALS:  # before anyone is told that it runs
        loop.add_signal_handler(number, stop.set)
    if server.key_file is not None:
        loop.add_signal_handler(signal.SIGHUP, server.key_file.reread)
    await server.bind()
    gc.disable()  # what recovery makes stays, and would be looked through again and again
    recovery = asyncio.create_task(server.recover())
    await asyncio.sleep(0)  # a directory that is in use is refused by now
    if recovery.done():
        recovery.result()
    on_bound(server.engine.settings.port_file, server.address)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((recovery, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not recovery.done():
        recovery.cancel()
        await asyncio.wait((recovery,))
        return
    recovery.result()
    gc.freeze()
    gc.enable()
    _announce(server)
    saving = asyncio.create_task(_save_memory(server))
    await stopping
    saving.cancel()
    logger.info("stopping")
    await server.close()
    logger.info("stopped")


async def _save_memory(server: Server) -> None:
    """Every so often drop what nobody reads any more, and while nothing runs, return free memory to the system."""
    while True:
        await asyncio.sleep(SAVE_MEMORY_S)
        server.engine.drop_idle_pages()
        server.engine.drop_maps()
        if not server.app.slots.running and server.pressure.level < RESUMING_AT:
            give_memory_back()


def _announce(server: Server) -> None:
    url = f"http://{server.address}"
    if not server.app.keyring:
        logger.warning("AUTH IS OFF: anyone who reaches this port may read, write and delete everything")
    engine = server.engine
    logger.info("topics %s: %d topics in %s", __version__, engine.figures.topic_count, engine.settings.data_dir)
    footprint = engine.footprint
    if footprint.limit and footprint.used > footprint.limit:
        said = "what is kept in memory is about %d bytes, and TOPICS_MAX_MEMORY_BYTES allows %d: writes are refused"
        logger.warning(said, footprint.used, footprint.limit)
    logger.info("API      %s/v0", url)
    if engine.settings.unix_socket:
        logger.info("socket   unix:%s", engine.settings.unix_socket)
    logger.info("docs     %s/docs", url)
    if engine.settings.console:
        logger.info("console  %s/console", url)
    logger.info("metrics  %s/v0/metrics", url)
