"""Sessions of /generate: surface.md 1.11, cases.md I11."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from ramet.server import sessions as sessions_module
from support import toy
from support.server import Server, running

GENERATE = "/generate"


async def opened(server: Server, **fields: Any) -> str:
    answer = await server.client.post("/open_session", {"capacity_of_str_len": 1000, **fields})
    assert answer.status == 200, answer.body
    assert isinstance(answer.json, str)
    return str(answer.json)


def turn(session: str, text: str, new: int = 3, **params: Any) -> dict[str, Any]:
    return {
        "text": text,
        "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True},
        "session_params": {"id": session, **params},
        "return_prompt_token_ids": True,
    }


async def said(server: Server, body: dict[str, Any]) -> tuple[str, list[int], list[int]]:
    """(its rid, its whole prompt, its output)"""
    answer = await server.client.post(GENERATE, body)
    assert answer.status == 200, answer.body
    return answer.json["meta_info"]["id"], answer.json["prompt_token_ids"], answer.json["output_ids"]


async def test_turns_are_a_tree_named_by_request_ids(model: Path) -> None:
    async with running(model) as server:
        session = await opened(server)
        root, prompt, output = await said(server, turn(session, "one"))
        assert bytes(prompt).decode() == "one"
        left, left_prompt, left_output = await said(server, turn(session, "two", rid=root))
        assert left_prompt == [*prompt, *output, *b"two"]
        _, right_prompt, _ = await said(server, turn(session, "xyz", rid=root))
        assert right_prompt == [*prompt, *output, *b"xyz"]
        _, deep, _ = await said(server, turn(session, "!", rid=left))
        assert deep == [*left_prompt, *left_output, *b"!"]
        _, fresh, _ = await said(server, turn(session, "new"))
        assert fresh == [*b"new"]
        _, dropped, _ = await said(server, turn(session, "?", rid=left, drop_previous_output=True))
        assert dropped == [*left_prompt, *b"?"]
        cut, spliced, spliced_output = await said(server, turn(session, "+", rid=left, offset=5))
        assert spliced == [*left_prompt[:5], *b"+"]
        _, after, _ = await said(server, turn(session, "-", rid=cut))
        assert after == [*spliced, *spliced_output, *b"-"]


async def test_a_turn_without_new_tokens_goes_on_and_uses_the_cache(model: Path) -> None:
    async with running(model) as server:
        session = await opened(server)
        whole = await server.client.post(GENERATE, {**turn(session, "a long beginning", 8), "session_params": None})
        await server.client.post("/flush_cache")
        rid, prompt, output = await said(server, turn(session, "a long beginning", 4))
        body = {**turn(session, "", 4, rid=rid), "input_ids": []}
        del body["text"]
        answer = (await server.client.post(GENERATE, body)).json
        assert answer["prompt_token_ids"] == [*prompt, *output]
        assert [*output, *answer["output_ids"]] == whole.json["output_ids"]
        assert answer["meta_info"]["cached_tokens"] >= len(prompt)
        nothing = await server.client.post(GENERATE, {**body, "session_params": {"id": session}})
        assert nothing.status == 400


async def test_replace_forgets_what_followed(model: Path) -> None:
    async with running(model) as server:
        session = await opened(server)
        root, _, _ = await said(server, turn(session, "one"))
        child, _, _ = await said(server, turn(session, "two", rid=root))
        grandchild, _, _ = await said(server, turn(session, "three", rid=child))
        await said(server, turn(session, "other", rid=root, replace=True))
        for gone in (child, grandchild):
            assert (await server.client.post(GENERATE, turn(session, "x", rid=gone))).status == 400
        await said(server, turn(session, "clean", replace=True))
        assert (await server.client.post(GENERATE, turn(session, "x", rid=root))).status == 400


@pytest.mark.parametrize("streaming", [False, True])
async def test_i11_a_turn_that_did_not_finish_leaves_the_last_finished_one(model: Path, streaming: bool) -> None:
    async with running(model, Script(step_s=0.005)) as server:
        session = await opened(server, streaming=streaming)
        first, prompt, output = await said(server, turn(session, "zero"))
        known: dict[str, Any] = {} if streaming else {"rid": first}
        stream = server.client.stream(GENERATE, turn(session, "left alone", 90, **known))
        await stream.event()
        await stream.leave()
        aborted = server.client.open("POST", GENERATE, {**turn(session, "ended", 90, **known), "rid": "job"})
        await asyncio.sleep(0.03)
        await server.client.post("/abort_request", {"rid": "job"})
        assert (await aborted.finish()).json["meta_info"]["finish_reason"]["type"] == "abort"
        long = await server.client.post(GENERATE, turn(session, "x" * toy.CONTEXT, **known))
        assert long.status == 400
        if not streaming:
            assert (await server.client.post(GENERATE, turn(session, "x", rid="job"))).status == 400
        _, second, _ = await said(server, turn(session, "short", **known))
        assert second == [*prompt, *output, *b"short"]


async def test_a_streaming_session_is_one_line_with_one_request_at_a_time(model: Path) -> None:
    async with running(model, Script(step_s=0.005)) as server:
        session = await opened(server, streaming=True)
        events = (await server.client.stream(GENERATE, turn(session, "one")).events())[:-1]
        first = events[-1]
        _, second, _ = await said(server, turn(session, "two"))
        assert second == [*first["prompt_token_ids"], *first["output_ids"], *b"two"]
        busy = server.client.open("POST", GENERATE, turn(session, "three", 50))
        await asyncio.sleep(0.03)
        refused = await server.client.post(GENERATE, turn(session, "four"))
        assert (refused.status, b"one request at a time" in refused.body) == (400, True)
        await busy.finish()
        for fields in ({"offset": 1}, {"replace": True}, {"drop_previous_output": True}):
            assert (await server.client.post(GENERATE, turn(session, "x", **fields))).status == 400
        assert len((await said(server, turn(session, "five")))[1]) > 50


async def test_what_is_wrong_with_a_session_is_said(model: Path) -> None:
    async with running(model) as server:
        answer = await server.client.post(GENERATE, turn("nowhere", "x"))
        assert answer.status == 400
        assert b"session id 'nowhere' does not exist" in answer.body
        session = await opened(server, session_id="mine")
        assert (
            await server.client.post("/open_session", {"capacity_of_str_len": 1, "session_id": "mine"})
        ).status == 400
        assert (await server.client.post("/open_session", {})).status == 400
        for bad in (
            {**turn(session, "x"), "text": ["a", "b"]},
            turn(session, "x", offset=-1),
            turn(session, "x", rid=9),
        ):
            assert (await server.client.post(GENERATE, bad)).status == 400
        several = turn(session, "x")
        several["sampling_params"]["n"] = 2
        assert (await server.client.post(GENERATE, several)).status == 400
        named = {**turn(session, "x"), "rid": "same"}
        await said(server, named)
        assert (await server.client.post(GENERATE, named)).status == 400
        for _ in range(2):
            answer = await server.client.post("/close_session", {"session_id": session})
            assert (answer.status, answer.body) == (200, b"")
        assert (await server.client.post(GENERATE, turn(session, "x"))).status == 400


async def test_sessions_end_when_they_are_not_used_or_memory_is_short(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(model) as server:
        short = await opened(server, timeout=0.02)
        await said(server, turn(short, "x"))
        await asyncio.sleep(0.04)
        assert (await server.client.post(GENERATE, turn(short, "x"))).status == 400
        monkeypatch.setattr(sessions_module, "MAX_TOKENS", 40)
        old, new = await opened(server), await opened(server)
        await said(server, turn(old, "x" * 20))
        await said(server, turn(new, "x" * 20))
        assert (await server.client.post(GENERATE, turn(old, "x"))).status == 400
        await said(server, turn(new, "x"))
        monkeypatch.setattr(sessions_module, "MAX_SESSIONS", 1)
        assert (await server.client.post("/open_session", {"capacity_of_str_len": 1})).status == 503
