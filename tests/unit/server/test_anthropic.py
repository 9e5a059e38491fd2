"""`/v1/messages` over a scripted model: blocks, usage, ends and failures, whole and streamed; cases K05 to K08."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.chats import saying, write_model
from support.dialects import PARSERS, REPLY, TEMPLATE, folded, sse, without_ids
from support.server import Server, running

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ASK: dict[str, Any] = {"model": "claude", "max_tokens": 500, "messages": [{"role": "user", "content": "go"}]}
TOOLS = [{"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
TEXT = [{"type": "text", "text": "Hi thereok"}]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("anthropic") / "model", TEMPLATE)


@pytest.fixture
async def server(chat_model: Path) -> AsyncIterator[Server]:
    async with running(chat_model, hi(), max_total_tokens=8192, **PARSERS) as server:
        yield server


def hi() -> Script:
    return Script(tokens=[*toy.ids("Hi", " there", "ok"), toy.EOS])


async def ask(server: Server, **fields: Any) -> dict[str, Any]:
    """The whole answer, which every way of streaming it adds up to, counts of cached tokens aside."""
    body = {**ASK, **fields}
    whole = await server.client.post(MESSAGES, body)
    assert whole.status == 200, whole.body
    answer: dict[str, Any] = whole.json
    for interval in (1, 2, 7):
        server.frontend.stream_interval = interval
        streamed = folded(sse((await server.client.post(MESSAGES, {**body, "stream": True})).body))
        assert {**without_ids(streamed), "usage": 0} == {**without_ids(answer), "usage": 0}
        assert prompt_tokens(streamed["usage"]) == prompt_tokens(answer["usage"])
        assert streamed["usage"]["output_tokens"] == answer["usage"]["output_tokens"]
    return answer


def prompt_tokens(usage: dict[str, int]) -> int:
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


async def test_a_plain_answer(server: Server) -> None:
    answer = await ask(server, system="Be brief.", metadata={"user_id": "me"})
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "claude")
    assert answer["content"] == TEXT
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["output_tokens"] == 4


async def test_an_empty_answer_has_a_block(server: Server) -> None:
    server.executor.script = Script(tokens=[toy.EOS])
    assert (await ask(server))["content"] == [{"type": "text", "text": ""}]


async def test_k05_thinking_text_and_a_call_with_half_of_the_prompt_cached(server: Server) -> None:
    server.executor.script = saying(REPLY)
    body = {**ASK, "tools": TOOLS, "system": "You are asked about the weather, and of nothing else."}
    await server.client.post(MESSAGES, {**body, "max_tokens": 1, "messages": [{"role": "user", "content": "first"}]})
    events = sse((await server.client.post(MESSAGES, {**body, "stream": True})).body)
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1, 2]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    message = folded(events)
    assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
    assert message["content"][0]["thinking"] == "Hm, weather."
    assert message["content"][2]["input"] == {"city": "Paris", "days": 2}
    assert message["stop_reason"] == "tool_use"
    counted = (await server.client.post(COUNT, {key: body[key] for key in body if key != "max_tokens"})).json
    started = events[0]["message"]["usage"]
    for usage in (started, message["usage"]):
        assert usage["cache_read_input_tokens"] > 20
        assert usage["input_tokens"] > 0
        assert prompt_tokens(usage) == counted["input_tokens"]
    assert started["output_tokens"] == 0
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > len("Hm, weather.")
    whole = await ask(server, **body)
    assert without_ids(whole)["content"] == without_ids(message)["content"]


async def test_cached_tokens_are_not_reported_when_that_is_off(chat_model: Path) -> None:
    async with running(chat_model, hi(), enable_cache_report=False) as server:
        for _ in range(2):
            usage = (await server.client.post(MESSAGES, ASK)).json["usage"]
            assert usage == {"input_tokens": 21, "output_tokens": 4}


async def test_thinking_may_be_left_out(server: Server) -> None:
    server.executor.script = saying("<think>Hm.</think>Yes.")
    answer = await ask(server, thinking={"type": "adaptive", "display": "omitted"})
    assert answer["content"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]


async def test_k07_a_failure_in_mid_stream_is_an_error_and_no_end(server: Server) -> None:
    server.executor.script = Script(tokens=toy.ids("a"), step_s=0.002, fail_steps={server.executor.steps + 4})
    events = sse((await server.client.post(MESSAGES, {**ASK, "stream": True})).body)
    types = [event["type"] for event in events]
    assert types.count("content_block_delta") >= 2
    assert types[-1] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert not {"message_delta", "message_stop"} & set(types)
    server.executor.script = Script(tokens=toy.ids("a"), fail_steps={server.executor.steps})
    whole = await server.client.post(MESSAGES, ASK)
    assert (whole.status, whole.json["type"], whole.json["error"]["type"]) == (500, "error", "api_error")


async def test_an_abort_is_an_error_too(server: Server) -> None:
    server.executor.script = Script(tokens=toy.ids("a"), step_s=0.01)
    exchanges = [server.client.open("POST", MESSAGES, {**ASK, "stream": stream}) for stream in (True, False)]
    while (await server.info())["num_running_reqs"] < 2:
        pass
    await server.client.post("/abort_request", {"abort_all": True})
    for exchange in exchanges:
        await exchange.finish()
    assert sse(exchanges[0].body)[-1]["error"]["type"] == "api_error"
    assert (exchanges[1].status, exchanges[1].json["error"]["type"]) == (499, "api_error")


async def test_k08_blank_stop_sequences_are_refused_and_a_match_is_reported(server: Server) -> None:
    for stream in (False, True):
        refused = await server.client.post(MESSAGES, {**ASK, "stop_sequences": ["", "\n"], "stream": stream})
        assert (refused.status, refused.json["error"]["type"]) == (400, "invalid_request_error")
        assert "stop_sequences[0]" in refused.json["error"]["message"]
    answer = await ask(server, stop_sequences=["nope", " the"])
    assert answer["content"] == [{"type": "text", "text": "Hi"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", " the")


async def test_the_two_limits_are_told_apart(server: Server) -> None:
    server.executor.script = Script(tokens=toy.ids("a"))
    assert (await ask(server, max_tokens=3))["stop_reason"] == "max_tokens"
    long = {**ASK, "max_tokens": 32_000, "messages": [{"role": "user", "content": "x" * 2000}]}
    answer = await server.client.post(MESSAGES, long)
    assert answer.json["stop_reason"] == "model_context_window_exceeded"
    assert "reduced from 32000" in answer.headers["x-ramet-warning"]


async def test_a_prompt_that_is_too_long_says_so_in_the_words_that_clients_look_for(server: Server) -> None:
    for stream in (False, True):
        body = {**ASK, "messages": [{"role": "user", "content": "x" * 2100}], "stream": stream}
        answer = await server.client.post(MESSAGES, body)
        assert answer.status == 400
        assert answer.json["error"]["message"] == "prompt is too long: 2119 tokens > 2047 maximum"


@pytest.mark.parametrize(
    ("said", "reason"),
    [('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa', "end_turn"), (REPLY[:-30], "end_turn")],
)
async def test_a_call_that_stops_short_is_text_and_no_reason(server: Server, said: str, reason: str) -> None:
    server.executor.script = saying(said)
    answer = (await server.client.post(MESSAGES, {**ASK, "tools": TOOLS})).json
    assert {block["type"] for block in answer["content"]} <= {"text", "thinking"}
    assert answer["content"][-1]["text"].startswith('{"name": "get_weather", "arguments": {"city": "Pa')
    assert answer["stop_reason"] == reason
    events = sse((await server.client.post(MESSAGES, {**ASK, "tools": TOOLS, "stream": True})).body)
    assert events[-2]["delta"]["stop_reason"] == reason


async def test_a_forced_call_needs_no_format(chat_model: Path) -> None:
    async with running(chat_model, Script(), max_total_tokens=8192, tool_call_parser="none") as server:
        choice = {"type": "any", "disable_parallel_tool_use": True}
        body = {**ASK, "tools": [{"name": "pick", "input_schema": SCHEMA}], "tool_choice": choice}
        answer = (await server.client.post(MESSAGES, body)).json
        assert answer["stop_reason"] == "tool_use"
        (block,) = answer["content"]
        assert block["name"] == "pick"
        assert block["input"]["n"] in (1, 2)


async def test_a_schema_for_the_text(server: Server) -> None:
    server.executor.script = Script()
    format = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_config": {"format": format}}, {"output_format": format}):
        answer = await server.client.post(MESSAGES, {**ASK, "thinking": {"type": "disabled"}, **fields})
        assert json.loads(answer.json["content"][0]["text"])["n"] in (1, 2)


async def test_thinking_is_closed_when_its_budget_is_spent(chat_model: Path) -> None:
    script = Script(tokens=[*map(ord, "<think>"), *[ord("a")] * 1500])
    async with running(chat_model, script, reasoning_parser="qwen3", max_total_tokens=8192) as server:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        body = {**ASK, "max_tokens": 1100, "thinking": thinking}
        answer = await server.client.post(MESSAGES, body)
        thought, text = answer.json["content"]
        assert thought["thinking"] == "a" * 1024
        assert text["text"].startswith("aaa")
        assert "x-ramet-warning" not in answer.headers


async def test_count_tokens_counts_what_is_generated_from(server: Server) -> None:
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "Be brief."}],
        "tools": TOOLS,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "The"}],
    }
    counted = await server.client.post(COUNT, body)
    assert counted.status == 200
    assert list(counted.json) == ["input_tokens"]
    answer = (await server.client.post(MESSAGES, {**body, "max_tokens": 1500})).json
    assert prompt_tokens(answer["usage"]) == counted.json["input_tokens"]
    assert "x-ramet-warning" not in (await server.client.post(COUNT, {**body, "max_tokens": 1, "stream": True})).headers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"system": 3}, "system"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"temperature": float("nan")}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
    ],
)
async def test_refusals_name_the_field_before_a_stream_begins(
    server: Server, fields: dict[str, Any], words: str
) -> None:
    for stream in (False, True):
        answer = await server.client.post(MESSAGES, {**ASK, "stream": stream, **fields})
        assert answer.status == 400
        assert answer.json["type"] == "error"
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert words in answer.json["error"]["message"]


async def test_b14_half_of_a_surrogate_pair(server: Server) -> None:
    raw = b'{"model":"m","max_tokens":1,"stream":true,"messages":[{"role":"user","content":"a\\ud801b"}]}'
    answer = await server.client.post(MESSAGES, raw=raw)
    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_unknown_fields_and_what_is_not_enforced_are_said(chat_model: Path) -> None:
    async with running(chat_model, hi(), max_total_tokens=8192) as server:
        body = {**ASK, "max_tokens": 2000, "colour": 1, "thinking": {"type": "enabled", "budget_tokens": 1024}}
        answer = await server.client.post(MESSAGES, body)
        assert answer.status == 200
        assert "colour" in answer.headers["x-ramet-warning"]
        assert "budget_tokens is not enforced" in answer.headers["x-ramet-warning"]
        assert answer.headers["request-id"].startswith("req_")
    async with running(chat_model, hi(), strict=True) as server:
        assert (await server.client.post(MESSAGES, {**ASK, "colour": 1})).status == 400


async def test_keys_and_errors_of_http_have_the_dialects_shape(chat_model: Path) -> None:
    async with running(chat_model, hi(), api_key="secret") as server:
        for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
            answer = await server.client.post(MESSAGES, ASK, headers={**headers, "anthropic-version": "2023-06-01"})
            assert answer.status == 200
        for wrong in ({}, {"x-api-key": "x"}, {"x-api-key": ""}):
            refused = await server.client.post(MESSAGES, ASK, headers=wrong)
            assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")
        missing = await server.client.post("/v1/messages/batches", ASK, headers={"x-api-key": "secret"})
        assert (missing.status, missing.json["error"]["type"]) == (404, "not_found_error")
        method = await server.client.get(MESSAGES, headers={"x-api-key": "secret"})
        assert (method.status, method.json["error"]["type"]) == (405, "invalid_request_error")
        media = {"x-api-key": "secret", "content-type": "text/plain"}
        assert (await server.client.post(MESSAGES, ASK, headers=media)).json["error"]["type"] == "invalid_request_error"


async def test_c10_silence_is_filled_with_pings(chat_model: Path) -> None:
    script = Script(tokens=toy.ids("a"), step_s=0.3)
    async with running(chat_model, script, stream_keep_alive=0.1) as server:
        events = sse((await server.client.post(MESSAGES, {**ASK, "max_tokens": 1, "stream": True})).body)
        assert events[0] == {"type": "ping"}
        assert folded(events)["content"] == [{"type": "text", "text": "a"}]


async def test_i01_a_dropped_request_frees_its_pages(chat_model: Path) -> None:
    async with running(chat_model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        for stream in (True, False):
            exchange = server.client.open("POST", MESSAGES, {**ASK, "stream": stream})
            while not (await server.info())["num_running_reqs"]:
                pass
            await exchange.leave()
            await server.idle(1.0)
