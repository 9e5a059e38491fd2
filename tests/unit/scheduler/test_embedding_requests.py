"""Requests for vectors: prefill only, one delta, alone or in company, chunked or whole."""

from __future__ import annotations

import numpy as np

from ramet.cache.lease import KvCache
from ramet.channel import Abort
from ramet.config.tree import SchedulerSection
from ramet.executor.base import Layout
from ramet.executor.scripted import Script
from ramet.scheduler.scheduler import Scheduler
from ramet.types import EngineRequest, SamplingParams, TokenDelta
from support.simulation import VOCAB, RecordingExecutor

SIZE = 6


class Vectors:
    """A scheduler over a scripted executor that gives vectors."""

    def __init__(self, *, chunk: int = 16, whole: bool = False, script: Script | None = None, depth: int = 0) -> None:
        layout = Layout(num_pages=32, page_size=4, max_rows=4, max_row_tokens=64, max_step_tokens=chunk + 4)
        self.executor = RecordingExecutor(layout, VOCAB, script)
        self.executor.embedding_size = SIZE
        self.executor.whole_rows = whole
        self.cache = KvCache(layout, keep_prefixes=not whole)
        self.scheduler = Scheduler(self.executor, self.cache, SchedulerSection(chunked_prefill_size=chunk), depth=depth)

    def run(self, *specs: EngineRequest) -> dict[str, TokenDelta]:
        """The one delta of each request."""
        self.scheduler.submit(specs)
        while not self.scheduler.idle:
            self.scheduler.step()
            self.cache.check()
        deltas, self.scheduler.deltas = self.scheduler.deltas, []
        found = {delta.rid: delta for delta in deltas}
        assert len(found) == len(deltas)
        return found


def spec(rid: str, tokens: list[int], *, embed: bool = True, types: list[int] | None = None) -> EngineRequest:
    sampling = SamplingParams(max_new_tokens=0, sampling_seed=0, temperature=0.0)
    return EngineRequest(rid=rid, token_ids=tokens, sampling=sampling, embed=embed, token_types=types or [])


def vector(delta: TokenDelta) -> list[float]:
    assert delta.embedding is not None
    found: list[float] = np.frombuffer(delta.embedding, "<f4").tolist()
    return found


def message(delta: TokenDelta) -> str:
    assert delta.finish is not None
    assert delta.finish.type == "abort"
    return delta.finish.message or ""


PROMPTS = {"a": [1, 2, 3], "b": list(range(40)), "c": [1, 2, 3, 4, 5, 6, 7, 8, 9], "d": [7], "e": [1, 2, 3]}


def test_one_delta_with_the_vector_and_nothing_generated() -> None:
    vectors = Vectors()
    delta = vectors.run(spec("a", PROMPTS["a"]))["a"]
    assert len(vector(delta)) == SIZE
    assert delta.token_ids == []
    assert delta.finish is not None
    assert (delta.finish.type, delta.finish.length) == ("length", 0)
    assert delta.queue_s is not None
    assert vectors.scheduler.recorder.totals.finished == 1


def test_chunks_company_and_the_cache_change_nothing() -> None:
    alone = {rid: vector(Vectors().run(spec(rid, tokens))[rid]) for rid, tokens in PROMPTS.items()}
    assert alone["a"] == alone["e"] != alone["c"]
    for chunk in (1, 5, 64):
        for depth in (0, 1):
            vectors = Vectors(chunk=chunk, depth=depth)
            for _ in range(2):  # the second time from the cache
                deltas = vectors.run(*(spec(rid, tokens) for rid, tokens in PROMPTS.items()))
                assert {rid: vector(delta) for rid, delta in deltas.items()} == alone
            assert deltas["b"].cached_tokens == 39


def test_whole_prompts_share_steps_but_are_never_cut() -> None:
    vectors = Vectors(chunk=40, whole=True)
    deltas = vectors.run(*(spec(rid, tokens) for rid, tokens in PROMPTS.items()))
    assert {rid: vector(delta) for rid, delta in deltas.items()} == {
        rid: vector(Vectors().run(spec(rid, tokens))[rid]) for rid, tokens in PROMPTS.items()
    }
    assert [batch.query_lens.tolist() for batch in vectors.executor.batches] == [[3], [40], [9, 1, 3]]
    assert all(batch.starts.tolist() == [0] * len(batch.rows) for batch in vectors.executor.batches)
    assert vectors.cache.tree.pages == 0
    assert all(delta.cached_tokens == 0 for delta in deltas.values())


def test_a_prompt_longer_than_a_step_is_refused_where_prompts_are_whole() -> None:
    delta = Vectors(chunk=16, whole=True).run(spec("b", PROMPTS["b"]))["b"]
    assert "at most 16 can run here" in message(delta)


def test_a_prompt_may_fill_the_context() -> None:
    assert len(vector(Vectors().run(spec("a", [1] * 64))["a"])) == SIZE
    assert "at most 64" in message(Vectors().run(spec("a", [1] * 65))["a"])


def test_token_types_travel_beside_the_tokens() -> None:
    vectors = Vectors(chunk=8)
    vectors.run(spec("a", [1, 2, 3], types=[0, 1, 1]), spec("b", [4, 5]))
    (batch,) = vectors.executor.batches
    assert batch.token_types.tolist() == [0, 1, 1, 0, 0]
    vectors.run(spec("c", [9, 8]))
    assert len(vectors.executor.batches[-1].token_types) == 0
    assert "2 token types for 3 tokens" in message(vectors.run(spec("d", [1, 2, 3], types=[0, 1]))["d"])


def test_a_vector_that_is_not_finite_is_an_error_and_leaves_no_prefix() -> None:
    vectors = Vectors(script=Script(by_prompt={(1, 2, 3, 4, 5): [-1]}))
    deltas = vectors.run(spec("bad", [1, 2, 3, 4, 5]), spec("good", [6]))
    assert "NaN" in message(deltas["bad"])
    assert len(vector(deltas["good"])) == SIZE
    assert vectors.cache.tree.pages == 0


def test_the_wrong_kind_of_request_is_refused() -> None:
    assert message(Vectors().run(spec("a", [1], embed=False))["a"]) == "The model gives embeddings and no text."
    from support.simulation import Simulation

    text = Simulation()
    text.submit(spec("a", [1]))
    assert text.finish("a").message == "The model gives no embeddings."


def test_an_aborted_request_gives_no_vector() -> None:
    vectors = Vectors(chunk=4)
    vectors.scheduler.submit([spec("b", PROMPTS["b"])])
    vectors.scheduler.step()
    vectors.scheduler.abort(Abort(rids=["b"]))
    assert vectors.scheduler.deltas[-1].embedding is None
    assert vectors.scheduler.idle
    vectors.cache.check()
