"""Where a model comes from: the default one, a package, a path, the hub, or a config with random weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ramet.errors import CheckpointError, ConfigError
from ramet.weights import default_model, packaged
from ramet.weights.checkpoint import Checkpoint
from ramet.weights.dummy import DummyCheckpoint
from ramet.weights.local import CONFIG_NAME, GgufCheckpoint, HfCheckpoint

LOAD_FORMATS: Final = ("auto", "safetensors", "gguf", "dummy")

_PACKAGE: Final = "package:"
_HUB_ID: Final = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/(?P<file>[^:]+\.gguf))?")
_SPLIT_PART: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
# What of a repository is worth its bytes: not other formats, optimizer states, pictures.
_HUB_CONFIGS: Final = [
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.*", "*.jinja"),
    *("modules.json", "sentence_bert_config.json", "?_Pooling/config.json", "?_Dense/*"),
]
_HUB_WEIGHTS: Final = ["model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]


def open_checkpoint(
    model_path: str | None,
    *,
    load_format: str = "auto",
    download_dir: str | None = None,
    revision: str | None = None,
    seed: int = 0,
    dummy_format: str | None = None,
) -> Checkpoint:
    """Open a model; only headers are read.

    `model_path`: None or "default" for the default model, `package:NAME`, a directory in Hugging Face layout, a `.gguf`
    file (any part of a split one), a hub id `owner/name`, or `owner/name/file.gguf`. `load_format` "safetensors" or
    "gguf" insists on that kind; "dummy" makes random weights, the same for the same `seed`, from a config.json (or its
    directory, or hub id), in `dummy_format` or else the config's dtype. `revision` and `download_dir` are the hub's.

    Raises `ConfigError` if nothing is found or fetched there (says what to do), `CheckpointError` for damaged files.
    """
    if load_format not in LOAD_FORMATS:
        raise ConfigError(f"--load-format {load_format}: must be one of {', '.join(LOAD_FORMATS)}", field="load_format")
    dummy = load_format == "dummy"
    path = _resolve(model_path, dummy, download_dir, revision)
    if dummy:
        return DummyCheckpoint(_config_directory(path), seed, dummy_format)
    checkpoint = _open(path, prefer_gguf=load_format == "gguf")
    if load_format != "auto" and (checkpoint.kind == "gguf") != (load_format == "gguf"):
        raise ConfigError(f"--load-format {load_format}: {path} is of kind {checkpoint.kind}", field="load_format")
    return checkpoint


def _resolve(model_path: str | None, dummy: bool, download_dir: str | None, revision: str | None) -> Path:
    """A path on this disk, after fetching what is not there."""
    if model_path is None or model_path == "default":
        if dummy:
            raise ConfigError(
                "--load-format dummy needs --model-path with a config.json or its directory", field="model_path"
            )
        return default_model.ensure()
    if model_path.startswith(_PACKAGE):
        name = model_path.removeprefix(_PACKAGE)
        if name in packaged.PACKAGED_DIRECTORIES:
            return packaged.ensure_directory(packaged.PACKAGED_DIRECTORIES[name])
        known = default_model.PACKAGED_MODELS
        if name not in known:
            names = ", ".join([*known, *packaged.PACKAGED_DIRECTORIES])
            raise ConfigError(f"--model-path {model_path}: must be one of {names}", field="model_path")
        return default_model.ensure(known[name])
    path = Path(model_path).expanduser()
    if path.exists():
        return path
    hub = _HUB_ID.fullmatch(model_path)
    if hub is None:
        raise ConfigError(
            f"--model-path {model_path}: there is no such file or directory, and it is no hub id (owner/name)",
            field="model_path",
        )
    if hub["file"]:
        pattern = _SPLIT_PART.sub(r"-*-of-\1.gguf", hub["file"])
        return _fetch_from_hub(hub["repo"], [pattern], hub["file"], download_dir, revision) / hub["file"]
    if dummy:
        return _fetch_from_hub(hub["repo"], _HUB_CONFIGS, CONFIG_NAME, download_dir, revision)
    return _fetch_from_hub(hub["repo"], _HUB_CONFIGS + _HUB_WEIGHTS, "*.safetensors", download_dir, revision)


def _fetch_from_hub(
    repo: str, patterns: list[str], needed: str, download_dir: str | None, revision: str | None
) -> Path:
    """The local snapshot directory with all files of `patterns`, of which one like `needed` must exist."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        found = snapshot_download(repo, revision=revision, cache_dir=download_dir, allow_patterns=patterns)
    except Exception as error:
        # Whatever the hub's client or the transport below it raises, the user needs one of four cures.
        at = f"{repo} at {revision}" if revision else repo
        if isinstance(error, GatedRepoError):
            cure = "the model is gated: accept its terms on the hub and run `hf auth login`"
        elif isinstance(error, RepositoryNotFoundError):
            cure = (
                "check the spelling, and run `hf auth login` if the model is private; for a local model give its path"
            )
        elif isinstance(error, LocalEntryNotFoundError):
            cure = "it is not on this disk and the hub cannot be reached: connect once, or give a local path"
        else:
            cure = f"{type(error).__name__}: {error}"
        raise ConfigError(f"--model-path {at}: cannot be fetched: {cure}", field="model_path") from error
    directory = Path(found)
    if not any(directory.glob(needed)):
        hint = "; for one of its GGUF files give owner/name/FILE.gguf" if needed.endswith(".safetensors") else ""
        raise ConfigError(f"--model-path {repo}: the repository has no {needed}{hint}", field="model_path")
    return directory


def _open(path: Path, *, prefer_gguf: bool) -> Checkpoint:
    if path.is_file():
        if path.suffix == ".gguf":
            return GgufCheckpoint(path)
        raise CheckpointError(f"{path}: is not a .gguf file; for a model of several files give their directory")
    files = sorted(path.glob("*.gguf"))
    if (path / CONFIG_NAME).is_file() and not (prefer_gguf and files):
        return HfCheckpoint(path)
    # The parts of a split file count as one.
    models = sorted({_SPLIT_PART.sub(r"-00001-of-\1.gguf", file.name) for file in files})
    if not models:
        raise CheckpointError(f"{path}: has neither {CONFIG_NAME} nor a .gguf file")
    if len(models) > 1:
        raise CheckpointError(f"{path}: has {len(models)} GGUF models; name one of {', '.join(models[:10])}")
    return GgufCheckpoint(path / models[0])


def _config_directory(path: Path) -> Path:
    if path.is_dir():
        return path
    if path.name == CONFIG_NAME:
        return path.parent
    raise ConfigError(
        f"--load-format dummy: {path} is neither a {CONFIG_NAME} nor the directory of one", field="model_path"
    )
