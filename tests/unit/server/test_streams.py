"""cases.md, sections B and C: what a stream shows, in which order, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.server import Server, paced, running

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}]}


@pytest.fixture
async def server(model: Path) -> AsyncIterator[Server]:
    async with running(model, Script(tokens=[*toy.ids("Hi", " there", "ok"), toy.EOS])) as server:
        yield server


def texts(events: list[Any]) -> list[str]:
    return [event["choices"][0]["text"] for event in events if isinstance(event, dict) and event["choices"]]


async def scripted_text(model: Path, tokens: list[int], **params: Any) -> tuple[str, Any]:
    """The text and the finish reason of a script, equal when streamed and when not."""
    async with running(model, Script(tokens=tokens)) as server:
        body = {"text": "go", "sampling_params": {"max_new_tokens": len(tokens), **params}}
        whole = (await server.client.post(GENERATE, body)).json
        events = await server.client.stream(GENERATE, body).events()
        assert events.pop() == "[DONE]"
        assert events[-1]["text"] == whole["text"]
        assert events[-1]["output_ids"] == whole["output_ids"]
        for before, after in itertools.pairwise(events):
            assert after["text"].startswith(before["text"])
        return whole["text"], whole["meta_info"]["finish_reason"]


async def test_b01_pieces_of_a_stop_are_never_sent(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("sun", "moon", "star", "dust"))) as server:
        body = {"prompt": "go", "stop": "moonstardust"}
        events = await server.client.stream(COMPLETIONS, body).events()
        assert "".join(texts(events)) == "sun"
        assert events[-2]["choices"][0]["finish_reason"] == "stop"
        assert events[-2]["choices"][0]["matched_stop"] == "moonstardust"


async def test_b02_a_stop_that_ends_inside_a_token(model: Path) -> None:
    tokens = toy.ids("ab", "cdef", "gh")
    assert await scripted_text(model, tokens, stop="cd") == ("ab", {"type": "stop", "matched": "cd"})
    assert (await scripted_text(model, tokens, stop="cd", no_stop_trim=True))[0] == "abcd"


async def test_b04_hold_back_and_near_miss(model: Path) -> None:
    stop = " green blue grey"
    assert (await scripted_text(model, toy.ids(" red", " green", " blue", " grey"), stop=stop))[0] == " red"
    near_miss = await scripted_text(model, toy.ids(" red", " green", " blue", " gold"), stop=stop)
    assert near_miss == (" red green blue gold", {"type": "length", "length": 4})


async def test_b05_text_that_is_certain_is_sent_at_once(model: Path) -> None:
    async with running(model, paced(toy.ids("Hi", " there", "<", "3"))) as server:
        body = {"prompt": "go", "stop": "<END-OF-ANSWER>", "max_tokens": 4}
        assert texts(await server.client.stream(COMPLETIONS, body).events()) == ["Hi", " there", "<3"]


async def test_b07_a_stop_of_one_character_and_four_tokens(model: Path) -> None:
    cheese = "\U0001f9c0"
    for before in ("", "wo"):
        tokens = [*toy.ids(*before), *cheese.encode(), *toy.ids("x", "y")]
        assert await scripted_text(model, tokens, stop=cheese) == (before, {"type": "stop", "matched": cheese})


async def test_b08_an_unfinished_character_at_the_end(model: Path) -> None:
    assert await scripted_text(model, [0xE2, 0x82, toy.EOS]) == ("\ufffd", {"type": "stop", "matched": toy.EOS})


async def test_b10_a_prompt_that_ends_inside_a_character(model: Path) -> None:
    async with running(model, Script(tokens=[0xAC, *toy.ids("ok")])) as server:
        body = {"prompt": [*toy.ids("menu "), 0xE2, 0x82], "max_tokens": 2}
        assert "".join(texts(await server.client.stream(COMPLETIONS, body).events())) == "€ok"
        assert (await server.client.post(COMPLETIONS, body)).json["choices"][0]["text"] == "€ok"


async def test_b11_no_character_is_lost_at_an_edge(model: Path) -> None:
    text = "říz 떡볶이 🧭 कि"
    assert (await scripted_text(model, list(text.encode())))[0] == text


async def test_b13_stops_match_text_not_tokens(model: Path) -> None:
    assert (await scripted_text(model, toy.ids("Hi", " Where", "ok"), stop="Where"))[0] == "Hi "


async def test_b16_usage_counts_tokens_not_text(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a", "b"))) as server:
        answer = (
            await server.client.post(COMPLETIONS, {"prompt": "go", "max_tokens": 2, "return_token_ids": True})
        ).json
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["text"]) == (2, "ab")
        assert answer["choices"][0]["token_ids"] == toy.ids("a", "b")
        assert answer["choices"][0]["prompt_token_ids"] == toy.ids("g", "o")


async def test_a_stop_token_keeps_its_id_and_loses_its_text(model: Path) -> None:
    tokens = toy.ids("a", "b", "c")
    assert await scripted_text(model, tokens, stop_token_ids=[ord("b")]) == ("a", {"type": "stop", "matched": ord("b")})
    kept = await scripted_text(model, tokens, stop_token_ids=[ord("b")], no_stop_trim=True)
    assert kept[0] == "ab"
    shown = await scripted_text(model, [ord("a"), toy.EOS], skip_special_tokens=False)
    assert shown[0] == "a"


async def test_c01_one_finish_per_index(model: Path) -> None:
    def choose(prompt: tuple[int, ...], index: int) -> int | None:
        return None

    async with running(model, Script(choose=choose)) as server:
        body = {**ASK, "n": 3, "seed": 1, "temperature": 1.0, "max_tokens": 12}
        events = await server.client.stream(CHAT, body).events()
        assert events.pop() == "[DONE]"
        finishes = [c["index"] for e in events for c in e["choices"] if c["finish_reason"]]
        assert finishes == [0, 1, 2]
        roles = [c["index"] for e in events for c in e["choices"] if c["delta"].get("role")]
        assert sorted(roles) == [0, 1, 2]
        assert all(not e["choices"][0]["delta"].get("content") for e in events[-3:])


async def test_c02_all_choices_in_order(model: Path) -> None:
    async with running(model) as server:
        for path, body in ((CHAT, ASK), (COMPLETIONS, {"prompt": ["p" * 70, "q"]})):
            answer = (await server.client.post(path, {**body, "n": 5, "max_tokens": 4, "temperature": 1})).json
            count = 5 if path == CHAT else 10
            assert [choice["index"] for choice in answer["choices"]] == list(range(count))
            assert answer["usage"]["completion_tokens"] <= 4 * count
        assert answer["usage"]["prompt_tokens"] == 71  # each prompt once


async def test_native_samples_are_prompt_major(model: Path) -> None:
    script = Script(by_prompt={tuple(toy.ids("p")): toy.ids("a"), tuple(toy.ids("q")): toy.ids("b")})
    async with running(model, script) as server:
        body = {"text": ["p", "q"], "rid": "job", "sampling_params": {"n": 2, "max_new_tokens": 1}}
        answers = (await server.client.post(GENERATE, body)).json
        assert [answer["text"] for answer in answers] == ["a", "a", "b", "b"]
        assert [answer["meta_info"]["id"] for answer in answers] == ["job_0_0", "job_0_1", "job_1_0", "job_1_1"]
        streamed = await server.client.stream(GENERATE, body).events()
        assert {event["index"]: event["text"] for event in streamed[:-1]} == {0: "a", 1: "a", 2: "b", 3: "b"}


async def test_samples_of_a_long_prompt_share_its_cache(model: Path) -> None:
    async with running(model) as server:
        body = {"text": "x" * 100, "sampling_params": {"n": 3, "max_new_tokens": 2}}
        answers = (await server.client.post(GENERATE, body)).json
        cached = [answer["meta_info"]["cached_tokens"] for answer in answers]
        assert cached[0] == 0
        assert min(cached[1:]) >= 96


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_c04_c05_usage_when_asked(server: Server, path: str) -> None:
    base = ASK if path == CHAT else {"prompt": "go"}

    async def usages(options: Any) -> list[Any]:
        body = {**base, **({} if options is None else {"stream_options": options})}
        events = (await server.client.stream(path, body).events())[:-1]
        assert all("choices" in event for event in events)
        return [(bool(event["choices"]), event.get("usage")) for event in events]

    for options in (None, {}, {"include_usage": False}):
        assert not any(usage for _, usage in await usages(options))
    *rest, (has_choices, last) = await usages({"include_usage": True})
    assert not has_choices
    assert last["completion_tokens"] == 4
    assert not any(usage for _, usage in rest)
    assert all(usage for _, usage in await usages({"continuous_usage_stats": True}))


async def test_c07_an_aborted_stream_is_no_success(model: Path) -> None:
    for path, base in ((CHAT, ASK), (COMPLETIONS, {"prompt": "go"})):
        async with running(model, Script(tokens=toy.ids("a"), step_s=0.005)) as server:
            stream = server.client.stream(path, {**base, "max_tokens": 200, "rid": "job"})
            for _ in range(3):
                await stream.event()
            await server.client.post("/abort_request", {"rid": "job"})
            *_, last = await stream.events()
            assert last["error"]["object"] == "error"


async def test_c07_a_failed_step_ends_the_stream_with_an_error(model: Path) -> None:
    script = Script(tokens=toy.ids("a"), step_s=0.005)
    async with running(model, script) as server:
        script.fail_steps = {server.executor.steps + 4}
        *rest, last = await server.client.stream(CHAT, {**ASK, "max_tokens": 50}).events()
        assert last["error"]["code"] == 500
        assert not any(event["choices"][0]["finish_reason"] for event in rest)
        script.fail_steps = {server.executor.steps}
        failed = await server.client.post(CHAT, {**ASK, "max_tokens": 50})
        assert (failed.status, failed.json["code"]) == (500, 500)
        assert (await server.client.post(CHAT, {**ASK, "max_tokens": 2})).status == 200


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({}, "stop"),
        ({"stop": " there"}, "stop"),
        ({"max_tokens": 2}, "length"),
        ({"max_completion_tokens": 1}, "length"),
    ],
)
async def test_c08_one_finish_reason_then_done(server: Server, extra: dict[str, Any], reason: str) -> None:
    events = await server.client.stream(CHAT, {**ASK, **extra}).events()
    assert events.pop() == "[DONE]"
    assert [e["choices"][0]["finish_reason"] for e in events if e["choices"][0]["finish_reason"]] == [reason]


async def test_c10_silence_is_filled_with_comments(model: Path) -> None:
    script = Script(tokens=toy.ids("a"), step_s=0.4)
    async with running(model, script, stream_keep_alive=0.1) as server:
        events = await server.client.stream(CHAT, {**ASK, "max_tokens": 1}).events()
        assert events[0] == ": keep-alive"
        assert events[-1] == "[DONE]"


async def test_c13_clamped_and_said_so(model: Path) -> None:
    async with running(model, Script(tokens=[*toy.ids("ok"), toy.EOS]), context_length=64) as server:
        body = {"prompt": "x" * 60, "max_tokens": 10}
        answer = await server.client.post(COMPLETIONS, body)
        assert answer.json["choices"][0]["text"] == "ok"
        assert "reduced from 10 to 4" in answer.headers["x-ramet-warning"]
        stream = server.client.stream(COMPLETIONS, body)
        await stream.events()
        assert "reduced from 10 to 4" in stream.headers["x-ramet-warning"]
    async with running(model, Script(tokens=toy.ids("a")), context_length=64, allow_auto_truncate=True) as server:
        answer = await server.client.post(GENERATE, {"text": "x" * 100, "sampling_params": {"max_new_tokens": 9}})
        assert answer.json["meta_info"]["prompt_tokens"] == 55
        assert answer.json["meta_info"]["completion_tokens"] == 9
        assert "the first 45 of 100 prompt tokens were cut" in answer.headers["x-ramet-warning"]


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS])
async def test_c13_the_middle_of_a_prompt_is_cut_where_the_operator_chose_that(model: Path, path: str) -> None:
    options: dict[str, Any] = {"context_length": 64, "allow_auto_truncate": True, "truncate_prompt": "middle"}
    async with running(model, Script(tokens=toy.ids("a")), **options) as server:
        prompt = "b" * 50 + "e" * 50
        if path == GENERATE:
            body = {"text": prompt, "sampling_params": {"max_new_tokens": 9}, "return_prompt_token_ids": True}
        else:
            body = {"prompt": prompt, "max_tokens": 9, "return_token_ids": True}
        answer = await server.client.post(path, body)
        shown = answer.json if path == GENERATE else answer.json["choices"][0]
        assert bytes(shown["prompt_token_ids"]) == b"b" * 27 + b"e" * 28
        assert "tokens 28 to 72 of 100 prompt tokens were cut" in answer.headers["x-ramet-warning"]


async def test_chat_stream_has_the_order_of_events_that_clients_rely_on(server: Server) -> None:
    """surface.md 2.6."""
    events = await server.client.stream(CHAT, {**ASK, "model": "m"}).events()
    role, *content, finish, done = events
    assert done == "[DONE]"
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
    assert all(set(event["choices"][0]["delta"]) == {"content", "reasoning_content"} for event in content)
    assert "".join(event["choices"][0]["delta"]["content"] for event in content) == "Hi thereok"
    assert finish["choices"][0]["delta"] == {"reasoning_content": None}
    assert finish["choices"][0]["finish_reason"] == "stop"
    for event in events[:-1]:
        assert event["object"] == "chat.completion.chunk"
        assert event["model"] == "m"
        assert event["id"] == role["id"]
        assert set(event["choices"][0]) == {"index", "delta", "logprobs", "finish_reason", "matched_stop"}
    assert role["id"].startswith("chatcmpl-")


async def test_native_stream_is_cumulative_or_incremental(model: Path) -> None:
    """surface.md 13.2."""
    script = paced(toy.ids("a", "b", "c"))
    body = {"text": "go", "sampling_params": {"max_new_tokens": 3}, "return_logprob": True}
    async with running(model, script) as server:
        *chunks, done = await server.client.stream(GENERATE, body).events()
        assert done == "[DONE]"
        assert [chunk["text"] for chunk in chunks] == ["a", "ab", "abc"]
        assert [len(chunk["meta_info"]["output_token_logprobs"]) for chunk in chunks] == [1, 2, 3]
    async with running(model, script, incremental_streaming_output=True) as server:
        *chunks, done = await server.client.stream(GENERATE, body).events()
        assert [chunk["text"] for chunk in chunks] == ["a", "b", "c"]
        assert [chunk["output_ids"] for chunk in chunks] == [[97], [98], [99]]
        assert [len(chunk["meta_info"]["output_token_logprobs"]) for chunk in chunks] == [1, 1, 1]
    finals = [chunk["meta_info"]["finish_reason"] for chunk in chunks]
    assert finals == [None, None, {"type": "length", "length": 3}]
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]
    assert "e2e_latency" in chunks[-1]["meta_info"]


async def test_stream_interval_counts_tokens(model: Path) -> None:
    async with running(model, paced(toy.ids("a")), stream_interval=4) as server:
        sent = texts(await server.client.stream(COMPLETIONS, {"prompt": "go", "max_tokens": 10}).events())
        assert sent[0] == "a"
        assert "".join(sent) == "a" * 10
        assert len(sent) == 4  # 1, then 4 and 4, then the rest


async def test_a_slow_reader_gets_everything(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a", "b"))) as server:
        stream = server.client.stream(GENERATE, {"text": "go", "sampling_params": {"max_new_tokens": 100}})
        await asyncio.sleep(0.05)
        *chunks, done = await stream.events()
        assert done == "[DONE]"
        assert chunks[-1]["text"] == "ab" * 50
