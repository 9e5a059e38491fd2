"""What a newcomer's mistakes on the command line are answered with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ramet
from ramet.cli.main import COMMANDS, main, parser_for
from ramet.cli.parser import OTHER_NAMES


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("serve --model-pth x", "unknown flag --model-pth; did you mean --model-path?"),
        ("serve --max-model-len=128", "unknown flag --max-model-len; here it is --context-length"),
        ("serve -m x", "unknown flag -m; here it is --model-path"),
        ("serve x", "unexpected argument 'x'; a model is named with --model-path"),
        ("serve --tensor-parallel-size 2", "unknown flag --tensor-parallel-size"),
        ("serve --port abc", "argument --port: invalid int value: 'abc'"),
        ("generate Hi -n 8", "unknown flag -n; here it is --max-new-tokens"),
        ("serve -n 8", "unknown flag -n"),  # it has no --max-new-tokens to offer
        ("bench serve --uri x", "unknown flag --uri; did you mean --url?"),
        ("doctor x", "unexpected argument 'x'"),
    ],
)
def test_mistakes_are_answered_in_two_lines(arguments: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = said(capsys, *arguments.split()).splitlines()
    assert first.split(": ", 1)[1] == answer
    assert second == f"Try `{first.split(': ')[0]} --help`."


def test_a_misspelt_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "unknown command 'srve'; did you mean serve?" in capsys.readouterr().err


def test_names_of_other_programs_are_not_names_of_ours_and_lead_somewhere() -> None:
    ours = {flag for command in COMMANDS for flag in parser_for(command).flags()}
    assert OTHER_NAMES.keys() & ours == {"--seed"}  # of `bench serve`, where it is taken
    assert {name.split(",")[0] for name in OTHER_NAMES.values() if name.startswith("--")} <= ours


def test_a_reader_that_has_seen_enough_gets_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "ramet.cli", "doctor"],
            env={**os.environ, "PYTHONPATH": str(Path(ramet.__file__).parent.parent)},
            stdout=gone,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.stderr == b""
    assert done.returncode == 141
