"""The channel between two processes: ZeroMQ sockets on one machine, messages as MessagePack.

The text side binds both addresses before the engine's process starts; each direction has its own pair of sockets, so a
thread may send while another receives.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq

from ramet.channel import Dead, Inbox, ToEngine, ToText
from ramet.errors import EngineDeadError

#: How often the reader looks whether the engine's process still lives.
WATCH_INTERVAL_MS = 200
#: How long the engine's last messages may take to leave when it ends.
LINGER_MS = 1000


class ZmqEngineSide:
    """`EngineSide` in the engine's process, which connects. One thread uses it."""

    def __init__(self, to_engine: str, to_text: str) -> None:
        self._context = zmq.Context()
        self._arrivals = _socket(self._context, zmq.PULL)
        self._answers = _socket(self._context, zmq.PUSH)
        self._arrivals.connect(to_engine)
        self._answers.connect(to_text)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()

    def receive(self, timeout_s: float | None) -> list[ToEngine]:
        messages: list[ToEngine] = []
        if timeout_s != 0 and not self._arrivals.poll(None if timeout_s is None else int(timeout_s * 1000)):
            return messages
        try:
            while True:
                messages.append(self._decoder.decode(self._arrivals.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return messages

    def send(self, message: ToText) -> None:
        self._answers.send(self._encoder.encode(message))

    def close(self) -> None:
        """Wait for what was sent to leave (at most `LINGER_MS`) and free the sockets."""
        self._context.destroy(linger=LINGER_MS)


class ZmqTextSide:
    """`TextSide` in the parent's process, which binds. A thread of it reads and watches that the engine lives."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._context = zmq.Context()
        self._requests = _socket(self._context, zmq.PUSH)
        self._answers = _socket(self._context, zmq.PULL)
        if os.name == "posix":
            self._directory = Path(tempfile.mkdtemp(prefix="ramet-"))  # mode 0700: only this user may connect
            self.to_engine, self.to_text = (f"ipc://{self._directory}/{name}" for name in ("requests", "answers"))
            self._requests.bind(self.to_engine)
            self._answers.bind(self.to_text)
        else:
            self.to_engine, self.to_text = (
                f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
                for socket in (self._requests, self._answers)
            )
        self._send_lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToText)
        self._inbox = Inbox()
        self._reader: threading.Thread | None = None
        self._closing = threading.Event()

    def first_message(self, timeout_s: float) -> ToText | None:
        """Before `start_reading`: the next message, or None if there is none within the time."""
        if not self._answers.poll(int(timeout_s * 1000)):
            return None
        return self._decoder.decode(self._answers.recv())

    def start_reading(self, exit_code: Callable[[], int | None]) -> None:
        """From now on messages go to `receive`. `exit_code` tells how the engine's process ended, None: it runs."""
        self._reader = threading.Thread(target=self._read, args=(exit_code,), name="ramet-engine-reader", daemon=True)
        self._reader.start()

    def _read(self, exit_code: Callable[[], int | None]) -> None:
        """Owns the receiving socket until the engine has ended or the channel is closed."""
        reason = "the channel was closed"
        try:
            while self._inbox.ended is None and not self._closing.is_set():
                ended = exit_code()  # asked before looking: what it sent before its end is read first
                if self._answers.poll(WATCH_INTERVAL_MS if ended is None else 0):
                    self._inbox.put(self._decoder.decode(self._answers.recv()))
                elif ended is not None:
                    self._inbox.put(Dead(f"its process ended with exit code {ended}"))
        except BaseException as error:
            reason = f"its messages cannot be read: {type(error).__name__}: {error}"
            raise
        finally:
            self._inbox.put(Dead(reason))

    def send(self, message: ToEngine) -> None:
        data = self._encoder.encode(message) if self._inbox.ended is None else b""
        with self._send_lock:
            if self._inbox.ended is not None or self._closing.is_set():
                raise EngineDeadError(f"The engine has ended: {self._inbox.ended or 'the channel was closed'}")
            # Without an engine a plain send would block for ever: it has died, and the reader is about to say so.
            while not self._requests.poll(WATCH_INTERVAL_MS, zmq.POLLOUT):
                if self._inbox.ended is not None:
                    raise EngineDeadError(f"The engine has ended: {self._inbox.ended}")
            self._requests.send(data)

    async def receive(self) -> ToText:
        return await self._inbox.get()

    def close(self) -> None:
        """Stop reading and free sockets and files. Idempotent."""
        with self._send_lock:
            if self._closing.is_set():
                return
            self._closing.set()
        if self._reader is not None:
            self._reader.join()
        self._context.destroy(linger=0)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(0)  # what is queued is bounded by the requests alive, not here
    return socket
