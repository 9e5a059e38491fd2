"""What the docs show is run, and what they name exists.

Every fenced command of README.md and docs/*.md runs against a tiny checkpoint: only the address and, where a command
leaves the model to the default, the model are filled in. The slow set runs those as they stand, with the default model.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.cli.main import COMMANDS, main, parser_for
from ramet.config import Config
from ramet.server.app import create_app
from ramet.server.context import Context
from support import toy
from support.docs import CHORES, PAGES, ROOT, Command, commands, links, spans
from support.process import Process

#: Commands that no test can run, and why.
NOT_RUN = {
    "make serve": "builds into .venv and serves until it is stopped; `ramet serve` below is what it ends in",
    "make test": "would run this test",
    "pip install .": "builds the native library a second time, in minutes",
}
#: Pages whose examples need more than a server; the test that runs them names the page.
ELSEWHERE = {"docs/grpc.md": "tests/e2e/test_grpc.py"}
#: Flags that are not ramet's: of its scripts and of other programs.
OTHER_FLAGS = {"--all", "--sanitize", "--python_out", "--grpc_python_out", "--version"}

CHECKPOINTS = ROOT / "tests" / "reference" / "checkpoints"
TINY = str(CHECKPOINTS / "llama")
TINY_FILE = str(CHECKPOINTS / "llama-q8_0.gguf")
DOCUMENTED_URL = "http://127.0.0.1:30000"

ALL = [command for page in PAGES for command in commands(page) if command.page not in ELSEWHERE]
CURLS = [command for command in ALL if command.text.startswith("curl ")]
SCRIPTS = [command for command in ALL if command.language == "python"]
RAMETS = [command for command in ALL if command.text.startswith("ramet ")]
DEFAULT_MODEL = [
    *(command for command in RAMETS if not re.search(r"--model-path|--prompts|doctor", command.text)),
    *(command for command in SCRIPTS if "ramet.Engine()" in command.text),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server such as the examples expect: with the store, thinking told apart, and context for described tools."""
    model = toy.write(tmp_path_factory.mktemp("docs") / "model", max_position_embeddings=1024)
    flags = ("--max-total-tokens", "8192", "--enable-response-store", "--reasoning-parser", "qwen3")
    process = Process("--model-path", str(model), "--load-format", "dummy", *flags)
    process.ready().close()
    yield process.url
    process.signal(signal.SIGINT)
    assert process.end() == 0


def test_every_command_runs_in_a_test_or_is_listed() -> None:
    run = {*CURLS, *SCRIPTS, *RAMETS}
    left = {command.text: str(command) for command in ALL if command not in run}
    assert left.keys() - NOT_RUN.keys() == set(), left
    assert NOT_RUN.keys() - left.keys() == set(), "these are no longer in the docs"
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} no longer runs {page}"


@pytest.mark.parametrize("command", CURLS, ids=str)
def test_curl(command: Command, server: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert DOCUMENTED_URL in command.text
    text = command.text.replace(DOCUMENTED_URL, server).replace("resp_ID", stored_response(server))
    text = text.replace("curl ", "curl --silent --show-error --fail-with-body --noproxy '*' --max-time 60 ", 1)
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line not in ("", "data: [DONE]")]
    for event in events:
        assert "error" not in json.loads(event) or json.loads(event)["error"] is None, event


def stored_response(url: str) -> str:
    """The id of a response that is being made in the background."""
    body = json.dumps({"input": "Hi", "background": True, "max_output_tokens": 5}).encode()
    request = urllib.request.Request(f"{url}/v1/responses", body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=20) as answer:
        found: str = json.load(answer)["id"]
    return found


@pytest.mark.parametrize("command", SCRIPTS, ids=str)
def test_python(command: Command, server: str) -> None:
    text = command.text.replace(DOCUMENTED_URL, server).replace("ramet.Engine()", f"ramet.Engine({TINY!r})")
    assert python("-c", text).strip()


