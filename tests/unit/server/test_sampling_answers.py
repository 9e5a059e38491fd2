"""Sampling fields end to end, on every route that has them: patterns, processors, budgets, deadlines, intervals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.asgi import Exchange
from support.server import running

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
ROUTES = (GENERATE, COMPLETIONS, CHAT)


def body(path: str, new: int, **fields: Any) -> dict[str, Any]:
    """The same wish in each dialect."""
    if path == GENERATE:
        beside: dict[str, Any] = {
            name: fields.pop(name) for name in ("custom_logit_processor", "timeout_s") if name in fields
        }
        return {"text": "go", "sampling_params": {"max_new_tokens": new, **fields}, **beside}
    prompt = {"messages": [{"role": "user", "content": "go"}]} if path == CHAT else {"prompt": "go"}
    return {**prompt, "max_tokens": new, **fields}


def shown(path: str, answer: Exchange) -> tuple[str, Any]:
    """(text, what stopped it)"""
    assert answer.status == 200, answer.body
    if path == GENERATE:
        return answer.json["text"], answer.json["meta_info"]["finish_reason"].get("matched")
    choice = answer.json["choices"][0]
    return choice["message"]["content"] if path == CHAT else choice["text"], choice["matched_stop"]


@pytest.mark.parametrize("path", ROUTES)
async def test_a_pattern_ends_the_text_behind_its_match(model: Path, path: str) -> None:
    async with running(model, Script(tokens=toy.ids("sun", "moon", "star", "dust"))) as server:
        wish = body(path, 9, stop_regex="o+ns")
        assert shown(path, await server.client.post(path, wish)) == ("sunmoons", "o+ns")
        if path != GENERATE:
            events = (await server.client.stream(path, wish).events())[:-1]
            deltas = [choice for event in events for choice in event["choices"]]
            text = "".join((one["delta"].get("content") or "") if path == CHAT else one["text"] for one in deltas)
            assert text == "sunmoons"


@pytest.mark.parametrize("path", ROUTES)
async def test_named_processors(model: Path, path: str) -> None:
    async with running(model, Script(tokens=toy.ids("sun", "moon"))) as server:
        banned = {"custom_logit_processor": "disallowed_tokens", "custom_params": {"token_ids": toy.ids("moon")}}
        text, _ = shown(path, await server.client.post(path, body(path, 6, ignore_eos=True, **banned)))
        assert "sun" in text
        assert "moon" not in text
        only = {"custom_logit_processor": "allowed_tokens", "custom_params": {"token_ids": toy.ids("dust")}}
        assert shown(path, await server.client.post(path, body(path, 3, **only)))[0] == "dust" * 3


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"custom_logit_processor": '{"callable": "8004"}'}, "code is not accepted"),
        ({"custom_logit_processor": "nonsense"}, "no such processor"),
        ({"custom_logit_processor": "disallowed_tokens"}, "token_ids"),
        ({"custom_logit_processor": "disallowed_tokens", "custom_params": {"token_ids": [True]}}, "token_ids"),
        ({"custom_logit_processor": "disallowed_tokens", "custom_params": {"token_ids": [1 << 40]}}, "vocabulary"),
        ({"custom_params": {"x": 1}}, "custom_logit_processor"),
        ({"custom_params": {"thinking_budget": 4}}, "--reasoning-parser"),
        ({"custom_params": {"thinking_budget": -4}}, "at least 0"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"timeout_s": 1e300}, "timeout_s"),
    ],
)
async def test_what_a_processor_cannot_mean_is_refused(
    model: Path, path: str, fields: dict[str, Any], field: str
) -> None:
    async with running(model) as server:
        answer = await server.client.post(path, body(path, 2, **fields))
        assert answer.status == 400, answer.body
        assert field.encode() in answer.body


@pytest.mark.parametrize("path", ROUTES)
async def test_a_thinking_budget_closes_the_thinking(model: Path, path: str) -> None:
    script = Script(tokens=[*map(ord, "<think>abcdefgh</think>ok")])
    async with running(model, script, reasoning_parser="qwen3") as server:
        wish = body(path, 32, custom_params={"thinking_budget": 3})
        answer = await server.client.post(path, wish)
        text, _ = shown(path, answer)
        if path == CHAT:
            message = answer.json["choices"][0]["message"]
            assert message["reasoning_content"] == "abc"
            assert text.startswith("ink>ok")  # the script has gone on beneath
        else:
            assert text.startswith("<think>abc\n</think>")
        free = await server.client.post(path, body(path, 25, custom_params={"thinking_budget": 20}))
        if path == CHAT:
            assert free.json["choices"][0]["message"]["reasoning_content"] == "abcdefgh"
        else:
            assert shown(path, free)[0] == "<think>abcdefgh</think>ok"


@pytest.mark.parametrize("path", ROUTES)
async def test_a_deadline_ends_the_request_and_frees_its_memory(model: Path, path: str) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.02)) as server:
        answer = await server.client.post(path, body(path, 100, timeout_s=0.1))
        assert answer.status == 503
        assert b"deadline" in answer.body
        await server.idle()
        assert shown(path, await server.client.post(path, body(path, 2, timeout_s=60)))[0] == "aa"


@pytest.mark.parametrize("path", ROUTES)
async def test_a13_the_configs_ends_are_held_back_where_the_tokenizer_has_none(tmp_path: Path, path: str) -> None:
    model = toy.write(tmp_path / "model", eos_token_id=[7, 9])
    settings = {"bos_token": "<bos>", "chat_template": toy.TEMPLATE}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    for end in (7, 9):
        async with running(model, Script(tokens=[end])) as server:
            name = "min_new_tokens" if path == GENERATE else "min_tokens"
            answer = await server.client.post(path, body(path, 9, **{name: 4}))
            assert shown(path, answer)[1] == end
            usage = answer.json["meta_info"] if path == GENERATE else answer.json["usage"]
            assert usage["completion_tokens"] == 5
            if path == GENERATE:
                assert not {7, 9} & set(answer.json["output_ids"][:4])


async def test_m01_hits_are_counted_and_not_only_shown_for_the_last_batch(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        wish = {"text": "a prompt of some tokens", "sampling_params": {"max_new_tokens": 1}}
        found = [
            (await server.client.post(GENERATE, one)).json["meta_info"]
            for one in (wish, wish, wish, {**wish, "text": "no"})
        ]
        assert [meta["cached_tokens"] > 0 for meta in found] == [False, True, True, False]
        text = (await server.client.get("/metrics")).body.decode()
        for name, key in (("cached_tokens", "cached_tokens"), ("prompt_tokens", "prompt_tokens")):
            total = float(sum(meta[key] for meta in found))
            assert f'sglang:{name}_total{{model_name="toy"}} {total}\n' in text


async def test_a_request_has_its_own_stream_interval(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.005)) as server:
        wish = {"text": "go", "sampling_params": {"max_new_tokens": 9, "stream_interval": 4}}
        events = (await server.client.stream(GENERATE, wish).events())[:-1]
        assert [event["meta_info"]["completion_tokens"] for event in events] == [1, 5, 9]


async def test_spaces_between_special_tokens_change_nothing_as_with_fast_tokenizers(model: Path) -> None:
    async with running(model, Script(tokens=[toy.TURN, *toy.ids("sun"), toy.TURN])) as server:
        for spaces in (True, False):
            fields = {"skip_special_tokens": False, "spaces_between_special_tokens": spaces}
            for path in ROUTES:
                answer = await server.client.post(path, body(path, 3, **fields))
                assert shown(path, answer)[0] == "<turn>sun<turn>"
