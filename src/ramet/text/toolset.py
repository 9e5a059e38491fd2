"""The functions that a request offers: checked once, and what a grammar and a template need to know of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.errors import RequestError

#: Keys under which a schema keeps what its references name; they have to stand at the root.
_DEFINITIONS = ("$defs", "definitions")

_HERMES_TEXT = (
    "You can call functions. Here is what there is, one JSON object a line:\n<tools>\n{tools}\n</tools>\n"
    "For each call write a block of this form, with nothing else inside:\n"
    '<tool_call>\n{"name": "the function\'s name", "arguments": {"its": "arguments"}}\n</tool_call>'
)
_ARRAY_TEXT = (
    "You can call functions. Here is what there is, one JSON object a line:\n<tools>\n{tools}\n</tools>\n"
    'Answer with a JSON array of calls: [{"name": "the function\'s name", "parameters": {"its": "arguments"}}]'
)

#: What a function without a schema takes, as OpenAI has it.
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}

#: For chat templates that print no tools: formats which any instructed model can be told of in the system message.
SYSTEM_TEXTS = {"hermes": _HERMES_TEXT, "qwen": _HERMES_TEXT, "qwen25": _HERMES_TEXT, "json array": _ARRAY_TEXT}

#: Formats whose calls a structural tag can describe: how one begins, with the name left open, and how it ends.
_HERMES_TAG = ("<tool_call>", '\n{"name": %s, "arguments": ', "}\n</tool_call>")
TAGS = {"hermes": _HERMES_TAG, "qwen": _HERMES_TAG, "qwen25": _HERMES_TAG}


@dataclass(frozen=True, slots=True)
class ToolSet:
    """Functions in OpenAI's form (`{"type": "function", "function": {…}}`), their names unique."""

    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Name → JSON Schema of the parameters."""
        return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in self.tools}

    @property
    def strict(self) -> list[str]:
        """Names of the functions whose arguments shall follow their schema."""
        return [tool["function"]["name"] for tool in self.tools if tool["function"].get("strict")]

    def only(self, name: str) -> ToolSet:
        """The one function of that name; raises `RequestError` when it is not offered."""
        found = tuple(tool for tool in self.tools if tool["function"]["name"] == name)
        if not found:
            raise RequestError(f"Tool '{name}' not found in tools list.", field="tool_choice")
        return ToolSet(found)

    def calls_schema(self, *, most: int | None = None) -> str:
        """JSON Schema, as text, of an array of at least one call and of `most` calls at most.

        Raises `RequestError` when two functions define the same name in different ways.
        """
        definitions: dict[str, dict[str, Any]] = {key: {} for key in _DEFINITIONS}
        items = []
        for name, schema in self.schemas.items():
            given = schema or NO_PARAMETERS
            own = {key: value for key, value in given.items() if key not in _DEFINITIONS}
            for key in _DEFINITIONS:
                for label, inner in (schema.get(key) or {}).items():
                    if definitions[key].setdefault(label, inner) != inner:
                        raise RequestError(
                            f"tools: two functions define {key}/{label} in different ways; give it two names.",
                            field="tools",
                        )
            items.append(
                {
                    "type": "object",
                    "properties": {"name": {"enum": [name]}, "parameters": own or {"type": "object"}},
                    "required": ["name", "parameters"],
                    "additionalProperties": False,
                }
            )
        array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
        if most is not None:
            array["maxItems"] = most
        array.update({key: value for key, value in definitions.items() if value})
        return json.dumps(array, ensure_ascii=False)

    def calls_tag(self, format: str, *, parallel: bool) -> str:
        """Structural tag, as text: free text, in which a call, once it begins, is one of these functions' and its
        arguments follow the schema if the function is strict. `format`: one of `TAGS`."""
        trigger, begin, end = TAGS[format]
        strict = self.strict
        structures = [
            {
                "begin": trigger + begin % json.dumps(name, ensure_ascii=False),
                "schema": (schema or NO_PARAMETERS) if name in strict else {"type": "object"},
                "end": end,
            }
            for name, schema in self.schemas.items()
        ]
        tag: dict[str, Any] = {"type": "structural_tag", "triggers": [trigger], "structures": structures}
        if not parallel:
            tag["stop_after_first"] = True
        return json.dumps(tag, ensure_ascii=False)

    def system_text(self, format: str) -> str:
        """What to tell a model whose chat template prints no tools."""
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self.tools)
        return SYSTEM_TEXTS[format].replace("{tools}", lines)


def read_tools(tools: Any, field: str = "tools") -> ToolSet:
    """Checked tools. Raises `RequestError` with the path of what is wrong."""
    names: set[str] = set()
    for index, tool in enumerate(tools or ()):
        path = f"{field}[{index}]"
        if not isinstance(tool, Mapping):
            raise RequestError(f"{path}: a tool is an object.", field=path)
        if tool.get("type", "function") != "function":
            raise RequestError(
                f"{path}.type: tools of type {tool['type']!r} are not supported; only functions are.",
                field=f"{path}.type",
            )
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise RequestError(f"{path}.function: must be an object.", field=f"{path}.function")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not name:
            raise RequestError(f"{path}.function.name: must be a name.", field=f"{path}.function.name")
        if name in names:
            raise RequestError(f"{path}.function.name: {name!r} is used twice.", field=f"{path}.function.name")
        names.add(name)
        if parameters is not None and not _is_object_schema(parameters):
            raise RequestError(
                f"{path}.function.parameters: must be a JSON Schema of an object.",
                field=f"{path}.function.parameters",
            )
        if not isinstance(function.get("strict"), bool | None):
            raise RequestError(f"{path}.function.strict: must be true or false.", field=f"{path}.function.strict")
    return ToolSet(tuple({"type": "function", **tool} for tool in tools or ()))


def _is_object_schema(schema: Any) -> bool:
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return False
    parts: Sequence[Any] = [schema.get(key) or {} for key in ("properties", *_DEFINITIONS)]
    return all(isinstance(part, Mapping) for part in parts)
