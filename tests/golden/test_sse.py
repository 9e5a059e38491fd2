"""Streams byte for byte: what each route sends for a fixed script. Run this file to rewrite them; review the diff."""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support import toy
from support.server import paced, running

FOLDER = Path(__file__).parent / "sse"
SCRIPT = [*toy.ids("Hi", " there"), *"é".encode(), *toy.ids("<", "ok"), toy.EOS]
ASK = [{"role": "user", "content": "go"}]

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "m", "messages": ASK, "rid": "r"}),
    "chat_usage_logprobs": (
        "/v1/chat/completions",
        {
            "model": "m",
            "messages": ASK,
            "rid": "r",
            "max_tokens": 2,
            "temperature": 0,
            "logprobs": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "completions": ("/v1/completions", {"model": "m", "prompt": "go", "rid": "r", "stop": "<OK", "echo": True}),
    "generate": ("/generate", {"text": "go", "rid": "r"}),
    "messages": ("/v1/messages", {"model": "m", "messages": ASK, "max_tokens": 50, "stop_sequences": ["ok"]}),
    "ollama_chat": ("/api/chat", {"model": "m", "messages": ASK}),
    "generate_refused": ("/generate", {"text": "go", "sampling_params": {"top_k": 0}}),
}


async def transcript(model: Path, name: str) -> str:
    """The stream with what depends on time and machine taken out."""
    path, body = REQUESTS[name]
    async with running(model, paced(SCRIPT)) as server:
        text = (await server.client.stream(path, body).finish()).body.decode()
    for key in ("created", "e2e_latency", "response_sent_to_client_ts"):
        text = re.sub(rf'"{key}":[0-9.e-]+', f'"{key}":0', text)
    text = re.sub(r'"created_at":"[^"]+"', '"created_at":""', text)
    text = re.sub(r'"(\w+_duration)":[0-9]+', r'"\1":0', text)
    text = re.sub(r'"msg_[0-9a-f]{32}"', '"msg_0"', text)
    return re.sub(r'"logprob":-[0-9.e-]+', '"logprob":-1', text)


@pytest.mark.parametrize("name", REQUESTS)
async def test_streams_are_as_they_were(model: Path, name: str) -> None:
    assert await transcript(model, name) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def rewrite() -> None:
    """Write every transcript anew."""
    with tempfile.TemporaryDirectory() as folder:
        model = toy.write(Path(folder) / "model")
        for name in REQUESTS:
            (FOLDER / f"{name}.txt").write_text(asyncio.run(transcript(model, name)), encoding="utf-8")


if __name__ == "__main__":
    rewrite()
