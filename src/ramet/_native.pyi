"""The native library: plans run on this machine's processor."""

from collections.abc import Sequence


def cpu_info() -> dict:
    """
    What this processor has: `features`, `tiers` (those that can run here, slowest first) and `tier` (the default).
    """

class Executor:
    """
    Runs one plan. Use `ramet.executor.native.NativeExecutor`, which speaks in the package's types.
    """

    def __init__(self, plan_json: str, weights: Sequence, layout: object, threads: int, tier: str) -> None:
        """
        `weights`: objects with name, format, shape, data, row_order and target_format ("": keep). `threads` 0: all processors of the process. `tier` "": the fastest.
        """

    def step(self, batch: object, keep_logits: bool) -> tuple:
        """
        Runs a StepBatch without the GIL. Returns token_ids, logprobs, top_ids, top_logprobs, id_logprobs, score_logprobs, score_top_ids, score_top_logprobs, score_id_logprobs, embeddings and, with `keep_logits`, the logits of the scored tokens.
        """

    def close(self) -> None:
        """Frees everything. Idempotent."""

    def enable_timings(self, on: bool) -> None:
        """Turns timing slots on (cleared) or off."""

    def timings(self) -> list:
        """
        (kinds, name, calls, seconds) of each stretch between two barriers, in plan order.
        """

    def info(self) -> dict:
        """Tier, threads, vocabulary and memory in bytes."""
