"""The shapes of chat completions: the whole answer, and the chunks of a stream, from the same events."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ramet.server.context import Context
from ramet.server.explain import explanation
from ramet.server.openai import common
from ramet.server.openai.logprobs import chat_logprobs
from ramet.server.sse import DONE, event
from ramet.text.chat import PreparedChat
from ramet.text.events import Content, Event, Reasoning, ToolArguments, ToolStart
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice, Generation
from ramet.types import TokenLogprob

_encode = msgspec.json.Encoder().encode


class Delta(msgspec.Struct, kw_only=True):
    """What a chunk adds to the message. `reasoning_content` is always there, the rest only when set."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """The one choice of a chunk."""

    index: int
    delta: Delta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    matched_stop: int | str | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of the stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: dict[str, Any] | UnsetType = UNSET
    explain: dict[str, Any] | UnsetType = UNSET


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What the client asked to see, and under which names."""

    model: str
    rid: str | None = None
    logprobs: bool = False
    prompt_token_ids: bool = False
    token_ids: bool = False
    explain: bool = False
    include_usage: bool | None = None
    continuous_usage: bool = False


class ChatAnswer:
    """Renders one call."""

    def __init__(
        self, shown: Shown, chat: PreparedChat, generation: Generation, frontend: Frontend, context: Context
    ) -> None:
        self._shown = shown
        self._chat = chat
        self._generation = generation
        self._frontend = frontend
        self._table = frontend.tokenizer.token_bytes
        self._api = context.api
        self._weight_version = context.model.weight_version
        self._id = shown.rid or f"chatcmpl-{generation.choices[0].rid}"
        self._call_ids: dict[tuple[int, int], str] = {}

    def whole(self) -> dict[str, Any]:
        """The answer when everything has finished."""
        answer = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._generation.created,
            "model": self._shown.model,
            "choices": [self._choice(choice) for choice in self._generation.choices],
            "usage": common.usage_object(self._generation.usage(), cache_report=self._api.enable_cache_report),
            "metadata": {"weight_version": self._weight_version},
        }
        if self._shown.explain:
            answer["explain"] = explanation(self._generation, self._frontend, self._chat)
        return answer

    def _choice(self, choice: Choice) -> dict[str, Any]:
        message = choice.message
        answer: dict[str, Any] = {
            "role": "assistant",
            "content": message.content,
            "reasoning_content": message.reasoning or None,
        }
        if message.tool_calls:
            answer["tool_calls"] = [
                {
                    "id": self._call_id(choice, index, call.id),
                    "index": index,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(message.tool_calls)
            ]
        reason, matched = finish_of(choice)
        shown = {
            "index": choice.index,
            "message": answer,
            "logprobs": self._logprobs(choice.output_logprobs),
            "finish_reason": reason,
            "matched_stop": matched,
        }
        if self._shown.prompt_token_ids or self._shown.token_ids:
            shown["prompt_token_ids"] = choice.prompt_ids
        if self._shown.token_ids:
            shown["response_token_ids"] = choice.output_ids
        return shown

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self._table) if self._shown.logprobs else None

    def _call_id(self, choice: Choice, index: int, given: str | None) -> str:
        """The format's own id, or one made when first asked for."""
        return self._call_ids.setdefault((choice.index, index), given or f"call_{uuid.uuid4().hex[:24]}")

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Per choice a role chunk and its content; then the finish chunks of all, usage when asked, `[DONE]`."""
        begun: set[int] = set()
        async for chunk in self._generation:
            common.raise_if_aborted(chunk)
            choice = chunk.choice
            if choice.index not in begun:
                begun.add(choice.index)
                yield self._event(choice, Delta(role="assistant", content=""))
            deltas = [delta for one in chunk.events if (delta := self._delta(choice, one)) is not None]
            if chunk.logprobs and not deltas:
                deltas.append(Delta(content=""))
            logprobs = self._logprobs(chunk.logprobs)
            for delta in deltas:
                yield self._event(choice, delta, logprobs)
                logprobs = None  # a step's logprobs go with its first delta
        for choice in self._generation.choices:
            yield self._event(choice, Delta(), finished=True)
        if self._shown.explain:
            yield event(_encode(self._chunk([], explain=explanation(self._generation, self._frontend, self._chat))))
        wanted = self._shown.include_usage
        if wanted or (wanted is None and self._api.stream_response_default_include_usage):
            usage = common.usage_object(self._generation.usage(), cache_report=self._api.enable_cache_report)
            yield event(_encode(self._chunk([], usage=usage)))
        yield DONE

    def _delta(self, choice: Choice, one: Event) -> Delta | None:
        if isinstance(one, Content):
            return Delta(content=one.text)
        if isinstance(one, Reasoning):
            return Delta(reasoning_content=one.text)
        if isinstance(one, ToolStart):
            call = {
                "id": self._call_id(choice, one.index, one.id),
                "index": one.index,
                "type": "function",
                "function": {"name": one.name, "arguments": ""},
            }
            return Delta(tool_calls=[call])
        if isinstance(one, ToolArguments):
            function = {"name": None, "arguments": one.text}
            return Delta(tool_calls=[{"id": None, "index": one.index, "type": "function", "function": function}])
        return None

    def _event(
        self, choice: Choice, delta: Delta, logprobs: dict[str, Any] | None = None, *, finished: bool = False
    ) -> bytes:
        usage: dict[str, Any] | UnsetType = UNSET
        if self._shown.continuous_usage:
            usage = common.usage_object(choice.usage(), cache_report=self._api.enable_cache_report)
        reason, matched = finish_of(choice) if finished else (None, None)
        shown = ChunkChoice(
            index=choice.index, delta=delta, logprobs=logprobs, finish_reason=reason, matched_stop=matched
        )
        return event(_encode(self._chunk([shown], usage=usage)))

    def _chunk(
        self,
        choices: list[ChunkChoice],
        *,
        usage: dict[str, Any] | UnsetType = UNSET,
        explain: dict[str, Any] | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._generation.created,
            model=self._shown.model,
            choices=choices,
            usage=usage,
            explain=explain,
        )


def finish_of(choice: Choice) -> tuple[str, int | str | None]:
    """`finish_reason` and `matched_stop`. A text that stopped with at least one whole call ended for that call's sake;
    one that was cut off says so, whatever it holds."""
    finish = choice.finish
    assert finish is not None
    if finish.type == "stop" and any(call.complete for call in choice.message.tool_calls):
        return "tool_calls", None
    return finish.type, finish.matched
