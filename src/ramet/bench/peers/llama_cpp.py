"""llama.cpp through the `llama-cpp-python` package. Run by `ramet bench compare` under an interpreter that has it:

    python llama_cpp.py MODEL.gguf THREADS REPEATS name:rows:prompt:decoded …

Prints a JSON line per task, like `ramet bench offline`. Imports nothing of ramet.
"""

import json
import random
import sys
import time


def main() -> None:
    if sys.path and sys.path[0].endswith("peers"):
        del sys.path[0]  # this file has the package's name
    import llama_cpp as lib

    model_path, threads, repeats, *tasks = sys.argv[1:]
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(model_path.encode(), lib.llama_model_default_params())
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rng = random.Random(0)
    for task in tasks:
        name, *numbers = task.split(":")
        rows, prompt, decoded = map(int, numbers)
        params = lib.llama_context_default_params()
        params.n_ctx = rows * (prompt + decoded + 64)
        params.n_batch = params.n_ctx
        params.n_ubatch = 512
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = int(threads)
        params.kv_unified = True
        context = lib.llama_init_from_model(model, params)
        speeds = []
        for _ in range(int(repeats) + 1):
            lib.llama_memory_clear(lib.llama_get_memory(context), True)
            ids = [[rng.randrange(vocab // 50, vocab) for _ in range(prompt)] for _ in range(rows)]
            begin = time.perf_counter()
            run(lib, context, [(row, 0, row_ids) for row, row_ids in enumerate(ids)])
            prefill_s = time.perf_counter() - begin
            begin = time.perf_counter()
            for step in range(decoded):
                run(lib, context, [(row, prompt + step, [ids[row][step % prompt]]) for row in range(rows)])
            decode_s = time.perf_counter() - begin
            speeds.append(rows * decoded / decode_s if decoded else rows * prompt / prefill_s)
        print(json.dumps({"task": name, "tokens_per_s": [round(speed, 1) for speed in speeds[1:]]}), flush=True)
        lib.llama_free(context)


def run(lib, context, entries) -> None:  # type: ignore[no-untyped-def]
    """One llama_decode over (row, first position, ids) entries; logits for the last token of each."""
    total = sum(len(ids) for _, _, ids in entries)
    batch = lib.llama_batch_init(total, 0, 1)
    at = 0
    for row, position, ids in entries:
        for offset, token in enumerate(ids):
            batch.token[at] = token
            batch.pos[at] = position + offset
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = row
            batch.logits[at] = offset == len(ids) - 1
            at += 1
    batch.n_tokens = total
    status = lib.llama_decode(context, batch)
    assert status == 0, status
    for index in range(total):
        if batch.logits[index]:
            logits = lib.llama_get_logits_ith(context, index)
            assert logits[0] == logits[0]  # read, so that nothing is computed lazily
    lib.llama_batch_free(batch)


if __name__ == "__main__":
    main()
