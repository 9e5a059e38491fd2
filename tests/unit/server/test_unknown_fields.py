"""Unknown fields: named in a header, or refused with --strict, on every route that takes a body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.server import running

MESSAGES = [{"role": "user", "content": "go"}]
BODIES: dict[str, dict[str, Any]] = {
    "/generate": {"text": "go", "sampling_params": {"max_new_tokens": 1}},
    "/v1/completions": {"prompt": "go", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "go", "max_output_tokens": 1},
    "/v1/messages": {"model": "m", "messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"model": "m", "messages": MESSAGES},
    "/api/chat": {"model": "m", "messages": MESSAGES, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"model": "m", "prompt": "go", "stream": False, "options": {"num_predict": 1}},
    "/v1/tokenize": {"prompt": "go"},
    "/v1/detokenize": {"tokens": [97]},
    "/v1/score": {"query": "go", "items": ["a"], "label_token_ids": [1, 2]},
    "/render": {"messages": MESSAGES},
    "/parse_function_call": {"text": "x", "tools": [], "tool_call_parser": "hermes"},
    "/separate_reasoning": {"text": "x", "reasoning_parser": "qwen3"},
    "/abort_request": {"rid": "nobody"},
    "/pause_generation": {"mode": "in_place"},
    "/continue_generation": {},
    "/set_internal_state": {"server_args": {}},
    "/open_session": {"capacity_of_str_len": 1},
    "/close_session": {"session_id": "nobody"},
}


@pytest.mark.parametrize("strict", [False, True])
async def test_unknown_fields(model: Path, strict: bool) -> None:
    async with running(model, Script(tokens=toy.ids("a")), strict=strict) as server:
        for path, body in BODIES.items():
            plain = await server.client.post(path, body)
            assert plain.status == 200, (path, plain.body)
            assert "zzz" not in plain.headers.get("x-ramet-warning", "")
            if path == "/pause_generation":
                await server.client.post("/continue_generation", {})
            answer = await server.client.post(path, {**body, "zzz": 1})
            if strict:
                assert answer.status == 400, (path, answer.body)
                assert b"zzz" in answer.body, path
            else:
                assert answer.status == 200, (path, answer.body)
                assert "zzz" in answer.headers.get("x-ramet-warning", ""), path
            if path == "/pause_generation":
                await server.client.post("/continue_generation", {})
