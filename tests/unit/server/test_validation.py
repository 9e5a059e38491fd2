"""cases.md, section A: requests that must be refused, and what a refusal looks like. A plain request follows each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.asgi import Exchange
from support.server import Server, running

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"


@pytest.fixture
async def server(model: Path) -> AsyncIterator[Server]:
    async with running(model, Script(tokens=toy.ids("a", "b", "c"))) as server:
        yield server


def prompt_for(path: str) -> dict[str, Any]:
    if path == CHAT:
        return {"messages": [{"role": "user", "content": "tick"}]}
    return {"prompt": "tick"} if path == COMPLETIONS else {"text": "tick"}


async def alive(server: Server) -> None:
    answer = await server.client.post(GENERATE, {"text": "tick", "sampling_params": {"max_new_tokens": 2}})
    assert answer.status == 200
    assert answer.json["text"] == "ab"


def refused(answer: Exchange, *names: str, status: int = 400) -> None:
    """The status, and JSON that names the fields."""
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    message = body["message"] if "message" in body else body["error"]
    text = message if isinstance(message, str) else message["message"]
    for name in names:
        assert name in text, text


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
async def test_a01_literals_that_are_not_json_name_their_field(server: Server, literal: str) -> None:
    raw = f'{{"model":"m","prompt":"tick","max_tokens":2,"temperature":{literal}}}'.encode()
    refused(await server.client.post(COMPLETIONS, raw=raw), "temperature")
    raw = f'{{"text":"tick","sampling_params":{{"temperature": {literal}}}}}'.encode()
    refused(await server.client.post(GENERATE, raw=raw), "temperature")
    await alive(server)


@pytest.mark.parametrize("field", ["top_p", "min_p", "presence_penalty", "frequency_penalty"])
async def test_a02_nan_in_any_spelling(server: Server, field: str) -> None:
    for value in ("NaN", '"nan"', '"inf"'):
        raw = f'{{"model":"m","prompt":"tick","{field}":{value}}}'.encode()
        refused(await server.client.post(COMPLETIONS, raw=raw), field)
        raw = f'{{"text":"tick","sampling_params":{{"{field}":{value}}}}}'.encode()
        refused(await server.client.post(GENERATE, raw=raw), field)
    await alive(server)


async def test_a04_every_bad_field_is_listed(server: Server) -> None:
    body = {"temperature": -4e6, "top_p": -0.25, "repetition_penalty": 0, "top_k": -7}
    for path in (COMPLETIONS, CHAT):
        answer = await server.client.post(path, {**prompt_for(path), **body})
        refused(answer, "temperature", "top_p", "repetition_penalty", "top_k")
    refused(await server.client.post(GENERATE, {"text": "tick", "sampling_params": body}), *body)
    await alive(server)


@pytest.mark.parametrize("key", [str(toy.VOCAB_SIZE + 9), "-1", "abc", "1.5"])
async def test_a05_bias_outside_the_vocabulary(server: Server, key: str) -> None:
    for path in (COMPLETIONS, CHAT):
        refused(await server.client.post(path, {**prompt_for(path), "logit_bias": {key: -50, "3": 4}}), "logit_bias")
    await alive(server)


async def test_a07_stop_id_outside_the_vocabulary(server: Server) -> None:
    body = {"prompt": "tick", "stop_token_ids": [toy.VOCAB_SIZE + 1], "min_tokens": 2, "max_tokens": 5}
    refused(await server.client.post(COMPLETIONS, body), "stop_token_ids")
    await alive(server)


@pytest.mark.parametrize("prompt", ["", [""], ["ok", ""], [[]], []])
async def test_a10_empty_prompts(server: Server, prompt: Any) -> None:
    answer = await server.client.post(COMPLETIONS, {"prompt": prompt})
    refused(answer, "Prompt cannot be empty")
    assert answer.json["param"] == "prompt"
    refused(await server.client.post(GENERATE, {"input_ids": []}), "input_ids")
    refused(await server.client.post(GENERATE, {"text": ""}), "empty")
    await alive(server)


@pytest.mark.parametrize(("prompt", "count"), [([0], 1), ([0, 0, 0], 3), ([[0]], 1)])
async def test_a11_a_prompt_of_id_zero_is_not_empty(server: Server, prompt: Any, count: int) -> None:
    answer = await server.client.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1})
    assert answer.json["usage"]["prompt_tokens"] == count


async def test_a14_zero_new_tokens(server: Server) -> None:
    for extra in ({}, {"return_logprob": True, "logprob_start_len": 0}):
        body = {"text": "tick tock", "sampling_params": {"max_new_tokens": 0}, **extra}
        answer = (await server.client.post(GENERATE, body)).json
        assert (answer["text"], answer["output_ids"]) == ("", [])
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
        assert answer["meta_info"]["completion_tokens"] == 0
        await server.idle()
    assert len(answer["meta_info"]["input_token_logprobs"]) == len("tick tock")


async def test_a16_unseeded_requests_differ_and_seeded_ones_do_not(model: Path) -> None:
    async with running(model) as server:
        body = {"prompt": ["tick"] * 12, "temperature": 1.2, "max_tokens": 6, "return_token_ids": True}
        drawn = {str(choice["token_ids"]) for choice in (await server.client.post(COMPLETIONS, body)).json["choices"]}
        assert len(drawn) > 1
        seeded = (await server.client.post(COMPLETIONS, {**body, "seed": 7})).json["choices"]
        assert len({str(choice["token_ids"]) for choice in seeded}) == 1


async def test_a19_empty_lists_and_objects_ask_for_nothing(server: Server) -> None:
    plain = await server.client.post(COMPLETIONS, {"prompt": "tick", "max_tokens": 3})
    for field, empty in (("stop", []), ("stop_token_ids", []), ("logit_bias", {}), ("stop_regex", [])):
        answer = await server.client.post(COMPLETIONS, {"prompt": "tick", "max_tokens": 3, field: empty})
        assert answer.json["choices"] == plain.json["choices"]
    for field, empty in (("tools", []), ("chat_template_kwargs", {}), ("image_data", [])):
        path = GENERATE if field == "image_data" else CHAT
        assert (await server.client.post(path, {**prompt_for(path), field: empty})).status == 200


async def test_a20_ignore_eos_on_every_route(model: Path) -> None:
    async with running(model, Script(tokens=[*toy.ids("a"), toy.EOS, *toy.ids("b")])) as server:
        for path in (COMPLETIONS, CHAT):
            body = {**prompt_for(path), "max_tokens": 6}
            assert (await server.client.post(path, body)).json["usage"]["completion_tokens"] == 2
            body["ignore_eos"] = True
            assert (await server.client.post(path, body)).json["usage"]["completion_tokens"] == 6
        params = {"ignore_eos": True, "max_new_tokens": 6}
        answer = await server.client.post(GENERATE, {"text": "tick", "sampling_params": params})
        assert answer.json["meta_info"]["completion_tokens"] == 6


async def test_a22_known_fields_have_an_effect_or_are_refused(server: Server) -> None:
    client, base = server.client, prompt_for(CHAT)
    assert len((await client.post(CHAT, {**base, "n": 2})).json["choices"]) == 2
    assert (await client.post(CHAT, {**base, "stop": "b"})).json["choices"][0]["message"]["content"] == "a"
    assert (await client.post(CHAT, {**base, "max_tokens": 1, "logprobs": True})).json["choices"][0]["logprobs"]
    limited = (await client.post(CHAT, {**base, "max_completion_tokens": 2, "max_tokens": 9})).json
    assert limited["usage"]["completion_tokens"] == 2
    biased = {**base, "max_tokens": 1, "logit_bias": {str(ord("z")): 100}}
    assert (await client.post(CHAT, biased)).json["choices"][0]["message"]["content"] == "z"
    refused(await client.post(CHAT, {**base, "parallel_tool_calls": False}), "parallel_tool_calls")
    refused(await client.post(CHAT, {**base, "seed": 2**64}), "seed")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("stop_regex", "^a"),
        ("functions", [{"name": "f"}]),
        ("modalities", ["audio"]),
        ("custom_logit_processor", '{"callable": "80"}'),
    ],
)
async def test_what_is_not_built_yet_is_refused_by_name(server: Server, field: str, value: Any) -> None:
    for stream in (False, True):
        answer = await server.client.post(CHAT, {**prompt_for(CHAT), field: value, "stream": stream})
        refused(answer, field)
    await alive(server)


async def test_unknown_fields_are_named_in_a_header_or_refused(model: Path, server: Server) -> None:
    answer = await server.client.post(CHAT, {**prompt_for(CHAT), "max_tokens": 1, "temprature\n": 0})
    assert answer.status == 200
    assert "temprature" in answer.headers["x-ramet-warning"]
    assert "\n" not in answer.headers["x-ramet-warning"]
    async with running(model, strict=True) as strict:
        refused(await strict.client.post(CHAT, {**prompt_for(CHAT), "temprature": 0}), "temprature")
        refused(await strict.client.post(GENERATE, {**prompt_for(GENERATE), "max_tokens": 4}), "max_tokens")


async def test_native_refusals_have_their_contract_shapes(server: Server) -> None:
    """surface.md 13.3."""
    post = server.client.post
    unknown = await post(GENERATE, {"text": "x", "sampling_params": {"max_tokens": 4}})
    assert unknown.status == 400
    assert unknown.json["error"].startswith("sampling_params: unknown field `max_tokens`, expected one of `")
    assert "`max_new_tokens`" in unknown.json["error"]
    assert (await post(GENERATE, {"text": "x", "max_tokens": 4})).status == 200
    missing = await post(GENERATE, {"sampling_params": {}})
    assert missing.json == {"error": {"message": "Either text, input_ids or input_embeds should be provided."}}
    ranged = await post(GENERATE, {"text": "x", "sampling_params": {"top_k": 0}})
    assert ranged.status == 400
    assert "top_k" in ranged.json["error"]["message"]
    streamed = server.client.stream(GENERATE, {"text": "x", "sampling_params": {"top_k": 0}})
    error, done = await streamed.events()
    assert (streamed.status, done) == (200, "[DONE]")
    assert error["error"]["type"] == "invalid_request_error"
    assert (error["error"]["code"], error["error"]["retryable"]) == (400, False)
    strict = await post(GENERATE, {"text": "x", "sampling_params": {"temperature": "1"}, "stream": True})
    assert strict.status == 400
    assert "temperature" in strict.json["error"]
    for params in (
        {"n": True},
        {"stop_token_ids": ["1"]},
        {"json_schema": {"type": "object"}},
        {"max_new_tokens": 1.5},
    ):
        answer = await post(GENERATE, {"text": "x", "sampling_params": params})
        assert next(iter(params)) in answer.json["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"prompt": "x"} trailing',
        b'{"prompt": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "x", "max_tokens": 123456789012345678901234567890}',
        b'{"prompt": "x", "temperature": 1e400}',
        b'{"prompt": "a\\ud801b"}',
        b'{"prompt": ["x", 1]}',
        b'{"prompt": "x", "unkn\xffwn": 1}',
        b'{"prompt": {"a": 1}}',
        b'{"prompt": "x", "stop": [1]}',
        b'{"prompt": "x", "stream": "yes"}',
        b"{}",
    ],
)
async def test_bodies_that_are_no_request(server: Server, raw: bytes) -> None:
    for path in (COMPLETIONS, CHAT, "/v1/detokenize", GENERATE):
        refused(await server.client.post(path, raw=raw))
    await alive(server)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
async def test_numbers_beyond_64_bits_are_refused_by_name(server: Server, path: str) -> None:
    refused(await server.client.post(path, {**prompt_for(path), "priority": 10**20}), "priority")
    assert server.frontend.num_live == 0
    await alive(server)


async def test_more_logprobs_than_tokens_are_refused_before_they_spoil_a_step(server: Server) -> None:
    asked = {"text": "tick", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": toy.VOCAB_SIZE + 1}
    refused(await server.client.post(GENERATE, asked), "top_logprobs_num", str(toy.VOCAB_SIZE))
    most = {**asked, "top_logprobs_num": toy.VOCAB_SIZE, "sampling_params": {"max_new_tokens": 1}}
    assert (await server.client.post(GENERATE, most)).status == 200
    await alive(server)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
async def test_a_short_request_cannot_ask_for_a_million_answers(server: Server, path: str) -> None:
    many: dict[str, Any] = {"n": 1_000_000}
    body = {**prompt_for(path), **({"sampling_params": many} if path == GENERATE else many)}
    refused(await server.client.post(path, body), "n")
    await alive(server)


async def test_a_repeated_key_is_harmless(server: Server) -> None:
    raw = b'{"prompt": "x", "max_tokens": 9, "max_tokens": 1}'
    assert (await server.client.post(COMPLETIONS, raw=raw)).json["usage"]["completion_tokens"] == 1


async def test_openai_routes_insist_on_json(server: Server) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refused(await server.client.post(COMPLETIONS, raw=body, headers={"content-type": kind}), "Content-Type")
    good = {"content-type": "application/json; charset=utf-8"}
    assert (await server.client.post(COMPLETIONS, raw=body, headers=good)).status == 200
    native = b'{"text": "x", "sampling_params": {"max_new_tokens": 1}}'
    assert (await server.client.post(GENERATE, raw=native, headers={"content-type": "text/plain"})).status == 200


async def test_a_body_beyond_the_limit_is_refused(model: Path) -> None:
    async with running(model, max_request_mb=1) as server:
        refused(await server.client.post(COMPLETIONS, {"prompt": "x" * 1_100_000}), "1000000", status=413)


async def test_errors_of_the_http_layer_are_json(server: Server) -> None:
    refused(await server.client.get("/nope"), "GET /nope", status=404)
    refused(await server.client.get(COMPLETIONS), f"GET {COMPLETIONS}", status=405)


async def test_too_long_requests_state_the_numbers(server: Server) -> None:
    long = {"text": "x" * toy.CONTEXT}
    refused(await server.client.post(GENERATE, long), str(toy.CONTEXT))
    refused(await server.client.post(COMPLETIONS, {"prompt": "x" * 300}), "300", str(toy.CONTEXT))
    over = {"text": "x" * 200, "sampling_params": {"max_new_tokens": 57}}
    refused(
        await server.client.post(GENERATE, over),
        "Requested token count exceeds the model's maximum context length of 256 tokens.",
        *("257", "200", "57"),
    )
    over["sampling_params"] = {"max_new_tokens": 56}
    assert (await server.client.post(GENERATE, over)).json["meta_info"]["completion_tokens"] == 56
    default = await server.client.post(GENERATE, {"text": "x" * 200})  # 128 by default: shortened, and said
    assert default.json["meta_info"]["completion_tokens"] == 56
    assert "56" in default.headers["x-ramet-warning"]


async def test_h08_a_prompt_bigger_than_the_pool_is_refused_at_once(model: Path) -> None:
    async with running(model, max_total_tokens=32) as server:
        answer = await server.client.post(GENERATE, {"input_ids": [1] * 40})
        refused(answer, "40", "32")


async def test_h22_internal_fields_are_not_in_the_body(server: Server) -> None:
    body = {"text": "x", "namespace": "other", "eos_token_ids": [1], "deadline_s": 0, "submitted": True}
    answer = await server.client.post(GENERATE, {**body, "sampling_params": {"max_new_tokens": 1}})
    assert answer.status == 200
    for name in ("namespace", "eos_token_ids", "deadline_s", "submitted"):
        assert name in answer.headers["x-ramet-warning"]


async def test_scored_ids_are_bounded_as_the_answer_grows_with_them(server: Server) -> None:
    refused(
        await server.client.post(GENERATE, {"text": "tick", "return_logprob": True, "token_ids_logprob": [1] * 1025}),
        "token_ids_logprob",
    )
    await alive(server)
