"""What happened in each step: the scheduler writes one record a step, and log lines, metrics and reports read them."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One settled step."""

    ended_s: float  # time.monotonic()
    duration_s: float  # from submission to the end of settling
    decode_rows: int
    prefill_tokens: int
    generated_tokens: int
    running: int  # requests that hold a row, afterwards
    waiting: int
    used_pages: int  # leased or cached
    failed: bool = False


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    steps: int = 0
    failed_steps: int = 0
    requests: int = 0  # accepted
    refused: int = 0
    finished: int = 0
    aborted: int = 0  # of the finished
    prompt_tokens: int = 0  # of admitted requests
    cached_tokens: int = 0  # of those, found in the cache at first admission
    prefill_tokens: int = 0  # computed, those again after a retraction included
    generated_tokens: int = 0
    retractions: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class Recorder:
    """The last steps and the totals. Owned by the engine's thread."""

    totals: Totals = field(default_factory=Totals)
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=1024))

    def add(self, record: StepRecord) -> None:
        totals = self.totals
        totals.steps += 1
        totals.failed_steps += record.failed
        totals.prefill_tokens += record.prefill_tokens
        totals.generated_tokens += record.generated_tokens
        self.steps.append(record)

    def recent(self, now_s: float, window_s: float = 10.0) -> dict[str, Any]:
        """Throughput and step times of the last `window_s` seconds."""
        steps = [step for step in self.steps if now_s - step.ended_s <= window_s]
        times = sorted(step.duration_s for step in steps)
        first = min((step.ended_s - step.duration_s for step in steps), default=now_s)
        span = max(now_s - first, 1e-9)
        return {
            "steps": len(steps),
            "generated_tokens_per_s": sum(step.generated_tokens for step in steps) / span if steps else 0.0,
            "prefill_tokens_per_s": sum(step.prefill_tokens for step in steps) / span if steps else 0.0,
            "step_p50_s": times[len(times) // 2] if times else 0.0,
            "step_max_s": times[-1] if times else 0.0,
        }
