"""Tool-call parsers by the names that `--tool-call-parser` takes: a row per format."""

from __future__ import annotations

from ramet.errors import ConfigError
from ramet.text.tools.base import ToolParser, Tools
from ramet.text.tools.deepseekv3 import DeepSeekV3, DeepSeekV31
from ramet.text.tools.glm45 import Glm45
from ramet.text.tools.gpt_oss import GptOss
from ramet.text.tools.hermes import Hermes
from ramet.text.tools.invoke import DeepSeekV4, DeepSeekV32, MinimaxM2
from ramet.text.tools.kimi_k2 import KimiK2
from ramet.text.tools.llama3 import Llama3
from ramet.text.tools.mistral import Mistral
from ramet.text.tools.pythonic import Pythonic
from ramet.text.tools.qwen3_coder import Qwen3Coder

FORMATS: dict[str, type[ToolParser]] = {
    "deepseekv3": DeepSeekV3,
    "deepseekv31": DeepSeekV31,
    "deepseekv32": DeepSeekV32,
    "deepseekv4": DeepSeekV4,
    "glm": Glm45,
    "glm45": Glm45,
    "glm47": Glm45,
    "gpt-oss": GptOss,
    "hermes": Hermes,
    "kimi_k2": KimiK2,
    "llama3": Llama3,
    "minimax-m2": MinimaxM2,
    "mistral": Mistral,
    "nanbeige": Qwen3Coder,
    "pythonic": Pythonic,
    "qwen": Hermes,
    "qwen25": Hermes,
    "qwen3_coder": Qwen3Coder,
    "step3p5": Qwen3Coder,
    "trinity": Hermes,
}

#: Marks in a chat template and the format they tell of; the first that fits decides.
_SIGNS: tuple[tuple[str, str], ...] = (
    ("function<｜tool▁sep｜>", "deepseekv3"),
    ("'function' + '<｜tool▁sep｜>'", "deepseekv3"),
    ("```json", "deepseekv3"),
    ("<｜tool▁calls▁begin｜>", "deepseekv31"),
)
_PLAIN_SIGNS: tuple[tuple[str, str], ...] = (
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax-m2"),
    ("<｜DSML｜function_calls>", "deepseekv32"),
    ("<｜DSML｜tool_calls>", "deepseekv4"),
    ("<|channel|>", "gpt-oss"),
    ("[TOOL_CALLS]", "mistral"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<tool_call>", "qwen25"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama3"),
    ('"parameters": dictionary of argument name', "llama3"),
)


def detect_tool_format(template: str) -> str | None:
    """What `--tool-call-parser auto` means for a chat template; None when it shows no format that ramet knows."""
    signs = _SIGNS if "<｜tool▁calls▁begin｜>" in template else _PLAIN_SIGNS
    return next((name for sign, name in signs if sign in template), None)


def make_tool_parser(name: str, tools: Tools = None, *, parallel: bool = True) -> ToolParser:
    """A parser for one generation. `tools`: name → JSON Schema of the parameters, of the functions on offer."""
    if name not in FORMATS:
        raise ConfigError(
            f"--tool-call-parser {name}: no such format; known: auto, {', '.join(sorted(FORMATS))}",
            field="tool_call_parser",
        )
    return FORMATS[name](tools, parallel=parallel)
