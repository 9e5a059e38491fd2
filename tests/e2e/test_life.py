"""Start, drain, interrupt, a killed engine, a client that goes away: with real processes and sockets."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.process import Process

LONG: dict[str, Any] = {"text": "go", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
#: The reference executor takes about a millisecond a token here: slow enough to be met in the middle.
SLOW = ("--executor", "reference")

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for child processes in /proc")


def idle(client: httpx.Client, within_s: float = 2.0) -> None:
    until = time.monotonic() + within_s
    while True:
        info = client.get("/server_info").json()
        if info["num_running_reqs"] == 0 and info["token_usage"] == 0:
            return
        assert time.monotonic() < until, info
        time.sleep(0.02)


def first_event(response: httpx.Response) -> Any:
    for line in response.iter_lines():
        if line.startswith("data: "):
            return json.loads(line.removeprefix("data: "))
    raise AssertionError("no event")


@pytest.mark.parametrize("engine", ["--engine-process", "--no-engine-process"])
def test_interrupt_lets_what_runs_finish_and_exits_with_zero(serve: Callable[..., Process], engine: str) -> None:
    process = serve(*SLOW, engine)
    with process.ready() as client, client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        process.signal(signal.SIGINT)
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    last = json.loads(events[-2].removeprefix("data: "))
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 200}
    assert process.end() == 0
    assert process.rest().count("Traceback") == 0


def test_terminate_when_idle_is_quick(serve: Callable[..., Process]) -> None:
    process = serve("--executor", "scripted")
    process.ready().close()
    children = process.children()
    began = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.end() == 0
    assert time.monotonic() - began < 3
    for pid in children:
        assert not Path(f"/proc/{pid}").exists()


def test_a_second_interrupt_ends_at_once(serve: Callable[..., Process]) -> None:
    process = serve(*SLOW, "--no-engine-process", "--drain-timeout", "60", "--context-length", "256")
    with (
        process.ready() as client,
        client.stream("POST", "/generate", json={**LONG, "n": 1, "stream": True}) as response,
    ):
        first_event(response)
        process.signal(signal.SIGINT)
        process.wait_for("event=stopping")
        process.signal(signal.SIGINT)
        assert process.end(5) == 130


def test_i10_a_killed_engine_fails_health_and_ends_requests(serve: Callable[..., Process]) -> None:
    process = serve(*SLOW, "--engine-process")
    with process.ready() as client, client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        (engine,) = process.children()
        began = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        events = [line for line in lines if line]
        assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == 503
        with contextlib.suppress(httpx.TransportError):  # if it has already left, that fails a probe, too
            assert client.get("/health").status_code == 503
        assert process.end(5) == 1
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("path", ["/generate", "/v1/completions"])
def test_i01_i02_clients_that_go_away_free_their_pages(serve: Callable[..., Process], path: str) -> None:
    process = serve(*SLOW, "--engine-process")
    body = LONG if path == "/generate" else {"prompt": "go", "max_tokens": 200, "ignore_eos": True}
    with process.ready() as client:
        for stream in (True, False):
            host, port = process.url.removeprefix("http://").rsplit(":", 1)
            raw = json.dumps({**body, "stream": stream}).encode()
            lines = (
                f"POST {path} HTTP/1.1",
                "Host: x",
                "Content-Type: application/json",
                f"Content-Length: {len(raw)}",
            )
            head = "\r\n".join((*lines, "", ""))
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(head.encode() + raw)
                if stream:
                    connection.recv(1000)
                else:
                    time.sleep(0.05)
            idle(client, 1.0)
        totals = client.get("/server_info").json()["totals"]
        assert totals["aborted"] == 2


def test_a_port_in_use_is_said_in_a_sentence(serve: Callable[..., Process]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = serve("--executor", "scripted", "--port", str(port))
        assert process.end() == 1
    output = process.rest()
    assert f"port {port} on 127.0.0.1 is in use" in output
    assert "Traceback" not in output


def test_a_model_that_does_not_load_ends_the_server_with_a_sentence(
    serve: Callable[..., Process], tmp_path: Path
) -> None:
    process = serve("--model-path", str(tmp_path / "nowhere"))
    assert process.end() == 1
    output = process.rest()
    assert "--model-path" in output
    assert "Traceback" not in output


def test_print_config_shows_values_and_origins(serve: Callable[..., Process]) -> None:
    process = serve("--print-config", "--api-key", "hunter2")
    assert process.end() == 0
    output = process.rest()
    assert "--max-total-tokens" in output
    assert "flag" in output
    assert "hunter2" not in output
