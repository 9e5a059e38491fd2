"""The progress bar on a terminal and in a log, with a clock that the test turns."""

from __future__ import annotations

import io

import pytest

from ramet.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_terminal_line_is_redrawn_in_place() -> None:
    out, clock = Terminal(), Clock()
    with Progress("model", total=10_000_000, unit="B", stream=out, clock=clock) as progress:
        for _ in range(4):
            clock.now_s += 0.5
            progress.advance(2_500_000)
    lines = out.getvalue().split("\r")
    assert lines[1].startswith("model  [######------------------]   25%  2.5 MB/10.0 MB  5.0 MB/s  0:02 left")
    assert lines[-1].rstrip() == "model  [########################]  100%  10.0 MB/10.0 MB  5.0 MB/s  0:02"
    assert out.getvalue().endswith("\n")
    assert out.getvalue().count("\n") == 1


def test_a_shorter_line_covers_the_longer_one() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("x", stream=out, clock=clock)
    clock.now_s += 1
    progress.update(1_000_000)
    long = len(out.getvalue())
    clock.now_s += 1
    progress.update(1)
    assert len(out.getvalue()) - long == long


def test_many_updates_draw_rarely() -> None:
    out, clock = Terminal(), Clock()
    progress = Progress("x", total=1000, stream=out, clock=clock)
    for _ in range(1000):
        clock.now_s += 0.001
        progress.advance()
    assert 8 <= out.getvalue().count("\r") <= 10  # a second at one line each 0.1 s


def test_a_log_gets_whole_lines_now_and_then() -> None:
    out, clock = io.StringIO(), Clock()
    with Progress("Generating", total=20, unit="prompts", stream=out, clock=clock) as progress:
        for _ in range(20):
            clock.now_s += 1
            progress.advance()
    assert out.getvalue().splitlines() == [
        "Generating   25%  5/20 prompts  1 prompts/s  0:15 left",
        "Generating   50%  10/20 prompts  1 prompts/s  0:10 left",
        "Generating   75%  15/20 prompts  1 prompts/s  0:05 left",
        "Generating  100%  20/20 prompts  1 prompts/s  0:20",
    ]


def test_unknown_total_and_hours() -> None:
    out, clock = io.StringIO(), Clock()
    progress = Progress("copy", unit="B", stream=out, clock=clock)
    clock.now_s += 3723
    progress.update(5_000_000_000)
    assert out.getvalue() == "copy  5.00 GB  1.3 MB/s  1:02:03\n"


def test_a_failure_still_ends_the_line() -> None:
    out = Terminal()
    with pytest.raises(ValueError, match="broken"), Progress("x", total=3, stream=out):
        raise ValueError("broken")
    assert out.getvalue().endswith("\n")
