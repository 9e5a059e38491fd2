"""What every route is handed: the pipeline, the settings it needs, and the state of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ramet.config import ApiSection, ServerSection
from ramet.errors import EngineDeadError, RequestError
from ramet.server.card import ModelCard
from ramet.text.frontend import Frontend
from ramet.text.generation import Choice


@dataclass(slots=True, kw_only=True)
class Context:
    """One per app. `frontend` and `card` are None until the engine has started."""

    server: ServerSection
    api: ApiSection
    settings: Mapping[str, Any] = field(default_factory=dict)  # every option, for /server_info; secrets removed
    frontend: Frontend | None = None
    card: ModelCard | None = None
    on_finish: list[Callable[[Choice], None]] = field(default_factory=list)  # called with each finished request
    draining: bool = False
    startup_s: float = 0.0  # seconds from the command to readiness

    def open(self, frontend: Frontend, card: ModelCard) -> None:
        """From now on requests are served."""
        frontend.stats.on_finish += self.on_finish
        self.card = card
        self.frontend = frontend

    @property
    def live(self) -> Frontend:
        """The pipeline; raises `EngineDeadError` (503) while there is none."""
        if self.frontend is None:
            raise EngineDeadError("The server is starting.")
        if self.frontend.dead is not None:
            raise self.frontend.dead
        return self.frontend

    @property
    def model(self) -> ModelCard:
        """The model; raises as `live` does."""
        if self.card is None:
            raise EngineDeadError("The server is starting.")
        return self.card

    @property
    def body_limit_bytes(self) -> int:
        return self.server.max_request_mb * 1_000_000

    def sampling_defaults(self) -> Mapping[str, Any]:
        """What OpenAI routes use for values a request leaves out."""
        return self.model.sampling_defaults if self.api.sampling_defaults == "model" else {}


#: JSON of a field that asks for nothing.
_EMPTY = (b"null", b"false", b"[]", b"{}", b'""')


def note_unknown(
    unknown: Mapping[str, bytes],
    warnings: list[str],
    *,
    strict: bool,
    not_yet: frozenset[str] = frozenset(),
    harmless: frozenset[str] = frozenset(),
) -> None:
    """Judge the keys that a body's type does not have.

    One that ramet knows and cannot honour is refused, unless it asks for nothing. One it does not know is refused with
    `--strict`, else listed in the warning header.
    """
    for key, value in unknown.items():
        if key in not_yet and value.strip() not in _EMPTY:
            raise RequestError(f"{key} is not supported by this version of ramet.", field=key)
    names = sorted(unknown.keys() - not_yet - harmless)
    if not names:
        return
    if strict:
        raise RequestError(f"Unknown field{'s' * (len(names) > 1)}: {', '.join(names)}.", field=names[0])
    warnings.append(f"unknown fields were ignored: {', '.join(names)}")


def warning_headers(warnings: Sequence[str]) -> dict[str, str] | None:
    """The header that says what gave way, in ASCII."""
    if not warnings:
        return None
    text = "; ".join(warnings)[:2000]
    return {"x-ramet-warning": msgspec.json.encode(text).decode()[1:-1].encode("ascii", "backslashreplace").decode()}
