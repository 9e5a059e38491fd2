"""Scoring without generating, and prompts that must not share a cache: cases.md G04, G05, A14, H19."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.server import running

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"


async def test_echo_without_new_tokens_scores_the_prompt(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        body: dict[str, Any] = {"prompt": "tick tock", "echo": True, "logprobs": 2, "max_tokens": 0}
        answer = await server.client.post(COMPLETIONS, body)
        choice = answer.json["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("tick tock", "length")
        assert answer.json["usage"]["completion_tokens"] == 0
        shown = choice["logprobs"]
        assert {len(column) for column in shown.values()} == {9}
        assert shown["token_logprobs"][0] is None
        longer = (await server.client.post(COMPLETIONS, {**body, "max_tokens": 1})).json["choices"][0]["logprobs"]
        assert {name: column[:9] for name, column in longer.items()} == shown
        events = (await server.client.stream(COMPLETIONS, body).events())[:-1]
        (event,) = [event for event in events if event["choices"]]
        assert event["choices"][0]["logprobs"] == shown
        batch = (await server.client.post(COMPLETIONS, {**body, "prompt": ["tick tock", "go"]})).json["choices"]
        assert batch[0]["logprobs"] == shown
        assert len(batch[1]["logprobs"]["tokens"]) == 2
        bare = (await server.client.post(COMPLETIONS, {"prompt": "tick", "max_tokens": 0})).json["choices"][0]
        assert (bare["text"], bare["logprobs"]) == ("", None)
        await server.idle()


async def test_echo_with_several_samples_repeats_the_prompt_in_each(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        body = {"prompt": "tick", "echo": True, "logprobs": 1, "max_tokens": 2, "n": 3}
        choices = (await server.client.post(COMPLETIONS, body)).json["choices"]
        assert [choice["text"] for choice in choices] == ["tickaa"] * 3
        assert [choice["logprobs"]["token_logprobs"][0] for choice in choices] == [None] * 3
        assert {len(choice["logprobs"]["tokens"]) for choice in choices} == {6}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
@pytest.mark.parametrize("field", ["cache_salt", "extra_key"])
async def test_h19_salts_isolate(model: Path, path: str, field: str) -> None:
    """Salts a, b, a, none, "": nothing is shared but with the same salt; none and "" are the same."""
    text = "a prompt of some tokens"
    bodies: dict[str, dict[str, Any]] = {
        COMPLETIONS: {"prompt": text, "max_tokens": 1},
        CHAT: {"messages": [{"role": "user", "content": text}], "max_tokens": 1},
        GENERATE: {"text": text, "sampling_params": {"max_new_tokens": 1}},
    }
    base = bodies[path]
    async with running(model) as server:

        async def cached(salt: str | None) -> int:
            body = base if salt is None else {**base, field: salt}
            answer = (await server.client.post(path, body)).json
            if path == GENERATE:
                return int(answer["meta_info"]["cached_tokens"])
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(salt) for salt in ("a", "b")] == [0, 0]
        hit = await cached("a")
        assert hit > 0
        assert await cached(None) == 0
        assert await cached("") == await cached(None) == hit


async def test_h19_each_prompt_of_a_batch_has_its_own_salt(model: Path) -> None:
    async with running(model) as server:
        body = {"text": ["a prompt of tokens"] * 3, "sampling_params": {"max_new_tokens": 1}}
        await server.client.post(GENERATE, {**body, "cache_salt": ["a", "b", None]})
        again = (await server.client.post(GENERATE, {**body, "cache_salt": ["b", "c", "a"]})).json
        assert [answer["meta_info"]["cached_tokens"] > 0 for answer in again] == [True, False, True]
        both = {"text": "a prompt of tokens", "sampling_params": {"max_new_tokens": 1}, "cache_salt": "a"}
        answer = (await server.client.post(GENERATE, {**both, "extra_key": "k"})).json
        assert answer["meta_info"]["cached_tokens"] == 0
        assert (await server.client.post(GENERATE, {**body, "cache_salt": ["a"]})).status == 400
