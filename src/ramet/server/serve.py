"""Runs the server: the port first, then the engine beside the first answers, until a signal or the engine's end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import uvicorn

from ramet.config import Config, ServerSection
from ramet.errors import ConfigError, EngineDeadError
from ramet.launch import Running, launch, public_settings
from ramet.server.app import create_app
from ramet.server.context import Context

if TYPE_CHECKING:
    from ramet.server.grpc.server import RpcServer

log = logging.getLogger(__name__)

T = TypeVar("T")

READY_LINE = "The server is fired up and ready to roll!"

#: Between the engine's end and the server's: requests get their errors, and a probe its 503.
LAST_WORDS_S = 1.0

INTERRUPTED = 130


def bind(server: ServerSection) -> socket.socket:
    """The listening socket. Raises `ConfigError` when the address cannot be had."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((server.host, server.port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {server.port} on {server.host} is in use; choose another with --port (0 takes a free one)",
                field="port",
            ) from None
        raise ConfigError(f"cannot listen on {server.host}:{server.port}: {error.strerror}", field="host") from None
    sock.setblocking(False)
    return sock


def serve(config: Config, origins: Mapping[str, str], sock: socket.socket, *, started_s: float) -> int:
    """Serve until told to stop; the status: 0 after a signal, 1 after the engine's end, 130 when interrupted twice.

    `started_s`: time.monotonic() when the command began.
    """
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(_Service(config, origins, sock, started_s).run())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (about half the time per event), else the standard one."""
    try:
        import uvloop  # type: ignore[import-not-found]
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _rpc_server(context: Context) -> RpcServer:
    """The gRPC server; its library takes 0.1 s to import and is an extra, so only who asks for it needs it."""
    try:
        from ramet.server.grpc.server import RpcServer
    except ImportError as error:
        raise ConfigError(
            f"--grpc-port needs grpcio and protobuf ({error}): pip install 'ramet[grpc]'", field="grpc_port"
        ) from None
    return RpcServer(context)


class _WebServer(uvicorn.Server):
    """uvicorn without its signal handling, which would end the process by the signal instead of with status 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Service:
    """One run of the server."""

    def __init__(self, config: Config, origins: Mapping[str, str], sock: socket.socket, started_s: float) -> None:
        self._config = config
        self._origins = origins
        self._sock = sock
        self._started_s = started_s
        self._status = 0
        self._signals = 0
        self._stopped = asyncio.Event()
        self._context = Context(server=config.server, api=config.api)
        self._rpc: RpcServer | None = None
        self._rpc_end: asyncio.Task[None] | None = None
        app = create_app(self._context, metrics=config.log.enable_metrics)
        self._web = _WebServer(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=math.ceil(config.server.drain_timeout),
            )
        )

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        if self._config.server.grpc_port is not None:
            self._rpc = _rpc_server(self._context)
            await self._rpc.start()
        loading = _in_thread(lambda: launch(self._config, self._origins))
        web = loop.create_task(self._web.serve(sockets=[self._sock]))
        stopped = loop.create_task(self._stopped.wait())
        running: Running | None = None
        try:
            await asyncio.wait((loading, stopped), return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                running = loading.result()
                await self._open(running)
            await self._stopped.wait()
        except EngineDeadError as error:
            log.error("event=engine_failed reason=%r", error.message)
            self._status = 1
        finally:
            self._context.draining = True
            self._web.should_exit = True
            self._end_rpc(self._config.server.drain_timeout)
            await web
            if self._rpc_end is not None:
                await self._rpc_end
            stopped.cancel()
            if running is not None:
                await running.end()
                await asyncio.to_thread(running.close)
        return INTERRUPTED if self._signals > 1 else self._status

    async def _open(self, running: Running) -> None:
        """From now on requests are served."""
        frontend = running.frontend
        frontend.on_dead = self._on_dead
        await running.begin()
        context = self._context
        context.server, context.api = running.resolved.config.server, running.resolved.config.api
        context.settings = public_settings(running.resolved.config)
        context.startup_s = time.monotonic() - self._started_s
        context.open(frontend, running.card)
        host, port = self._sock.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        log.info("event=ready model=%s startup_s=%.2f", running.card.served_name, context.startup_s)
        if self._rpc is not None:
            print(f"gRPC on {self._rpc.address}", flush=True)
        print(f"Listening on http://{name}:{port}", flush=True)
        print(READY_LINE, flush=True)

    def _on_signal(self) -> None:
        """The first one lets what runs finish; the second ends at once."""
        self._signals += 1
        self._context.draining = True
        self._web.should_exit = True
        self._stopped.set()
        if self._signals == 1:
            live = self._context.frontend.num_live if self._context.frontend else 0
            log.info("event=stopping running=%d drain_timeout_s=%g", live, self._config.server.drain_timeout)
        else:
            self._web.force_exit = True
            self._end_rpc(0.0)

    def _end_rpc(self, grace_s: float) -> None:
        """Called again, it shortens what is left of the first time."""
        if self._rpc is not None:
            self._rpc_end = asyncio.get_running_loop().create_task(self._rpc.stop(grace_s))

    def _on_dead(self, error: EngineDeadError) -> None:
        if self._stopped.is_set():
            return
        log.critical("event=engine_dead reason=%r", error.message)
        self._status = 1
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._stopped.set)


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """The result of `work` on a daemon thread: an interrupt while loading need not wait for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(method: Callable[[T], None] | Callable[[BaseException], None], value: object) -> None:
        if not future.done():
            method(value)  # type: ignore[arg-type]

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the future
            _call(loop, deliver, future.set_exception, error)
        else:
            _call(loop, deliver, future.set_result, result)

    threading.Thread(target=run, name="ramet-launch", daemon=True).start()
    return future


def _call(loop: asyncio.AbstractEventLoop, *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
        loop.call_soon_threadsafe(*args)  # type: ignore[arg-type]
