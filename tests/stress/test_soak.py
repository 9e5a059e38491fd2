"""A minute of many clients who come, wait, read half, and leave: nothing leaks and latency does not drift."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.process import Process

CHECKPOINT = Path(__file__).parent.parent / "reference" / "checkpoints" / "llama"
SOAK_S = 60.0
CLIENTS = 64
#: A small pool, so that admission, eviction and retraction all have work.
OPTIONS = ("--max-total-tokens", "4096", "--page-size", "8", "--chunked-prefill-size", "64", "--schedule-policy", "lpm")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    # Leaving in the middle is the point: a cancelled httpx call drops its socket without closing it.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc"),
]


@dataclass
class Tally:
    done: int = 0
    left_early: int = 0
    latency_s: list[tuple[float, float]] = field(default_factory=list)  # (when it began, how long it took)


def resident_mb(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * 4096 / 1e6


def body(rng: random.Random) -> dict[str, Any]:
    stem = [rng.randrange(250)] * rng.randrange(1, 100)
    return {
        "input_ids": stem + [rng.randrange(250) for _ in range(rng.randrange(1, 60))],
        "sampling_params": {"max_new_tokens": rng.randrange(1, 40), "ignore_eos": True, "temperature": 0.7},
    }


async def client(http: httpx.AsyncClient, rng: random.Random, until: float, tally: Tally) -> None:
    while time.monotonic() < until:
        kind = rng.random()
        began = time.monotonic()
        if kind < 0.6:
            response = await http.post("/generate", json=body(rng))
            assert response.status_code == 200, response.text
            tally.latency_s.append((began, time.monotonic() - began))
            tally.done += 1
        elif kind < 0.8:
            async with http.stream("POST", "/generate", json=body(rng) | {"stream": True}) as response:
                assert response.status_code == 200
                async for _ in response.aiter_lines():
                    if rng.random() < 0.3:
                        break
            tally.left_early += 1
        else:
            request = asyncio.create_task(http.post("/generate", json=body(rng)))
            await asyncio.sleep(rng.random() * 0.05)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            tally.left_early += 1


async def soak(base_url: str, seed: int, duration_s: float) -> Tally:
    tally = Tally()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base_url, limits=limits, timeout=60) as http:
        until = time.monotonic() + duration_s
        await asyncio.gather(*(client(http, random.Random(seed + i), until, tally) for i in range(CLIENTS)))
    return tally


def test_a_minute_of_many_clients(serve: Callable[..., Process]) -> None:
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    process = serve("--model-path", str(CHECKPOINT), *OPTIONS)
    with process.ready() as http:
        pids = [process.process.pid, *process.children()]
        warm = asyncio.run(soak(str(http.base_url), seed, 5.0))
        before_mb = resident_mb(pids)
        tally = asyncio.run(soak(str(http.base_url), seed, SOAK_S))
        deadline = time.monotonic() + 5
        while (info := http.get("/server_info").json())["num_running_reqs"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert info["num_running_reqs"] == 0
        assert http.post("/flush_cache").status_code == 200
        assert http.get("/server_info").json()["token_usage"] == 0
        after_mb = resident_mb(pids)
    assert warm.done > 0
    assert tally.done > 100
    assert tally.left_early > 20
    assert after_mb - before_mb < 60, (before_mb, after_mb)
    ordered = [took for _, took in sorted(tally.latency_s)]
    third = len(ordered) // 3
    first, last = statistics.median(ordered[:third]), statistics.median(ordered[-third:])
    assert last < 3 * first + 0.2, (first, last)
    process.signal(signal.SIGINT)
    assert process.end() == 0
    assert process.rest().count("Traceback") == 0
