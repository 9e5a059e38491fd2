"""A scheduler over the scripted executor, and what each request was told: for tests that look at single passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.cache.lease import KvCache
from ramet.channel import Abort
from ramet.config.tree import SchedulerSection
from ramet.executor.base import Layout, StepBatch
from ramet.executor.scripted import Script, ScriptedExecutor
from ramet.scheduler.scheduler import Scheduler
from ramet.types import EngineRequest, FinishReason, SamplingParams, TokenDelta

VOCAB = 101


class RecordingExecutor(ScriptedExecutor):
    """Keeps the batches it was given."""

    def __init__(self, layout: Layout, vocab_size: int, script: Script | None = None) -> None:
        super().__init__(layout, vocab_size, script)
        self.batches: list[StepBatch] = []

    def submit(self, batch: StepBatch) -> Any:
        self.batches.append(batch)
        return super().submit(batch)


class Simulation:
    """`scheduler` with everything around it. The page accounting is proved after every pass."""

    def __init__(
        self,
        *,
        pages: int = 64,
        page_size: int = 4,
        rows: int = 8,
        context: int = 128,
        chunk: int = 32,
        keep_prefixes: bool = True,
        depth: int = 0,
        script: Script | None = None,
        **options: Any,
    ) -> None:
        layout = Layout(
            num_pages=pages,
            page_size=page_size,
            max_rows=rows,
            max_row_tokens=context,
            max_step_tokens=chunk + rows,
        )
        self.executor = RecordingExecutor(layout, VOCAB, script)
        self.cache = KvCache(layout, keep_prefixes=keep_prefixes)
        config = SchedulerSection(chunked_prefill_size=chunk, **options)
        self.now_s = 0.0
        self.scheduler = Scheduler(self.executor, self.cache, config, clock=lambda: self.now_s, depth=depth)
        self.deltas: dict[str, list[TokenDelta]] = {}

    def submit(self, *specs: EngineRequest) -> None:
        self.scheduler.submit(specs)
        self._collect()

    def abort(self, *rids: str, prefix: str | None = None, everything: bool = False) -> None:
        self.scheduler.abort(Abort(rids=list(rids), prefix=prefix, all=everything))
        self._collect()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_s += 1.0
            self.scheduler.step()
            self._collect()

    def run(self, *specs: EngineRequest, passes: int = 5000) -> None:
        """Submit, and step until nothing is left."""
        self.submit(*specs)
        for _ in range(passes):
            if self.scheduler.idle:
                return
            self.step()
        raise AssertionError(f"still alive after {passes} passes: {list(self.scheduler.live)}")

    def _collect(self) -> None:
        self.cache.check()
        for delta in self.scheduler.deltas:
            told = self.deltas.setdefault(delta.rid, [])
            assert not told or told[-1].finish is None, f"{delta.rid} was told something after its end"
            told.append(delta)
        self.scheduler.deltas.clear()

    def tokens(self, rid: str) -> list[int]:
        return [token for delta in self.deltas.get(rid, []) for token in delta.token_ids]

    def finish(self, rid: str) -> FinishReason:
        reason = self.deltas[rid][-1].finish
        assert reason is not None
        return reason

    def forget(self, rid: str) -> None:
        """Let an id be used again."""
        del self.deltas[rid]


def request(rid: str, prompt: Sequence[int], new: int | None = 8, **fields: Any) -> EngineRequest:
    """Greedy unless said otherwise. Fields of `EngineRequest` go there, all others to its `SamplingParams`."""
    outer = {name: fields.pop(name) for name in list(fields) if name in EngineRequest.__struct_fields__}
    sampling = SamplingParams(**{"temperature": 0.0, "max_new_tokens": new, **fields})
    return EngineRequest(rid=rid, token_ids=list(prompt), sampling=sampling, **outer)


def solo(spec: EngineRequest, script: Script | None = None) -> list[int]:
    """The tokens of `spec` alone, without a prefix cache, in one chunk."""
    simulation = Simulation(pages=200, chunk=500, context=500, rows=1, keep_prefixes=False, script=script)
    simulation.run(spec)
    return simulation.tokens(spec.rid)
