"""From what the user said, the machine and the model to one complete configuration, each value with its origin.

`layer` merges the user's sources; `resolve` decides what was left open. Both are pure: the same inputs give the same
configuration, and a value that cannot be honoured is a `ConfigError` naming the flag and the fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ramet.config.tree import Config, flatten, options
from ramet.errors import ConfigError

#: Most KV tokens reserved by default, whatever the memory: 8 full contexts, and at least this many.
MIN_DEFAULT_POOL_TOKENS = 65_536
#: Share of available memory for weights and KV when `--mem-fraction-static` is not given. A CPU shares its memory with
#: everything else on the machine, so less than the 0.8-0.9 usual on GPUs.
DEFAULT_MEM_FRACTION = 0.4
DEFAULT_MAX_RUNNING = 128
#: 512 prompt tokens take a small model about a quarter of a second on two cores: the longest pause that a decoding
#: neighbour sees, at 97 % of the prefill speed of one pass over 2,048.
DEFAULT_CHUNK = 512
DEFAULT_PAGE_SIZE = 16
#: On two cores, 12 users with 5 turns each take 5.1 s with the engine on a thread of the server and 7.5 s in its own
#: process, 64 requests behind one prefix 5.4 s and 7.4 s: a third process is in the way of the workers.
_CORES_FOR_A_PROCESS = 4
#: Token budget of a step where prompts are computed whole: enough for products of matrices to run at full speed.
WHOLE_STEP = 2048

_KV_ELEMENT_BYTES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Machine:
    """What the configuration needs to know of the machine."""

    cores: int  # usable by this process
    available_bytes: int  # memory free for it now


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the configuration needs to know of the model."""

    name: str  # default for --served-model-name
    context_length: int
    kv_floats_per_token: int  # over all layers
    weight_bytes: int
    whole_rows: bool = False  # prompts are computed whole, in one step, and nothing stays behind


@dataclass(frozen=True, slots=True)
class Resolved:
    """A complete configuration: no None left where a decision was due."""

    config: Config
    origins: Mapping[str, str]  # option name -> "default", "file F", "flag", "argument", "derived: because …"

    def describe(self) -> list[tuple[str, str, str]]:
        """(flag, value, origin) of every option; secrets are shown as set or unset only."""
        opts = options()
        return [
            (opts[name].flag, "(set)" if opts[name].secret and value is not None else repr(value), self.origins[name])
            for name, value in flatten(self.config).items()
        ]


def build(values: Mapping[str, Any]) -> Config:
    """A tree from values by option name (others default), each validated. Unknown names: ConfigError with near ones."""
    opts = options()
    for name in values:
        if name not in opts:
            near = [known for known in opts if name.replace("-", "_") in known or known in name]
            hint = f"; did you mean {', '.join(near[:3])}?" if near else ""
            raise ConfigError(f"unknown option {name!r}{hint}", field=name)
    sections: dict[str, dict[str, Any]] = {part.name: {} for part in fields(Config)}
    for name, value in values.items():
        sections[opts[name].section][name] = opts[name].validate(value)
    root = Config()
    return Config(**{name: type(getattr(root, name))(**chosen) for name, chosen in sections.items()})


