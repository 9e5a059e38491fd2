"""A chat made ready to be generated, in no dialect: its prompt, what its output has to be, and what will read it.

A dialect turns its body into a `ChatSpec`, gets a `PreparedChat` from `Frontend.prepare_chat`, and generates with its
`token_ids`, `sampling()` and `make_parser`. The chunks then carry events (`ramet.text.events`), and each choice the
whole `message`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from ramet.errors import RequestError
from ramet.text import reasoning, tools
from ramet.text.chat_template import ChatTemplate
from ramet.text.messages import Message, refuse_surrogates, text_content
from ramet.text.output import OutputParser
from ramet.text.reasoning.counter import ReasoningCounter
from ramet.text.scanner import Parser
from ramet.text.tokenizer import Tokenizer
from ramet.text.tools.json_array import JsonArray
from ramet.text.toolset import SYSTEM_TEXTS, TAGS, ToolSet
from ramet.types import SamplingParams

ToolChoice = Literal["auto", "none", "required"]

_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")

#: How much of a prompt given as ids is decoded to see whether it opens the thinking.
_TAIL_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFormats:
    """Names of the formats in which the model thinks and calls; None: it does not, or nobody knows how.

    `tools_named`: an operator chose the format, rather than the template.
    """

    reasoning: str | None = None
    tools: str | None = None
    tools_named: bool = False


def choose_formats(
    template: ChatTemplate | None, reasoning_parser: str | None, tool_call_parser: str | None
) -> OutputFormats:
    """What the flags mean for this template. Raises `ConfigError` for an unknown name."""
    source = template.sources if template is not None else ""
    thinks, calls = (None if name == "none" else name for name in (reasoning_parser, tool_call_parser))
    named = calls not in (None, "auto")
    if thinks == "auto":
        thinks = reasoning.detect_reasoning_format(source)
    if calls == "auto":
        calls = tools.detect_tool_format(source)
    if thinks is not None:
        reasoning.make_reasoning_parser(thinks, prompt_is_open=False)
    if calls is not None:
        tools.make_tool_parser(calls)
    return OutputFormats(reasoning=thinks, tools=calls, tools_named=named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpec:
    """What one chat asks for."""

    messages: Sequence[Mapping[str, Any]] = ()
    token_ids: list[int] | None = None  # the prompt itself, instead of messages and a template
    tools: ToolSet = field(default_factory=ToolSet)
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None  # the one function that must be called
    parallel_tool_calls: bool = True
    separate_reasoning: bool = True  # False: the thinking stays in the content, markers and all
    stream_reasoning: bool = True  # False: the thinking comes when it is over
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    add_generation_prompt: bool = True
    size: int = 0  # about the number of characters: long chats are rendered on a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedChat:
    """A chat ready to be generated."""

    token_ids: list[int]
    text: str | None  # the rendered prompt; None when the prompt was given as ids
    make_parser: Callable[[], OutputParser] | None  # None: all text is content
    thinking: bool = False  # the output begins inside the thinking
    reasoning: str | None = None  # the format of the thinking that is looked for
    grammar_after: tuple[int, ...] = ()  # ids that end the thinking, which no grammar rules
    calls_schema: str | None = None  # JSON Schema that the output, after any thinking, must follow
    calls_tag: str | None = None  # structural tag of strict calls, unless the request brings a grammar of its own
    show_specials: bool = False  # special tokens are markers for a parser
    warnings: tuple[str, ...] = ()

    def sampling(self, params: SamplingParams) -> SamplingParams:
        """`params` as this chat needs them."""
        changes: dict[str, Any] = {}
        if self.show_specials:
            changes["skip_special_tokens"] = False
        given = next((name for name in _GRAMMARS if getattr(params, name)), None)
        if self.calls_schema is not None:
            if given is not None:
                raise RequestError(
                    f"tool_choice: a forced call cannot be combined with another constraint ({given}).",
                    field="tool_choice",
                )
            changes["json_schema"] = self.calls_schema
        elif self.calls_tag is not None and given is None:
            changes["structural_tag"] = self.calls_tag
        return msgspec.structs.replace(params, **changes) if changes else params


def prepare(
    spec: ChatSpec, template: ChatTemplate | None, tokenizer: Tokenizer, formats: OutputFormats
) -> PreparedChat:
    """Render, tokenize and choose the parsers. Raises `RequestError` for what cannot be honoured."""
    offered, forced = _offered(spec)
    calls = formats.tools if not forced else "json array"
    if not offered.tools:
        calls = None
    ids, text = _prompt(spec, offered, calls, template, tokenizer, told=forced or formats.tools_named)
    end = text if text is not None else tokenizer.decode(ids[-_TAIL_TOKENS:], skip_special_tokens=False)
    thinks, thinking, expected = _thinking(spec, formats.reasoning, end, template)
    grammar_after: tuple[int, ...] = ()
    if thinks is not None and expected:
        grammar_after = tuple(tokenizer.encode(reasoning.FORMATS[thinks].closing, add_special_tokens=False))
    make_parser = None
    if thinks is not None or calls is not None:
        make_parser = _ParserMaker(
            spec=spec, thinks=thinks, thinking=thinking, calls=calls, offered=offered, token_bytes=tokenizer.token_bytes
        )
    one_call = spec.tool_name is not None or not spec.parallel_tool_calls
    shown = thinks if spec.separate_reasoning else None
    return PreparedChat(
        token_ids=ids,
        text=text,
        make_parser=make_parser,
        thinking=thinking,
        reasoning=shown,
        grammar_after=grammar_after,
        calls_schema=offered.calls_schema(most=1 if one_call else None) if forced else None,
        calls_tag=offered.calls_tag(calls, parallel=not one_call) if calls in TAGS and offered.strict else None,
        show_specials=calls is not None or (shown is not None and _has_special(shown, tokenizer)),
        warnings=() if forced else _warnings(offered, calls),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParserMaker:
    """Makes the parser of each sample."""

    spec: ChatSpec
    thinks: str | None  # format of the thinking
    thinking: bool
    calls: str | None  # format of the calls
    offered: ToolSet
    token_bytes: Sequence[bytes]

    def __call__(self) -> OutputParser:
        counter = self._reasoning()
        return OutputParser(
            self._reasoning() if self.spec.separate_reasoning else None,
            self._tools(),
            stream_reasoning=self.spec.stream_reasoning,
            counter=ReasoningCounter(counter, self.token_bytes) if counter is not None else None,
        )

    def _reasoning(self) -> Parser | None:
        if self.thinks is None:
            return None
        return reasoning.make_reasoning_parser(self.thinks, prompt_is_open=self.thinking)

    def _tools(self) -> Parser | None:
        if self.calls is None:
            return None
        schemas, parallel = self.offered.schemas, self.spec.parallel_tool_calls
        if self.calls == "json array":
            return JsonArray(schemas, parallel=parallel)
        return tools.make_tool_parser(self.calls, schemas, parallel=parallel)


def _prompt(
    spec: ChatSpec,
    offered: ToolSet,
    calls: str | None,
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    *,
    told: bool,
) -> tuple[list[int], str | None]:
    """The prompt's ids and its text. `told`: where the template prints no tools, the system message may."""
    if spec.token_ids is not None:
        return spec.token_ids, None
    if template is None:
        raise RequestError(
            "The model has no chat template; start the server with --chat-template or use completions.",
            field="messages",
        )
    messages = spec.messages
    if offered.tools and not template.knows_tools:
        messages = _told(messages, offered, calls if told else None)
    pieces = template.render_pieces(
        messages,
        tools=offered.tools or None,
        add_generation_prompt=spec.add_generation_prompt,
        continue_final_message=spec.continue_final_message,
        **spec.template_kwargs,
    )
    return tokenizer.encode_chat(pieces), "".join(piece.text for piece in pieces)


