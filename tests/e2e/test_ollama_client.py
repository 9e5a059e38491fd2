"""The official client against a real process: chats, prompts, streams, tools, the library, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ollama
import pytest

from support.chats import WEATHER, saying, write_model
from support.dialects import REPLY, TEMPLATE
from support.process import Process

ASK: Any = {"model": "toy", "messages": [{"role": "user", "content": "What is the weather?"}]}
ARGUMENTS = {"city": "Paris", "days": 2}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, serve: Callable[..., Process]) -> str:
    model = write_model(tmp_path_factory.mktemp("ollama") / "model", TEMPLATE)
    script = ",".join(map(str, saying(REPLY).tokens or ()))
    process = serve(
        *("--model-path", str(model), "--executor", "scripted", "--scripted-tokens", script),
        *("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--max-total-tokens", "8192"),
    )
    process.ready().close()
    return process.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[ollama.Client]:
    with ollama.Client(host=url, trust_env=False) as client:
        yield client


def check(calls: Any) -> None:
    (call,) = calls
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)


def test_a_chat_with_thinking_text_and_a_call(client: ollama.Client) -> None:
    answer = client.chat(**ASK, tools=[WEATHER], think=True)
    assert (answer.message.content, answer.message.thinking) == ("Looking.", "Hm, weather.")
    check(answer.message.tool_calls)
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", len(REPLY) + 1)
    assert answer.total_duration
    assert answer.eval_duration
    assert answer.total_duration >= answer.eval_duration


def test_the_same_streamed(client: ollama.Client) -> None:
    parts = list(client.chat(**ASK, tools=[WEATHER], stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Looking."
    assert "".join(part.message.thinking or "" for part in parts) == "Hm, weather."
    check([call for part in parts for call in part.message.tool_calls or ()])
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == len(REPLY) + 1


def test_a_python_function_as_a_tool_and_the_second_turn(client: ollama.Client) -> None:
    def get_weather(city: str, days: int) -> str:
        """The weather in a city.

        Args:
            city: its name
            days: how many
        """
        return f"{city}: sunny for {days} days"

    first = client.chat(**ASK, tools=[get_weather])
    assert first.message.tool_calls
    call = first.message.tool_calls[0]
    result = {"role": "tool", "tool_name": call.function.name, "content": get_weather(**call.function.arguments)}
    second = client.chat(model="toy", messages=[*ASK["messages"], first.message, result], tools=[get_weather])
    assert second.message.content == "Looking."
    assert (second.prompt_eval_count or 0) > (first.prompt_eval_count or 0)


def test_prompts(client: ollama.Client) -> None:
    answer = client.generate(model="toy", prompt="go", system="Be brief.", options={"num_predict": 27, "seed": 1})
    assert (answer.response, answer.thinking, answer.done_reason) == ("", "Hm, weather.", "length")
    assert answer.context
    parts = list(client.generate(model="toy", prompt="go", raw=True, stream=True, options={"num_predict": 7}))
    assert "".join(part.response or "" for part in parts) == "<think>"
    assert parts[-1].context is None
    again = client.generate(model="toy", prompt="on", context=answer.context, options=ollama.Options(stop=["oki"]))
    assert again.response == "Lo"
    assert (again.prompt_eval_count or 0) > len(answer.context)


def test_loading_and_unloading(client: ollama.Client) -> None:
    assert client.chat(model="toy", messages=[]).done_reason == "load"
    assert client.generate(model="toy", prompt="", keep_alive=0).done_reason == "unload"


def test_the_library(client: ollama.Client) -> None:
    (tag,) = client.list().models
    assert tag.model == "toy"
    assert len(tag.digest or "") == 16
    assert [model.model for model in client.ps().models] == ["toy"]
    shown = client.show("toy")
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert (shown.modelinfo or {})["llama.context_length"] == 2048


def test_errors_are_the_clients_own_kind(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="temperature") as caught:
        client.chat(**ASK, options={"temperature": -1})
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        list(client.chat(**ASK, options={"num_ctx": 8}, stream=True))
    with pytest.raises(ollama.ResponseError) as caught:
        client.pull("toy")
    assert caught.value.status_code == 404


async def test_the_asynchronous_client(url: str) -> None:
    async with ollama.AsyncClient(host=url, trust_env=False) as client:
        parts = [part async for part in await client.chat(**ASK, tools=[WEATHER], stream=True)]
        assert "".join(part.message.content or "" for part in parts) == "Looking."
        check([call for part in parts for call in part.message.tool_calls or ()])
