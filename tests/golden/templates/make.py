"""Makes prompts.json: chats rendered by `transformers`, through ramet's shipped templates and through awkward ones.

python tests/golden/templates/make.py      (needs `transformers`; 5.24.0 made the stored file)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from ramet.text.chat_template import shipped_template, shipped_templates

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "อากาศ <now> & 'then'",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "Žďár", "days": 2}}}
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " spaces \n"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c {{ not a template }}"},
    ],
    "calls": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "21"},
        {"role": "tool", "content": "22"},
        {"role": "assistant", "content": "Warm."},
    ],
}
AWKWARD = {
    "blocks": "{% for m in messages %}\n  {% if m.content %}\n {{- m.role -}} \n  {% endif %}\n{% endfor %}\n",
    "json": "{{ tools | tojson }}{{ tools | tojson(indent=2) }}"
    "{{ messages | tojson(ensure_ascii=True, sort_keys=True) }}",
    "loop": "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}{% endif %}{% if m.role == 'tool' %}"
    "{% continue %}{% endif %}{{ loop.index }}{{ loop.revindex }}{{ loop.last }}{{ m.content }}{% endfor %}",
    "macro": "{% macro say(m, end='!') %}{{ m.role ~ ': ' ~ m.content ~ end }}{% endmacro %}"
    "{% set ns = namespace(n=0) %}{% for m in messages if m.role != 'tool' %}{% set ns.n = ns.n + 1 %}"
    "{{ say(m, end='?' * ns.n) }}{% else %}none{% endfor %}{{ ns.n }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tests": "{{ messages is iterable }}{{ messages[0].content is string }}{{ tools is none }}{{ nothing is defined }}"
    "{{ messages[0]['content'].split(' ')[-1] }}{{ messages[1:] | length }}"
    "{{ messages | map(attribute='role') | join(',') }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[0].content | trim }}",
    "nested": "{% for m in messages recursive %}{{ m.role }}{% if m.kids %}{{ loop(m.kids) }}{% endif %}{% endfor %}"
    "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}",
}


def rendered(source: str, chat: list[dict[str, Any]], tools: list[Any] | None, prompt: bool) -> str | None:
    try:
        [text], _ = render_jinja_template(
            conversations=[chat],
            tools=tools,
            chat_template=source,
            add_generation_prompt=prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
    except Exception:  # noqa: BLE001 - whatever a template raises to refuse the chat is stored as null
        return None
    return str(text)


def main() -> None:
    sources = {name: shipped_template(name) for name in shipped_templates()} | AWKWARD
    cases = [
        {
            "template": name,
            "chat": chat,
            "tools": tools,
            "add_generation_prompt": prompt,
            "text": rendered(source, CHATS[chat], TOOLS if tools else None, prompt),
        }
        for name, source in sources.items()
        for chat in CHATS
        for tools in (False, True)
        for prompt in (False, True)
    ]
    content = {"awkward": AWKWARD, "chats": CHATS, "tools": TOOLS, "cases": cases}
    path = Path(__file__).with_name("prompts.json")
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
