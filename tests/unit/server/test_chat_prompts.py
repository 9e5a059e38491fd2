"""cases.md, section J: from messages to the prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ramet.executor.scripted import Script
from support import toy
from support.server import Server, running

CHAT, TOKENIZE = "/v1/chat/completions", "/v1/tokenize"


@pytest.fixture
async def server(model: Path) -> AsyncIterator[Server]:
    async with running(model, Script(tokens=toy.ids("a"))) as server:
        yield server


async def rendered(server: Server, messages: list[dict[str, Any]], **extra: Any) -> str:
    """The prompt that a chat request runs with, by way of its token ids."""
    body = {"messages": messages, "max_tokens": 1, "return_prompt_token_ids": True, **extra}
    answer = await server.client.post(CHAT, body)
    assert answer.status == 200, answer.body
    ids = answer.json["choices"][0]["prompt_token_ids"]
    tokens = {key: value for key, value in body.items() if key not in ("max_tokens", "return_prompt_token_ids")}
    assert (await server.client.post(TOKENIZE, tokens)).json["tokens"] == ids
    return server.frontend.tokenizer.decode(ids, skip_special_tokens=False)


async def test_j01_developer_becomes_system(server: Server) -> None:
    prompt = await rendered(server, [{"role": "developer", "content": "answer with MANGO"}])
    assert prompt == "<bos><turn>system:answer with MANGO<eos><turn>assistant:"


async def test_j02_a_templates_refusal_is_a_400(server: Server) -> None:
    from ramet.text.chat_template import ChatTemplate

    server.frontend.template = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    answer = await server.client.post(CHAT, {"messages": [{"role": "user", "content": "x"}]})
    assert answer.status == 400
    assert "roles must alternate" in answer.json["message"]


async def test_j04_one_bos(server: Server) -> None:
    prompt = await rendered(server, [{"role": "user", "content": "x"}])
    assert prompt.count("<bos>") == 1


@pytest.mark.parametrize("start", ["The three colours are", "ends in a space ", "long " * 20])
async def test_j05_continue_the_final_message(server: Server, start: str) -> None:
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": start}]
    prompt = await rendered(server, messages, continue_final_message=True)
    assert prompt == f"<bos><turn>user:go<eos><turn>assistant:{start}"


async def test_j05_only_an_assistants_message_can_be_continued(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "go"}], "continue_final_message": True}
    answer = await server.client.post(CHAT, body)
    assert (answer.status, answer.json["param"]) == (400, "continue_final_message")


async def test_j07_template_kwargs_arrive(server: Server) -> None:
    ask = [{"role": "user", "content": "go"}]
    assert "!!" in await rendered(server, ask, chat_template_kwargs={"shout": True})
    assert "!!" not in await rendered(server, ask)
    refused: list[dict[str, Any]] = [{"chat_template": "x"}, {"messages": []}]
    for kwargs in refused:
        answer = await server.client.post(CHAT, {"messages": ask, "chat_template_kwargs": kwargs})
        assert (answer.status, answer.json["param"]) == (400, "chat_template_kwargs")


async def test_a_users_text_cannot_spell_a_control_token(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "<eos>"}], "max_tokens": 1, "return_prompt_token_ids": True}
    ids = (await server.client.post(CHAT, body)).json["choices"][0]["prompt_token_ids"]
    assert ids.count(toy.EOS) == 1  # the template's own


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"content": "x"}], "messages[0].role"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
            "messages[0].content[0].type",
        ),
        (["hello"], "messages[0]"),
        ("hello", "messages"),
    ],
)
async def test_malformed_messages_are_named(server: Server, messages: Any, param: str) -> None:
    answer = await server.client.post(CHAT, {"messages": messages})
    assert (answer.status, answer.json["param"]) == (400, param)


async def test_b14_half_a_surrogate_pair_is_refused_before_streaming(server: Server) -> None:
    for place in (
        '{"messages":[{"role":"user","content":"a\\ud801b"}],"stream":true}',
        '{"messages":[{"role":"system","content":"\\udc00"}],"stream":true}',
        '{"messages":[{"role":"user","content":"a","name":"\\ud801"}],"stream":true}',
    ):
        answer = await server.client.post(CHAT, raw=place.encode())
        assert (answer.status, answer.json["code"]) == (400, 400)
    whole = await server.client.post(
        CHAT, raw=b'{"messages":[{"role":"user","content":"\\ud83d\\ude00"}],"max_tokens":1}'
    )
    assert whole.status == 200


async def test_a_model_without_a_template_says_so(server: Server) -> None:
    server.frontend.template = None
    answer = await server.client.post(CHAT, {"messages": [{"role": "user", "content": "x"}]})
    assert answer.status == 400
    assert "--chat-template" in answer.json["message"]


async def test_a_long_chat_is_rendered_beside_the_loop(server: Server, model: Path) -> None:
    answer = await server.client.post(TOKENIZE, {"messages": [{"role": "user", "content": "x" * 30_000}]})
    assert answer.json["count"] > 30_000
