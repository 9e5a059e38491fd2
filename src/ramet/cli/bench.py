"""`ramet bench`: load on a server, throughput without HTTP, start-up and memory, comparison with other engines."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from ramet.bench import compare as comparison
from ramet.bench import offline
from ramet.bench.workloads import WORKLOADS
from ramet.config import ExecutorSection, options
from ramet.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", required=True)

    serve = kinds.add_parser("serve", help="drive an OpenAI-compatible server")
    serve.add_argument("--url", default="http://127.0.0.1:30000")
    serve.add_argument("--model", default="default", help="model name to send")
    serve.add_argument("--api-key")
    serve.add_argument("--workload", choices=sorted(WORKLOADS), nargs="+", default=sorted(WORKLOADS))
    serve.add_argument("--seed", type=int, default=0)

    alone = kinds.add_parser("offline", help="prefill and decode throughput of the engine itself")
    _add_task_arguments(alone)

    begin = kinds.add_parser("startup", help="import, start of a server and its memory, beside what ramet promises")
    begin.add_argument("--repeats", type=int, default=3)
    begin.add_argument("--json", action="store_true", help="a JSON line per row instead of a table")
    begin.add_argument("flags", nargs="*", metavar="FLAG", help="further flags for ramet serve, after --")

    texts = kinds.add_parser("perplexity", help="perplexity of a text: what quantisation costs")
    texts.add_argument("file", type=Path, help="UTF-8 text")
    texts.add_argument("--window", type=int, default=1024, help="tokens; the second half of each is counted")
    texts.add_argument("--tokens", type=int, default=20480, help="how much of the text to take")
    texts.add_argument("--model-path", help=options()["model_path"].help)

    against = kinds.add_parser("compare", help="ramet and other engines in turn on the same file")
    against.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help=f"an engine and the interpreter that has it; engines: {', '.join(comparison.available_peers())}",
    )
    against.add_argument("--rounds", type=int, default=3)
    _add_task_arguments(against)


def _add_task_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model-path", help=options()["model_path"].help)
    parser.add_argument("--threads", type=int, default=ExecutorSection().threads, help=options()["threads"].help)
    parser.add_argument("--tasks", nargs="+", choices=sorted(offline.TASKS), default=list(offline.DEFAULT_TASKS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="a JSON line per row instead of a table")


def run(args: argparse.Namespace) -> int:
    kinds = {
        "serve": _serve,
        "offline": _offline,
        "startup": _startup,
        "perplexity": _perplexity,
        "compare": _compare,
    }
    return kinds[args.kind](args)


def _serve(args: argparse.Namespace) -> int:
    from ramet.bench.client import Target, drive
    from ramet.bench.summary import summarise

    target = Target(url=args.url, model=args.model, api_key=args.api_key)
    failed = 0
    for name in args.workload:
        workload = WORKLOADS[name](args.seed)
        wall_s, records = asyncio.run(drive(workload, target))
        row = summarise(workload, wall_s, records)
        failed += row["failed"]
        print(json.dumps(row), flush=True)
    return 1 if failed else 0


def _offline(args: argparse.Namespace) -> int:
    import ramet

    options_given = {"threads": args.threads} if args.threads else {}
    with ramet.Engine(model_path=args.model_path, **options_given) as engine:
        for row in offline.measure(engine, tuple(args.tasks), args.repeats):
            _show(row, args.json)
    return 0


def _startup(args: argparse.Namespace) -> int:
    from ramet.bench import startup

    for row in startup.measure(args.flags, args.repeats):
        _show(row, args.json)
    return 0


def _perplexity(args: argparse.Namespace) -> int:
    import ramet
    from ramet.bench import perplexity

    text = args.file.read_text(encoding="utf-8")
    with ramet.Engine(model_path=args.model_path) as engine:
        print(json.dumps(perplexity.measure(engine, text, args.window, args.tokens)), flush=True)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from ramet.config.machine import usable_cores
    from ramet.weights import default_model

    peers: dict[str, str] = {}
    for given in args.peer:
        name, _, interpreter = given.partition("=")
        if name not in comparison.available_peers() or not interpreter:
            raise ConfigError(
                f"--peer {given}: must be NAME=PYTHON, NAME of {comparison.available_peers()}", field="peer"
            )
        peers[name] = interpreter
    model = args.model_path or str(default_model.ensure())
    threads = args.threads or usable_cores()
    for row in comparison.compare(model, peers, tuple(args.tasks), threads, args.rounds, args.repeats):
        _show(row, args.json)
    return 0


def _show(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(row), flush=True)
    else:
        print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
