"""Typed reading of a checkpoint's untyped config: every complaint names the key."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from ramet.errors import CheckpointError


class Keys:
    """A mapping read by type. A key that holds None counts as missing; a default of None makes the key required."""

    def __init__(self, mapping: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self._mapping = mapping
        self._source = source  # for messages: config.json, GGUF metadata
        self._prefix = prefix

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """The value as it is, or None."""
        return self._mapping.get(self._prefix + key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise self.wrong(key, "a whole number")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise self.wrong(key, "a number")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: absent, one, or a list."""
        value = self.get(key)
        found: list[object] = [] if value is None else value if isinstance(value, list) else [value]
        ids = tuple(int(i) for i in found if not isinstance(i, bool) and isinstance(i, numbers.Integral))
        if len(ids) < len(found) or min(ids, default=0) < 0:
            raise self.wrong(key, "a token id or a list of them")
        return ids

    def wrong(self, key: str, rule: str) -> CheckpointError:
        """The complaint that `key` must be something else."""
        shown = repr(self.get(key))
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return CheckpointError(f"{self._source}: {self._prefix}{key} is {shown}, but must be {rule}", field=key)

    def _value(self, key: str, default: object) -> object:
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self._source}: {self._prefix}{key} is missing", field=key)
        return value
