"""The toy model, written once, and real server processes on free ports."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from support import toy
from support.process import Process

#: A failing property test prints how to run it again with the same draws.
settings.register_profile("ramet", print_blob=True)
settings.load_profile("ramet")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write(tmp_path_factory.mktemp("toy") / "model")


@pytest.fixture(scope="module")
def serve(model: Path) -> Iterator[Callable[..., Process]]:
    """Starts servers over the toy model; those that still run when the module's tests are done are ended."""
    started: list[Process] = []

    def start(*flags: str) -> Process:
        base = ["--model-path", str(model), "--load-format", "dummy", "--max-total-tokens", "2048"]
        process = Process(*base, "--served-model-name", "toy", *flags)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.process.poll() is None:
            process.signal(signal.SIGKILL)
            process.end()
