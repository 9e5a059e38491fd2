"""Flags that `ramet chat` and `ramet generate` share, and how they open their source of answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ramet.cli.source import Local, Remote, Source
from ramet.config import options
from ramet.errors import ConfigError
from ramet.sampling_params import parse

#: Sampling parameters that have a flag: name in `/generate`, type, what it does.
SAMPLING_FLAGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "max_new_tokens": (int, "most tokens to generate"),
    "temperature": (float, "0 takes the likeliest token, 1 draws as the model says"),
    "top_p": (float, "draw among the likeliest tokens that hold this share of the probability"),
    "top_k": (int, "draw among this many tokens; -1: all"),
    "min_p": (float, "leave out tokens less likely than this share of the likeliest"),
    "frequency_penalty": (float, "-2 to 2: against tokens by how often they were generated"),
    "presence_penalty": (float, "-2 to 2: against tokens that were generated"),
    "repetition_penalty": (float, "above 1: against tokens that were generated"),
    "sampling_seed": (int, "the same seed gives the same answer"),
}

#: Options of the engine that make sense for one conversation; `ramet serve --help` explains all.
ENGINE_FLAGS = ("model_path", "context_length", "threads", "quantization", "chat_template")


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    known = options()
    engine = parser.add_argument_group("the engine in this process")
    for name in ENGINE_FLAGS:
        option = known[name]
        kind = {"int": int, "float": float, "str": str}[option.base_type]
        engine.add_argument(
            option.flag,
            dest=name,
            type=kind,
            choices=option.choices or None,
            default=argparse.SUPPRESS,
            help=option.help.replace("%", "%%"),
        )
    server = parser.add_argument_group("or a server that runs already")
    server.add_argument("--url", help="for example http://127.0.0.1:30000")
    server.add_argument("--api-key", help="its key")
    server.add_argument("--model", help="model name to send; without --url the same as --model-path")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how tokens are chosen")
    for name, (kind, text) in SAMPLING_FLAGS.items():
        group.add_argument(_flag(name), type=kind, default=argparse.SUPPRESS, help=text)
    group.add_argument("--stop", action="append", default=argparse.SUPPRESS, help="end at this text; may be repeated")


def given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters on the command line. Raises `RequestError` before any model is loaded."""
    given = {name: value for name, value in vars(args).items() if name in SAMPLING_FLAGS or name == "stop"}
    parse(given, names={name: _flag(name) for name in given})
    return given


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@contextmanager
def open_source(args: argparse.Namespace) -> Iterator[Source]:
    """The server at `--url`, or an engine that lives as long as the context."""
    given = {name: value for name, value in vars(args).items() if name in ENGINE_FLAGS}
    if args.url:
        for name in given:
            raise ConfigError(f"{_flag(name)} is the server's to choose; leave it out, or --url", field=name)
        yield Remote(args.url, api_key=args.api_key, model=args.model or "default")
        return
    if args.api_key:
        raise ConfigError("--api-key is for a server; say which with --url", field="api_key")
    if args.model and given.setdefault("model_path", args.model) != args.model:  # the same flag, as for `ramet serve`
        raise ConfigError("--model and --model-path name two models; without --url they mean the same", field="model")
    import ramet

    waiting = "Loading the model ..."
    if sys.stderr.isatty():
        sys.stderr.write(waiting)
        sys.stderr.flush()
    with ramet.Engine(**given) as engine:
        if sys.stderr.isatty():
            sys.stderr.write("\r" + " " * len(waiting) + "\r")
            sys.stderr.flush()
        yield Local(engine)
