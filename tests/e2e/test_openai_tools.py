"""The official client against a real process: thinking, tool calls, and the Responses API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from support import toy
from support.chats import call, function, write_model
from support.process import Process

CITY = '{"city": "Zürich"}'
TEXT = "<think>hm</think>Let me look." + call("get_weather", CITY) + call("now", "{}")
SCRIPT = ",".join(map(str, [*TEXT.encode(), toy.EOS]))
ASK: Any = [{"role": "user", "content": "go"}]
TOOLS: Any = [function("get_weather", city={"type": "string"}), function("now")]
FLAT: Any = [{"type": "function", **tool["function"]} for tool in TOOLS]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, serve: Callable[..., Process]) -> Iterator[openai.OpenAI]:
    model = write_model(tmp_path_factory.mktemp("e2e") / "model")
    process = serve(
        *("--model-path", str(model), "--max-total-tokens", "16384", "--executor", "scripted"),
        *("--scripted-tokens", SCRIPT, "--no-engine-process", "--enable-response-store"),
        *("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
    )
    process.ready().close()
    transport: Any = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="x", http_client=transport, max_retries=0) as client:
        yield client


def test_tool_calls(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="toy", messages=ASK, tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == "hm"
    calls: Any = choice.message.tool_calls
    assert [(one.function.name, one.function.arguments) for one in calls] == [("get_weather", CITY), ("now", "{}")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("k>hm</think>") - 1


def test_the_clients_own_accumulation_of_a_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="toy", messages=ASK, tools=TOOLS) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    assert [(event.name, event.arguments) for event in done] == [("get_weather", CITY), ("now", "{}")]
    assert message.content == "Let me look."
    assert message.tool_calls is not None
    assert [one.function.arguments for one in message.tool_calls] == [CITY, "{}"]
    assert all(one.id.startswith("call_") for one in message.tool_calls)


def test_a_round_trip(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(model="toy", messages=ASK, tools=TOOLS).choices[0].message
    assert first.tool_calls is not None
    results = [{"role": "tool", "tool_call_id": one.id, "content": "21"} for one in first.tool_calls]
    messages: Any = [*ASK, first, *results]
    answer = client.chat.completions.create(model="toy", messages=messages, tools=TOOLS, parallel_tool_calls=False)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert len(calls) == 1


def test_a_forced_call(client: openai.OpenAI) -> None:
    chosen: Any = {"type": "function", "function": {"name": "now"}}
    extra: Any = {"chat_template_kwargs": {"enable_thinking": False}}
    answer = client.chat.completions.create(
        model="toy", messages=ASK, tools=TOOLS, tool_choice=chosen, extra_body=extra, max_tokens=200
    )
    [choice] = answer.choices
    calls: Any = choice.message.tool_calls
    assert [one.function.name for one in calls] == ["now"]
    assert isinstance(json.loads(calls[0].function.arguments), dict)
    assert choice.finish_reason == "tool_calls"


def test_a_response(client: openai.OpenAI) -> None:
    response = client.responses.create(model="toy", input="go", tools=FLAT)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert response.output_text == "Let me look."
    assert response.status == "completed"
    call_item: Any = response.output[2]
    assert (call_item.name, call_item.arguments) == ("get_weather", CITY)
    assert response.usage is not None
    assert response.usage.output_tokens == len(TEXT.encode()) + 1


def test_a_responses_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="toy", input="go", tools=FLAT) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "Let me look."
    calls: Any = [item for item in final.output if item.type == "function_call"]
    assert [one.arguments for one in calls] == [CITY, "{}"]
    plain = client.responses.create(model="toy", input="go", stream=True)
    assert [event.type for event in plain][-1] == "response.completed"


def test_stored_responses(client: openai.OpenAI) -> None:
    first = client.responses.create(model="toy", input="go", tools=FLAT)
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "21"}
        for item in first.output
        if item.type == "function_call"
    ]
    second = client.responses.create(model="toy", input=outputs, previous_response_id=first.id, tools=FLAT)
    assert second.previous_response_id == first.id
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert len(client.responses.input_items.list(second.id).data) == 2
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    running = client.responses.create(model="toy", input="go", background=True)
    assert client.responses.cancel(running.id).status in ("cancelled", "completed")
    items: Any = [*second.output, {"role": "user", "content": "more"}]
    assert client.responses.create(model="toy", input=items).status == "completed"


def test_errors_of_responses(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client.responses.create(model="toy", input="go", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="other", input="go")
