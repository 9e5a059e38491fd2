"""What a frontend has served, counted for metrics and logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ramet.text.generation import Choice
from ramet.types import TokenDelta


@dataclass(slots=True)
class Stats:
    """Counters since the start, over finished requests."""

    requests: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    on_finish: list[Callable[[Choice], None]] = field(default_factory=list)

    def record(self, choice: Choice, last: TokenDelta) -> None:
        """Count a request with its last delta; its reader may not have taken everything yet."""
        self.requests += 1
        self.aborted += last.finish is not None and last.finish.type == "abort"
        self.prompt_tokens += len(choice.prompt_ids)
        self.completion_tokens += len(choice.output_ids) + choice.waiting_tokens
        self.cached_tokens += last.cached_tokens
        for hook in self.on_finish:
            hook(choice)
