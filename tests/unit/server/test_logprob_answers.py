"""cases.md, section G: logprobs in every dialect's shape."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from ramet.server.openai.logprobs import FLOOR, CompletionLogprobs, chat_logprobs, finite, token_text
from ramet.types import TokenLogprob
from support import toy
from support.server import Server, running

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"


@pytest.fixture
async def server(model: Path) -> AsyncIterator[Server]:
    async with running(model, Script(tokens=[*toy.ids("a"), 0xE2, 0x82, 0xAC])) as server:
        yield server


def test_g01_infinities_become_numbers_that_json_has() -> None:
    assert finite(-math.inf) == finite(math.nan) == FLOOR
    assert finite(None) is None
    entry = TokenLogprob(97, -1.0, [(97, -1.0), (98, -math.inf)])
    shown = chat_logprobs([entry], [bytes([i]) for i in range(256)])
    assert shown["content"][0]["top_logprobs"][1] == {"token": "b", "bytes": [98], "logprob": FLOOR}


async def test_g02_echo_with_top_k(server: Server) -> None:
    body = {"prompt": "menu tick", "echo": True, "logprobs": 1, "max_tokens": 1}
    plain = (await server.client.post(COMPLETIONS, body)).json["choices"][0]["logprobs"]
    narrow = (await server.client.post(COMPLETIONS, {**body, "top_k": 1})).json["choices"][0]["logprobs"]
    assert narrow["token_logprobs"][:-1] == plain["token_logprobs"][:-1]


async def test_g04_echo_scores_the_prompt(server: Server) -> None:
    body = {"prompt": "tick tock", "echo": True, "logprobs": 2, "max_tokens": 1}
    choice = (await server.client.post(COMPLETIONS, body)).json["choices"][0]
    shown = choice["logprobs"]
    assert choice["text"] == "tick tocka"
    assert {len(shown[key]) for key in shown} == {10}
    assert shown["token_logprobs"][0] is None
    assert shown["top_logprobs"][0] is None
    assert all(isinstance(value, float) for value in shown["token_logprobs"][1:])
    assert "".join(shown["tokens"]) == "tick tocka"
    assert shown["text_offset"] == list(range(10))
    events = (await server.client.stream(COMPLETIONS, body).events())[:-1]
    assert "".join(event["choices"][0]["text"] for event in events) == "tick tocka"
    assert [token for event in events for token in event["choices"][0]["logprobs"]["tokens"]] == shown["tokens"]


async def test_g05_prompt_logprobs_do_not_depend_on_the_cache(server: Server) -> None:
    body: dict[str, Any] = {"text": "tick tock", "sampling_params": {"max_new_tokens": 1}}
    asked = {**body, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 3}
    cold = (await server.client.post(GENERATE, asked)).json["meta_info"]
    await server.client.post("/flush_cache")
    await server.client.post(GENERATE, body)
    warm = (await server.client.post(GENERATE, asked)).json["meta_info"]
    assert warm["input_token_logprobs"] == cold["input_token_logprobs"]
    assert warm["input_top_logprobs"] == cold["input_top_logprobs"]
    assert warm["cached_tokens"] == 0


async def test_native_triples(server: Server) -> None:
    """surface.md 13.1."""
    body = {
        "text": "menu x",
        "sampling_params": {"max_new_tokens": 2},
        "return_logprob": True,
        "logprob_start_len": 0,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5],
        "return_text_in_logprobs": True,
    }
    answer = await server.client.post(GENERATE, body)
    assert answer.status == 200, answer.body
    meta = answer.json["meta_info"]
    assert meta["input_token_logprobs"][0] == [None, toy.piece("menu "), "menu "]
    assert len(meta["input_token_logprobs"]) == 2
    assert meta["input_top_logprobs"][0] is None
    assert [triple[1] for triple in meta["output_token_logprobs"]] == [97, 0xE2]
    assert meta["output_token_logprobs_length"] == 2
    assert len(meta["output_top_logprobs"][0]) == 2
    assert meta["output_token_ids_logprobs"][0][0][1] == 5
    assert meta["input_token_ids_logprobs"][0] is None
    (chosen,) = meta["input_token_ids_logprobs"][1]
    assert chosen[1] == 5
    assert chosen[0] < meta["input_top_logprobs"][1][0][0]
    only_output = (await server.client.post(GENERATE, {"text": "x", "return_logprob": True})).json["meta_info"]
    assert only_output["input_token_logprobs"] == []
    late = await server.client.post(GENERATE, {"text": "x", "return_logprob": True, "logprob_start_len": 7})
    assert late.status == 400


async def test_g08_lists_per_token_whatever_the_interval(model: Path) -> None:
    body = {
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": 7,
        "logprobs": True,
        "top_logprobs": 3,
        "seed": 3,
    }
    found = []
    for interval in (1, 2, 5):
        async with running(model, Script(tokens=[*toy.ids("a"), 0xE2, 0x82, 0xAC]), stream_interval=interval) as server:
            events = (await server.client.stream(CHAT, body).events())[:-1]
            entries: list[Any] = []
            for event in events:
                logprobs = event["choices"][0]["logprobs"]
                entries += logprobs["content"] if logprobs else []
            whole = (await server.client.post(CHAT, body)).json["choices"][0]["logprobs"]["content"]
            assert entries == whole
            found.append(entries)
    assert found[0] == found[1] == found[2]
    assert [len(entry["top_logprobs"]) for entry in found[0]] == [3] * 7
    assert found[0][1]["bytes"] == [0xE2]
    assert found[0][1]["token"] == "â"


def test_offsets_count_characters() -> None:
    table = [b"ab", b"\xe2\x82", b"\xac", b"c"]
    shown = CompletionLogprobs(table, 1)
    first = shown.render([TokenLogprob(0, -1.0), TokenLogprob(1, -1.0)])
    rest = shown.render([TokenLogprob(2, -1.0), TokenLogprob(3, -1.0, [(3, -1.0), (99, -2.0)])])
    assert first["text_offset"] + rest["text_offset"] == [0, 2, 2, 3]
    assert rest["top_logprobs"] == [None, {"c": -1.0, "": -2.0}]
    assert token_text(b"\xe2\x82") == "â\x82"


@pytest.mark.parametrize("body", [{"top_logprobs": 101, "logprobs": True}, {"top_logprobs": 2}, {"top_logprobs": -1}])
async def test_top_logprobs_out_of_range(server: Server, body: dict[str, Any]) -> None:
    answer = await server.client.post(CHAT, {"messages": [{"role": "user", "content": "x"}], **body})
    assert (answer.status, answer.json["param"]) == (400, "top_logprobs")
