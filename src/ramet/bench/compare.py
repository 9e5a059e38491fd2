"""ramet and other engines on the same file, in turn, several rounds in one run; ratios with their spread.

Each engine runs in a process of its own (`sys.executable` for ramet, the given interpreter for a peer), one after the
other, never at once. A round gives one ratio per task; the table shows the median and the extremes over rounds.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet.bench.offline import TASKS
from ramet.errors import RametError

PEERS = Path(__file__).parent / "peers"


def available_peers() -> list[str]:
    return sorted(path.stem for path in PEERS.glob("*.py") if not path.stem.startswith("_"))


def compare(
    model: str, peers: Mapping[str, str], tasks: tuple[str, ...], threads: int, rounds: int, repeats: int
) -> Iterator[dict[str, Any]]:
    """Yields a row per round and engine, then a row per task and peer with the ratios. `peers`: name -> interpreter."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for round_number in range(rounds):
        for engine in ("ramet", *peers):
            for row in _run(engine, peers.get(engine), model, tasks, threads, repeats):
                speed = statistics.median(row["tokens_per_s"])
                speeds.setdefault((engine, row["task"]), []).append(speed)
                yield {"round": round_number, "engine": engine, **row}
    for task in tasks:
        for peer in peers:
            pairs = zip(speeds[("ramet", task)], speeds[(peer, task)], strict=True)
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            yield {
                "task": task,
                "peer": peer,
                "ramet_tokens_per_s": round(statistics.median(speeds[("ramet", task)]), 1),
                "peer_tokens_per_s": round(statistics.median(speeds[(peer, task)]), 1),
                "ratio": round(statistics.median(ratios), 2),
                "ratio_low": round(ratios[0], 2),
                "ratio_high": round(ratios[-1], 2),
            }


def _run(
    engine: str, interpreter: str | None, model: str, tasks: tuple[str, ...], threads: int, repeats: int
) -> list[dict[str, Any]]:
    if engine == "ramet":
        command = [sys.executable, "-m", "ramet.cli", "bench", "offline", "--json", "--model-path", model]
        command += ["--threads", str(threads), "--repeats", str(repeats), "--tasks", *tasks]
    else:
        described = [":".join(map(str, (task, *TASKS[task]))) for task in tasks]
        script = PEERS / f"{engine}.py"
        command = [str(interpreter), str(script), model, str(threads), str(repeats), *described]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RametError(f"{engine} failed with status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"task"')]
