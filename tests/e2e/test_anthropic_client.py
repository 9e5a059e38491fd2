"""The official client against a real process: messages, streams and their helpers, tools, thinking, counts, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest

from support.chats import saying, write_model
from support.dialects import REPLY, TEMPLATE
from support.process import Process

ASK: Any = {"model": "toy", "max_tokens": 400, "messages": [{"role": "user", "content": "What is the weather?"}]}
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    }
]
INPUT = {"city": "Paris", "days": 2}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve: Callable[..., Process]) -> str:
    model = write_model(tmp_path_factory.mktemp("anthropic") / "model", TEMPLATE)
    script = ",".join(map(str, saying(REPLY).tokens or ()))
    process = serve(
        *("--model-path", str(model), "--executor", "scripted", "--scripted-tokens", script, "--api-key", "secret"),
        *("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--max-total-tokens", "8192"),
    )
    process.ready().close()
    return process.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[anthropic.Anthropic]:
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    with anthropic.Anthropic(base_url=url, api_key="secret", http_client=transport, max_retries=0) as client:
        yield client


def check(message: anthropic.types.Message) -> None:
    """The scripted reply, as the client's own types."""
    thinking, text, call = message.content
    assert isinstance(thinking, anthropic.types.ThinkingBlock)
    assert (thinking.thinking, thinking.signature) == ("Hm, weather.", "")
    assert isinstance(text, anthropic.types.TextBlock)
    assert text.text == "Looking."
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (call.name, call.input) == ("get_weather", INPUT)
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "tool_use", None)
    assert message.usage.output_tokens == len(REPLY) + 1


def test_a_message_with_thinking_text_and_a_call(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ASK, tools=TOOLS, system="Be brief.")
    check(message)
    assert message._request_id is not None


def test_the_same_streamed(client: anthropic.Anthropic) -> None:
    kinds = [event.type for event in client.messages.create(**ASK, tools=TOOLS, stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    with client.messages.stream(**ASK, tools=TOOLS) as stream:
        assert "".join(stream.text_stream) == "Looking."
        check(stream.get_final_message())


def test_the_second_turn_of_an_agent(client: anthropic.Anthropic) -> None:
    first = client.messages.create(**ASK, tools=TOOLS)
    call = first.content[-1]
    assert isinstance(call, anthropic.types.ToolUseBlock)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns: Any = [
        *ASK["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(**{**ASK, "messages": turns}, tools=TOOLS)
    check(second)
    usage = second.usage
    assert usage.cache_read_input_tokens
    assert usage.cache_read_input_tokens >= first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) - 1


def test_counting(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="toy", messages=ASK["messages"], tools=TOOLS)
    usage = client.messages.create(**ASK, tools=TOOLS).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_ends(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    message = client.messages.create(**{**ASK, "max_tokens": 1500}, stop_sequences=["oki"], thinking=thinking)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "oki")
    with client.messages.stream(**ASK, stop_sequences=["oki"]) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", "oki")
    assert client.messages.create(**{**ASK, "max_tokens": 3}).stop_reason == "max_tokens"


def test_errors_are_the_clients_own_kinds(client: anthropic.Anthropic, url: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match="stop_sequences"):
        client.messages.create(**ASK, stop_sequences=["\n"])
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "x" * 3000}]}, stream=True)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.list()
    transport = anthropic.DefaultHttpxClient(trust_env=False)
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", http_client=transport, max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(**ASK)
    assert client.messages.create(**{**ASK, "max_tokens": 1}).usage.output_tokens == 1


async def test_the_asynchronous_client_with_a_bearer_token(url: str) -> None:
    transport = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(base_url=url, auth_token="secret", http_client=transport) as client:
        check(await client.messages.create(**ASK, tools=TOOLS))
        async with client.messages.stream(**ASK, tools=TOOLS) as stream:
            check(await stream.get_final_message())
