"""The official client against a real process: what people do first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from support import toy
from support.process import Process

TEXT = "Hi thereok"
SCRIPT = ",".join(map(str, [*toy.ids("Hi", " there", "ok"), toy.EOS]))
ASK: Any = [{"role": "user", "content": "go"}]


@pytest.fixture(scope="module", params=["--engine-process", "--no-engine-process"])
def client(request: pytest.FixtureRequest, serve: Callable[..., Process]) -> Iterator[openai.OpenAI]:
    process = serve("--executor", "scripted", "--scripted-tokens", SCRIPT, "--api-key", "secret", request.param)
    process.ready().close()
    transport: Any = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="secret", http_client=transport, max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=ASK)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


def test_chat_stream(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="toy", messages=ASK, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_chat_options(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=ASK, n=2, max_completion_tokens=2, logprobs=True, top_logprobs=2, seed=1, stop=["zz"]
    )
    assert [choice.message.content for choice in answer.choices] == ["Hi there"] * 2
    assert [choice.finish_reason for choice in answer.choices] == ["length"] * 2
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["Hi", " there"]
    assert len(logprobs.content[0].top_logprobs) == 2


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="toy", prompt=["go", "on"], max_tokens=1, echo=True, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["goHi", "onHi"]
    assert answer.choices[0].logprobs is not None
    streamed = list(client.completions.create(model="toy", prompt="go", stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == TEXT


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_the_clients_own_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="toy", messages=ASK, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="toy", messages=ASK, temperature=-1, stream=True)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert client.chat.completions.create(model="toy", messages=ASK).choices[0].message.content == TEXT


async def test_the_asynchronous_client(client: openai.OpenAI) -> None:
    async with httpx.AsyncClient(trust_env=False) as plain:
        transport: Any = plain
        other = openai.AsyncOpenAI(base_url=client.base_url, api_key="secret", http_client=transport)
        stream = await other.chat.completions.create(model="toy", messages=ASK, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert text == TEXT
