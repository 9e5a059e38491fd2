"""Chat templates: messages to the text that a model was trained on.

A special token's text inside what a client wrote ("<|im_end|>" in a user's message) must stay ordinary text, while the
same text written by the template must become the token. `ChatTemplate.render_pieces` keeps them apart: occurrences in
client strings are fenced, before rendering, by characters that no client can guess, and come out as untrusted pieces.
`Tokenizer.encode_chat` encodes all pieces in one go, so ids are those of the plain text wherever nothing is fenced.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes

from ramet.errors import ConfigError, RequestError
from ramet.text.messages import Message, normalise, refuse_surrogates
from ramet.text.sandbox import BUDGET_KEY, MAX_CHARS, MAX_LOOP_TURNS, Budget, TemplateEnvironment
from ramet.text.tokenizer import Tokenizer

_TEMPLATES = "ramet.text.templates"


class Piece(NamedTuple):
    """A stretch of a rendered chat. Only in `trusted` pieces does a special token's text mean the token."""

    text: str
    trusted: bool


class ChatTemplate:
    """One template, compiled. `tool_source` is used instead of `source` when a request has tools.

    Raises `ConfigError` when a source is not a valid template.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        tool_source: str | None = None,
        special_texts: Iterable[str] = (),
    ) -> None:
        self.source = source
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._environment = TemplateEnvironment()
        self._plain = self._compile(source)
        self._with_tools = self._plain if tool_source is None else self._compile(tool_source)
        self.sources = sources = source + (tool_source or "")  # all there is to learn from
        self.knows_tools = "tools" in sources  # a template that does not would drop a request's tools without a word
        self._knows_developer = "developer" in sources
        self._wants_parts = _walks_over_parts(self._environment.parse(source), source)
        self._open, self._close, self._end = (_unguessable() for _ in range(3))
        texts = sorted((text for text in special_texts if text), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt as text. Arguments and errors as for `render_pieces`."""
        pieces = self.render_pieces(messages, tools, add_generation_prompt, continue_final_message, **kwargs)
        return "".join(piece.text for piece in pieces)

    def render_pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[Piece]:
        """The prompt as pieces, in order.

        `continue_final_message`: the last message, an assistant's, is left open after its last character, for the model
        to go on with; no generation prompt is added then. `kwargs` are variables for the template
        (`chat_template_kwargs`).
        Raises `RequestError` with the template's own words when it refuses, and for malformed messages.
        """
        try:
            return self._render_pieces(messages, tools, add_generation_prompt, continue_final_message, kwargs)
        except RecursionError:
            raise RequestError("messages: nested too deeply", field="messages") from None

    def _render_pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any],
    ) -> list[Piece]:
        chat = normalise(messages, developer=self._knows_developer, content_parts=self._wants_parts)
        if continue_final_message:
            add_generation_prompt = False
            self._mark_end(chat)
        variables = {"messages": chat, "tools": list(tools) if tools else None, **kwargs}
        refuse_surrogates(variables["tools"], "tools")
        refuse_surrogates(kwargs, "chat_template_kwargs")
        fenced = {name: self._fence(value) for name, value in variables.items()}
        fenced["add_generation_prompt"] = add_generation_prompt
        text = self._render(fenced)
        if continue_final_message:
            text, found, _ = text.rpartition(self._end)
            if not found:
                raise RequestError(
                    "continue_final_message: the chat template does not print the last message's content, "
                    "so there is nothing to continue",
                    field="continue_final_message",
                )
        return self._pieces(text)

    def _compile(self, source: str) -> jinja2.Template:
        try:
            return self._environment.from_string(source)
        except jinja2.TemplateError as error:
            line = f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ConfigError(f"the chat template is not valid: {error}{line}", field="chat_template") from error

    def _mark_end(self, chat: list[Message]) -> None:
        last = chat[-1]
        if last["role"] != "assistant":
            raise RequestError(
                f"continue_final_message: the last message has the role {last['role']!r}; "
                "only an assistant's message can be continued",
                field="continue_final_message",
            )
        if isinstance(last["content"], list):
            text = "".join(part["text"] for part in last["content"])
            last["content"] = [{"type": "text", "text": text + self._end}]
        else:
            last["content"] += self._end

    def _fence(self, value: Any) -> Any:
        """`value` with every special token's text in its strings fenced; the very object where there is none."""
        if self._special is None:
            return value
        if isinstance(value, str):
            return self._special.sub(self._fenced, value)
        if isinstance(value, Mapping):
            return {self._fence(key): self._fence(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._fence(inner) for inner in value]
        return value

    def _fenced(self, match: re.Match[str]) -> str:
        return f"{self._open}{match[0]}{self._close}"

    def _render(self, variables: dict[str, Any]) -> str:
        template = self._with_tools if variables["tools"] else self._plain
        try:
            return self._run(template, variables)
        except RecursionError:
            raise
        except Exception as error:
            bare = _bare_functions(variables["tools"])
            if bare is not None:  # some templates want the functions without their envelope
                try:
                    return self._run(template, {**variables, "tools": bare})
                except Exception:  # noqa: BLE001, S110 - the first error, raised below, tells more
                    pass
            raise RequestError(
                f"the chat template refused the request: {self._clean(str(error))}", field="messages"
            ) from error

    def _run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in template.generate({**self._tokens, **variables, BUDGET_KEY: Budget(MAX_LOOP_TURNS)}):
            parts.append(part)
            size += len(part)
            if size > MAX_CHARS:
                raise jinja2.TemplateError(f"the template printed more than {MAX_CHARS} characters")
        return "".join(parts)

    def _pieces(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        trusted_from = 0
        while (start := text.find(self._open, trusted_from)) >= 0:
            end = text.find(self._close, start)
            if end < 0:
                end = len(text)
            pieces.append(Piece(self._clean(text[trusted_from:start]), True))
            pieces.append(Piece(self._clean(text[start:end]), False))
            trusted_from = end
        pieces.append(Piece(self._clean(text[trusted_from:]), True))
        return [piece for piece in pieces if piece.text]

    def _clean(self, text: str) -> str:
        for mark in (self._open, self._close, self._end):
            text = text.replace(mark, "")
        return text


def load_chat_template(tokenizer: Tokenizer, choice: str | None = None) -> ChatTemplate | None:
    """The template that `--chat-template` names, or the checkpoint's own; None when there is neither.

    `choice`: a `.jinja` file, a `.json` file with the template under `chat_template`, one of the checkpoint's named
    templates, or one that ramet ships. Raises `ConfigError` with the possible names.
    """
    own = tokenizer.chat_templates
    make: Callable[..., ChatTemplate] = lambda source, tool_source=None: ChatTemplate(  # noqa: E731
        source,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        tool_source=tool_source,
        special_texts=tokenizer.special_texts,
    )
    if choice is None:
        if not own:
            return None
        return make(own.get("default", next(iter(own.values()))), own.get("tool_use"))
    path = Path(choice)
    if path.suffix in (".jinja", ".jinja2", ".json"):
        return make(_template_file(path))
    if choice in own:
        return make(own[choice])
    shipped = shipped_templates()
    if choice in shipped:
        return make(shipped_template(choice))
    raise ConfigError(
        f"--chat-template {choice}: no such template. Give a .jinja or .json file, or one of "
        f"{', '.join(sorted({*own, *shipped}))}.",
        field="chat_template",
    )


def shipped_templates() -> list[str]:
    """Names of the templates in the package."""
    names = (entry.name for entry in resources.files(_TEMPLATES).iterdir())
    return sorted(name.removesuffix(".jinja") for name in names if name.endswith(".jinja"))


def shipped_template(name: str) -> str:
    """The source of a template in the package."""
    return (resources.files(_TEMPLATES) / f"{name}.jinja").read_text(encoding="utf-8")


def _template_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", error)
        raise ConfigError(f"--chat-template {path}: {reason}", field="chat_template") from error
    if path.suffix != ".json":
        return text
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--chat-template {path}: not valid JSON: {error}", field="chat_template") from error
    source = content.get("chat_template") if isinstance(content, dict) else None
    if not isinstance(source, str):
        raise ConfigError(
            f"--chat-template {path}: the JSON needs the template as a string under chat_template",
            field="chat_template",
        )
    return source


def _unguessable() -> str:
    """Twelve of Unicode's 32 noncharacters in U+FDD0–FDEF: 60 bits, and no text has a reason to hold even one."""
    return "".join(chr(0xFDD0 + secrets.randbelow(32)) for _ in range(12))


def _bare_functions(tools: Any) -> list[Any] | None:
    if not tools or not all(isinstance(tool, Mapping) and "function" in tool for tool in tools):
        return None
    return [tool["function"] for tool in tools]


def _walks_over_parts(tree: nodes.Template, source: str) -> bool:
    """Whether a template loops over a message's content and never asks whether that is a string."""
    loops = any(
        (isinstance(target, nodes.Getattr) and target.attr == "content")
        or (isinstance(target, nodes.Getitem) and isinstance(target.arg, nodes.Const) and target.arg.value == "content")
        for loop in tree.find_all(nodes.For)
        for target in [loop.iter.node if isinstance(loop.iter, nodes.Filter) else loop.iter]
    )
    return loops and "is string" not in source and "is not iterable" not in source
