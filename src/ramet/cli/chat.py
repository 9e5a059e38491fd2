"""`ramet chat`: talk to a model in the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, TextIO

from ramet.cli.common import add_sampling_arguments, add_source_arguments, given_sampling, open_source
from ramet.cli.source import Messages, Piece, Source
from ramet.errors import RequestError

INTRODUCTION = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", help="what the model is told before the conversation")
    add_sampling_arguments(parser)
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    sampling = {"max_new_tokens": None, **given_sampling(args)}  # None: as far as the context goes
    read: Callable[[str], str] = input
    if sys.stdin.isatty():
        _enable_line_editing()
    else:
        read = _read_piped
    with open_source(args) as source:
        Chat(source, sampling, system=args.system, read=read).loop()
    return 0


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401  # importing it gives input() history and cursor keys
    except ModuleNotFoundError:  # Windows: its console edits lines by itself
        return


def _read_piped(prompt: str) -> str:
    """A line from a pipe, where a prompt would only litter the output."""
    return input()


class Chat:
    """A conversation: the messages so far, and the loop that reads a line and prints an answer."""

    def __init__(
        self,
        source: Source,
        sampling: dict[str, Any],
        *,
        system: str | None = None,
        read: Callable[[str], str] = input,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.messages: Messages = []
        self._source = source
        self._sampling = sampling
        self._system = system
        self._read = read
        self._out = sys.stdout if out is None else out
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def loop(self) -> None:
        """Read and answer until /exit or the end of the input."""
        self._note(INTRODUCTION)
        while True:
            try:
                line = self._read("> ").strip()
            except EOFError:
                self._out.write("\n")
                return
            except KeyboardInterrupt:
                self._out.write("\n")
                self._note(INTRODUCTION)
                continue
            if line == "/exit":
                return
            if line == "/reset":
                self.reset()
                self._note("Forgotten.")
            elif line.startswith("/"):
                self._note(f"{line.split()[0]} is not a command. {INTRODUCTION}")
            elif line:
                self.answer(line)

    def answer(self, text: str) -> None:
        """Print the answer to `text`. A stopped answer stays in the conversation, a refused question does not."""
        self.messages.append({"role": "user", "content": text})
        parts: list[str] = []
        timer = _Timer(self._clock)
        try:
            with closing(self._source.chat(self.messages, self._sampling)) as pieces:
                for piece in pieces:
                    timer.see(piece)
                    parts.append(piece.text)
                    self._out.write(piece.text)
                    self._out.flush()
        except KeyboardInterrupt:
            self._out.write("\n")
            self._note("Stopped.")
        except RequestError as error:
            self.messages.pop()
            self._note(f"Refused: {error.message}")
            return
        else:
            self._out.write("\n")
            self._note(timer.summary())
        self.messages.append({"role": "assistant", "content": "".join(parts)})

    def _note(self, text: str) -> None:
        """What is not the model's, dimmed on a terminal."""
        self._out.write(f"\033[2m{text}\033[0m\n" if self._out.isatty() else f"{text}\n")
        self._out.flush()


class _Timer:
    """Times of an answer's pieces, and the sentence about them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked_s = clock()
        self._first_s: float | None = None
        self._first_tokens = 1  # a slow reader's first piece has several
        self._last_s = self._asked_s
        self._end: Piece | None = None

    def see(self, piece: Piece) -> None:
        self._last_s = self._clock()
        if piece.text and self._first_s is None:
            self._first_s = self._last_s
            self._first_tokens = max(piece.completion_tokens, 1)
        if piece.finish is not None:
            self._end = piece

    def summary(self) -> str:
        """Tokens per second are those after the first piece, whose wait is the prompt's."""
        end = self._end
        if end is None:
            return "The answer ended without counts."
        words = [f"{end.completion_tokens} tokens"]
        if self._first_s is not None:
            later_tokens = end.completion_tokens - self._first_tokens
            if later_tokens > 0 and self._last_s > self._first_s:
                words.append(f"{later_tokens / (self._last_s - self._first_s):.1f} tokens/s")
            words.append(f"first after {self._first_s - self._asked_s:.2f} s")
        words.append(f"{end.cached_tokens} of {end.prompt_tokens} prompt tokens cached")
        if end.finish == "length":
            words.append("cut at the limit")
        return ", ".join(words)
