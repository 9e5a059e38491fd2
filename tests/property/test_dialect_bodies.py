"""Whatever JSON a client puts anywhere into a body of the Anthropic or Ollama routes, the answer is 200 or a refusal in
the dialect's shape: never a failure of ours."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ramet.executor.scripted import Script
from support import toy
from support.chats import write_model
from support.dialects import PARSERS, TEMPLATE
from support.server import running

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)

USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "h", "signature": ""}, USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [], "is_error": True}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {}}}}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "disabled", "display": "omitted"},
    "output_config": {"effort": "low"},
    "stop_sequences": ["x"],
    "temperature": 1,
    "top_k": 3,
    "top_p": 0.5,
}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
OLLAMA_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "x", "images": []},
        {"role": "assistant", "content": "", "thinking": "h", "tool_calls": [CALL]},
        {"role": "tool", "content": "1", "tool_name": "f"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "options": {"num_predict": 4, "num_ctx": 900, "seed": 1, "stop": ["x"], "repeat_last_n": 0, "mirostat": 0},
    "format": "",
    "think": False,
    "keep_alive": "5m",
    "logprobs": True,
    "top_logprobs": 1,
}
OLLAMA_GENERATE: dict[str, Any] = {
    "model": "m",
    "prompt": "x",
    "system": "s",
    "context": [1, 2],
    "raw": False,
    "options": {"num_predict": 4},
}


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything inside `value`."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path for key, inner in items for path in ((*at, key), *places(inner, (*at, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    result = copy.deepcopy(value)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return result


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/messages", ANTHROPIC),
        ("/v1/messages/count_tokens", ANTHROPIC),
        ("/api/chat", OLLAMA_CHAT),
        ("/api/generate", OLLAMA_GENERATE),
    ],
)
def test_no_body_makes_the_server_fail(
    tmp_path_factory: pytest.TempPathFactory, route: str, body: dict[str, Any]
) -> None:
    model = write_model(tmp_path_factory.mktemp("dialects") / "model", TEMPLATE)
    script = Script(tokens=[*toy.ids("Hi"), toy.EOS])
    loop = asyncio.new_event_loop()
    serving = running(model, script, max_total_tokens=8192, **PARSERS)
    server = loop.run_until_complete(serving.__aenter__())

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(places(body)), JSON)
    def run(path: tuple[Any, ...], new: Any) -> None:
        answer = loop.run_until_complete(server.client.post(route, replaced(body, path, new)))
        assert answer.status in (200, 400), answer.body
        if answer.status == 400:
            assert answer.json["error"]

    try:
        assert loop.run_until_complete(server.client.post(route, body)).status == 200
        run()
    finally:
        loop.run_until_complete(serving.__aexit__(None, None, None))
        loop.close()
