"""cases.md, section E, as clients of chat completions meet it; surface.md 9.5."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.chats import ASK, CHAT, TOOLS, ask, call, calls_of, chatting, joined, saying, write_model
from support.server import Server, paced

ON: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("think") / "model")


@pytest.fixture
async def server(chat_model: Path) -> AsyncIterator[Server]:
    async with chatting(chat_model, reasoning_parser="qwen3") as server:
        yield server


async def parts(server: Server, text: str | Script, **body: Any) -> tuple[str | None, str]:
    """Reasoning and content, streamed and not."""
    message = (await ask(server, text, **body))["message"]
    return message["reasoning_content"], message["content"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", ("a", "b")),
        ("\n <think>a</think>b", ("a", "b")),
        ("Ok.<think>a</think>b", ("a", "Ok.b")),
        ("<think>a", ("a", "")),
        ("b", (None, "b")),
        ("<think>\n\n</think>\n\nb", (None, "b")),
    ],
)
async def test_e01_one_rule_for_text_before_the_thinking(server: Server, text: str, expected: Any) -> None:
    assert await parts(server, text) == expected


async def test_e02_a_less_than_sign_is_released_at_once(server: Server) -> None:
    server.executor.script = paced([*toy.ids("<", "t", "a", "b", ">"), toy.EOS])
    events = await server.client.stream(CHAT, ASK).events()
    deltas = [event["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert [delta for delta in deltas if delta] == ["<ta", "b", ">"]


async def test_the_prompt_opens_the_thinking(server: Server) -> None:
    assert await parts(server, "a</think>b", **ON) == ("a", "b")
    assert await parts(server, "a</think>b", reasoning_effort="high") == ("a", "b")
    assert await parts(server, "a", **ON) == ("a", "")
    assert await parts(server, "a</think>b", reasoning={"enabled": True}) == ("a", "b")


async def test_thinking_that_was_switched_off_comes_all_the_same(server: Server) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert await parts(server, "<think>a</think>b", **off) == ("a", "b")
    assert await parts(server, "b", reasoning_effort="none") == (None, "b")


async def test_e05_a_schema_without_thinking_is_content(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    kwargs = {"think": True, "enable_thinking": False}  # the template opens the thinking, the request wants none
    text = await parts(server, '{"n":1}', response_format=form, chat_template_kwargs=kwargs)
    assert text == (None, '{"n":1}')


async def test_e07_a_grammar_begins_after_the_thinking(server: Server) -> None:
    text = "Let me count</think>123"
    assert await parts(server, text, regex=r"\d{3}", **ON) == ("Let me count", "123")


async def test_thinking_may_stay_in_the_content(server: Server) -> None:
    assert await parts(server, "<think>a</think>b", separate_reasoning=False) == (None, "<think>a</think>b")


async def test_thinking_may_come_in_one_piece(server: Server) -> None:
    server.executor.script = paced([*b"<think>ab cd</think>x", toy.EOS])
    events = await server.client.stream(CHAT, {**ASK, "stream_reasoning": False}).events()
    deltas = [event["choices"][0]["delta"] for event in events[1:-2]]
    assert [delta["reasoning_content"] for delta in deltas] == ["ab cd", None]
    assert await parts(server, "<think>ab cd</think>x", stream_reasoning=False) == ("ab cd", "x")
    assert await parts(server, "<think>never over", stream_reasoning=False) == ("never over", "")


async def test_a_call_ends_the_thinking(server: Server) -> None:
    choice = await ask(server, "<think>hm" + call("now", "{}"), tools=TOOLS)
    assert choice["message"]["reasoning_content"] == "hm"
    assert calls_of(choice) == [("now", "{}")]


async def test_a_call_in_the_thinking_of_other_formats_is_thinking(chat_model: Path) -> None:
    async with chatting(chat_model, reasoning_parser="deepseek-r1") as server:
        choice = await ask(server, call("rm", "{}") + "</think>" + call("now", "{}"), tools=TOOLS)
        assert calls_of(choice) == [("now", "{}")]
        assert choice["message"]["reasoning_content"] == call("rm", "{}")


@pytest.mark.parametrize("stop", [None, "zz"])
async def test_reasoning_tokens_are_counted(server: Server, stop: str | None) -> None:
    """Markers included; the same however the answer is read."""
    server.executor.script = saying("<think>ab</think>xyz")
    body = {**ASK, "stop": stop, "stream_options": {"include_usage": True}}
    whole = (await server.client.post(CHAT, {**ASK, "stop": stop})).json["usage"]
    expected = len("k>") - 1 + len("ab</think>")
    assert whole["reasoning_tokens"] == expected
    assert whole["completion_tokens_details"] == {"reasoning_tokens": expected}
    for interval in (1, 3):
        server.frontend.stream_interval = interval
        events = await server.client.stream(CHAT, body).events()
        assert events[-2]["usage"]["reasoning_tokens"] == expected
    split = (await server.client.post(CHAT, {**ASK, "separate_reasoning": False})).json["usage"]
    assert split["reasoning_tokens"] == expected


async def test_a_continued_message_says_whether_the_thinking_is_over(chat_model: Path) -> None:
    async with chatting(chat_model, reasoning_parser="deepseek-r1") as server:
        for start, expected in (("<think>I", ("a", "b")), ("<think>I</think>So", (None, "a</think>b"))):
            messages = [*ASK["messages"], {"role": "assistant", "content": start}]
            got = await parts(server, "a</think>b", messages=messages, continue_final_message=True)
            assert got == expected


@pytest.mark.parametrize(
    "body",
    [
        {"reasoning_effort": "huge"},
        {"reasoning_effort": 1},
        {"reasoning": {"effort": True}},
        {"reasoning": {"enabled": "yes"}},
    ],
)
async def test_an_effort_is_checked(server: Server, body: dict[str, Any]) -> None:
    answer = await server.client.post(CHAT, {**ASK, **body})
    assert (answer.status, answer.json["param"]) == (400, next(iter(body)))


async def test_without_a_parser_all_is_content(chat_model: Path) -> None:
    async with chatting(chat_model) as server:
        assert await parts(server, "<think>a</think>b") == (None, "<think>a</think>b")


async def test_explain(server: Server) -> None:
    server.executor.script = saying("<think>a</think>b")
    body = {**ASK, "explain": True, "stop": "b"}
    answer = (await server.client.post(CHAT, body)).json
    shown = answer["explain"]
    assert shown["prompt"] == "<bos><turn>user:go<eos><turn>assistant:"
    [choice] = shown["choices"]
    assert len(choice["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert choice["first_computed_token"] == {"index": 0, "id": toy.BOS, "text": "<bos>"}
    assert choice["text"] == "<think>a</think>"
    assert choice["finish"] == {"type": "stop", "matched": "b"}
    assert choice["queue_s"] >= 0
    assert choice["prefill_s"] >= 0
    assert choice["decode_s"] >= 0
    again = (await server.client.post(CHAT, body)).json["explain"]["choices"][0]
    assert again["cached_tokens"] > 0
    other = {**body, "messages": [{"role": "user", "content": "no"}]}
    parts = (await server.client.post(CHAT, other)).json["explain"]["choices"][0]["first_computed_token"]
    assert parts["text"] == "n"
    events = await server.client.stream(CHAT, body).events()
    assert events[-2]["choices"] == []
    assert events[-2]["explain"]["choices"][0]["text"] == "<think>a</think>"
    assert joined(events)["message"]["reasoning_content"] == "a"
    assert "explain" not in (await server.client.post(CHAT, ASK)).json


async def test_explain_on_the_other_routes(server: Server) -> None:
    server.executor.script = saying("ok")
    body = {"prompt": ["go", "on"], "explain": True}
    shown = (await server.client.post("/v1/completions", body)).json["explain"]
    assert [choice["prompt_token_ids"] for choice in shown["choices"]] == [toy.ids(*"go"), toy.ids(*"on")]
    events = await server.client.stream("/v1/completions", body).events()
    assert [len(event["explain"]["choices"]) for event in events[:-1] if "explain" in event] == [2]
    response = (await server.client.post("/v1/responses", {"input": "go", "explain": True})).json
    assert response["explain"]["prompt"] == "<bos><turn>user:go<eos><turn>assistant:"
