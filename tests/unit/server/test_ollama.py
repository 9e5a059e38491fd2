"""`/api/chat`, `/api/generate` and what surrounds them, over a scripted model; cases K01 to K04 and their kind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.asgi import Exchange
from support.chats import WEATHER, saying, write_model
from support.dialects import PARSERS, REPLY, TEMPLATE
from support.server import Server, running

CHAT, GENERATE = "/api/chat", "/api/generate"
ASK: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "go"}]}
PROMPT: dict[str, Any] = {"model": "toy", "prompt": "go"}
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
COUNTS = ("prompt_eval_count", "eval_count")
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ollama") / "model", TEMPLATE)


@pytest.fixture
async def server(chat_model: Path) -> AsyncIterator[Server]:
    async with running(chat_model, hi(), max_total_tokens=8192, **PARSERS) as server:
        yield server


def hi() -> Script:
    return Script(tokens=[*toy.ids("Hi", " there", "ok"), toy.EOS])


def lines(exchange: Exchange) -> list[dict[str, Any]]:
    """The objects of a stream. Every line is one, and each has the time it was made."""
    assert exchange.headers["content-type"] == "application/x-ndjson"
    assert exchange.body.endswith(b"\n")
    objects = [json.loads(line) for line in exchange.body.decode().removesuffix("\n").split("\n")]
    for one in objects:
        if "error" not in one:
            assert datetime.fromisoformat(one["created_at"].replace("Z", "+00:00")).tzinfo is not None
    return objects


async def ask(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, which every way of streaming it adds up to; times and ids of calls aside."""
    whole = await server.client.post(path, {**body, "stream": False})
    assert whole.status == 200, whole.body
    for interval in (1, 2, 7):
        server.frontend.stream_interval = interval
        *pieces, last = lines(await server.client.post(path, body))
        assert last["done"] is True
        assert not any(piece["done"] for piece in pieces)
        assert text_of(last) == "", "the last object carries no text"
        message = {**last, **joined([*pieces, last])}
        for key in ("response", "message", "thinking", "logprobs", "done_reason", "context", *COUNTS):
            assert comparable(message.get(key)) == comparable(whole.json.get(key)), key
    answer: dict[str, Any] = whole.json
    assert all(isinstance(answer[key], int) for key in TIMES)
    return answer


def text_of(one: dict[str, Any]) -> str:
    text: str = one["response"] if "response" in one else one["message"]["content"]
    return text


