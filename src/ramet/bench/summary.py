"""From records to the numbers people compare: throughput, time to first token, inter-token latency."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ramet.bench.client import Record
from ramet.bench.workloads import Workload


def summarise(workload: Workload, wall_s: float, records: list[Record]) -> dict[str, Any]:
    """One JSON-ready row. Latencies in milliseconds."""
    good = [record for record in records if record.error is None]
    first = [1e3 * (record.first_s - record.start_s) for record in good if record.first_s]
    gaps = [1e3 * gap for record in good for gap in np.diff(record.chunk_s)]
    prompt = sum(record.prompt_tokens for record in good)
    output = sum(record.completion_tokens for record in good)
    return {
        "workload": workload.name,
        "requests": len(records),
        "failed": len(records) - len(good),
        "first_error": next((record.error for record in records if record.error), None),
        "wall_s": round(wall_s, 3),
        "prompt_tokens": prompt,
        "cached_tokens": sum(record.cached_tokens for record in good),
        "output_tokens": output,
        "output_tokens_per_s": round(output / wall_s, 1),
        "requests_per_s": round(len(good) / wall_s, 2),
        "ttft_ms": percentiles(first),
        "itl_ms": percentiles(gaps),
    }


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90 and p99, or nothing for no values."""
    if not values:
        return {}
    return {f"p{q}": round(float(np.percentile(values, q)), 2) for q in (50, 90, 99)}
