"""A progress bar for downloads, loading, batches: a redrawn line on a terminal, a plain line now and then in a log.

with Progress("SmolLM2-135M", total=98_362_432, unit="B") as progress:
    for block in blocks:
        progress.advance(len(block))
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

#: Seconds between two drawings: on a terminal below what the eye notices, in a log rare enough to read past.
TERMINAL_INTERVAL_S = 0.1
LOG_INTERVAL_S = 5.0

_BAR_CELLS = 24


class Progress:
    """Counts up to `total` (None: unknown) in `unit` ("B" counts bytes; any other word is printed after the numbers).

    A task that ends within the first interval draws only its last line.
    """

    def __init__(
        self,
        label: str,
        *,
        total: int | None = None,
        unit: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.done = 0
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._started_s = self._drawn_s = clock()
        self._line_drawn = ""

    def advance(self, amount: int = 1) -> None:
        """`amount` more is done."""
        self.update(self.done + amount)

    def update(self, done: int) -> None:
        """`done` in all is done."""
        self.done = done
        now_s = self._clock()
        if now_s - self._drawn_s >= (TERMINAL_INTERVAL_S if self._terminal else LOG_INTERVAL_S):
            self._drawn_s = now_s
            self._draw(self._line(now_s))

    def close(self) -> None:
        """The last drawing, with what was reached and the time it took."""
        self._draw(self._line(self._clock()))
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw(self, line: str) -> None:
        if self._terminal:
            line = line[: shutil.get_terminal_size().columns - 1]
            self._stream.write("\r" + line.ljust(len(self._line_drawn)))
        elif line != self._line_drawn:
            self._stream.write(line + "\n")
        self._line_drawn = line
        self._stream.flush()

    def _line(self, now_s: float) -> str:
        elapsed_s = max(now_s - self._started_s, 1e-9)
        rate = self.done / elapsed_s
        parts = [self.label]
        if self.total:
            share = min(self.done / self.total, 1.0)
            if self._terminal:
                filled = round(share * _BAR_CELLS)
                parts.append("[" + "#" * filled + "-" * (_BAR_CELLS - filled) + "]")
            parts.append(f"{share:4.0%}")
        parts.append(f"{self._count(self.done)}/{self._amount(self.total)}" if self.total else self._amount(self.done))
        parts.append(f"{self._amount(round(rate))}/s")
        if self.total and 0 < self.done < self.total:
            parts.append(f"{_duration((self.total - self.done) / rate)} left")
        else:
            parts.append(_duration(elapsed_s))
        return "  ".join(parts)

    def _count(self, amount: int) -> str:
        """An amount before a slash: words come once, behind it."""
        return self._amount(amount) if self.unit == "B" else str(amount)

    def _amount(self, amount: int) -> str:
        if self.unit != "B":
            return f"{amount} {self.unit}".rstrip()
        return f"{amount / 1e6:.1f} MB" if amount < 1e9 else f"{amount / 1e9:.2f} GB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
