"""Constrained answers on every route (cases D13, D14, E05, E07, F01, F11, F16, F20, F23, G01)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ramet.executor.scripted import Script
from support import toy
from support.server import Server, running

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
ASK = {"messages": [{"role": "user", "content": "tick"}], "max_tokens": 80}
CITY = json.dumps({"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}})


def content(answer: Any) -> str:
    text: str = answer.json["choices"][0]["message"]["content"]
    return text


@pytest.fixture
def hashes() -> Script:
    """A model that says anything."""
    return Script()


async def test_response_formats_of_chat(model: Path, hashes: Script) -> None:
    async with running(model, hashes) as server:
        for seed in range(3):
            body = {**ASK, "seed": seed, "temperature": 1.0, "response_format": json.loads(CITY)}
            answer = await server.client.post(CHAT, body)
            assert answer.status == 200, answer.body
            assert answer.json["choices"][0]["finish_reason"] == "stop"
            jsonschema.validate(json.loads(content(answer)), SCHEMA)
        plain = await server.client.post(CHAT, {**ASK, "max_tokens": 3, "response_format": {"type": "text"}})
        assert plain.status == 200
        body = {**ASK, "max_tokens": 30, "response_format": {"type": "json_object"}}
        answer = await server.client.post(CHAT, body)
        assert content(answer).startswith("{")


async def test_a_cut_json_says_length(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        body = {**ASK, "max_tokens": 4, "response_format": json.loads(CITY)}
        assert (await server.client.post(CHAT, body)).json["choices"][0]["finish_reason"] == "length"


async def test_streams_samples_and_whole_answers_agree(model: Path, hashes: Script) -> None:
    async with running(model, hashes) as server:
        body = {**ASK, "n": 2, "seed": 1, "temperature": 1.0, "response_format": json.loads(CITY)}
        whole = [c["message"]["content"] for c in (await server.client.post(CHAT, body)).json["choices"]]
        texts = ["", ""]
        stream = server.client.stream(CHAT, body)
        for event in await stream.events():
            for choice in event["choices"] if event != "[DONE]" else ():
                texts[choice["index"]] += choice["delta"].get("content") or ""
        assert texts == whole
        for text in whole:
            jsonschema.validate(json.loads(text), SCHEMA)


async def test_regex_and_ebnf_on_every_route(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("x"))) as server:
        post = server.client.post
        answer = await post(GENERATE, {"text": "t", "sampling_params": {"regex": "(yes|no)"}})
        assert answer.json["text"] in ("yes", "no")
        assert answer.json["meta_info"]["finish_reason"]["type"] == "stop"
        answer = await post(GENERATE, {"text": "t", "sampling_params": {"ebnf": 'root ::= "a" | "b"'}})
        assert answer.json["text"] in ("a", "b")
        answer = await post(COMPLETIONS, {"prompt": "t", "regex": "[0-9]{3}"})
        assert answer.json["choices"][0]["text"].isdigit()
        answer = await post(COMPLETIONS, {"prompt": "t", "json_schema": '{"enum": [7]}'})
        assert answer.json["choices"][0]["text"] == "7"
        assert content(await post(CHAT, {**ASK, "ebnf": 'root ::= "a" "b"'})) == "ab"
        tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "ok!"}}
        assert content(await post(CHAT, {**ASK, "response_format": tag})) == "ok!"
        stopped = await post(GENERATE, {"text": "t", "sampling_params": {"regex": "abcd", "stop": ["bc"]}})
        assert stopped.json["text"] == "a"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"json_schema": '{"type":"string","format":"x-moon"}'}, "#/format"),
        ({"json_schema": '{"type":"objekt"}'}, "#/type"),
        ({"json_schema": "{not json"}, "not valid JSON"),
        ({"json_schema": '{"uniqueItems":true}'}, "#/uniqueItems"),
        ({"json_schema": '{"type":"string","pattern":"("}'}, "unclosed group"),
        ({"regex": "a{3,1}"}, "start must be <= the end"),
        ({"regex": "[z-a]"}, "start must be <= the end"),
        ({"regex": "(?<=x)y"}, "look-around"),
        ({"regex": "a", "ebnf": "b"}, "Only one of"),
        ({"structural_tag": "{}"}, "needs a format"),
    ],
)
async def test_f01_f11_f16_what_cannot_be_enforced_is_400_and_the_server_lives(
    model: Path, params: dict[str, str], words: str
) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        answer = await server.client.post(GENERATE, {"text": "t", "sampling_params": params})
        assert answer.status == 400
        assert words in answer.body.decode()
        chat = {name: value for name, value in params.items() if name != "structural_tag"}
        for stream in (False, True):
            if chat:
                answer = await server.client.post(CHAT, {**ASK, **chat, "stream": stream})
                assert answer.status == 400, answer.body
                assert words in answer.body.decode()
        alive = await server.client.post(GENERATE, {"text": "t", "sampling_params": {"max_new_tokens": 2}})
        assert alive.json["text"] == "aa"


async def test_contradicting_constraints_are_refused(model: Path) -> None:
    async with running(model) as server:
        for extra in ({"regex": "a"}, {"json_schema": "{}"}):
            answer = await server.client.post(CHAT, {**ASK, **extra, "response_format": json.loads(CITY)})
            assert answer.status == 400


async def test_g01_masked_alternatives_leave_the_logprobs_valid_json(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("n"))) as server:
        answer = await server.client.post(CHAT, {**ASK, "regex": "yes|no", "logprobs": True, "top_logprobs": 5})
        assert b"Infinity" not in answer.body
        assert b"NaN" not in answer.body
        entries = answer.json["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == ["n", "o"]
        params = {"regex": "yes|no"}
        body = {"text": "t", "sampling_params": params, "return_logprob": True, "top_logprobs_num": 5}
        native = await server.client.post(GENERATE, body)
        assert b"Infinity" not in native.body
        assert native.json["text"] == "no"


TOOL = {
    "type": "function",
    "function": {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}


async def test_d13_d14_a_forced_call_is_a_call(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids(" ", "h"))) as server:
        for choice in ("required", {"type": "function", "function": {"name": "now"}}):
            body = {**ASK, "input_ids": [1, 2], "parallel_tool_calls": False, "tools": [TOOL], "tool_choice": choice}
            answer = await server.client.post(CHAT, body)
            assert answer.status == 200, answer.body
            first = answer.json["choices"][0]
            assert first["finish_reason"] == "tool_calls"
            call = first["message"]["tool_calls"][0]["function"]
            assert (call["name"], json.loads(call["arguments"])) == ("now", {})
            assert answer.json["usage"]["completion_tokens"] < 80


def with_template(directory: Path, opening: str) -> Path:
    """A toy model whose prompts end with `opening`."""
    toy.write(directory)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}" + opening
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


async def test_e07_the_regex_rules_the_answer_and_not_the_thinking(tmp_path: Path) -> None:
    script = Script(tokens=toy.ids(*"so 12?</think>12345"))
    async with running(with_template(tmp_path, "<think>\n"), script, reasoning_parser="qwen3") as server:
        answer = await server.client.post(CHAT, {**ASK, "regex": r"^\d{3}$"})
        message = answer.json["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("so 12?", "123")
        assert answer.json["choices"][0]["finish_reason"] == "stop"


async def test_e05_a_schema_answer_without_thinking_is_content(tmp_path: Path) -> None:
    script = Script(tokens=toy.ids(*'{"n":1}'))
    async with running(with_template(tmp_path, "<think></think>"), script, reasoning_parser="qwen3") as server:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
        format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        stream = server.client.stream(CHAT, {**ASK, "response_format": format})
        deltas = [event["choices"][0]["delta"] for event in await stream.events() if event != "[DONE]"]
        assert "".join(delta.get("content") or "" for delta in deltas) == '{"n":1}'
        assert not any(delta.get("reasoning_content") for delta in deltas)


async def test_f23_a_dead_end_ends_that_request_only(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        dead = "%llguidance {}\nstart: W /[^\\x00-\\x{10FFFF}]/\nW: /aa/"
        answer = await server.client.post(GENERATE, {"text": "t", "sampling_params": {"ebnf": dead}})
        assert answer.status == 400
        assert b"cannot go on" in answer.body
        await idle_and_alive(server)


async def idle_and_alive(server: Server) -> None:
    await server.idle()
    answer = await server.client.post(GENERATE, {"text": "t", "sampling_params": {"max_new_tokens": 1}})
    assert answer.json["text"] == "a"
