"""The response object and its stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import msgspec

from ramet.errors import RametError
from ramet.server.errors import status_of
from ramet.server.explain import explanation
from ramet.server.openai import common
from ramet.server.openai.logprobs import chat_logprobs
from ramet.server.openai.responses.items import ItemBuilder, Step
from ramet.server.openai.responses.request import LOGPROBS, ResponsesRequest
from ramet.text.chat import PreparedChat
from ramet.text.frontend import Frontend
from ramet.text.generation import Chunk, Generation, abort_error
from ramet.types import SamplingParams, Usage

_encode = msgspec.json.Encoder().encode


class ResponseAnswer:
    """One response on its way, whole (`run`) or streamed (`events`); `response` is the object at any time."""

    def __init__(
        self,
        body: ResponsesRequest,
        sampling: SamplingParams,
        generation: Generation,
        frontend: Frontend,
        chat: PreparedChat,
        *,
        model: str,
        stored: bool,
    ) -> None:
        self.generation = generation
        self._table = frontend.tokenizer.token_bytes
        self._explain = bool(body.explain)
        self._frontend = frontend
        self._chat = chat
        self._with_logprobs = LOGPROBS in (body.include or ())
        self._items = ItemBuilder(summarise=bool((body.reasoning or {}).get("summary")))
        self._sequence = 0
        self.response: dict[str, Any] = {
            "id": generation.choices[0].rid,
            "object": "response",
            "created_at": generation.created,
            "status": "in_progress",
            "background": bool(body.background),
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "model": model,
            "output": self._items.items,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None, **(body.reasoning or {})},
            "service_tier": body.service_tier or "auto",
            "store": stored,
            "temperature": sampling.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    def _steps(self, chunk: Chunk) -> Iterator[Step]:
        """What a chunk adds."""
        logprobs = self._logprobs(chunk)
        for event in chunk.events:
            yield from self._items.add(event, logprobs)
            logprobs = []
        if logprobs:
            yield from self._items.more_logprobs(logprobs)
        if chunk.finish is not None:
            yield from self._end(chunk)

    def _end(self, chunk: Chunk) -> Iterator[Step]:
        finish = chunk.finish
        assert finish is not None
        whole = finish.type == "stop"
        yield from self._items.finish(complete=whole)
        self.response["usage"] = _usage(self.generation.usage())
        if self._explain:
            self.response["explain"] = explanation(self.generation, self._frontend, self._chat)
        if whole:
            self.response["status"] = "completed"
        elif finish.type == "length":
            self.response["status"] = "incomplete"
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            self.response["status"] = "cancelled"

    def _logprobs(self, chunk: Chunk) -> list[dict[str, Any]]:
        if not self._with_logprobs:
            return []
        content: list[dict[str, Any]] = chat_logprobs(chunk.logprobs, self._table)["content"]
        return content

    def cancel(self) -> None:
        """The response ends where it is."""
        for _ in self._items.finish(complete=False):
            pass
        self.response["status"] = "cancelled"

    def fail(self, error: RametError) -> None:
        """The response ends with an error."""
        status, _ = status_of(error, openai=True)
        code = "invalid_prompt" if status < 500 else "server_error"
        self.response |= {"status": "failed", "error": {"code": code, "message": error.message}}

    async def run(self) -> None:
        """Read the whole generation. Raises what ended it by an error."""
        async for chunk in self.generation:
            error = abort_error(chunk.finish)
            if error is not None:
                raise error
            for _ in self._steps(chunk):
                pass  # the items grow by themselves

    async def events(self, finished: Callable[[], None]) -> AsyncGenerator[bytes, None]:
        """The stream. `finished` is called with the response complete, before the last event."""
        begun = False
        async for chunk in self.generation:
            common.raise_if_aborted(chunk)
            if not begun:
                begun = True
                yield self._event("response.created", {"response": self.response})
                yield self._event("response.in_progress", {"response": self.response})
            for kind, fields in self._steps(chunk):
                yield self._event(kind, fields)
        finished()
        yield self._event(f"response.{self.response['status']}", {"response": self.response})

    def late_error(self, error: RametError) -> bytes:
        """The event that ends a failed stream."""
        self.fail(error)
        return self._event("response.failed", {"response": self.response})

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        number, self._sequence = self._sequence, self._sequence + 1
        data = _encode({"type": kind, "sequence_number": number, **fields})
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
