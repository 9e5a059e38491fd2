"""OpenVINO GenAI on a GGUF file. Run by `ramet bench compare` under an interpreter that has `openvino-genai`:

    python openvino_genai.py MODEL.gguf THREADS REPEATS name:rows:prompt:decoded …

Prints a JSON line per task, like `ramet bench offline`. Imports nothing of ramet.
"""

import json
import random
import sys
import time
from typing import Any


def main() -> None:
    if sys.path and sys.path[0].endswith("peers"):
        del sys.path[0]  # this file has the package's name
    model_path, threads, repeats, *tasks = sys.argv[1:]
    rng = random.Random(0)
    for task in tasks:
        name, *numbers = task.split(":")
        rows, prompt, decoded = map(int, numbers)
        pipe = open_pipe(model_path, int(threads), rows)
        speeds = []
        for _ in range(int(repeats) + 1):
            ids = [[rng.randrange(983, 49000) for _ in range(prompt)] for _ in range(rows)]
            first_s = time_s(pipe, ids, 1)
            if decoded == 0:
                speeds.append(rows * prompt / first_s)
            else:
                speeds.append(rows * decoded / (time_s(pipe, ids, decoded + 1) - time_s(pipe, ids, 1)))
        print(json.dumps({"task": name, "tokens_per_s": [round(speed, 1) for speed in speeds[1:]]}), flush=True)
        del pipe


def open_pipe(model_path: str, threads: int, rows: int) -> Any:
    """What runs one row at a time, or `rows` of them together."""
    import openvino_genai as genai

    options = {"INFERENCE_NUM_THREADS": threads}
    if rows == 1:
        return genai.LLMPipeline(model_path, "CPU", **options)
    schedule = genai.SchedulerConfig()
    schedule.cache_size = 2
    schedule.max_num_seqs = rows
    schedule.enable_prefix_caching = True
    return genai.ContinuousBatchingPipeline(model_path, schedule, "CPU", options)


def time_s(pipe: Any, ids: list[list[int]], tokens: int) -> float:
    """Seconds to generate exactly `tokens` tokens for each prompt."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    config = genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.min_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    inputs = [ov.Tensor(np.array([row], np.int64)) for row in ids]
    begin = time.perf_counter()
    if len(ids) == 1:
        pipe.generate(inputs[0], config)
    else:
        pipe.generate(inputs, [config] * len(ids))
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
