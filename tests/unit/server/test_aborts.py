"""cases.md, section I: clients that go away, aborts, ids, health."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.server import running

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 200}
NATIVE: dict[str, Any] = {"text": "go", "sampling_params": {"max_new_tokens": 200}}


def slow() -> Script:
    return Script(tokens=toy.ids("a"), step_s=0.02)


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, ASK), (COMPLETIONS, {"prompt": "go", "max_tokens": 200}), (GENERATE, NATIVE)]
)
async def test_i01_a_dropped_stream_frees_its_pages(model: Path, path: str, body: dict[str, Any]) -> None:
    async with running(model, slow()) as server:
        stream = server.client.stream(path, body)
        await stream.event()
        await stream.leave()
        assert stream.task.done()
        info = await server.idle(1.0)
        assert info["totals"]["aborted"] == 1
        assert server.frontend.num_live == 0


@pytest.mark.parametrize(("path", "body"), [(CHAT, {**ASK, "n": 3}), (GENERATE, {**NATIVE, "text": ["x", "y"]})])
async def test_i02_a_dropped_plain_request_frees_its_pages(model: Path, path: str, body: dict[str, Any]) -> None:
    async with running(model, slow()) as server:
        exchange = server.client.open("POST", path, body)
        while (await server.info())["num_running_reqs"] < 2:
            await asyncio.sleep(0.005)
        await exchange.leave()
        info = await server.idle(1.0)
        assert info["totals"]["aborted"] == info["totals"]["requests"]


async def test_i04_a_queued_cancel_touches_nobody_else(model: Path) -> None:
    async with running(model, slow(), max_running_requests=1) as server:
        body = {"prompt": "go", "max_tokens": 30}
        first = server.client.open("POST", COMPLETIONS, body)
        await asyncio.sleep(0.02)
        second = server.client.stream(COMPLETIONS, {"prompt": "other", "max_tokens": 30})
        await asyncio.sleep(0.02)
        await second.leave()
        assert (await first.finish()).json["choices"][0]["text"] == "a" * 30


async def test_i05_an_aborted_id_is_free_again(model: Path) -> None:
    async with running(model, slow(), max_running_requests=1) as server:
        first = server.client.open("POST", GENERATE, {**NATIVE, "rid": "job-6"})
        await asyncio.sleep(0.02)
        queued = server.client.open("POST", GENERATE, {**NATIVE, "rid": "job-7"})
        await asyncio.sleep(0.02)
        assert (await server.client.post("/abort_request", {"abort_all": True})).status == 200
        for exchange in (first, queued):
            answer = await exchange.finish()
            assert answer.status == 200  # asked for by a client, so no error
            assert answer.json["meta_info"]["finish_reason"]["type"] == "abort"
        again = {**NATIVE, "rid": "job-7", "sampling_params": {"max_new_tokens": 1}}
        assert (await server.client.post(GENERATE, again)).json["text"] == "a"


async def test_i05_an_id_is_free_again_once_its_client_has_left(model: Path) -> None:
    """What the engine still had to say to the first client must not reach the second one."""
    async with running(model, slow()) as server:
        for _ in range(5):
            stream = server.client.stream(GENERATE, {**NATIVE, "rid": "again"})
            await stream.event()
            await stream.leave()
            body = {"text": "other", "rid": "again", "sampling_params": {"max_new_tokens": 3}}
            answer = (await server.client.post(GENERATE, body)).json
            assert (answer["text"], answer["meta_info"]["finish_reason"]["type"]) == ("aaa", "length")
            assert answer["meta_info"]["prompt_tokens"] == len("other")
        assert (await server.idle())["totals"]["aborted"] == 5


async def test_i01_pages_of_a_client_that_left_are_free_within_a_step(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.1)) as server:
        stream = server.client.stream(GENERATE, NATIVE)
        await stream.event()
        steps = server.executor.steps
        await stream.leave()
        await server.idle()
        assert server.executor.steps <= steps + 2  # the one that ran, and one that had been handed over already


async def test_i07_two_live_requests_with_one_id(model: Path) -> None:
    async with running(model, slow()) as server:
        first = server.client.stream(GENERATE, {**NATIVE, "rid": "twin"})
        await first.event()
        native = await server.client.post(GENERATE, {**NATIVE, "rid": "twin"})
        assert native.status == 400
        assert native.json["error"]["message"].startswith("Duplicate request ID detected")
        openai = await server.client.post(CHAT, {**ASK, "rid": "twin"})
        assert (openai.status, openai.json["param"]) == (409, "rid")
        twice = await server.client.post(GENERATE, {"text": ["a", "b"], "rid": ["x", "x"]})
        assert twice.status == 400
        await first.leave()
        await server.idle()


async def test_i13_abort_before_the_first_token(model: Path) -> None:
    async with running(model, slow(), chunked_prefill_size=8) as server:
        exchange = server.client.open("POST", GENERATE, {"text": "x" * 200, "rid": "early"})
        await asyncio.sleep(0.02)
        await server.client.post("/abort_request", {"rid": "ear"})  # ids match by prefix
        answer = await exchange.finish()
        assert answer.json["meta_info"]["finish_reason"]["type"] == "abort"
        assert answer.json["output_ids"] == []
        await server.idle(0.5)


async def test_samples_that_wait_for_the_first_one_are_aborted_too(model: Path) -> None:
    async with running(model, slow(), chunked_prefill_size=8) as server:
        body = {**NATIVE, "text": "x" * 200, "rid": "many", "sampling_params": {"n": 3, "max_new_tokens": 9}}
        exchange = server.client.open("POST", GENERATE, body)
        await asyncio.sleep(0.02)
        await server.client.post("/abort_request", {"rid": "many"})
        answers = (await exchange.finish()).json
        assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * 3
        await server.idle(0.5)


async def test_i10_probes_of_a_busy_engine_add_no_work(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.05)) as server:
        stream = server.client.stream(CHAT, ASK)
        await stream.event()
        before = (await server.info())["totals"]["requests"]
        for path in ("/health", "/health_generate"):
            for _ in range(3):
                answer = await server.client.get(path)
                assert (answer.status, answer.body) == (200, b"")
        assert (await server.info())["totals"]["requests"] == before
        await stream.leave()
        await server.idle()
        assert (await server.client.get("/health_generate")).status == 200


async def test_a_dead_engine_fails_health_and_every_request(model: Path) -> None:
    async with running(model, slow()) as server:
        stream = server.client.stream(CHAT, ASK)
        await stream.event()
        waiting = server.client.open("POST", GENERATE, NATIVE)
        await asyncio.sleep(0.02)

        def explode() -> bool:
            raise RuntimeError("boom")

        server.core.scheduler.step = explode  # type: ignore[method-assign]
        began = time.monotonic()
        *_, last = await stream.events()
        assert last["error"]["code"] == 503
        answer = await waiting.finish()
        assert answer.status == 503
        assert "boom" in answer.json["message"]
        assert (await server.client.get("/health")).status == 503
        assert (await server.client.get("/health_generate")).status == 503
        for path, body in ((CHAT, ASK), (GENERATE, NATIVE), ("/flush_cache", {})):
            assert (await server.client.post(path, body)).status == 503
        assert time.monotonic() - began < 2


async def test_a_full_queue_is_503(model: Path) -> None:
    async with running(model, slow(), max_running_requests=1, max_queued_requests=1) as server:
        streams = [server.client.stream(GENERATE, NATIVE) for _ in range(2)]
        await streams[0].event()
        while (await server.info())["num_queue_reqs"] != 1:
            await asyncio.sleep(0.005)
        for path, body in ((CHAT, ASK), (GENERATE, NATIVE)):
            answer = await server.client.post(path, body)
            assert answer.status == 503, answer.body
            assert answer.json["message"] == "The request queue is full."
        streamed = server.client.stream(CHAT, ASK)
        await streamed.finish()
        assert streamed.status == 503  # a stream that never began is an ordinary error, too
        for stream in streams:
            await stream.leave()
        await server.idle()


async def test_h17_flush_right_after_a_reply(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        for _ in range(100):
            body = {"text": "x" * 20, "sampling_params": {"max_new_tokens": 1}}
            assert (await server.client.post(GENERATE, body)).json["meta_info"]["cached_tokens"] == 0
            assert (await server.client.post("/flush_cache")).status == 200


async def test_flush_is_refused_while_something_runs(model: Path) -> None:
    async with running(model, slow()) as server:
        stream = server.client.stream(GENERATE, NATIVE)
        await stream.event()
        assert (await server.client.get("/flush_cache")).status == 400
        waited = server.client.open("POST", "/flush_cache?timeout=5")
        await asyncio.sleep(0.02)
        await stream.leave()
        assert (await waited.finish()).status == 200
        assert (await server.client.post("/flush_cache?timeout=soon")).status == 400
