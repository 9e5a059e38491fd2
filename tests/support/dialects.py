"""For tests of the Anthropic and Ollama routes: a template that prints all a message has, and readers of streams."""

from __future__ import annotations

import json
from typing import Any

from ramet.server.anthropic.request import MessagesRequest

TEMPLATE = (
    "{{ bos_token }}{% if tools %}<turn>tools:{{ tools | tojson }}<eos>{% endif %}"
    "{% if enable_thinking is defined %}[thinking {{ enable_thinking }}]{% endif %}"
    "{% if reasoning_effort %}[effort {{ reasoning_effort }}]{% endif %}"
    "{% for message in messages %}<turn>{{ message.role }}"
    "{% if message.name %}({{ message.tool_call_id }} {{ message.name }}){% endif %}:"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "[{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor %}"
    "<eos>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)

PARSERS: dict[str, Any] = {"reasoning_parser": "qwen3", "tool_call_parser": "hermes"}

#: Thinking, text and a call, as a hermes model writes them.
REPLY = (
    "<think>Hm, weather.</think>Looking."
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
)


def messages_request(**fields: Any) -> MessagesRequest:
    """A body of `/v1/messages`."""
    base: dict[str, Any] = {"model": "m", "max_tokens": 2000, "messages": [{"role": "user", "content": "go"}]}
    return MessagesRequest(**{**base, **fields})


def sse(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream whose events have names; comments are refused, for this dialect has none."""
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def folded(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's events make, checked for their order: one block open at a time, indices rising."""
    events = [event for event in events if event["type"] != "ping"]
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = {**events[0]["message"], "content": []}
    blocks = message["content"]
    is_open, arguments = False, ""
    for event in events[1:-2]:
        kind = event["type"]
        assert kind in ("content_block_start", "content_block_delta", "content_block_stop")
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            is_open, arguments = True, ""
            blocks.append(dict(event["content_block"]))
        else:
            assert is_open
            assert event["index"] == len(blocks) - 1
        if kind == "content_block_delta":
            block, delta = blocks[-1], event["delta"]
            if delta["type"] == "input_json_delta":
                assert block["type"] == "tool_use"
                arguments += delta["partial_json"]
            else:
                key = block["type"]
                assert delta["type"] == f"{key}_delta"
                block[key] += delta[key]
        if kind == "content_block_stop":
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments)
    assert not is_open
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the ids that are made anew for every answer; they are checked for their form."""
    assert message["id"].startswith("msg_")
    blocks = []
    for block in message["content"]:
        if block["type"] == "tool_use":
            assert block["id"].startswith("toolu_")
            block = {**block, "id": ""}
        blocks.append(block)
    return {**message, "id": "", "content": blocks}