def joined(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """What the pieces of a stream make."""
    made: dict[str, Any] = {}
    logprobs = [entry for one in objects for entry in one.get("logprobs", [])]
    if logprobs:
        made["logprobs"] = logprobs
    thinking = "".join((one.get("message") or one).get("thinking", "") for one in objects)
    text = "".join(text_of(one) for one in objects)
    if "response" in objects[0]:
        return {**made, "response": text, **({"thinking": thinking} if thinking else {})}
    calls = [call for one in objects for call in one["message"].get("tool_calls", [])]
    message = {"role": "assistant", "content": text}
    extra = {**({"thinking": thinking} if thinking else {}), **({"tool_calls": calls} if calls else {})}
    return {**made, "message": {**message, **extra}}


def comparable(value: Any) -> Any:
    if isinstance(value, dict) and "tool_calls" in value:
        return {**value, "tool_calls": [{**call, "id": ""} for call in value["tool_calls"]]}
    return value


async def test_a_chat(server: Server) -> None:
    answer = await ask(server, CHAT, ASK)
    assert answer["model"] == "toy"
    assert answer["message"] == {"role": "assistant", "content": "Hi thereok"}
    assert (answer["done"], answer["done_reason"]) == (True, "stop")
    assert (answer["eval_count"], answer["prompt_eval_count"]) == (4, 21)
    assert answer["total_duration"] >= answer["eval_duration"] > 0


async def test_a_prompt_goes_through_the_template(server: Server) -> None:
    answer = await ask(server, GENERATE, {**PROMPT, "system": "Be brief."})
    assert answer["response"] == "Hi thereok"
    context = answer["context"]
    prompt = "<bos><turn>system:Be brief.<eos><turn>user:go<eos><turn>assistant:"
    assert server.frontend.text_of(context, skip_special_tokens=False) == prompt + "Hi thereok<eos>"
    again = await ask(server, GENERATE, {**PROMPT, "prompt": "on", "context": context})
    whole = server.frontend.text_of(again["context"], skip_special_tokens=False)
    assert whole == prompt + "Hi thereok<eos><turn>user:on<eos><turn>assistant:Hi thereok<eos>"


async def test_a_raw_prompt_does_not(server: Server) -> None:
    answer = await ask(server, GENERATE, {**PROMPT, "raw": True})
    assert (answer["response"], answer["prompt_eval_count"]) == ("Hi thereok", 2)
    assert "context" not in answer
    refused = await server.client.post(GENERATE, {**PROMPT, "raw": True, "system": "x"})
    assert (refused.status, list(refused.json)) == (400, ["error"])


async def test_k02_nothing_to_generate_loads_or_unloads(server: Server) -> None:
    for path, body in ((CHAT, {**ASK, "messages": []}), (CHAT, {"model": "toy"}), (GENERATE, {"model": "toy"})):
        for extra in ({}, {"stream": True}, {"stream": False}):
            answer = await server.client.post(path, {**body, **extra})
            assert answer.headers["content-type"] == "application/json"
            assert (answer.json["done"], answer.json["done_reason"]) == (True, "load")
            assert text_of(answer.json) == ""
            for zero in (0, 0.0, "0", "0s", "0m"):
                answer = await server.client.post(path, {**body, **extra, "keep_alive": zero})
                assert answer.json["done_reason"] == "unload"
            for some in (-1, 300, "5m", "1h30m", "-1"):
                answer = await server.client.post(path, {**body, **extra, "keep_alive": some})
                assert answer.json["done_reason"] == "load"
    assert (await server.client.post(CHAT, {**ASK, "keep_alive": "soon"})).status == 400
    assert (await server.info())["totals"]["requests"] == 0


async def test_k01_num_ctx_is_a_limit_of_prompt_and_answer_together(server: Server) -> None:
    server.executor.script = Script(tokens=toy.ids("a"))

    async def at(prompt: str, **options: int) -> Exchange:
        body = {"model": "toy", "prompt": prompt, "raw": True, "stream": False, "options": {"num_ctx": 64, **options}}
        return await server.client.post(GENERATE, body)

    for length in (100, 64):
        refused = await at("x" * length)
        assert refused.status == 400
        assert f"{length} tokens" in refused.json["error"]
    kept = (await at("x" * 60)).json
    assert (kept["prompt_eval_count"], kept["eval_count"], kept["done_reason"]) == (60, 4, "length")
    assert (await at("x" * 60, num_predict=2)).json["eval_count"] == 2
    assert (await at("x" * 60, num_ctx=1_000_000, num_predict=2)).json["eval_count"] == 2
    assert (await at("x" * 60, num_ctx=0)).status == 400
    too_long = await at("x" * 3000, num_ctx=1_000_000)
    assert too_long.status == 400


@pytest.mark.parametrize(("given", "count"), [(None, 2044), (-1, 2044), (-2, 2044), (7, 7)])
async def test_num_predict(server: Server, given: int | None, count: int) -> None:
    server.executor.script = Script(tokens=toy.ids("a"))
    body = {"model": "toy", "prompt": "xxxx", "raw": True, "stream": False, "options": {"num_predict": given}}
    answer = (await server.client.post(GENERATE, body)).json
    assert (answer["eval_count"], answer["done_reason"]) == (count, "length")


async def test_k04_a_call_comes_once_and_whole(server: Server) -> None:
    server.executor.script = saying(REPLY)
    body = {**ASK, "tools": [WEATHER]}
    answer = await ask(server, CHAT, body)
    message = answer["message"]
    assert (message["content"], message["thinking"]) == ("Looking.", "Hm, weather.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Paris", "days": 2}}
    assert call["id"].startswith("call_")
    objects = lines(await server.client.post(CHAT, body))
    assert [one["message"]["tool_calls"][0]["function"] for one in objects if "tool_calls" in one["message"]] == [
        call["function"]
    ]
    assert objects[-1]["eval_count"] == len(REPLY) + 1
    assert objects[-1]["done_reason"] == "stop"


async def test_a_call_that_stops_short_is_text(server: Server) -> None:
    server.executor.script = saying('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa')
    message = (await ask(server, CHAT, {**ASK, "tools": [WEATHER]}))["message"]
    assert message["content"].startswith('{"name": "get_weather", "arguments": {"city": "Pa')
    assert "tool_calls" not in message


