"""What all tool-call formats share: content around calls, and calls on their way out.

The rules, the same for streaming and not:

- Text before, between and behind calls is content. Whitespace next to a call is dropped, except that texts on either
  side of calls keep what the first ended with between them.
- What looks like a call but is none (no name where one must be) is content, markers and all.
- A call to a function that the request does not offer is dropped, with a line in the log.
- Arguments go out as the model writes them, where it writes JSON. A call whose arguments stop short or are no JSON
  object ends with `complete=False`; it is never repaired into something runnable.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from ramet.text.events import Content, ToolArguments, ToolEnd, ToolStart
from ramet.text.scanner import Parser, Scanner, Steps
from ramet.text.tools.typed import escaped, is_text, to_json

logger = logging.getLogger(__name__)

#: Function name → JSON Schema of its parameters. None: any name is taken, and nothing is known of the types.
Tools = Mapping[str, Mapping[str, Any]] | None


class ToolParser(Parser):
    """A format implements `parse` with `content`, `start`, `arguments` and `end`.

    With `parallel=False` only the first call goes out.
    """

    def __init__(self, tools: Tools = None, *, parallel: bool = True) -> None:
        super().__init__()
        self.tools = tools
        self._parallel = parallel
        self._index = -1
        self._shown = False  # the present call is one that goes out
        self._written: list[str] = []  # its arguments so far
        self._space = ""  # whitespace that goes out only if more content follows
        self._after_call = False
        self._any_content = False

    def content(self, text: str) -> None:
        """Text that belongs to no call."""
        if self._after_call:
            text = text.lstrip()
            if not text:
                return
            self._after_call = False
        text = self._space + text
        body = text.rstrip()
        self._space = text[len(body) :]
        if body:
            self._any_content = True
            self.emit(Content(body))

    def start(self, name: str, id: str | None = None) -> None:
        """A call of function `name` begins."""
        self._after_call = True
        if not self._any_content:
            self._space = ""
        self._written = []
        self._scanner.unmark()  # from here on the text is a call, and need not be kept to be shown instead
        self._shown = self.tools is None or name in self.tools
        if not self._shown:
            logger.warning("event=unknown_tool name=%r known=%s", name, sorted(self.tools or ()))
        elif not self._parallel and self._index >= 0:
            self._shown = False
        if self._shown:
            self._index += 1
            self.emit(ToolStart(self._index, name, id))

    def arguments(self, text: str) -> None:
        """The next fragment of the present call's arguments."""
        if self._shown:
            self._written.append(text)
            self.emit(ToolArguments(self._index, text))

    def end(self, *, complete: bool = True) -> None:
        """The present call is over. A call without arguments gets `{}`."""
        if not self._shown:
            return
        if complete and not self._written:
            self.arguments("{}")
        self._shown = False
        self.emit(ToolEnd(self._index, complete and _is_object("".join(self._written))))

    def end_of_text(self) -> None:
        """Whitespace at the very end is content only where there was no call."""
        if not self._after_call and self._space:
            self.emit(Content(self._space))

    def schema(self, name: str) -> Mapping[str, Any]:
        """The declared properties of function `name`."""
        parameters = (self.tools or {}).get(name) or {}
        properties = parameters.get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def tagged_value(self, text: Scanner, closing: str, kind: str) -> Steps[bool]:
        """Take the text of a value up to its `closing` tag and emit its JSON by the declared type `kind`.

        The word null means null for every type but "raw", a string without exceptions.
        One newline at either end is markup. Strings go out while they are written. False when the text ends before.
        """
        ends = ["\n" + closing, closing]
        yield from text.literal("\n")
        parts: list[str] = []
        if not is_text(kind):
            if (yield from text.until(ends, parts.append)) is None:
                return False
            self.arguments(to_json("".join(parts), kind))
            return True
        opened = kind == "raw"
        if opened:
            self.arguments('"')

        def string(part: str) -> None:
            """Hold the text while it may still be `null`, then let it out as it comes."""
            nonlocal opened
            if not opened:
                parts.append(part)
                part = "".join(parts)
                if "null".startswith(part.strip().lower()):
                    return
                self.arguments('"')
                opened = True
            self.arguments(escaped(part))

        whole = (yield from text.until(ends, string)) is not None
        if whole:
            self.arguments('"' if opened else to_json("".join(parts), kind))
        return whole

    def call_object(self, text: Scanner, *, only_calls: bool = False) -> Steps[bool]:
        """Take `{"name": …, "arguments": {…}}`, keys in any order, `parameters` for `arguments`, and emit the call.

        False when it is no such object; nothing has been emitted then, and the caller knows what to do with the text.
        With `only_calls` a foreign key is a sign of that, so that another JSON object is let go at once.
        """
        if not (yield from text.literal("{")):
            return False
        name: str | None = None
        id: str | None = None
        early = ""  # arguments that came before the name
        while True:
            yield from text.space()
            if (yield from text.literal("}")):
                break
            key = yield from _string(text)
            yield from text.space()
            if key is None or not (yield from text.literal(":")):
                return self._broken(name)
            yield from text.space()
            if key in ("arguments", "parameters") and name is not None:
                whole = yield from self._arguments(text)
                if not whole:
                    self.end(complete=False)
                    return True
            elif key in ("arguments", "parameters"):
                parts: list[str] = []
                if not (yield from text.json_value(parts.append)):
                    return False
                early = "".join(parts)
            elif only_calls and key not in ("name", "id", "type"):
                return self._broken(name)
            else:
                parts = []
                if not (yield from text.json_value(parts.append)):
                    return self._broken(name)
                value = _loads("".join(parts))
                if key == "name":
                    if not isinstance(value, str) or name is not None:
                        return self._broken(name)
                    name = value
                    self.start(name, id)
                    if early:
                        self.arguments(unwrapped(early))
                elif key == "id" and isinstance(value, str):
                    id = value
            yield from text.space()
            if not (yield from text.literal(",")):
                if not (yield from text.literal("}")):
                    return self._broken(name)
                break
        if name is None:
            return False
        self.end()
        return True

    def _broken(self, name: str | None) -> bool:
        """The object stops being one: a call that has begun ends here; otherwise it was no call."""
        if name is None:
            return False
        self.end(complete=False)
        return True

    def _arguments(self, text: Scanner) -> Steps[bool]:
        """A value under `arguments`: an object as it is written, or a string that holds one."""
        if (yield from text.peek()) != '"':
            return (yield from text.json_value(self.arguments))
        parts: list[str] = []
        if not (yield from text.json_value(parts.append)):
            return False
        self.arguments(unwrapped("".join(parts)))
        return True


def unwrapped(raw: str) -> str:
    """The JSON text of arguments, which some models write as a string that holds the object."""
    value = _loads(raw)
    return value if isinstance(value, str) else raw


def _string(text: Scanner) -> Steps[str | None]:
    if (yield from text.peek()) != '"':
        return None
    parts: list[str] = []
    if not (yield from text.json_value(parts.append)):
        return None
    value = _loads("".join(parts))
    return value if isinstance(value, str) else None


def _loads(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _is_object(raw: str) -> bool:
    return isinstance(_loads(raw), dict)
