"""`ramet generate`: complete prompts and print the text as it comes."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from ramet.cli.common import add_sampling_arguments, add_source_arguments, given_sampling, open_source
from ramet.cli.progress import Progress
from ramet.cli.source import Piece, Source
from ramet.errors import ConfigError

#: Requests of `--prompts` under way at a time: enough to fill a batch.
CONCURRENT = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="the text to continue; `-`: read it from standard input")
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="instead: a prompt a line; prints a JSON line for each"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with text, finish reason and counts")
    add_sampling_arguments(parser)
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if (args.prompt is None) == (args.prompts is None):
        raise ConfigError("give a prompt, `-` for standard input, or --prompts FILE (one of them)", field="prompt")
    sampling = given_sampling(args)
    if args.prompts is not None:
        try:
            prompts = [line for line in args.prompts.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"--prompts {args.prompts}: {reason}", field="prompts") from error
        with open_source(args) as source:
            generate_all(source, prompts, sampling, sys.stdout)
        return 0
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with open_source(args) as source:
        generate_one(source, prompt, sampling, sys.stdout, as_json=args.json)
    return 0


def generate_one(source: Source, prompt: str, sampling: dict[str, Any], out: TextIO, *, as_json: bool) -> None:
    """The continuation, streamed; or, at the end, as one JSON object."""
    if as_json:
        out.write(json.dumps(_collect(source, prompt, sampling), ensure_ascii=False) + "\n")
        return
    with closing(source.generate(prompt, sampling)) as pieces:
        for piece in pieces:
            out.write(piece.text)
            out.flush()
    out.write("\n")


def generate_all(source: Source, prompts: list[str], sampling: dict[str, Any], out: TextIO) -> None:
    """A JSON line per prompt, in their order, with a progress bar on standard error."""
    stopping = threading.Event()

    def answer(prompt: str) -> dict[str, Any]:
        return {"prompt": prompt, **_collect(source, prompt, sampling, stopping)}

    pool = ThreadPoolExecutor(CONCURRENT)
    try:
        with Progress("Generating", total=len(prompts), unit="prompts") as progress:
            for line in pool.map(answer, prompts):
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
                out.flush()
                progress.advance()
    finally:  # after an interrupt or an error, answers under way end at their next token
        stopping.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _collect(
    source: Source, prompt: str, sampling: dict[str, Any], stopping: threading.Event | None = None
) -> dict[str, Any]:
    end = Piece("")
    parts = []
    with closing(source.generate(prompt, sampling)) as pieces:
        for piece in pieces:
            parts.append(piece.text)
            end = piece
            if stopping is not None and stopping.is_set():
                break
    return {
        "text": "".join(parts),
        "finish_reason": end.finish,
        "prompt_tokens": end.prompt_tokens,
        "completion_tokens": end.completion_tokens,
        "cached_tokens": end.cached_tokens,
    }