async def test_thinking_has_its_own_key_on_both_routes(server: Server) -> None:
    server.executor.script = saying("<think>Hm.</think>Yes.")
    assert (await ask(server, CHAT, {**ASK, "think": True}))["message"]["thinking"] == "Hm."
    answer = await ask(server, GENERATE, {**PROMPT, "think": "high"})
    assert (answer["response"], answer["thinking"]) == ("Yes.", "Hm.")
    prompt = server.frontend.text_of(answer["context"], skip_special_tokens=False)
    assert prompt.startswith("<bos>[thinking True][effort high]<turn>")
    for wrong in ("maybe", 3):
        assert (await server.client.post(CHAT, {**ASK, "think": wrong})).status == 400


async def test_options_reach_the_sampler(server: Server) -> None:
    stopped = await ask(server, CHAT, {**ASK, "options": {"stop": [" there"], "seed": 1, "top_k": 0}})
    assert (stopped["message"]["content"], stopped["done_reason"]) == ("Hi", "stop")
    server.executor.script = Script()
    body = {**PROMPT, "stream": False, "options": {"seed": 5, "num_predict": 8}}
    first, second = [(await server.client.post(GENERATE, body)).json["response"] for _ in range(2)]
    assert first == second


async def test_logprobs(server: Server) -> None:
    answer = await ask(
        server, CHAT, {**ASK, "logprobs": True, "top_logprobs": 2, "options": {"num_predict": 2, "seed": 1}}
    )
    assert [entry["token"] for entry in answer["logprobs"]] == ["Hi", " there"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in answer["logprobs"])
    assert (await server.client.post(CHAT, {**ASK, "top_logprobs": 2})).status == 400


async def test_formats(server: Server) -> None:
    server.executor.script = Script()
    body = {**ASK, "think": False, "stream": False}
    answer = (await server.client.post(CHAT, {**body, "format": SCHEMA})).json
    assert json.loads(answer["message"]["content"])["n"] in (1, 2)
    generated = (await server.client.post(GENERATE, {**PROMPT, "raw": True, "stream": False, "format": SCHEMA})).json
    assert json.loads(generated["response"])["n"] in (1, 2)
    limited = {**body, "format": "json", "options": {"num_predict": 5}}
    assert (await server.client.post(CHAT, limited)).json["message"]["content"].startswith("{")
    assert (await server.client.post(CHAT, {**body, "format": "", "options": {"num_predict": 1}})).status == 200
    for wrong, words in (("xml", "format"), ({"type": 3}, "#/type")):
        refused = await server.client.post(CHAT, {**body, "format": wrong})
        assert refused.status == 400
        assert words in refused.json["error"]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"model": None}, "model"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        (CHAT, {"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"options": {"temperature": -1}}, "options.temperature"),
        (CHAT, {"options": {"temperature": "hot"}}, "options.temperature"),
        (CHAT, {"options": {"num_predict": -3}}, "options.num_predict"),
        (CHAT, {"options": {"num_ctx": "big"}}, "options.num_ctx"),
        (CHAT, {"options": {"mirostat": 1}}, "options.mirostat"),
        (CHAT, {"options": {"typical_p": 0.7}}, "options.typical_p"),
        (CHAT, {"options": {"repeat_penalty": 1.2, "repeat_last_n": 33}}, "options.repeat_last_n"),
        (CHAT, {"options": {"stop": ["", "x"]}}, "options.stop"),
        (GENERATE, {"template": "{{ .Prompt }}"}, "template"),
        (GENERATE, {"suffix": "}"}, "suffix"),
        (GENERATE, {"images": ["aGk="]}, "images"),
        (GENERATE, {"context": [1, 99999]}, "99999"),
        (GENERATE, {"context": ["a"]}, "context"),
    ],
)
async def test_refusals_name_the_field_before_a_stream(
    server: Server, path: str, fields: dict[str, Any], words: str
) -> None:
    base = ASK if path == CHAT else PROMPT
    for stream in (False, True):
        answer = await server.client.post(path, {**base, "stream": stream, **fields})
        assert answer.status == 400
        assert list(answer.json) == ["error"]
        assert words in answer.json["error"]


async def test_options_that_say_nothing_about_the_answer_are_taken(chat_model: Path) -> None:
    harmless = {"num_gpu": 1, "num_thread": 8, "num_keep": 5, "use_mmap": True, "mirostat": 0, "typical_p": 1.0}
    neutral = {"repeat_last_n": -1, "repeat_penalty": 1.2, "penalize_newline": True, "seed": -1, "min_p": 0.0}
    body = {**ASK, "options": {**harmless, **neutral}, "truncate": True}
    async with running(chat_model, hi(), strict=True) as server:
        answer = await server.client.post(CHAT, body)
        assert answer.status == 200
        assert "x-ramet-warning" not in answer.headers
        assert (await server.client.post(CHAT, {**ASK, "options": {"colour": 1}})).status == 400
    async with running(chat_model, hi()) as server:
        answer = await server.client.post(CHAT, {**ASK, "options": {"colour": 1}, "shade": 2})
        assert "colour" in answer.headers["x-ramet-warning"]
        assert "shade" in answer.headers["x-ramet-warning"]


