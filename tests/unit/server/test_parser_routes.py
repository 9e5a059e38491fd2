"""`/render`, `/parse_function_call`, `/separate_reasoning`: surface.md 1.15."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.chats import ASK, CHAT, TOOLS, call, chatting, saying, write_model
from support.server import Server

CALLS, THINKING, RENDER = "/parse_function_call", "/separate_reasoning", "/render"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with chatting(write_model(tmp_path / "model"), tool_call_parser="none") as server:
        yield server


async def test_calls(server: Server) -> None:
    text = "Look: " + call("now", "{}") + call("get_weather", '{"city": "Oslo"}')
    answer = await server.client.post(CALLS, {"text": text, "tools": TOOLS, "tool_call_parser": "hermes"})
    assert answer.json == {
        "normal_text": "Look:",
        "calls": [
            {"tool_index": 1, "name": "now", "parameters": "{}"},
            {"tool_index": 0, "name": "get_weather", "parameters": '{"city": "Oslo"}'},
        ],
    }


async def test_thinking(server: Server) -> None:
    body = {"text": "<think>a</think>b", "reasoning_parser": "qwen3"}
    assert (await server.client.post(THINKING, body)).json == {"reasoning_text": "a", "text": "b"}
    opened = {**body, "text": "a</think>b", "return_blocks": True}
    assert (await server.client.post(THINKING, opened)).json == {
        "reasoning_text": "a",
        "text": "b",
        "reasoning_blocks": ["a"],
        "text_blocks": ["b"],
        "blocks": [{"type": "reasoning", "text": "a"}, {"type": "text", "text": "b"}],
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CALLS, {"text": "x", "tools": TOOLS, "tool_call_parser": "nope"}),
        (CALLS, {"text": "x", "tools": TOOLS}),
        (CALLS, {"text": "x", "tools": [3], "tool_call_parser": "hermes"}),
        (THINKING, {"text": "x", "reasoning_parser": "nope"}),
        (THINKING, {"text": "x"}),
        (THINKING, {"reasoning_parser": "qwen3"}),
        (RENDER, {"messages": []}),
    ],
)
async def test_what_is_wrong_is_a_400(server: Server, path: str, body: dict[str, Any]) -> None:
    assert (await server.client.post(path, body)).status == 400


async def test_render_is_the_prompt_that_runs(server: Server) -> None:
    body = {**ASK, "tools": TOOLS, "chat_template_kwargs": {"think": True}}
    shown = (await server.client.post(RENDER, body)).json
    assert shown["prompt"].startswith('<bos><turn>tools:[{"type": "function"')
    assert shown["prompt"].endswith("<turn>assistant:<think>\n")
    assert shown["count"] == len(shown["token_ids"])
    assert shown["max_model_len"] == 2048
    assert shown["json_schema"] is None
    server.executor.script = saying("x")
    ran = (await server.client.post(CHAT, {**body, "return_prompt_token_ids": True})).json
    assert ran["choices"][0]["prompt_token_ids"] == shown["token_ids"]
    forced = (await server.client.post(RENDER, {**body, "tool_choice": "required"})).json
    assert '"minItems": 1' in forced["json_schema"]
    ids = (await server.client.post(RENDER, {"messages": [], "input_ids": [1, 2]})).json
    assert (ids["prompt"], ids["token_ids"]) == (None, [1, 2])
