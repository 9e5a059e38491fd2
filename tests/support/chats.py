"""Chats over a scripted model that says a given text: asked whole and streamed, which must give the same message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ramet.executor.scripted import Script
from support import toy
from support.server import Server, running

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "go"}]}

#: Prints tools and calls; `think` opens the thinking in the generation prompt.
TEMPLATE = (
    "{{ bos_token }}{% if tools %}<turn>tools:{{ tools | tojson(ensure_ascii=False) }}<eos>{% endif %}"
    "{% for m in messages %}<turn>{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "<eos>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% if think or enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A tool with these parameters."""
    parameters = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


WEATHER = function("get_weather", city={"type": "string"}, days={"type": "integer"})
NOW = function("now")
TOOLS = [WEATHER, NOW, function("rm", p={"type": "string"})]


def call(name: str, arguments: str) -> str:
    """A call as hermes models write it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def saying(text: str, *, stop: bool = True) -> Script:
    """A model that says `text`, a byte a token, and ends; without `stop` it begins again."""
    return Script(tokens=[*text.encode(), *([toy.EOS] if stop else [])])


def write_model(directory: Path, template: str = TEMPLATE, context: int = 2048) -> Path:
    """The toy model with another template and a longer context."""
    model = toy.write(directory, max_position_embeddings=context)
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return model


@asynccontextmanager
async def chatting(model: Path, **options: Any) -> AsyncIterator[Server]:
    """A server that reads hermes calls, unless `options` say otherwise."""
    async with running(model, **{"tool_call_parser": "hermes", "max_total_tokens": 8192, **options}) as server:
        yield server


async def ask(server: Server, text: str | Script, **body: Any) -> dict[str, Any]:
    """The first choice of the answer, the same whole and streamed however the stream's chunks are cut."""
    server.executor.script = saying(text) if isinstance(text, str) else text
    request = {**ASK, **body}
    whole = await server.client.post(CHAT, request)
    assert whole.status == 200, whole.body
    expected: dict[str, Any] = whole.json["choices"][0]
    for interval in (1, 2, 7):
        server.frontend.stream_interval = interval
        assert without_ids(joined(await server.client.stream(CHAT, request).events())) == without_ids(expected)
    return expected


def joined(events: Sequence[Any], index: int = 0) -> dict[str, Any]:
    """The choice that a stream's events make, checked for their order."""
    assert events[-1] == "[DONE]", events[-1]
    chunks = [event["choices"][0] for event in events[:-1] if event["choices"]]
    chunks = [chunk for chunk in chunks if chunk["index"] == index]
    assert chunks[0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": None}
    logprobs: list[Any] | None = None
    for chunk in chunks[1:-1]:
        assert chunk["finish_reason"] is None
        delta = chunk["delta"]
        message["content"] += delta.get("content", "")
        if delta["reasoning_content"]:
            message["reasoning_content"] = (message["reasoning_content"] or "") + delta["reasoning_content"]
        for part in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if part["id"] is not None:
                assert part["index"] == len(calls)
                assert part["function"]["arguments"] == ""
                calls.append({**part, "function": dict(part["function"])})
            else:
                assert part["function"]["name"] is None
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        if chunk["logprobs"]:
            logprobs = (logprobs or []) + chunk["logprobs"]["content"]
    assert chunks[-1]["delta"] == {"reasoning_content": None}
    return {
        "index": index,
        "message": message,
        "logprobs": None if logprobs is None else {"content": logprobs},
        "finish_reason": chunks[-1]["finish_reason"],
        "matched_stop": chunks[-1]["matched_stop"],
    }


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice with the made-up ids of its calls left out; they are checked for their form."""
    calls = choice["message"].get("tool_calls")
    if not calls:
        return choice
    for one in calls:
        assert one["id"].startswith("call_")
        assert len(one["id"]) == 29
    assert len({one["id"] for one in calls}) == len(calls)
    return {**choice, "message": {**choice["message"], "tool_calls": [{**one, "id": ""} for one in calls]}}


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and arguments."""
    return [(one["function"]["name"], one["function"]["arguments"]) for one in choice["message"].get("tool_calls", [])]
