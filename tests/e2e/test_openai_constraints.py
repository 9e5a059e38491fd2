"""Constraints through the official client and a real process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from support.process import Process

ASK: Any = [{"role": "user", "content": "go"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module", params=["--engine-process", "--no-engine-process"])
def client(request: pytest.FixtureRequest, serve: Callable[..., Process]) -> Iterator[openai.OpenAI]:
    process = serve("--executor", "scripted", request.param)
    process.ready().close()
    transport: Any = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="-", http_client=transport, max_retries=0) as client:
        yield client


def test_a_schema_is_obeyed_whole_and_streamed(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=ASK, response_format=FORMAT, n=3, seed=5)
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), SCHEMA)
    stream = client.chat.completions.create(model="toy", messages=ASK, response_format=FORMAT, seed=5, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == answer.choices[0].message.content


def test_a_schema_that_cannot_be_enforced_names_its_place(client: openai.OpenAI) -> None:
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    schema = {"type": "object", "properties": {"tags": tags}}
    format: Any = {"type": "json_schema", "json_schema": {"name": "tags", "schema": schema}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="#/properties/tags/uniqueItems"):
            client.chat.completions.create(model="toy", messages=ASK, response_format=format, stream=stream)
    assert client.chat.completions.create(model="toy", messages=ASK, max_tokens=2).usage is not None


def test_json_objects_and_regular_expressions(client: openai.OpenAI) -> None:
    object_format: Any = {"type": "json_object"}
    answer = client.chat.completions.create(model="toy", messages=ASK, response_format=object_format, max_tokens=20)
    assert (answer.choices[0].message.content or "").startswith("{")
    text = client.completions.create(model="toy", prompt="go", extra_body={"regex": "(yes|no)"}).choices[0].text
    assert text in ("yes", "no")
