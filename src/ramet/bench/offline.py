"""Throughput without HTTP: prompts of 512 and 2,048 tokens, decode of 1 and of 32 rows, through `ramet.Engine`.

The peers in `ramet.bench.peers` answer the same tasks under the same names, for `ramet bench compare` to pair.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

#: Name -> (rows, prompt tokens of each row, tokens decoded per row).
TASKS: dict[str, tuple[int, int, int]] = {
    "prefill_512": (1, 512, 0),
    "prefill_2048": (1, 2048, 0),
    "decode_1": (1, 16, 128),
    "decode_32": (32, 16, 64),
    "prefill_8000": (1, 8000, 0),
    "decode_1_at_8000": (1, 8000, 64),
}
DEFAULT_TASKS = ("prefill_512", "prefill_2048", "decode_1", "decode_32")


def measure(engine: Any, tasks: tuple[str, ...], repeats: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One row per task: tokens per second of each repeat. Random ids, so nothing is cached between repeats."""
    rng = random.Random(seed)
    vocab = engine.get_model_info()["vocab_size"]
    for name in tasks:
        rows, prompt, decoded = TASKS[name]
        speeds = []
        for _ in range(repeats + 1):  # the first warms up
            ids = [[rng.randrange(vocab // 50, vocab) for _ in range(prompt)] for _ in range(rows)]
            speeds.append(_speed(engine, ids, decoded))
        yield {"task": name, "tokens_per_s": [round(speed, 1) for speed in speeds[1:]]}


def _speed(engine: Any, ids: list[list[int]], decoded: int) -> float:
    """Prefill: prompt tokens over the time to one token. Decode: tokens over the time that they add to that."""
    first_s = _time(engine, ids, 1)
    if decoded == 0:
        return sum(map(len, ids)) / first_s
    again_s = _time(engine, ids, 1)  # the prompt is cached now, as it will be below
    return decoded * len(ids) / (_time(engine, ids, decoded + 1) - again_s)


def _time(engine: Any, ids: list[list[int]], tokens: int) -> float:
    begin = time.perf_counter()
    engine.generate(input_ids=ids, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True})
    return time.perf_counter() - begin
