"""`ramet serve`: a model over HTTP, in the dialects of SGLang and OpenAI."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramet.config import Config, layer, resolve
from ramet.config.flags import add_flags, given_flags, read_config_file
from ramet.config.machine import probe
from ramet.observability import logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print-config", action="store_true", help="Print every option, its value and why, and serve nothing."
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    started_s = time.monotonic()
    config, origins = configure(args)
    logs.configure(config.log.log_level)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.root.level))
    if args.print_config:
        return print_config(config, origins)
    from ramet.server.serve import bind, serve

    return serve(config, origins, bind(config.server), started_s=started_s)


def configure(args: argparse.Namespace) -> tuple[Config, dict[str, str]]:
    """The user's configuration, before the model is known: file, then flags."""
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if args.config:
        sources.append((f"file {args.config}", read_config_file(Path(args.config))))
    sources.append(("flag", given_flags(args)))
    return layer(*sources)


def print_config(config: Config, origins: Mapping[str, str]) -> int:
    """What `serve` would run with, decided from this machine and the model's headers."""
    from ramet.engine_load import open_model

    resolved = resolve(config, origins, probe(), open_model(config.model).facts)
    rows = resolved.describe()
    flag_width = max(len(flag) for flag, _, _ in rows)
    value_width = max(len(value) for _, value, _ in rows)
    for flag, value, origin in rows:
        sys.stdout.write(f"{flag:<{flag_width}}  {value:<{value_width}}  {origin}\n")
    return 0