@pytest.mark.parametrize("command", RAMETS, ids=str)
def test_ramet(command: Command, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The sun\nThe moon\n", encoding="utf-8")
    files = {"model.gguf": TINY_FILE, "prompts.txt": str(prompts)}  # the reader's own
    words = [files.get(word, word) for word in shlex.split(command.text)[1:]]
    if "--model-path" not in words and words[0] != "doctor":
        words += ["--model-path", TINY]
    ramet(*words)


@pytest.mark.slow
@pytest.mark.parametrize("command", DEFAULT_MODEL, ids=str)
def test_with_the_default_model(command: Command) -> None:
    if command.language == "python":
        assert "Paris" in python("-c", command.text)
    else:
        ramet(*shlex.split(command.text)[1:])


def ramet(*words: str) -> None:
    """Run a command as far as a person would: a server until it serves, a chat for one question."""
    if words[0] == "serve":
        process = Process(*words[1:])
        process.wait_for("Listening on", within_s=110)  # the first start with the default model fetches it
        process.signal(signal.SIGINT)
        assert process.end() == 0
    else:
        limit = ["--max-new-tokens", "16"] if words[0] == "chat" else []  # tiny models do not know when to end
        assert python("-m", "ramet.cli", *words, *limit, stdin="Hello!\n/exit\n").strip()


def python(*arguments: str, stdin: str = "") -> str:
    """What an interpreter prints; it must end well and warn of nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], input=stdin.encode(), capture_output=True, timeout=110
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="replace")


@pytest.mark.parametrize("page", [*PAGES, *CHORES], ids=lambda page: page.name)
def test_flags_that_a_page_names_exist(page: Path) -> None:
    known = {flag for command in COMMANDS for flag in parser_for(command).flags()} | OTHER_FLAGS
    texts = [*spans(page), *(command.text for command in commands(page))]
    named = {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", text)}
    assert named - known == set()


@pytest.mark.parametrize("page", [*PAGES, *CHORES], ids=lambda page: page.name)
def test_commands_in_sentences_parse(page: Path) -> None:
    for span in spans(page):
        if span.startswith("ramet ") and "…" not in span and span.split()[1] in COMMANDS:
            command, *rest = shlex.split(span)[1:]
            with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
                parser_for(command).parse_args(rest)
            assert not said.getvalue(), span


@pytest.mark.parametrize("page", [*PAGES, *CHORES], ids=lambda page: page.name)
def test_links_and_files_that_a_page_names_exist(page: Path) -> None:
    for target in links(page):
        assert (page.parent / target).exists(), target
    for span in spans(page):
        if re.fullmatch(r"(src|tests|scripts|native|docs|\.ci)/[\w./-]+", span) and page in CHORES:
            assert (ROOT / span).exists(), span


def test_routes_that_the_pages_name_exist() -> None:
    app: Any = create_app(Context(server=Config().server, api=Config().api))
    known = {re.sub(r"\{\w+(:\w+)?\}", "X", path) for path in app.openapi()["paths"]} | {
        "/openapi.json",
        "/metrics",
        "/",
    }
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES[:2])
    named = set(re.findall(r"`(?:GET |POST |DELETE )?(/[a-z][\w/]*)`", text))
    named |= {path for line in re.findall(r"^## .*", text, re.MULTILINE) for path in re.findall(r"/[a-z][\w/]*", line)}
    assert len(named) > 20
    assert named - known == set()


def test_environment_variables_are_those_that_the_architecture_lists() -> None:
    listed = set(re.findall(r"`([A-Z][A-Z_]{5,})`", (ROOT / "ARCHITECTURE.md").read_text().split("## Debugging")[1]))
    read: set[str] = set()
    for file in (*(ROOT / "src").rglob("*.py"), *(ROOT / "native").rglob("*.cc"), *(ROOT / "native").rglob("*.h")):
        text = file.read_text(encoding="utf-8")
        read |= set(re.findall(r"""(?:environ(?:\.get)?[\[(]|getenv\()\s*["'](\w+)["']""", text))
    read.discard("PYTHONPATH")  # passed on to the engine's process, not an option
    assert read == listed


def test_what_the_version_flag_prints(capsys: pytest.CaptureFixture[str]) -> None:
    import ramet

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ramet {ramet.__version__}\n"
