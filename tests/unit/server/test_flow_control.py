"""Pauses, loads and what may be changed while the server runs; surface.md 1.4, 1.10, 1.14."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from ramet.server.loads import prometheus
from support import toy
from support.server import Server, running

GENERATE = "/generate"


def ask(new: int = 60, **fields: Any) -> dict[str, Any]:
    return {"text": "go", "sampling_params": {"max_new_tokens": new, "temperature": 0, "ignore_eos": True}, **fields}


async def started(server: Server, count: int) -> None:
    """Wait until so many requests have a row."""
    until = time.monotonic() + 5
    while (await server.info())["num_running_reqs"] < count:
        assert time.monotonic() < until
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_stops_the_work_and_its_end_goes_on_with_the_same_tokens(model: Path, mode: str) -> None:
    async with running(model, Script(step_s=0.002)) as server:
        expected = (await server.client.post(GENERATE, ask())).json
        await server.client.post("/flush_cache")
        running_request = server.client.open("POST", GENERATE, ask())
        await started(server, 1)
        answer = await server.client.post("/pause_generation", {"mode": mode})
        assert answer.json == {"message": "Generation paused successfully.", "status": "ok"}
        steps = server.executor.steps
        late = server.client.open("POST", GENERATE, ask(3))
        await asyncio.sleep(0.05)
        assert server.executor.steps == steps
        assert (await server.client.get("/ready")).status == 503
        assert (await server.client.get("/ping")).status == (await server.client.get("/health")).status == 200
        assert (await server.client.get("/health_generate")).status == 200
        info = await server.info()
        assert (info["num_running_reqs"], info["num_queue_reqs"]) == ((0, 2) if mode == "retract" else (1, 1))
        assert (info["token_usage"] == 0) == (mode == "retract")
        # Without its memory a request does not keep the cache from being flushed.
        assert (await server.client.post("/flush_cache")).status == (200 if mode == "retract" else 400)
        answer = await server.client.post("/continue_generation", {})
        assert answer.json == {"message": "Generation continued successfully.", "status": "ok"}
        done = (await running_request.finish()).json
        assert done["output_ids"] == expected["output_ids"]
        assert done["meta_info"]["num_retractions"] == (mode == "retract")
        assert (await late.finish()).json["output_ids"] == expected["output_ids"][:3]
        assert (await server.client.get("/ready")).status == 200
        await server.idle()


async def test_a_pause_by_default_ends_what_lives_and_lets_new_requests_wait(model: Path) -> None:
    async with running(model, Script(step_s=0.002)) as server:
        first = server.client.open("POST", GENERATE, ask(200))
        await started(server, 1)
        assert (await server.client.open("POST", "/pause_generation").finish()).status == 200  # no body
        ended = (await first.finish()).json
        assert ended["meta_info"]["finish_reason"]["type"] == "abort"
        second = server.client.open("POST", GENERATE, ask(2))
        await asyncio.sleep(0.03)
        assert not second.task.done()
        await server.client.post("/abort_request", {"abort_all": True})
        assert (await second.finish()).json["meta_info"]["finish_reason"]["type"] == "abort"
        third = server.client.open("POST", GENERATE, ask(2, timeout_s=0.05))
        assert (await third.finish()).status == 503  # its deadline passes during the pause
        await server.client.post("/continue_generation")
        assert (await server.client.post(GENERATE, ask(2))).status == 200


async def test_a_paused_engine_keeps_saying_that_it_lives_and_drains_when_it_is_stopped(model: Path) -> None:
    async with running(model, Script(step_s=0.002)) as server:
        waits = server.client.open("POST", GENERATE, ask(30))
        await started(server, 1)
        await server.client.post("/pause_generation", {"mode": "in_place"})
        before = server.frontend.last_message_s
        await asyncio.sleep(0.8)
        assert server.frontend.last_message_s > before
        await server.frontend.stop(drain=True)
        assert len((await waits.finish()).json["output_ids"]) == 30


async def test_bad_bodies(model: Path) -> None:
    async with running(model) as server:
        answer = await server.client.post("/pause_generation", {"mode": "sleep"})
        assert answer.status == 400
        assert b"mode" in answer.body
        answer = await server.client.post("/pause_generation", {"mode": "retract", "mod": 1})
        assert "mod" in answer.headers["x-ramet-warning"]
        assert (await server.client.post("/set_internal_state", {})).status == 400


async def test_loads(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.01)) as server:
        stream = server.client.stream(GENERATE, ask(100))
        await stream.event()
        await server.client.post("/pause_generation", {"mode": "in_place"})
        waits = server.client.open("POST", GENERATE, ask(1))
        await asyncio.sleep(0.02)
        answer = (await server.client.get("/v1/loads")).json
        (load,) = answer["loads"]
        assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 1, 1)
        assert load["num_total_tokens"] == load["num_used_tokens"] + load["num_waiting_uncached_tokens"]
        assert load["num_waiting_uncached_tokens"] == 2
        assert 0 < load["token_usage"] <= load["utilization"] <= 1
        assert load["queues"] == {"waiting": 1, "grammar": 0, "paused": 1, "retracted": 0}
        assert load["memory"] == {"token_capacity": load["max_total_num_tokens"]}
        core = (await server.client.get("/v1/loads?include=core,queues")).json["loads"][0]
        assert "queues" in core
        assert "memory" not in core
        assert (await server.client.get("/v1/loads?dp_rank=3")).json["loads"] == []
        text = (await server.client.get("/v1/loads?format=prometheus")).body.decode()
        assert 'sglang_num_running_reqs{dp_rank="0"} 1\n' in text
        assert 'sglang_queues_waiting{dp_rank="0"} 1\n' in text
        for query in ("include=cores", "format=xml", "dp_rank=x", "dp_rank=-1"):
            assert (await server.client.get(f"/v1/loads?{query}")).status == 400
        await server.client.post("/continue_generation")
        await waits.finish()
        await stream.leave()
    assert prometheus([]) == ""


async def test_only_safe_options_change_while_the_server_runs(model: Path) -> None:
    async with running(model, Script(tokens=toy.ids("a"), step_s=0.01), max_running_requests=1) as server:
        change = {"max_queued_requests": 1, "schedule_conservativeness": 0.5}
        assert (await server.client.post("/set_internal_state", {"server_args": change})).json == [True]
        first = server.client.open("POST", GENERATE, ask(30))
        await started(server, 1)
        second = server.client.open("POST", GENERATE, ask(1))
        while not (await server.info())["num_queue_reqs"]:
            await asyncio.sleep(0.002)
        assert (await server.client.post(GENERATE, ask(1))).status == 503
        unknown = {"server_args": {"max_queued_requests": 9, "api_key": 1}}
        assert (await server.client.post("/set_internal_state", unknown)).json == [False]
        assert server.core.scheduler.config.max_queued_requests == 1
        bad = await server.client.post("/set_internal_state", {"server_args": {"max_queued_requests": 0}})
        assert bad.status == 400
        assert b"at least 1" in bad.body
        await asyncio.gather(first.finish(), second.finish())


async def test_freezing_garbage_collection(model: Path) -> None:
    async with running(model) as server:
        try:
            answer = await server.client.post("/freeze_gc")
            assert answer.status == 200
            assert gc.get_freeze_count() > 1000
        finally:
            gc.unfreeze()
