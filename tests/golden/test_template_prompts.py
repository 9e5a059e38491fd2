"""Rendered chats equal those of `transformers`, stored by `tests/golden/templates/make.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import RequestError
from ramet.text.chat_template import ChatTemplate, shipped_template, shipped_templates

STORED: dict[str, Any] = json.loads((Path(__file__).parent / "templates" / "prompts.json").read_text(encoding="utf-8"))
NAMES = sorted({case["template"] for case in STORED["cases"]})


def test_every_shipped_template_is_stored() -> None:
    assert set(NAMES) == {*shipped_templates(), *STORED["awkward"]}


@pytest.mark.parametrize("name", NAMES)
def test_prompts_equal_the_stored_ones(name: str) -> None:
    source = STORED["awkward"].get(name) or shipped_template(name)
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    refused = 0
    for case in STORED["cases"]:
        if case["template"] != name:
            continue
        chat, tools = STORED["chats"][case["chat"]], STORED["tools"] if case["tools"] else None
        try:
            text: str | None = template.render(chat, tools, case["add_generation_prompt"])
        except RequestError:
            text, refused = None, refused + 1
        assert text == case["text"], case
    assert refused < 16
