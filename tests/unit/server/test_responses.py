"""`/v1/responses`: surface.md 2.14 and 14, item 35; cases.md C11."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from ramet.server.openai.responses.store import ResponseStore, Stored
from support import toy
from support.chats import call, chatting, saying, write_model
from support.server import Server, paced

RESPONSES = "/v1/responses"
TOOLS = [
    {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}, "strict": None},
    {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
]
ON: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
OFF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("responses") / "model")


@pytest.fixture
async def server(chat_model: Path) -> AsyncIterator[Server]:
    async with chatting(chat_model, reasoning_parser="qwen3") as server:
        server.executor.script = saying("The Nile.")
        yield server


@pytest.fixture
async def storing(chat_model: Path) -> AsyncIterator[Server]:
    async with chatting(chat_model, enable_response_store=True) as server:
        server.executor.script = saying("The Nile.")
        yield server


async def streamed(server: Server, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, checked for their numbers, their names and the items that they belong to."""
    exchange = await server.client.stream(RESPONSES, {"input": "go", **body}).finish()
    events = []
    for block in exchange.body.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[str] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"]["id"])
        elif "item_id" in event:
            assert items[event["output_index"]] == event["item_id"]
    assert [item["id"] for item in events[-1]["response"]["output"]] == items
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Types of the events without their prefix, runs of one kind as one."""
    found: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if not found or found[-1] != kind:
            found.append(kind)
    return found


def bare(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}


async def agreed(server: Server, **body: Any) -> dict[str, Any]:
    """The response, the same whole and streamed."""
    whole = await server.client.post(RESPONSES, {"input": "go", **body})
    assert whole.status == 200, whole.body
    response: dict[str, Any] = whole.json
    for interval in (1, 5):
        server.frontend.stream_interval = interval
        last = (await streamed(server, **body))[-1]["response"]
        for key in ("status", "incomplete_details", "error"):
            assert last[key] == response[key]
        assert [bare(item) for item in last["output"]] == [bare(item) for item in response["output"]]
        assert last["usage"]["output_tokens"] == response["usage"]["output_tokens"]
    return response


async def test_c11_a_stream_in_order(server: Server) -> None:
    server.executor.script = paced([*b"The Nile.", toy.EOS])
    events = await streamed(server, input="Name a river")
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == list("The Nile.")
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["status"] == "completed"
    assert events[-1]["response"]["usage"]["output_tokens"] == 10


async def test_a_whole_answer(server: Server) -> None:
    response = await agreed(server, instructions="Be brief.", metadata={"a": "b"})
    assert response["object"] == "response"
    assert response["id"].startswith("resp_")
    assert response["status"] == "completed"
    assert response["metadata"] == {"a": "b"}
    assert response["instructions"] == "Be brief."
    assert response["model"] == "toy"
    assert response["store"] is False
    [item] = response["output"]
    assert item["id"].startswith("msg_")
    assert bare(item) == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "phase": "final_answer",
        "content": [{"type": "output_text", "text": "The Nile.", "annotations": [], "logprobs": []}],
    }
    prompt = "<bos><turn>system:Be brief.<eos><turn>user:go<eos><turn>assistant:"
    specials = 6
    length = len(prompt) - len("<bos><turn><eos><turn><eos><turn>") + specials
    usage = response["usage"]
    assert usage["input_tokens"] == length
    assert usage["total_tokens"] == length + 10
    assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}


async def test_the_limit_is_exact_and_said(server: Server) -> None:
    response = await agreed(server, max_output_tokens=3)
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["content"][0]["text"] == "The"
    assert response["output"][0]["status"] == "incomplete"
    assert kinds(await streamed(server, max_output_tokens=3))[-1] == "incomplete"


async def test_reasoning_is_an_item(server: Server) -> None:
    server.executor.script = saying("Hm.</think>Yes.")
    response = await agreed(server, **ON)
    thought, message = response["output"]
    assert thought["id"].startswith("rs_")
    assert bare(thought) == {
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    assert message["content"][0]["text"] == "Yes."
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == len("Hm.</think>")
    events = kinds(await streamed(server, **ON))
    assert events[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]


async def test_reasoning_as_a_summary(server: Server) -> None:
    server.executor.script = saying("Hm.</think>Yes.")
    body = {"reasoning": {"effort": "low", "summary": "auto"}}
    response = await agreed(server, **body)
    assert response["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}
    assert kinds(await streamed(server, **body))[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]


async def test_calls_are_items(server: Server) -> None:
    server.executor.script = saying("Wait. " + call("now", "{}") + call("get_weather", '{"city": "Oslo"}') + " Done.")
    response = await agreed(server, tools=TOOLS)
    before, first, second, after = response["output"]
    assert (before["phase"], after["phase"]) == ("commentary", "final_answer")
    assert first["call_id"].startswith("call_")
    assert first["id"].startswith("fc_")
    assert bare(first) == {"type": "function_call", "status": "completed", "name": "now", "arguments": "{}"}
    assert second["arguments"] == '{"city": "Oslo"}'
    assert response["tools"] == TOOLS
    events = await streamed(server, tools=TOOLS)
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["arguments"]) for event in done] == [
        ("now", "{}"),
        ("get_weather", '{"city": "Oslo"}'),
    ]


async def test_a_call_that_is_cut_is_incomplete(server: Server) -> None:
    server.executor.script = saying(call("get_weather", '{"city": "Oslo"}'))
    response = await agreed(server, tools=TOOLS, max_output_tokens=58)
    [item] = response["output"]
    assert item["status"] == "incomplete"
    with pytest.raises(json.JSONDecodeError):
        json.loads(item["arguments"])


async def test_a_forced_call(server: Server) -> None:
    server.executor.script = saying('[{"name":"now","parameters":{}}]')
    response = await agreed(server, tools=TOOLS, tool_choice={"type": "function", "name": "now"}, **OFF)
    assert [item["name"] for item in response["output"]] == ["now"]


async def test_text_format_constrains(server: Server) -> None:
    server.executor.script = saying('{"n":1}')
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    response = await agreed(server, text={"format": form}, **OFF)
    assert response["output"][0]["content"][0]["text"] == '{"n":1}'
    assert response["text"] == {"format": form}


async def test_logprobs_are_included(storing: Server) -> None:
    body = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "temperature": 0}
    response = await agreed(storing, **body)
    logprobs = response["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs).startswith("The Nile.")
    assert len(logprobs[0]["top_logprobs"]) == 2
    refused = await storing.client.post(RESPONSES, {"input": "go", "tools": TOOLS, **body})
    assert (refused.status, refused.json["error"]["param"]) == (400, "include")


async def test_items_become_the_conversation(server: Server) -> None:
    items = [
        {"role": "developer", "content": "D"},
        {"role": "user", "content": [{"type": "input_text", "text": "U"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "now", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "one"}]},
    ]
    body = {"input": items, "instructions": "I", "max_output_tokens": 1}
    answer = await server.client.post(RESPONSES, body)
    assert answer.status == 200, answer.body
    prompt = (
        '<bos><turn>system:I\n\nD<eos><turn>user:U<eos><turn>assistant:A[now {}][now {"a": 1}]<eos>'
        "<turn>tool:noon<eos><turn>tool:one<eos><turn>assistant:"
    )
    expected = len(server.frontend.tokenizer.encode(prompt, add_special_tokens=False))
    assert answer.json["usage"]["input_tokens"] == expected


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("input", {"input": ""}),
        ("input", {"input": None}),
        ("input[0].role", {"input": [{"content": "x"}]}),
        ("input[0].type", {"input": [{"type": "web_search_call"}]}),
        ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input[0]", {"input": [{"type": "function_call"}]}),
        ("input[0].content", {"input": [{"type": "reasoning", "content": 3}]}),
        ("input[0].summary", {"input": [{"type": "reasoning", "summary": ["x"]}]}),
        ("n", {"n": 2}),
        ("max_tokens", {"max_tokens": 2}),
        ("response_format", {"response_format": {"type": "text"}}),
        ("include", {"include": ["everything"]}),
        ("top_logprobs", {"top_logprobs": 2}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("truncation", {"truncation": "auto"}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("background", {"background": True}),
        ("request_id", {"request_id": "x"}),
        ("max_output_tokens", {"max_output_tokens": -1}),
        ("prompt", {"prompt": {"id": "x"}}),
        ("text.format", {"text": {"format": 3}}),
    ],
)
async def test_errors_are_nested_and_name_the_field(server: Server, param: str, body: dict[str, Any]) -> None:
    for stream in (False, True):
        answer = await server.client.post(RESPONSES, {"input": "go", **body, "stream": stream})
        assert answer.status == 400, answer.body
        assert set(answer.json) == {"error"}
        assert answer.json["error"]["param"] == param
        assert answer.json["error"]["code"] == 400


async def test_an_unknown_model_is_a_404(server: Server) -> None:
    answer = await server.client.post(RESPONSES, {"input": "go", "model": "other"})
    assert (answer.status, answer.json["error"]["param"]) == (404, "model")
    assert (await server.client.post(RESPONSES, {"input": "go", "model": "toy"})).status == 200


async def test_a_step_that_fails_ends_the_stream(server: Server) -> None:
    server.executor.script = paced([*b"abc", -1])
    events = await streamed(server)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    whole = await server.client.post(RESPONSES, {"input": "go"})
    assert whole.status == 500
    assert set(whole.json) == {"error"}


async def test_encrypted_reasoning_is_declined_with_a_word(server: Server) -> None:
    answer = await server.client.post(RESPONSES, {"input": "go", "include": ["reasoning.encrypted_content"]})
    assert answer.status == 200
    assert "encrypted_content" in answer.headers["x-ramet-warning"]


async def test_without_a_store_nothing_is_kept(server: Server) -> None:
    made = (await server.client.post(RESPONSES, {"input": "go", "store": True})).json
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = await server.client.open(method, f"{RESPONSES}/{made['id']}{path}").finish()
        assert answer.status == 400
        assert "--enable-response-store" in answer.json["error"]["message"]


async def test_a_stored_response_is_gone_on_with(storing: Server) -> None:
    first = (await storing.client.post(RESPONSES, {"input": "A river?", "instructions": "Brief."})).json
    assert first["store"] is True
    assert (await storing.client.get(f"{RESPONSES}/{first['id']}")).json == first
    storing.executor.script = saying("In Africa.")
    body = {"input": "Where?", "previous_response_id": first["id"]}
    second = (await storing.client.post(RESPONSES, body)).json
    assert second["previous_response_id"] == first["id"]
    prompt = (  # instructions are not inherited
        "<bos><turn>user:A river?<eos><turn>assistant:The Nile.<eos><turn>user:Where?<eos><turn>assistant:"
    )
    assert second["usage"]["input_tokens"] == len(storing.frontend.tokenizer.encode(prompt, add_special_tokens=False))
    third = await streamed(storing, input="Sure?", previous_response_id=second["id"])
    stored = await storing.client.get(f"{RESPONSES}/{third[-1]['response']['id']}")
    assert stored.json == third[-1]["response"]
    items = (await storing.client.get(f"{RESPONSES}/{second['id']}/input_items")).json
    assert [item["content"] for item in items["data"]] == ["Where?"]


async def test_calls_of_a_stored_response_are_answered(storing: Server) -> None:
    storing.executor.script = saying(call("now", "{}"))
    first = (await storing.client.post(RESPONSES, {"input": "Time?", "tools": TOOLS})).json
    storing.executor.script = saying("Noon.")
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "12"}
    body = {"input": [output], "previous_response_id": first["id"]}
    second = (await storing.client.post(RESPONSES, body)).json
    prompt = "<bos><turn>user:Time?<eos><turn>assistant:[now {}]<eos><turn>tool:12<eos><turn>assistant:"
    assert second["usage"]["input_tokens"] == len(storing.frontend.tokenizer.encode(prompt, add_special_tokens=False))
    reference = [{"role": "user", "content": "Time?"}, {"type": "item_reference", "id": first["output"][0]["id"]}]
    again = (await storing.client.post(RESPONSES, {"input": [*reference, output]})).json
    assert again["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    wrong = [{"type": "item_reference", "id": "fc_none"}]
    answer = await storing.client.post(RESPONSES, {"input": wrong})
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].id")


async def test_deleted_and_unstored_responses_are_gone(storing: Server) -> None:
    for made in (
        (await storing.client.post(RESPONSES, {"input": "go"})).json,
        (await storing.client.post(RESPONSES, {"input": "go", "store": False})).json,
    ):
        path = f"{RESPONSES}/{made['id']}"
        if made["store"]:
            deleted = await storing.client.open("DELETE", path).finish()
            assert deleted.json == {"id": made["id"], "object": "response", "deleted": True}
        assert (await storing.client.get(path)).status == 404
        answer = await storing.client.post(RESPONSES, {"input": "go", "previous_response_id": made["id"]})
        assert answer.status == 404


async def test_in_the_background(storing: Server) -> None:
    made = (await storing.client.post(RESPONSES, {"input": "go", "background": True})).json
    assert made["status"] == "in_progress"
    path = f"{RESPONSES}/{made['id']}"
    for _ in range(200):
        now = (await storing.client.get(path)).json
        if now["status"] != "in_progress":
            break
        await asyncio.sleep(0.01)
    assert now["status"] == "completed"
    assert now["output"][0]["content"][0]["text"] == "The Nile."
    follow = await storing.client.post(RESPONSES, {"input": "more", "previous_response_id": made["id"]})
    assert follow.status == 200
    await storing.idle()


async def test_the_background_can_be_cancelled_or_forgotten(storing: Server) -> None:
    storing.executor.script = Script(tokens=toy.ids("a"), step_s=0.002)
    made = (await storing.client.post(RESPONSES, {"input": "go", "background": True})).json
    path = f"{RESPONSES}/{made['id']}"
    running = await storing.client.post(RESPONSES, {"input": "x", "previous_response_id": made["id"]})
    assert running.status == 400
    assert (await storing.client.post(f"{path}/cancel")).json["status"] == "cancelled"
    await storing.idle()
    assert (await storing.client.get(path)).json["status"] == "cancelled"
    other = (await storing.client.post(RESPONSES, {"input": "go", "background": True})).json
    await storing.client.open("DELETE", f"{RESPONSES}/{other['id']}").finish()
    await storing.idle()
    assert (await storing.client.get(f"{RESPONSES}/{other['id']}")).status == 404
    plain = (await storing.client.post(RESPONSES, {"input": "go", "max_output_tokens": 1})).json
    assert (await storing.client.post(f"{RESPONSES}/{plain['id']}/cancel")).status == 400


def test_the_store_forgets_what_was_used_longest_ago() -> None:
    store = ResponseStore(limit_bytes=1000)

    def put(id: str, *, running: bool = False) -> None:
        response = {"id": id, "output": []}
        messages = [{"role": "user", "content": "x" * 350}]
        store.put(Stored(response, [], messages, cancel=(lambda: None) if running else None))

    put("running", running=True)
    put("a")
    put("b")
    assert store.get("b").response["id"] == "b"
    assert len(store) == 2
    assert store.used_bytes <= 1000
    store.settle(store.get("running"), [])
    put("c")
    store.get("b")
    put("d")
    assert sorted(id for id in "abcd" if store.holds(id)) == ["b", "d"]
    assert store.used_bytes == sum(store.get(id).size_bytes for id in ("b", "d", "running") if store.holds(id))
