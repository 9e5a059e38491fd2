"""The engine's loop on a thread: messages in, deltas and replies out, one `Dead` at the end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

import ramet.engine
from ramet.channel import Abort, Call, Dead, Deltas, Inbox, Reply, Stop, Submit, ThreadTextSide, thread_channel
from ramet.config.tree import CacheSection, SchedulerSection
from ramet.engine import EngineCore, EngineThread
from ramet.errors import BrokenInvariant, ConfigError, EngineDeadError
from ramet.executor.base import Layout
from ramet.executor.scripted import Script, ScriptedExecutor
from ramet.types import TokenDelta
from support.simulation import VOCAB, request, solo


class Host:
    """An engine thread and what it said."""

    def __init__(self, script: Script | None = None, *, depth: int = 0, **cache: Any) -> None:
        layout = Layout(num_pages=64, page_size=4, max_rows=4, max_row_tokens=128, max_step_tokens=36)
        self.executor = ScriptedExecutor(layout, VOCAB, script)
        self.core = EngineCore(
            self.executor, SchedulerSection(chunked_prefill_size=32), CacheSection(**cache), depth=depth, info={"a": 1}
        )
        self.thread = EngineThread(lambda: self.core)
        self.text: ThreadTextSide = self.thread.start()
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.replies: dict[int, Reply] = {}
        self.dead: Dead | None = None

    async def until(self, done: Callable[[], bool]) -> None:
        while not done():
            message = await asyncio.wait_for(self.text.receive(), 10)
            if isinstance(message, Deltas):
                for delta in message.deltas:
                    self.deltas.setdefault(delta.rid, []).append(delta)
            elif isinstance(message, Reply):
                self.replies[message.id] = message
            else:
                self.dead = message

    def finished(self, rid: str) -> bool:
        return bool(self.deltas.get(rid)) and self.deltas[rid][-1].finish is not None

    def tokens(self, rid: str) -> list[int]:
        return [token for delta in self.deltas[rid] for token in delta.token_ids]

    async def call(self, id: int, method: str, **args: Any) -> Reply:
        self.text.send(Call(id, method, args))
        await self.until(lambda: id in self.replies)
        return self.replies[id]


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    yield host
    host.text.close()
    assert host.thread.join(5)


@pytest.mark.parametrize("depth", [0, 1])
async def test_requests_are_served_and_the_engine_stops(depth: int) -> None:
    host = Host(depth=depth)
    specs = [request(f"r{i}", [i, 2, 3], 6) for i in range(6)]
    host.text.send(Submit(specs))
    await host.until(lambda: all(host.finished(spec.rid) for spec in specs))
    assert [host.tokens(spec.rid) for spec in specs] == [solo(spec) for spec in specs]
    host.text.send(Stop())
    await host.until(lambda: host.dead is not None)
    assert host.thread.join(5)
    assert host.executor.closed
    with pytest.raises(EngineDeadError):
        await host.text.receive()
    with pytest.raises(EngineDeadError):
        host.text.send(Submit([]))


async def test_calls_answer_or_say_what_is_wrong(host: Host) -> None:
    info = (await host.call(1, "server_info")).value
    assert (info["a"], info["executor"], info["max_total_num_tokens"]) == (1, "scripted", 256)
    assert info["max_req_input_len"] == 127
    assert host.thread.info["page_size"] == 4
    unknown = await host.call(2, "fly")
    assert unknown.error is not None
    assert unknown.error[0] == "NotFoundError"
    wrong = await host.call(3, "flush_cache", hard=True)
    assert wrong.error is not None
    assert wrong.error[0] == "RequestError"
    too_many = await host.call(4, "set_vocabulary", token_bytes=[b"x"] * (VOCAB + 1))
    assert too_many.error is not None
    assert "102 tokens given" in too_many.error[1]


async def test_a_long_prefill_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ramet.engine, "HEARTBEAT_S", 0.02)
    host = Host(Script(token_s=0.001))
    host.text.send(Submit([request("a", range(100), 1)]))
    messages = [await host.text.receive() for _ in range(3)]
    assert messages == [Deltas([])] * 3
    await host.until(lambda: host.finished("a"))
    host.text.close()
    assert host.thread.join(5)


async def test_stop_strings_work_once_the_vocabulary_is_known(host: Host) -> None:
    spec = request("a", [1], 9, stop=("\x00",))
    host.text.send(Submit([spec]))
    await host.until(lambda: host.finished("a"))
    assert host.deltas.pop("a")[-1].finish is not None
    first = solo(request("x", [1], 9))
    await host.call(1, "set_vocabulary", token_bytes=[bytes([0 if token == first[2] else 65]) for token in range(100)])
    host.text.send(Submit([spec]))
    await host.until(lambda: host.finished("a"))
    assert host.tokens("a") == first[:3]
    assert host.deltas["a"][-1].cut_bytes == 1


async def test_a_flush_forgets_prefixes_but_not_under_a_running_request(host: Host) -> None:
    host.executor.script.step_s = 0.01
    host.text.send(Submit([request("a", range(9), 50)]))
    assert (await host.call(1, "flush_cache")).value is False
    host.text.send(Abort(rids=["a"]))
    assert (await host.call(2, "flush_cache")).value is True
    host.text.send(Submit([request("b", range(9), 1)]))
    await host.until(lambda: host.finished("b"))
    assert host.deltas["b"][0].cached_tokens == 0


async def test_a_disabled_prefix_cache_forgets_every_request() -> None:
    host = Host(disable_radix_cache=True)
    for rid in "ab":
        host.text.send(Submit([request(rid, range(9), 1)]))
        await host.until(lambda rid=rid: host.finished(rid))  # type: ignore[misc]
    assert host.deltas["b"][0].cached_tokens == 0
    host.text.close()


async def test_draining_finishes_what_is_there_and_stopping_does_not() -> None:
    specs = [request(f"r{i}", [i], 8) for i in range(6)]
    for drain in (True, False):
        host = Host(Script(step_s=0.002))
        host.text.send(Submit(specs))
        host.text.send(Stop(drain=drain))
        await host.until(lambda host=host: host.dead is not None)  # type: ignore[misc]
        kinds = {host.deltas[spec.rid][-1].finish.type for spec in specs}  # type: ignore[union-attr]
        assert kinds == ({"length"} if drain else {"abort"})


async def test_an_error_that_is_no_requests_ends_the_engine_loudly(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()

    def fail(batch: object) -> object:
        raise ZeroDivisionError("a bug")

    host.executor.submit = fail  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.CRITICAL):
        host.text.send(Submit([request("a", [1])]))
        await host.until(lambda: host.dead is not None)
        assert host.thread.join(5)
    assert host.dead is not None
    assert host.dead.reason == "ZeroDivisionError: a bug"
    assert "event=engine_failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_an_idle_engine_proves_its_accounting(caplog: pytest.LogCaptureFixture) -> None:
    host = Host()
    host.text.send(Submit([request("a", range(9), 2)]))
    await host.until(lambda: host.finished("a"))
    host.core.cache.tree.pages += 1  # as a lost page would
    await host.until(lambda: host.dead is not None)
    assert host.dead is not None
    assert host.dead.reason.startswith(BrokenInvariant.__name__)


async def test_a_request_that_waits_for_pages_of_others_does_not_spin() -> None:
    host = Host()
    cache = host.core.cache
    held = [cache.acquire("", np.full(120, i, np.int32), 0) for i in range(2)]
    host.text.send(Submit([request("a", range(100), 1)]))
    await asyncio.sleep(0.1)
    assert host.core.scheduler._passes < 40
    for lease in held:
        assert lease is not None
        lease.release()
    await host.until(lambda: host.finished("a"))
    host.text.close()
    assert host.thread.join(5)


def test_a_core_that_cannot_be_built_raises_where_it_is_started() -> None:
    def build() -> EngineCore:
        raise ConfigError("no such model", field="model_path")

    thread = EngineThread(build)
    with pytest.raises(ConfigError, match="no such model"):
        thread.start()


async def test_many_messages_wake_a_sleeping_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    loop = asyncio.get_running_loop()
    wake, woken = loop.call_soon_threadsafe, 0

    def counted(*args: Any, **more: Any) -> asyncio.Handle:
        nonlocal woken
        woken += 1
        return wake(*args, **more)

    def put_all() -> None:
        for i in range(50):
            inbox.put(Reply(i))

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    waiting = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    sender = threading.Thread(target=put_all)
    sender.start()
    sender.join()
    assert [await waiting, *[await inbox.get() for _ in range(49)]] == [Reply(i) for i in range(50)]
    assert woken == 1


async def test_a_cancelled_receive_loses_no_message() -> None:
    inbox = Inbox()
    waiting = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    waiting.cancel()
    inbox.put(Reply(1))
    await asyncio.sleep(0)
    assert await inbox.get() == Reply(1)
    inbox.put(Dead("gone"))
    inbox.put(Reply(2))
    assert await inbox.get() == Dead("gone")
    with pytest.raises(EngineDeadError, match="gone"):
        await inbox.get()


def test_a_loop_that_has_closed_is_not_woken() -> None:
    inbox = Inbox()

    async def leave() -> None:
        task = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    inbox.put(Reply(1))
    assert inbox.ended is None


def test_receiving_waits_as_long_as_it_is_told() -> None:
    engine_side, text_side = thread_channel()
    assert engine_side.receive(0) == []
    began = time.monotonic()
    assert engine_side.receive(0.02) == []
    assert time.monotonic() - began >= 0.015
    text_side.send(Stop())
    text_side.send(Abort())
    assert engine_side.receive(None) == [Stop(), Abort()]
