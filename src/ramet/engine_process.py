"""The engine in a process of its own: the parent's handle, and the child's main.

The child is started as `python -m ramet.engine_process`, so the parent needs no main guard. It reads its configuration
from its standard input and then watches it: when the parent dies, however, the pipe closes and the child ends too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

import ramet
from ramet.channel import Dead, Reply
from ramet.channel_zmq import ZmqEngineSide, ZmqTextSide
from ramet.config import Config, build, flatten
from ramet.errors import EngineDeadError, RametError, error_named
from ramet.observability import logs

#: The first message of a child that has loaded its model (or could not) is a `Reply` with this id; calls begin at 1.
READY_ID = 0
#: How long a stopped child may take to end before it is killed.
STOP_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class Handover(msgspec.Struct):
    """What the parent tells the child, as one line of JSON."""

    to_engine: str
    to_text: str
    options: dict[str, Any]


class EngineProcess:
    """An engine in a child process. `start` it, talk over the channel it returns, send `Stop`, then `join`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._text_side: ZmqTextSide | None = None
        self.info: dict[str, Any] = {}  # `server_info` at the start

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ZmqTextSide:
        """Start the child and wait until its model is loaded; raises what loading raised, or `EngineDeadError`."""
        text_side = self._text_side = ZmqTextSide()
        # The child finds this very package, however this process came to find it.
        package_root = str(Path(ramet.__file__).parent.parent)
        search = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ramet.engine_process"],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        )
        handover = Handover(text_side.to_engine, text_side.to_text, flatten(self._config))
        assert self._process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended; why is asked next
                self._process.stdin.write(msgspec.json.encode(handover) + b"\n")
                self._process.stdin.flush()
            self.info = self._wait_until_ready(self._process, text_side)
        except BaseException:
            self.close()
            raise
        text_side.start_reading(self._process.poll)
        return text_side

    @staticmethod
    def _wait_until_ready(process: subprocess.Popen[bytes], text_side: ZmqTextSide) -> dict[str, Any]:
        while True:
            ended = process.poll()
            message = text_side.first_message(0.2 if ended is None else 0)
            if isinstance(message, Reply):
                if message.error is not None:
                    name, text = message.error
                    raise error_named(name, text) or EngineDeadError(
                        f"The engine's process could not start: {name}: {text}"
                    )
                info: dict[str, Any] = message.value
                return info
            if isinstance(message, Dead) or ended is not None:
                why = message.reason if isinstance(message, Dead) else f"exit code {ended}"
                raise EngineDeadError(f"The engine's process ended while it started: {why}")

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the child to end after a `Stop`; whether it has."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Make sure that the child has ended (closing its input asks it to, killing follows) and free the channel."""
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # what it was never able to read
                self._process.stdin.close()
            if not self.join(timeout_s):
                log.warning("event=engine_killed pid=%d reason='it did not end within %.0f s'", self.pid, timeout_s)
                self._process.kill()
                self._process.wait()
        if self._text_side is not None:
            self._text_side.close()


def main() -> int:
    """The child. Its exit code is 0 after a `Stop`, 1 after an error that it has told the parent."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C reaches the whole group; the parent decides when to end
        signal.signal(number, signal.SIG_IGN)
    handover = msgspec.json.decode(_read_line(), type=Handover)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = build(handover.options)
    logs.configure(config.log.log_level)
    channel = ZmqEngineSide(handover.to_engine, handover.to_text)
    try:
        try:
            from ramet.engine_load import build_core

            core = build_core(config)
        except Exception as error:  # noqa: BLE001 - told to the parent, whose start() raises it
            text = error.message if isinstance(error, RametError) else str(error)
            channel.send(Reply(READY_ID, error=(type(error).__name__, text)))
            return 1
        channel.send(Reply(READY_ID, core.server_info()))
        try:
            core.serve(channel)
        except Exception:  # noqa: BLE001 - logged by serve, and told to the parent by its Dead
            return 1
        return 0
    finally:
        channel.close()


def _read_line() -> bytes:
    """The first line of standard input."""
    data = b""
    while not data.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            raise SystemExit("ramet.engine_process is started by ramet, which tells it what to do")
        data += part
    return data


def _end_with_parent() -> None:
    """Never returns: standard input ends when the parent closes it or dies, and nobody needs this process then."""
    # Unbuffered: a daemon thread inside sys.stdin's lock would abort the interpreter when it ends.
    while os.read(0, 4096):
        pass
    time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
