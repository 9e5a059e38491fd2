"""A server in the test's own process: the real app and pipeline over an engine thread with a scripted executor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.config import Config, layer, resolve
from ramet.config.resolve import Machine
from ramet.engine import EngineCore, EngineThread
from ramet.engine_load import OpenModel, layout_of, open_model
from ramet.executor.scripted import Script, ScriptedExecutor
from ramet.launch import card_of, vectors_of
from ramet.server.app import create_app
from ramet.server.context import Context
from ramet.text.chat import choose_formats
from ramet.text.chat_template import load_chat_template
from ramet.text.frontend import Frontend
from ramet.text.limits import Limits
from ramet.text.tokenizer import load_tokenizer
from support.asgi import Client

MACHINE = Machine(cores=2, available_bytes=1 << 30)

OPTIONS: dict[str, Any] = {
    "load_format": "dummy",
    "executor": "scripted",
    "max_total_tokens": 1024,
    "page_size": 4,
    "max_running_requests": 8,
    "served_model_name": "toy",
    "chunked_prefill_size": 64,
}


@dataclass
class Server:
    """A running server and its insides."""

    client: Client
    frontend: Frontend
    context: Context
    executor: ScriptedExecutor
    core: EngineCore

    async def info(self) -> dict[str, Any]:
        """The engine's own account."""
        state: dict[str, Any] = await self.frontend.call("server_info")
        return state

    async def idle(self, within_s: float = 2.0) -> dict[str, Any]:
        """Wait until nothing runs and no page is held; fails when that takes too long."""
        until = time.monotonic() + within_s
        while True:
            info = await self.info()
            if not (info["num_running_reqs"] or info["num_queue_reqs"] or info["token_usage"]):
                return info
            assert time.monotonic() < until, f"not idle within {within_s} s: {info}"
            await asyncio.sleep(0.005)


def paced(tokens: Sequence[int]) -> Script:
    """A script whose next token waits until the loop has done all it can with the last: one chunk a token, always."""
    loop = asyncio.get_running_loop()

    async def settle() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    def choose(prompt: tuple[int, ...], index: int) -> int:
        asyncio.run_coroutine_threadsafe(settle(), loop).result(10)
        return tokens[index % len(tokens)]

    return Script(choose=choose)


@asynccontextmanager
async def running(model: Path, script: Script | None = None, **options: Any) -> AsyncIterator[Server]:
    """A server over `script` (default: hashes of the prefix)."""
    config, origins = layer(("test", {**OPTIONS, "model_path": str(model), **options}))
    opened = open_model(config.model)
    config = resolve(config, origins, MACHINE, opened.facts).config
    size = opened.plan.embedding_size
    executor = ScriptedExecutor(layout_of(config), opened.config.vocab_size, script or Script(), embedding_size=size)
    core = EngineCore(executor, config.scheduler, config.cache)
    thread = EngineThread(lambda: core)
    channel = thread.start()
    frontend = make_frontend(channel, config, opened)
    context = Context(server=config.server, api=config.api)
    app = create_app(context)
    context.open(frontend, card_of(config, opened))
    frontend.start()
    if frontend.vectors is None:
        await frontend.send_vocabulary()
    try:
        yield Server(Client(app), frontend, context, executor, core)
    finally:
        await frontend.stop()
        channel.close()
        assert thread.join(5)


def make_frontend(channel: Any, config: Config, opened: OpenModel) -> Frontend:
    """The pipeline over any channel."""
    tokenizer = load_tokenizer(opened.checkpoint)
    limits = Limits(
        context_length=config.model.context_length or 0,
        vocab_size=opened.config.vocab_size,
        eos_token_ids=tokenizer.eos_token_ids,
        allow_auto_truncate=config.api.allow_auto_truncate,
        truncate_prompt=config.api.truncate_prompt,
    )
    template = load_chat_template(tokenizer)
    return Frontend(
        channel,
        tokenizer,
        limits,
        template=template,
        formats=choose_formats(template, config.api.reasoning_parser, config.api.tool_call_parser),
        vectors=vectors_of(opened),
        stream_interval=config.api.stream_interval,
    )
