"""Where `ramet chat` and `ramet generate` get their answers: an engine in this process, or a running server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from ramet.errors import ConfigError, EngineDeadError, RequestError
from ramet.types import DEFAULT_MAX_NEW_TOKENS

Messages = list[dict[str, str]]

#: Seconds without a byte after which a server is given up; a long prompt may take a while before its first token.
TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new of an answer. The last one has `finish` and the counts of the whole."""

    text: str
    finish: str | None = None  # stop, length or abort
    prompt_tokens: int = 0
    completion_tokens: int = 0  # so far; 0 where a server does not say
    cached_tokens: int = 0


class Source(Protocol):
    """Closing a returned generator early ends the request."""

    def generate(self, prompt: str, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        """Continue the prompt. `sampling` has the names of `/generate`."""
        ...

    def chat(self, messages: Messages, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        """Answer the last of the messages."""
        ...


class Local:
    """Answers from a `ramet.Engine`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def generate(self, prompt: str, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        return _new_parts(self._engine.generate(prompt, sampling, stream=True))

    def chat(self, messages: Messages, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        return _new_parts(self._engine.chat(messages, sampling, stream=True))


class Remote:
    """Answers from a server at `url`, through its OpenAI routes.

    Raises:
        ConfigError: nothing listens there.
        RequestError: the server refused the request; the message is the server's.
        EngineDeadError: the server went away in the middle of an answer.
    """

    def __init__(self, url: str, *, api_key: str | None = None, model: str = "default") -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url {url}: must look like http://127.0.0.1:30000", field="url")
        self._parts = parts
        self._model = model
        self._headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def generate(self, prompt: str, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        default = {"max_tokens": DEFAULT_MAX_NEW_TOKENS}  # the route's own is 16
        return self._pieces("/v1/completions", default | {"prompt": prompt} | _renamed(sampling))

    def chat(self, messages: Messages, sampling: dict[str, Any]) -> Generator[Piece, None, None]:
        return self._pieces("/v1/chat/completions", {"messages": messages} | _renamed(sampling))

    def _pieces(self, path: str, body: dict[str, Any]) -> Generator[Piece, None, None]:
        finish = None
        for event in self._events(path, body | {"model": self._model}):
            for choice in event["choices"]:
                finish = choice.get("finish_reason") or finish
                if text := choice["delta"].get("content") if "delta" in choice else choice["text"]:
                    yield Piece(text)
            if usage := event.get("usage"):
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                yield Piece("", finish or "stop", usage["prompt_tokens"], usage["completion_tokens"], cached)

    def _events(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The JSON of each server-sent event of the answer, up to `[DONE]`. Closing the generator hangs up."""
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=TIMEOUT_S)
        try:
            try:
                connection.request("POST", self._parts.path.rstrip("/") + path, json.dumps(body), self._headers)
                response = connection.getresponse()
            except OSError as error:
                message = f"no server answers at {self._parts.geturl()} ({error}); start one with `ramet serve`"
                raise ConfigError(message, field="url") from error
            if response.status != 200:
                raise RequestError(_message(response.read(), response.status))
            try:
                for line in response:
                    data = line.decode().removeprefix("data:").strip() if line.startswith(b"data:") else ""
                    if data == "[DONE]":
                        return
                    if data:
                        event = json.loads(data)
                        if "error" in event:
                            raise RequestError(_message(data.encode(), 200))
                        yield event
            except (OSError, http.client.HTTPException) as error:
                raise EngineDeadError(f"the server at {self._parts.geturl()} went away: {error}") from error
            raise EngineDeadError(f"the server at {self._parts.geturl()} ended the answer in the middle")
        finally:
            connection.close()


def _new_parts(chunks: Iterator[dict[str, Any]]) -> Generator[Piece, None, None]:
    """From chunks of `/generate`, whose text is all there is so far, to what each adds."""
    shown = ""
    try:
        for chunk in chunks:
            text, meta = chunk["text"], chunk["meta_info"]
            new, shown = text[len(shown) :], text
            finish = meta.get("finish_reason")
            if finish is None:
                yield Piece(new, completion_tokens=meta["completion_tokens"])
            else:
                if finish["type"] == "abort":
                    raise RequestError(finish.get("message") or "the request was aborted")
                yield Piece(
                    new, finish["type"], meta["prompt_tokens"], meta["completion_tokens"], meta.get("cached_tokens", 0)
                )
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


def _renamed(sampling: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's names where they differ; the routes take the others as `/generate` spells them."""
    names = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
    return {names.get(name, name): value for name, value in sampling.items() if value is not None}


def _message(body: bytes, status: int) -> str:
    """The sentence inside an error body of any of the dialects' shapes."""
    try:
        answer = json.loads(body)
    except ValueError:
        return f"the server answered {status}: {body[:200].decode(errors='replace')}"
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or f"the server answered {status}")
