"""`ramet bench startup` measures what it says, on a server with a toy model. The numbers themselves are not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ramet.bench.startup import family, measure, resident_mb
from ramet.errors import RametError

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


def test_every_promise_is_measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    flags = ["--model-path", str(model), "--load-format", "dummy", "--executor", "scripted", "--log-level", "error"]
    rows = {row["measure"]: row for row in measure(flags, 1)}
    assert rows.keys() == {"import_s", "health_s", "resident_mb"}
    assert all(row["median"] > 0 and row["most"] > 0 and len(row["all"]) == 1 for row in rows.values())
    assert rows["health_s"]["median"] > rows["import_s"]["median"]


def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with pytest.raises(RametError, match="--model-path"):
        list(measure(["--model-path", "nowhere/at/all"], 1))


def test_memory_is_of_the_process_and_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert {os.getpid(), child.pid} <= set(family(os.getpid()))
        child.communicate(b"\n")
    assert 1 < resident_mb(os.getpid()) < 100_000