def _thinking(
    spec: ChatSpec, format: str | None, end: str, template: ChatTemplate | None
) -> tuple[str | None, bool, bool]:
    """The format of the thinking that may come, whether the output begins inside it, and whether it is sure to come."""
    if format is None:
        return None, False, False
    continued = _continued(spec)
    if reasoning.closes_thinking(format, end, continued, spec.template_kwargs):
        # some models open it all the same; those whose text always starts inside cannot show that they did
        return (None if reasoning.FORMATS[format].starts_inside else format), False, False
    inside = reasoning.starts_thinking(format, end, continued)
    source = template.sources if template is not None else ""
    return format, inside, inside or reasoning.expects_thinking(format, source, spec.template_kwargs)


def _offered(spec: ChatSpec) -> tuple[ToolSet, bool]:
    """The functions that the model is shown, and whether it must call one."""
    forced = spec.tool_name is not None or spec.tool_choice == "required"
    if forced and not spec.tools.tools:
        raise RequestError("tool_choice: a call can only be forced with tools.", field="tool_choice")
    if spec.tool_name is not None:
        return spec.tools.only(spec.tool_name), True
    return (ToolSet() if spec.tool_choice == "none" else spec.tools), forced


def _told(messages: Sequence[Mapping[str, Any]], offered: ToolSet, format: str | None) -> list[Message]:
    """The messages with the functions in the system message, for a template that would drop them without a word."""
    if format not in SYSTEM_TEXTS:
        raise RequestError(
            "tools: the model's chat template does not print tools, so the model would never see them. Force a call "
            "with tool_choice, or start the server with --tool-call-parser hermes to have them described in the "
            "system message, or with another --chat-template.",
            field="tools",
        )
    refuse_surrogates(offered.tools, "tools")
    told = offered.system_text(format)
    first = messages[0] if messages else None
    if isinstance(first, Mapping) and first.get("role") in ("system", "developer"):
        before = text_content(first.get("content"), "messages[0].content")
        return [{**first, "content": f"{before}\n\n{told}" if before else told}, *map(dict, messages[1:])]
    return [{"role": "system", "content": told}, *messages]  # type: ignore[list-item]


def _continued(spec: ChatSpec) -> str:
    """The assistant's text that is being continued."""
    if not spec.continue_final_message or not spec.messages:
        return ""
    return text_content(spec.messages[-1].get("content"), "messages")


def _has_special(format: str, tokenizer: Tokenizer) -> bool:
    """Whether the format's markers are special tokens, which skipping would hide from the parser."""
    if format == "gpt-oss":
        return True
    form = reasoning.FORMATS[format]
    return not {form.opening, form.closing}.isdisjoint(tokenizer.special_texts)


def _warnings(offered: ToolSet, format: str | None) -> tuple[str, ...]:
    """What calls that the model need not make cannot be promised to be."""
    warnings = []
    if offered.tools and format is None:
        warnings.append("tool calls stay in the content: the server has no --tool-call-parser for this model")
    if offered.strict and format not in TAGS:
        warnings.append(
            f"strict is not enforced in this model's format for {', '.join(offered.strict)}; force the call"
        )
    return tuple(warnings)
