"""Stored responses: in memory, within a bound; the ones used longest ago go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ramet.errors import NotFoundError


@dataclass(slots=True)
class Stored:
    """A response and the conversation that it ends, in chat messages without instructions."""

    response: dict[str, Any]
    input_items: list[dict[str, Any]]
    messages: list[dict[str, Any]]
    cancel: Callable[[], None] | None = None  # while it runs in the background
    size_bytes: int = field(default=0)


class ResponseStore:
    """Holds responses up to `limit_bytes` of their JSON. One that runs is not forgotten."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._held: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, id: str) -> bool:
        """Whether a response of that id is kept."""
        return id in self._held

    def put(self, stored: Stored) -> None:
        """Keep a response, or keep it again after it has changed."""
        self._drop(stored.response["id"])
        content = [stored.response, stored.input_items, stored.messages]
        stored.size_bytes = len(msgspec.json.encode(content))
        self._held[stored.response["id"]] = stored
        self.used_bytes += stored.size_bytes
        for id in [id for id, other in self._held.items() if other.cancel is None and other is not stored]:
            if self.used_bytes <= self.limit_bytes:
                return
            self._drop(id)

    def settle(self, stored: Stored, messages: list[dict[str, Any]]) -> None:
        """A response that ran in the background has ended; it is kept unless it was deleted meanwhile."""
        stored.cancel, stored.messages = None, messages
        if self._held.get(stored.response["id"]) is stored:
            self.put(stored)

    def get(self, id: str) -> Stored:
        """The response of that id; raises `NotFoundError`."""
        stored = self._held.get(id)
        if stored is None:
            raise NotFoundError(f"Response with id '{id}' not found.", field="response_id")
        self._held.move_to_end(id)
        return stored

    def delete(self, id: str) -> None:
        """Forget a response, and end it if it still runs; raises `NotFoundError`."""
        stored = self.get(id)
        if stored.cancel is not None:
            stored.cancel()
        self._drop(id)

    def item(self, id: str) -> dict[str, Any] | None:
        """An input or output item of any stored response."""
        for stored in reversed(self._held.values()):
            for item in (*stored.response["output"], *stored.input_items):
                if item.get("id") == id:
                    found: dict[str, Any] = item
                    return found
        return None

    def _drop(self, id: str) -> None:
        stored = self._held.pop(id, None)
        if stored is not None:
            self.used_bytes -= stored.size_bytes
