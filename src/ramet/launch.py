"""Starts an engine and the pipeline before it: what `ramet serve` and the offline `Engine` have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ramet.config import Config, Resolved, options, resolve
from ramet.config.machine import probe
from ramet.engine_load import OpenModel, build_core, open_model
from ramet.models.encoder import EncoderConfig
from ramet.server.card import ModelCard
from ramet.text.chat import choose_formats
from ramet.text.embedding import VectorModel
from ramet.text.frontend import Frontend
from ramet.text.limits import Limits

if TYPE_CHECKING:
    from ramet.channel import TextSide
    from ramet.text.chat_template import ChatTemplate
    from ramet.text.tokenizer import Tokenizer
    from ramet.weights.checkpoint import Checkpoint

#: How long an engine may take to end after `Stop` before it is left to the end of the process.
JOIN_TIMEOUT_S = 5.0

#: Sampling values that a checkpoint's generation_config.json may set for OpenAI routes.
_GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(slots=True)
class Running:
    """A started engine. `frontend` still has to be started on an event loop, with `begin`."""

    frontend: Frontend
    card: ModelCard
    resolved: Resolved
    close: Callable[[], None]  # frees the engine and the channel, after `end`; idempotent

    async def begin(self) -> None:
        """Start the pipeline on the running loop and prove the engine with one token."""
        self.frontend.start()
        if self.frontend.vectors is None:
            await self.frontend.send_vocabulary()
        generation = await self.frontend.smallest_request("ramet-first-token")
        try:
            await generation.wait()
        finally:
            generation.close()

    async def end(self, *, drain: bool = False) -> None:
        """Stop the pipeline, on its loop; with `drain` after what is queued and running has finished."""
        await self.frontend.stop(drain=drain)


def launch(config: Config, origins: Mapping[str, str]) -> Running:
    """Open the model, decide what is open in the configuration, start the engine and build the text side beside it.

    Blocks until the engine is ready. On failure nothing is left behind.
    """
    model = open_model(config.model)
    resolved = resolve(config, origins, probe(), model.facts)
    settings = resolved.config
    with ThreadPoolExecutor(1, "ramet-text") as pool:
        text = pool.submit(_load_text, settings, model.checkpoint)
        channel, close = _start_engine(settings)
        try:
            tokenizer, template = text.result()
            formats = choose_formats(template, settings.api.reasoning_parser, settings.api.tool_call_parser)
            model.checkpoint.release()
        except BaseException:
            close()
            raise
    limits = Limits(
        context_length=settings.model.context_length or model.config.context_length,
        vocab_size=model.config.vocab_size,
        eos_token_ids=tuple(dict.fromkeys((*tokenizer.eos_token_ids, *model.config.eos_token_ids))),
        allow_auto_truncate=settings.api.allow_auto_truncate,
        truncate_prompt=settings.api.truncate_prompt,
    )
    frontend = Frontend(
        channel,
        tokenizer,
        limits,
        template=template,
        formats=formats,
        vectors=vectors_of(model),
        stream_interval=settings.api.stream_interval,
        random_seed=settings.model.random_seed,
    )
    return Running(frontend, card_of(settings, model), resolved, close)


def _start_engine(config: Config) -> tuple[TextSide, Callable[[], None]]:
    """The text side of a started engine, and how to free it after its `Stop`.

    The engine opens the model again, here as in a process of its own: it lets go of its files when the weights are
    packed, while the tokenizer may still be reading.
    """
    if config.server.engine_process:
        from ramet.engine_process import EngineProcess

        process = EngineProcess(config)
        return process.start(), process.close

    from ramet.engine import EngineThread

    thread = EngineThread(lambda: build_core(config))
    channel = thread.start()

    def close() -> None:
        channel.close()
        thread.join(JOIN_TIMEOUT_S)

    return channel, close


def vectors_of(model: OpenModel) -> VectorModel | None:
    """What requests get from a model that generates no text."""
    pooling = model.pooling
    if pooling is None:
        return None
    return VectorModel(
        size=model.plan.embedding_size,
        labels=pooling.labels,
        normalized=pooling.normalize,
        matryoshka=pooling.matryoshka and not pooling.labels,
        dimensions=pooling.dimensions,
        num_token_types=model.config.type_vocab_size if isinstance(model.config, EncoderConfig) else 1,
    )


def _load_text(config: Config, checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    from ramet.text.chat_template import load_chat_template
    from ramet.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(checkpoint, config.model.tokenizer_path)
    return tokenizer, load_chat_template(tokenizer, config.model.chat_template)


def card_of(config: Config, model: OpenModel) -> ModelCard:
    """What clients may know of the model."""
    return ModelCard(
        served_name=config.model.served_model_name or model.name,
        model_path=config.model.model_path or model.name,
        tokenizer_path=config.model.tokenizer_path or config.model.model_path or model.name,
        weight_version=config.model.weight_version,
        load_format=config.model.load_format,
        model_type=model.config.model_type,
        architectures=tuple(map(str, model.checkpoint.config.get("architectures") or ())),
        sampling_defaults=_sampling_defaults(model.checkpoint.generation_config),
    )


def _sampling_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The usable part of generation_config.json: Transformers writes top_k 0 for "off", and null for unset."""
    values = {key: given[key] for key in _GENERATION_KEYS if given.get(key) is not None}
    if values.get("top_k") == 0:
        del values["top_k"]
    return values


def public_settings(config: Config) -> dict[str, Any]:
    """Every option's value by name, secrets left out."""
    return {name: getattr(getattr(config, opt.section), name) for name, opt in options().items() if not opt.secret}
