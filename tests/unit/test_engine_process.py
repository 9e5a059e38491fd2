"""The engine in a process of its own: it answers, it stops, and its death is noticed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.channel import Call, Dead, Deltas, Reply, Stop, Submit
from ramet.channel_zmq import ZmqEngineSide, ZmqTextSide
from ramet.config import Machine, Resolved, flatten, layer, resolve
from ramet.engine_load import build_core, open_model, script_of, target_formats
from ramet.engine_process import EngineProcess
from ramet.errors import ConfigError, EngineDeadError
from ramet.weights.recipe import bind_weights
from support.simulation import request


def settings(model: Path, **options: object) -> Resolved:
    config, origins = layer(
        (
            "test",
            {
                "model_path": str(model),
                "load_format": "dummy",
                "executor": "scripted",
                "scripted_tokens": "5,6,7",
                "max_total_tokens": 1024,
                "log_level": "error",
                **options,
            },
        )
    )
    return resolve(config, origins, Machine(cores=2, available_bytes=1 << 30), open_model(config.model).facts)


@pytest.fixture
async def process(model: Path) -> AsyncIterator[EngineProcess]:
    process = EngineProcess(settings(model).config)
    yield process
    process.close()


async def test_an_engine_process_serves_and_stops(process: EngineProcess) -> None:
    text = process.start()
    assert process.info["model"]["executor"] == "scripted"
    text.send(Call(3, "server_info"))
    reply = await text.receive()
    assert isinstance(reply, Reply)
    assert reply.value["max_total_num_tokens"] == 1024
    text.send(Submit([request("a", [1, 2], 4)]))
    tokens: list[int] = []
    while len(tokens) < 4:
        message = await text.receive()
        assert isinstance(message, Deltas)
        tokens += [token for delta in message.deltas for token in delta.token_ids]
    assert tokens == [5, 6, 7, 5]
    text.send(Stop(drain=True))
    assert await text.receive() == Dead("it was stopped")
    assert process.join(5)
    with pytest.raises(EngineDeadError):
        text.send(Stop())
    process.close()
    process.close()


async def test_a_killed_engine_is_noticed_within_a_second(process: EngineProcess) -> None:
    text = process.start()
    text.send(Submit([request("a", [1, 2], 100)]))
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    while not isinstance(message := await asyncio.wait_for(text.receive(), 5), Dead):
        pass
    assert time.monotonic() - began < 1
    assert "exit code -9" in message.reason


async def test_sending_to_a_killed_engine_fails_instead_of_blocking(process: EngineProcess) -> None:
    """In the fraction of a second before the death is noticed, nobody is there to take a message."""
    text = process.start()
    os.kill(process.pid, signal.SIGKILL)
    process.join(5)

    def send() -> None:
        until = time.monotonic() + 5
        while time.monotonic() < until:  # the first ones may still find the pipe open
            text.send(Stop())

    with pytest.raises(EngineDeadError, match="exit code -9"):
        await asyncio.wait_for(asyncio.to_thread(send), 3)


async def test_a_message_that_cannot_be_read_ends_the_channel() -> None:
    text = ZmqTextSide()
    engine = ZmqEngineSide(text.to_engine, text.to_text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda _: None)
        text.start_reading(lambda: None)
        engine._answers.send(b"\xc1")
        message = await asyncio.wait_for(text.receive(), 5)
        text.close()  # waits for the reader, whose exception the hook is there for
    engine.close()
    assert isinstance(message, Dead)
    assert "cannot be read" in message.reason


def test_what_loading_raises_is_raised_by_start(model: Path) -> None:
    with pytest.raises(ConfigError, match="--scripted-tokens"):
        EngineProcess(settings(model, scripted_tokens="5,x").config).start()
    nowhere = settings(model).config
    nowhere = replace(nowhere, model=replace(nowhere.model, model_path="/nowhere", load_format="auto"))
    with pytest.raises(ConfigError, match="/nowhere"):
        EngineProcess(nowhere).start()


def test_a_process_that_ends_while_starting_is_an_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineDeadError, match="exit code 1"):
        EngineProcess(settings(model).config).start()


def test_the_child_ends_with_its_parent(model: Path) -> None:
    """The parent is killed outright; its child must not stay."""
    script = (
        "import sys; from ramet.config import build; from ramet.engine_process import EngineProcess\n"
        "import json; p = EngineProcess(build(json.loads(sys.argv[1]))); p.start(); print(p.pid, flush=True)\n"
        "import time; time.sleep(60)"
    )
    options = json.dumps(flatten(settings(model).config))
    with subprocess.Popen([sys.executable, "-c", script, options], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{child}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the engine outlived its parent")


def test_started_without_a_parent_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ramet.engine_process"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "is started by ramet" in done.stderr


async def test_messages_cross_in_both_directions_and_a_closed_channel_says_so() -> None:
    text = ZmqTextSide()
    engine = ZmqEngineSide(text.to_engine, text.to_text)
    assert engine.receive(0) == []
    assert engine.receive(0.01) == []
    assert text.first_message(0) is None
    text.send(Call(1, "set_vocabulary", {"token_bytes": [b"\xff", b""]}))
    assert engine.receive(5) == [Call(1, "set_vocabulary", {"token_bytes": [b"\xff", b""]})]
    engine.send(Reply(1, {"x": [1, None]}))
    assert text.first_message(5) == Reply(1, {"x": [1, None]})
    text.start_reading(lambda: None)
    waiting = asyncio.create_task(text.receive())
    await asyncio.sleep(0)
    text.close()
    assert await waiting == Dead("the channel was closed")
    with pytest.raises(EngineDeadError):
        text.send(Stop())
    engine.close()


def test_scripts_and_targets_from_flags(model: Path) -> None:
    config = settings(model).config
    assert script_of(config.executor).tokens == [5, 6, 7]
    opened = open_model(config.model)
    weights = bind_weights(opened.plan, opened.checkpoint, opened.config)
    assert target_formats(weights, None) == {}
    chosen = target_formats(weights, "q8_0")
    assert {len(weights[name].shape) for name in chosen} == {2}
    assert set(chosen.values()) == {"q8_0"}
    with pytest.raises(ConfigError, match="quantised already"):
        target_formats({}, "q8_0")


def test_an_unresolved_configuration_is_refused(model: Path) -> None:
    config, _ = layer(("test", {"model_path": str(model), "load_format": "dummy", "executor": "scripted"}))
    with pytest.raises(ConfigError, match="not been resolved"):
        build_core(config)


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_executors_are_built_from_a_configuration(model: Path, executor: str) -> None:
    core = build_core(settings(model, executor=executor, threads=1))
    core.scheduler.submit([request("a", [1, 2, 3], 3)])
    while not core.scheduler.idle:
        core.scheduler.step()
    assert sum(len(delta.token_ids) for delta in core.scheduler.deltas) == 3
    assert core.server_info()["model"]["executor"].split("/")[0] == executor
    core.executor.close()
