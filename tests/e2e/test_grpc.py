"""`ramet serve --grpc-port` and its clients, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from ramet.server.grpc.messages import SERVICE, message_class
from support.process import Process

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "support" / "grpc_client.py"

LONG: dict[str, Any] = {
    "text": "go",
    "stream": True,
    "sampling_params": {"max_new_tokens": 200, "ignore_eos": True, "n": 4},
}

#: The reference executor takes about a millisecond a step here: slow enough to be met in the middle.
SLOW = ("--executor", "reference", "--grpc-port", "0")


def address_of(process: Process) -> str:
    """Where it serves gRPC, once it does."""
    process.ready().close()
    (line,) = [line for line in process.lines if line.startswith("gRPC on ")]
    return line.removeprefix("gRPC on ")


@contextlib.contextmanager
def calling(address: str, method: str, request: Mapping[str, Any], *key: str) -> Iterator[subprocess.Popen[str]]:
    """A client that makes one call."""
    arguments = [sys.executable, str(SCRIPT), address, method, json.dumps(request), *key]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def read(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Its next message, or the status."""
    assert client.stdout is not None
    line = client.stdout.readline()
    assert line, client.stderr.read() if client.stderr else ""
    message: dict[str, Any] = json.loads(line)
    return message


def answer(address: str, method: str, request: Mapping[str, Any], *key: str) -> list[dict[str, Any]]:
    """All messages, and the status."""
    with calling(address, method, request, *key) as client:
        out, err = client.communicate(timeout=60)
        assert client.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]


def ask(address: str, method: str, request: Mapping[str, Any]) -> Any:
    """The answer to a call made here: a new client would take 0.3 s."""
    kinds = SERVICE.methods_by_name[method]
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{SERVICE.full_name}/{method}")
        raw = call(
            message_class(kinds.input_type)(**request).SerializeToString(),
            metadata=[("x-api-key", "sesame")],
            timeout=20,
        )
    return message_class(kinds.output_type).FromString(raw)


def wait_until(address: str, condition: Callable[[dict[str, Any]], bool], within_s: float = 10.0) -> dict[str, Any]:
    """The engine's own account, once it fulfils the condition."""
    until = time.monotonic() + within_s
    while True:
        info: dict[str, Any] = json.loads(ask(address, "GetServerInfo", {}).json_info)
        if condition(info):
            return info
        assert time.monotonic() < until, info
        time.sleep(0.005)


@pytest.fixture(scope="module")
def address(serve: Callable[..., Process]) -> str:
    """Of a server with a key."""
    return address_of(serve(*SLOW, "--api-key", "sesame", "--engine-process"))


def test_a_client_made_from_the_proto_streams_and_is_refused(address: str) -> None:
    assert answer(address, "HealthCheck", {}) == [{"healthy": True}, {"code": "OK"}]
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    request = {"input_ids": [71, 72], "stream": True, "sampling_params": sampling}
    *messages, status = answer(address, "Generate", request, "sesame")
    assert status == {"code": "OK"}
    assert [message.get("finished", False) for message in messages] == [False] * (len(messages) - 1) + [True]
    ids = [token for message in messages for token in message["output_ids"]]
    assert json.loads(messages[-1]["meta_info"]["completion_tokens"]) == len(ids) == 4
    whole, _ = answer(address, "Generate", {**request, "stream": False}, "sesame")
    assert whole["output_ids"] == ids
    (status,) = answer(address, "Generate", {**request, "sampling_params": {"top_p": 2}}, "sesame")
    assert status["code"] == "INVALID_ARGUMENT"
    assert "top_p" in status["details"]
    assert answer(address, "Generate", request) == [{"code": "UNAUTHENTICATED", "details": "Unauthorized"}]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_is_killed_frees_its_pages(address: str, stream: bool) -> None:
    before = wait_until(address, lambda info: info["num_running_reqs"] == 0)["totals"]["aborted"]
    with calling(address, "TextGenerate", {**LONG, "stream": stream}, "sesame") as client:
        wait_until(address, lambda info: info["num_running_reqs"] > 0, 20.0)
        client.kill()
        client.wait(10)
        info = wait_until(address, lambda info: info["num_running_reqs"] == 0 and info["token_usage"] == 0)
    assert info["totals"]["aborted"] == before + LONG["sampling_params"]["n"]


def test_abort_by_another_client(address: str) -> None:
    with calling(address, "TextGenerate", {**LONG, "rid": "mine"}, "sesame") as client:
        read(client)
        assert ask(address, "Abort", {"rid": "mine"}).success
        out, _ = client.communicate(timeout=30)
    *_, last, status = [json.loads(line) for line in out.splitlines()]
    assert status == {"code": "OK"}
    assert json.loads(last["meta_info"]["finish_reason"])["type"] == "abort"


def test_the_page_s_example_runs(serve: Callable[..., Process], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "grpc.md").read_text(encoding="utf-8")
    (command,) = [line for line in page.splitlines() if "grpc_tools.protoc" in line]
    command = command.replace("-I src/", f"-I {ROOT}/src/").replace("python ", f"{sys.executable} ", 1)
    subprocess.run(command.split(), cwd=tmp_path, check=True, timeout=60)
    example = page.split("```python\n")[1].split("```")[0]
    address = address_of(serve("--executor", "scripted", "--grpc-port", "0"))
    (tmp_path / "example.py").write_text(example.replace("127.0.0.1:30001", address), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'length': 16" in done.stdout or "'type': 'stop'" in done.stdout, done.stdout
    assert done.stdout.rstrip().endswith(
        "StatusCode.INVALID_ARGUMENT top_p must be a number above 0 and at most 1, got 2.0"
    )


def test_interrupt_lets_what_runs_finish_and_exits_with_zero(serve: Callable[..., Process]) -> None:
    process = serve(*SLOW, "--no-engine-process")
    with calling(address_of(process), "TextGenerate", LONG) as client:
        read(client)
        process.signal(signal.SIGINT)
        out, err = client.communicate(timeout=30)
    *_, last, status = [json.loads(line) for line in out.splitlines()]
    assert status == {"code": "OK"}, err
    assert json.loads(last["meta_info"]["finish_reason"]) == {"type": "length", "length": 200}
    assert process.end() == 0
    assert "Traceback" not in process.rest()


def test_a_second_interrupt_ends_at_once(serve: Callable[..., Process]) -> None:
    process = serve(*SLOW, "--no-engine-process", "--drain-timeout", "60")
    with calling(address_of(process), "TextGenerate", LONG) as client:
        read(client)
        process.signal(signal.SIGINT)
        process.wait_for("event=stopping")
        process.signal(signal.SIGINT)
        assert process.end(5) == 130
    assert "never awaited" not in process.rest()


def test_a_killed_engine_fails_the_call(serve: Callable[..., Process]) -> None:
    process = serve(*SLOW, "--engine-process")
    with calling(address_of(process), "TextGenerate", LONG) as client:
        read(client)
        (engine,) = process.children()
        os.kill(engine, signal.SIGKILL)
        out, _ = client.communicate(timeout=30)
    assert json.loads(out.splitlines()[-1])["code"] == "UNAVAILABLE"
    assert process.end() == 1


def test_a_port_in_use_is_said_in_a_sentence(serve: Callable[..., Process]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = serve("--executor", "scripted", "--grpc-port", str(port))
        assert process.end(20) == 1
    output = process.rest()
    assert f"cannot listen on 127.0.0.1:{port} for gRPC" in output
    assert "Traceback" not in output