def layer(*sources: tuple[str, Mapping[str, Any]]) -> tuple[Config, dict[str, str]]:
    """Merge (origin, values) pairs, later ones over earlier ones, over the defaults."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(options(), "default")
    for origin, given in sources:
        for name, value in given.items():
            values[name] = value
            origins[name] = origin
    config = build(values)
    return config, origins


def resolve(config: Config, origins: Mapping[str, str], machine: Machine, model: ModelFacts) -> Resolved:
    """Decide every open value. Errors name the flag, the numbers and what would work."""
    values = flatten(config)
    known = dict(origins)

    def decide(name: str, value: Any, because: str) -> None:
        values[name] = value
        known[name] = f"derived: {because}"

    if values["model_path"] is None:
        decide("model_path", model.name, "the default model")
    if values["served_model_name"] is None:
        decide("served_model_name", model.name, "the model path")
    if values["context_length"] is None:
        decide("context_length", model.context_length, "the model's limit")
    elif values["context_length"] > model.context_length:
        raise ConfigError(
            f"--context-length {values['context_length']} is more than the {model.context_length} tokens that the "
            "model was made for; use a smaller value",
            field="context_length",
        )
    if values["kv_cache_dtype"] == "auto":
        if model.whole_rows:
            decide("kv_cache_dtype", "f32", "they live for one step, so there are few")
        else:
            decide("kv_cache_dtype", "f16", "half the memory of f32 at no measurable loss")
    if values["page_size"] is None:
        decide("page_size", DEFAULT_PAGE_SIZE, "contiguous keys for the attention kernel")
    if values["threads"] is None:
        decide("threads", machine.cores, f"{machine.cores} usable cores")
    if values["max_running_requests"] is None:
        decide("max_running_requests", DEFAULT_MAX_RUNNING, "rows are cheap; the token budget bounds a step")
    if model.whole_rows:
        _decide_whole_steps(values, decide)
    elif values["chunked_prefill_size"] is None:
        decide("chunked_prefill_size", DEFAULT_CHUNK, "bounds the pause that a decoding neighbour sees")
    elif values["chunked_prefill_size"] == -1:
        decide("chunked_prefill_size", values["context_length"], "-1: whole prompts")
    if values["engine_process"] is None:
        apart = machine.cores >= _CORES_FOR_A_PROCESS
        because = "the server's Python does not hold up the engine's" if apart else "few cores: crossing costs more"
        decide("engine_process", apart, because)
    _decide_pool(values, known, machine, model, decide)
    return Resolved(build(values), known)


def _decide_whole_steps(values: dict[str, Any], decide: Any) -> None:
    """Every prompt goes into one step; a larger one pauses nobody, since nothing decodes."""
    context = values["context_length"]
    if values["chunked_prefill_size"] in (None, -1):
        decide("chunked_prefill_size", max(WHOLE_STEP, context), "prompts are computed whole, several in a step")
    elif values["chunked_prefill_size"] < context:
        raise ConfigError(
            f"--chunked-prefill-size {values['chunked_prefill_size']}: this model computes prompts whole, so a step "
            f"must hold the context of {context} tokens; use at least that, or a smaller --context-length",
            field="chunked_prefill_size",
        )


def _decide_pool(
    values: dict[str, Any], known: Mapping[str, str], machine: Machine, model: ModelFacts, decide: Any
) -> None:
    token_bytes = model.kv_floats_per_token * _KV_ELEMENT_BYTES[values["kv_cache_dtype"]]
    page = values["page_size"]
    if values["mem_fraction_static"] is None:
        decide("mem_fraction_static", DEFAULT_MEM_FRACTION, "a CPU's memory is shared with everything else")
    if values["max_total_tokens"] is None:
        budget = int(machine.available_bytes * values["mem_fraction_static"]) - model.weight_bytes
        fits = max(budget, 0) // max(token_bytes, 1) // page * page
        if fits < page:
            need = (model.weight_bytes + token_bytes * page) / max(machine.available_bytes, 1)
            raise ConfigError(
                f"no memory for keys and values: weights take {model.weight_bytes / 1e6:.0f} MB of the "
                f"{machine.available_bytes * values['mem_fraction_static'] / 1e6:.0f} MB that --mem-fraction-static "
                f"{values['mem_fraction_static']:g} allows; at least {need:.2f} is needed",
                field="mem_fraction_static",
            )
        cap = max(MIN_DEFAULT_POOL_TOKENS, 8 * values["context_length"])
        if model.whole_rows:  # no more than a step's tokens, each row's rounded up to pages
            cap = (values["chunked_prefill_size"] + page * values["max_running_requests"]) // page * page
        decide(
            "max_total_tokens",
            min(fits, cap),
            f"{fits} tokens of {token_bytes} bytes fit in memory, capped at {cap}",
        )
    elif values["max_total_tokens"] < page:
        raise ConfigError(
            f"--max-total-tokens {values['max_total_tokens']} is less than one page of {page} tokens (--page-size)",
            field="max_total_tokens",
        )
    else:
        decide(
            "max_total_tokens", values["max_total_tokens"] // page * page, f"{known['max_total_tokens']}, whole pages"
        )
