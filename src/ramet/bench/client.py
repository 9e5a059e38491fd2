"""Drives a workload against any OpenAI-compatible `/v1/completions` and records what each request saw."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ramet.bench.workloads import Turn, Workload
from ramet.errors import RametError

if TYPE_CHECKING:
    import aiohttp


@dataclass(slots=True)
class Record:
    """One request: times in seconds since the workload's start, and the server's own token counts."""

    start_s: float
    first_s: float = 0.0
    end_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where to send, and as what."""

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 600.0


async def drive(workload: Workload, target: Target) -> tuple[float, list[Record]]:
    """Run the workload; returns wall seconds and a record per request."""
    try:
        import aiohttp
    except ImportError as error:
        raise RametError("`ramet bench serve` needs aiohttp: pip install 'ramet[bench]'") from error
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    # A connection per request: servers close idle ones at times of their own, which would count as failures.
    limits = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=target.timeout_s)
    records: list[Record] = []
    gate = asyncio.Semaphore(workload.concurrency)
    async with aiohttp.ClientSession(headers=headers, connector=limits, timeout=timeout) as session:
        origin = time.perf_counter()

        async def converse(turns: tuple[Turn, ...]) -> None:
            async with gate:
                said = ""
                for turn in turns:
                    record = Record(start_s=time.perf_counter() - origin)
                    records.append(record)
                    said += turn.text
                    said += await _complete(session, target, said, turn.max_tokens, record, origin)

        first = 0
        for count in workload.stages or (len(workload.conversations),):
            batch = workload.conversations[first : first + count]
            first += count
            await asyncio.gather(*(converse(turns) for turns in batch))
        return time.perf_counter() - origin, records


async def _complete(
    session: aiohttp.ClientSession, target: Target, prompt: str, max_tokens: int, record: Record, origin: float
) -> str:
    body: dict[str, Any] = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    try:
        async with session.post(target.url.rstrip("/") + "/v1/completions", json=body) as response:
            if response.status != 200:
                record.error = f"{response.status}: {(await response.text())[:200]}"
                return ""
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if event.get("error"):
                    record.error = str(event["error"])[:200]
                    continue
                _note(event, record, time.perf_counter() - origin, pieces)
    except (OSError, TimeoutError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"
    record.end_s = time.perf_counter() - origin
    return "".join(pieces)


def _note(event: dict[str, Any], record: Record, now_s: float, pieces: list[str]) -> None:
    if event.get("usage"):
        usage = event["usage"]
        record.prompt_tokens = usage["prompt_tokens"]
        record.completion_tokens = usage["completion_tokens"]
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    choices = event.get("choices") or []
    if choices and choices[0].get("text"):
        pieces.append(choices[0]["text"])
        record.first_s = record.first_s or now_s
        record.chunk_s.append(now_s)
