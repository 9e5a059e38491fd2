"""`ramet serve` in a process of its own, on a free port."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

import ramet


class Process:
    """`ramet serve` in a process of its own."""

    def __init__(self, *flags: str) -> None:
        root = str(Path(ramet.__file__).parent.parent)
        self.began_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "ramet.cli", "serve", "--port", "0", *flags],
            env={**os.environ, "PYTHONPATH": root},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def wait_for(self, text: str, within_s: float = 20.0) -> str:
        """The line of output that holds `text`."""
        until = time.monotonic() + within_s
        while (left := until - time.monotonic()) > 0:
            try:
                line = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if line is None:
                break
            self.lines.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n" + "\n".join(self.lines))

    def rest(self) -> str:
        """All output, after its end."""
        while (line := self._queue.get(timeout=10)) is not None:
            self.lines.append(line)
        return "\n".join(self.lines)

    def ready(self) -> httpx.Client:
        """A client of the server, once it serves."""
        url = self.wait_for("Listening on").rsplit(" ", 1)[1]
        self.wait_for("The server is fired up and ready to roll!")
        self.url = url
        return httpx.Client(base_url=url, timeout=20, trust_env=False)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, within_s: float = 10.0) -> int:
        """Its exit status."""
        return self.process.wait(within_s)

    def children(self) -> list[int]:
        """Processes that it has started."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        found = [int(pid) for pid in path.read_text().split()]
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            found += [int(pid) for pid in (task / "children").read_text().split()]
        return sorted(set(found))
