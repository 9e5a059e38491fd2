"""The native executor: a plan run by the C++ library on this machine's processor.

The environment variable RAMET_TIER (scalar, avx2, avx512), for debugging, forces an instruction tier where the caller
names none.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ramet import _native
from ramet.errors import CheckpointError, ExecutorError
from ramet.executor.base import F32, I32, Layout, StepBatch, StepOutput
from ramet.plan.plan import Plan
from ramet.plan.serialize import to_json
from ramet.weights.tensor import Weight

#: The fields of StepOutput in the order of the native result, which ends with logits.
_RESULTS = tuple(field.name for field in fields(StepOutput))


@dataclass(frozen=True, slots=True)
class SegmentTiming:
    """Time spent in one stretch of a plan between two barriers, over all steps since timing was turned on."""

    kinds: str  # operations in it, joined by "+"
    name: str  # of the first one
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _WeightArgument:
    """What `_native.Executor` reads of a weight."""

    name: str
    format: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    row_order: I32 | None
    target_format: str


class NativeExecutor:
    """Runs `plan` with `weights` (by plan name), packed here; the checkpoint's bytes are not read again afterwards.

    `threads`: 0 for all processors that the process may use. `tier`: None for the fastest that runs here.
    `target_formats`: for weights in f32, f16 or bf16, by name, the block format that they are rounded to while packed.

    Raises:
        CheckpointError: weights missing, left over, or of other shapes than the plan says.
        ExecutorError: a layout, tier or number of threads that cannot be had.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Mapping[str, Weight],
        layout: Layout,
        *,
        threads: int = 0,
        tier: str | None = None,
        target_formats: Mapping[str, str] | None = None,
    ) -> None:
        targets = target_formats or {}
        arguments = [
            _WeightArgument(w.name, w.format, w.shape, w.data, w.row_order, targets.get(name, ""))
            for name, w in weights.items()
        ]
        chosen = tier if tier is not None else os.environ.get("RAMET_TIER", "")
        try:
            self._executor = _native.Executor(to_json(plan), arguments, layout, threads, chosen)
        except ValueError as error:
            message = str(error)
            raise (CheckpointError if message.startswith("weight") else ExecutorError)(message) from None
        _drop_resident_pages(weights.values())
        info = self._executor.info()
        self.layout = layout
        self.vocab_size = int(info["vocab_size"])
        self.embedding_size = plan.embedding_size
        self.whole_rows = plan.whole_rows
        self.tier = str(info["tier"])
        self.threads = int(info["threads"])
        self.name = f"native/{self.tier}/{self.threads}"  # shown in the start-up line, /server_info and benchmark rows
        self.weight_bytes = int(info["weight_bytes"])
        self.kv_bytes_per_page = int(info["kv_bytes_per_page"])
        self.arena_bytes = int(info["arena_bytes"])  # activations of the largest step; touched as steps need it

    def submit(self, batch: StepBatch) -> Future[StepOutput]:
        """Runs the step before it returns, without the GIL; see `Executor.submit`."""
        future: Future[StepOutput] = Future()
        try:
            future.set_result(StepOutput(**dict(zip(_RESULTS, self._executor.step(batch, False), strict=False))))
        except (ValueError, MemoryError) as error:
            future.set_exception(ExecutorError(str(error) or "out of memory"))
        return future

    def logits(self, batch: StepBatch) -> F32:
        """Runs the step and returns the logits of its `score_tokens`, [L, vocab_size]. For tests and measurements.

        Raises:
            ExecutorError: the step was refused.
        """
        try:
            logits: F32 = self._executor.step(batch, True)[-1]
        except ValueError as error:
            raise ExecutorError(str(error)) from None
        return logits

    def enable_timings(self, on: bool = True) -> None:
        """Starts to measure each stretch of the plan, from zero, or stops."""
        self._executor.enable_timings(on)

    def timings(self) -> list[SegmentTiming]:
        """What was measured, in plan order; sampling last."""
        return [SegmentTiming(*timing) for timing in self._executor.timings()]

    def close(self) -> None:
        """Later steps fail."""
        self._executor.close()


def _drop_resident_pages(weights: Iterable[Weight]) -> None:
    """Lets go of file pages that packing read: they stay in the system's cache but are no longer resident here."""
    maps: dict[int, mmap.mmap] = {}
    for weight in weights:
        base: object = weight.data
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        if isinstance(base, mmap.mmap):
            maps[id(base)] = base
    for file_map in maps.values():
        if hasattr(mmap, "MADV_DONTNEED"):
            file_map.madvise(mmap.MADV_DONTNEED)
