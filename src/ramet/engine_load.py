"""From a configuration to an executor with its weights: checkpoint → model config → plan → weights → executor.

The parent of an engine process opens the model too (`open_model`: headers only), for the facts that `config.resolve`
needs and for the tokenizer; the engine loads the weights.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ramet.config.resolve import ModelFacts, Resolved
from ramet.config.tree import Config, ExecutorSection, ModelSection
from ramet.engine import EngineCore
from ramet.errors import ConfigError
from ramet.executor.base import Executor, Layout
from ramet.executor.scripted import Script, ScriptedExecutor
from ramet.models import build_plan
from ramet.models.config import ModelConfig
from ramet.models.encoder import ENCODERS, EncoderConfig, model_type_of, read_encoder_config
from ramet.models.pooling import Pooling, read_pooling
from ramet.plan.plan import Plan
from ramet.weights.checkpoint import Checkpoint
from ramet.weights.default_model import DEFAULT_MODEL
from ramet.weights.modules import with_modules
from ramet.weights.recipe import bind_weights, read_vector
from ramet.weights.sources import open_checkpoint
from ramet.weights.tensor import Weight

if TYPE_CHECKING:
    from ramet.models.pooling import Method

log = logging.getLogger(__name__)

_UNQUANTISED = frozenset({"f32", "f16", "bf16"})
_BLOCK = 32  # elements per block of the formats that `--quantization` packs to


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A model whose headers have been read, its configuration and its plan."""

    name: str
    checkpoint: Checkpoint
    config: ModelConfig | EncoderConfig
    plan: Plan
    pooling: Pooling | None = None  # None: it generates

    @property
    def facts(self) -> ModelFacts:
        """What `config.resolve` needs."""
        return ModelFacts(
            name=self.name,
            context_length=self.config.context_length,
            kv_floats_per_token=sum(stream.floats_per_token for stream in self.plan.streams),
            weight_bytes=self.checkpoint.total_bytes,
            whole_rows=self.plan.whole_rows,
        )


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded, for `/server_info`, logs and benchmark records."""

    name: str
    path: str
    model_type: str
    content_id: str
    weight_bytes: int
    kv_bytes_per_token: int
    executor: str
    load_s: float

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def open_model(section: ModelSection) -> OpenModel:
    """Open what `--model-path` names. Raises `ConfigError` or `CheckpointError`, as `open_checkpoint` does."""
    # A resolved configuration names the default model instead of leaving the path open.
    path = None if section.model_path == DEFAULT_MODEL.name else section.model_path
    checkpoint = open_checkpoint(
        path,
        load_format=section.load_format,
        download_dir=section.download_dir,
        revision=section.revision,
        seed=section.random_seed or 0,
    )
    pooling = read_pooling(
        checkpoint,
        is_embedding=section.is_embedding,
        method=cast("Method | None", section.pooling),
        matryoshka=section.matryoshka,
    )
    config = _config_of(checkpoint, pooling)
    if pooling is not None:
        checkpoint = with_modules(checkpoint, [dense.name for dense in pooling.dense])
    return OpenModel(path or DEFAULT_MODEL.name, checkpoint, config, build_plan(config, pooling), pooling)


def _config_of(checkpoint: Checkpoint, pooling: Pooling | None) -> ModelConfig | EncoderConfig:
    if checkpoint.kind == "gguf":
        return ModelConfig.from_gguf(checkpoint.config, checkpoint.tensors, lambda name: read_vector(checkpoint, name))
    max_tokens = pooling.max_tokens if pooling is not None else None
    if model_type_of(checkpoint.config) in ENCODERS:
        return read_encoder_config(checkpoint.config, max_tokens)
    config = ModelConfig.from_hf(checkpoint.config)
    if max_tokens is None or max_tokens >= config.context_length:
        return config
    return dataclasses.replace(config, context_length=max_tokens)


def layout_of(config: Config) -> Layout:
    """Sizes for the executor from a resolved configuration. A step may hold a full budget beside a full house."""
    model, scheduler, cache = config.model, config.scheduler, config.cache
    tokens, page, rows = cache.max_total_tokens, cache.page_size, scheduler.max_running_requests
    context, chunk = model.context_length, scheduler.chunked_prefill_size
    if not (tokens and page and rows and context and chunk):
        raise ConfigError("the configuration has not been resolved")
    return Layout(
        num_pages=tokens // page,
        page_size=page,
        max_rows=rows,
        max_row_tokens=context,
        max_step_tokens=chunk + rows,
        kv_dtype=cache.kv_cache_dtype,
    )


def load_executor(config: Config, model: OpenModel | None = None) -> tuple[Executor, ModelInfo]:
    """The executor of a resolved configuration, with the weights loaded. `model` if it is open already."""
    began_s = time.monotonic()
    model = model or open_model(config.model)
    layout = layout_of(config)
    log.info(
        "event=model name=%s type=%s path=%s layers=%d vocab=%d context=%d weights_mb=%.1f",
        *(model.name, model.config.model_type, model.checkpoint.path, model.config.num_layers),
        *(model.config.vocab_size, layout.max_row_tokens, model.checkpoint.total_bytes / 1e6),
    )
    if model.pooling is not None:
        pooling = model.pooling
        log.info(
            "event=pooling method=%s normalize=%s dense=%d classes=%d size=%d",
            *(pooling.method, pooling.normalize, len(pooling.dense), len(pooling.labels), model.plan.embedding_size),
        )
    element = 4 if layout.kv_dtype == "f32" else 2
    token_bytes = sum(stream.floats_per_token for stream in model.plan.streams) * element
    log.info(
        "event=cache tokens=%d pages=%d page_size=%d kv_dtype=%s bytes=%d",
        *(layout.num_pages * layout.page_size, layout.num_pages, layout.page_size, layout.kv_dtype),
        layout.num_pages * layout.page_size * token_bytes,
    )
    content_id = model.checkpoint.content_id()  # before the executor gives the file's pages back
    executor = _make_executor(config, model, layout)
    load_s = time.monotonic() - began_s
    log.info(
        "event=executor name=%s rows=%d step_tokens=%d load_s=%.2f",
        *(executor.name, layout.max_rows, layout.max_step_tokens, load_s),
    )
    info = ModelInfo(
        name=model.name,
        path=str(model.checkpoint.path),
        model_type=model.config.model_type,
        content_id=content_id,
        weight_bytes=model.checkpoint.total_bytes,
        kv_bytes_per_token=token_bytes,
        executor=executor.name,
        load_s=load_s,
    )
    return executor, info


def build_core(config: Config | Resolved, model: OpenModel | None = None) -> EngineCore:
    """A whole engine from a resolved configuration."""
    config = config.config if isinstance(config, Resolved) else config
    executor, info = load_executor(config, model)
    return EngineCore(executor, config.scheduler, config.cache, info={"model": info.as_dict()})


def _make_executor(config: Config, model: OpenModel, layout: Layout) -> Executor:
    kind = config.executor.executor
    if kind == "scripted":
        size = model.plan.embedding_size
        return ScriptedExecutor(layout, model.config.vocab_size, script_of(config.executor), embedding_size=size)
    weights = bind_weights(model.plan, model.checkpoint, model.config)
    if kind == "reference":
        from ramet.executor.reference import ReferenceExecutor

        return ReferenceExecutor(model.plan, weights, layout)
    from ramet.executor.native import NativeExecutor

    executor = NativeExecutor(
        model.plan,
        weights,
        layout,
        threads=config.executor.threads or 0,
        target_formats=target_formats(weights, config.model.quantization),
    )
    model.checkpoint.release()  # the weights are packed; the file's pages need not stay resident
    return executor


def script_of(section: ExecutorSection) -> Script:
    """The scripted executor's script: `--scripted-tokens`, or hashes of the prefix."""
    if section.scripted_tokens is None:
        return Script()
    try:
        return Script(tokens=[int(token) for token in section.scripted_tokens.split(",")])
    except ValueError as error:
        raise ConfigError(
            f"--scripted-tokens {section.scripted_tokens!r}: must be token ids, comma separated",
            field="scripted_tokens",
        ) from error


def target_formats(weights: Mapping[str, Weight], quantization: str | None) -> dict[str, str]:
    """By weight name, the format that `--quantization` packs matrices to. A quantised checkpoint is refused."""
    if quantization is None:
        return {}
    chosen = {
        name: quantization
        for name, weight in weights.items()
        if len(weight.shape) == 2 and weight.format in _UNQUANTISED and weight.shape[1] % _BLOCK == 0
    }
    if not chosen:
        raise ConfigError(
            f"--quantization {quantization}: the checkpoint is quantised already; leave the flag out",
            field="quantization",
        )
    return chosen