async def test_a_penalty_without_a_window_is_off(chat_model: Path) -> None:
    async with running(chat_model, hi()) as server:
        options = {"repeat_last_n": 0, "repeat_penalty": 1.5}
        assert (await server.client.post(CHAT, {**ASK, "options": options})).status == 200


async def test_c07_a_failure_in_mid_stream_is_a_line_of_its_own(server: Server) -> None:
    server.executor.script = Script(tokens=toy.ids("a"), step_s=0.002, fail_steps={server.executor.steps + 4})
    *pieces, last = lines(await server.client.post(CHAT, ASK))
    assert len(pieces) >= 2
    assert not any(piece["done"] for piece in pieces)
    assert list(last) == ["error"]
    server.executor.script = Script(tokens=toy.ids("a"), fail_steps={server.executor.steps})
    whole = await server.client.post(CHAT, {**ASK, "stream": False})
    assert (whole.status, list(whole.json)) == (500, ["error"])


async def test_c10_silence_is_filled_without_breaking_a_line(chat_model: Path) -> None:
    script = Script(tokens=toy.ids("a"), step_s=0.3)
    async with running(chat_model, script, stream_keep_alive=0.1) as server:
        exchange = await server.client.post(CHAT, {**ASK, "options": {"num_predict": 1}})
        assert exchange.body.startswith(b" ")
        assert [text_of(one) for one in lines(exchange)] == ["a", ""]


async def test_i01_a_dropped_request_frees_its_pages(chat_model: Path) -> None:
    async with running(chat_model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        for stream in (True, False):
            exchange = server.client.open("POST", CHAT, {**ASK, "stream": stream})
            while not (await server.info())["num_running_reqs"]:
                pass
            await exchange.leave()
            await server.idle(1.0)


async def test_a_model_without_a_template_takes_prompts_and_no_chats(server: Server) -> None:
    server.frontend.template = None
    assert (await server.client.post(CHAT, ASK)).status == 400
    answer = await ask(server, GENERATE, {**PROMPT, "system": "Be brief."})
    assert answer["response"] == "Hi thereok"
    prompt = server.frontend.text_of(answer["context"], skip_special_tokens=False)
    assert prompt == "Be brief.\n\ngoHi thereok<eos>"


async def test_the_library(server: Server) -> None:
    server.core.info = {"model": {"path": "/m/x.gguf", "content_id": "0123456789abcdef", "weight_bytes": 7}}
    (tag,) = (await server.client.get("/api/tags")).json["models"]
    assert (tag["name"], tag["model"], tag["digest"], tag["size"]) == ("toy", "toy", "0123456789abcdef", 7)
    assert (tag["details"]["family"], tag["details"]["format"]) == ("llama", "gguf")
    (running_model,) = (await server.client.get("/api/ps")).json["models"]
    assert running_model["context_length"] == 2048
    assert datetime.fromisoformat(running_model["expires_at"].replace("Z", "+00:00")).year > 3000
    for body in ({"model": "toy"}, {"name": "toy", "verbose": True}):
        shown = (await server.client.post("/api/show", body)).json
        assert shown["capabilities"] == ["completion", "tools", "thinking"]
        assert shown["model_info"]["llama.context_length"] == 2048
        assert shown["template"] == TEMPLATE
    assert (await server.client.post("/api/show", {})).status == 400
    version = (await server.client.get("/api/version")).json["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # what editors ask for before they use tools


async def test_errors_of_http_have_the_dialects_shape(chat_model: Path) -> None:
    async with running(chat_model, hi(), api_key="secret") as server:
        refused = await server.client.post(CHAT, ASK)
        assert (refused.status, refused.json) == (401, {"error": "Unauthorized"})
        key = {"authorization": "Bearer secret"}
        missing = await server.client.post("/api/pull", {"model": "m"}, headers=key)
        assert (missing.status, list(missing.json)) == (404, ["error"])
        form = {**key, "content-type": "application/x-www-form-urlencoded"}
        assert (await server.client.post(CHAT, ASK, headers=form)).status == 200  # what curl sends
