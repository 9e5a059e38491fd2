"""Inputs that broke other servers (the sections A and H of the list of cases), on the scripted executor."""

from __future__ import annotations

import random

import pytest

from ramet.executor.scripted import Script
from support.simulation import VOCAB, Simulation, request, solo


def test_a_whole_cached_prompt_of_whole_pages_recomputes_its_last_token() -> None:
    spec = request("a", range(8))
    sim = Simulation(page_size=4)
    sim.run(spec)
    first = sim.tokens("a")
    sim.forget("a")
    sim.run(spec)
    assert sim.tokens("a") == first == solo(spec)
    assert sim.deltas["a"][0].cached_tokens == 7


def test_growing_requests_on_ten_pages_all_finish_as_alone() -> None:
    specs = [request(f"r{i}", [i, 1, 2], 20, ignore_eos=False) for i in range(6)]
    sim = Simulation(pages=10, page_size=4, context=40)
    sim.scheduler._ratio.value = 0.1  # as after a long good time: everybody is let in
    sim.run(*specs)
    assert [sim.tokens(spec.rid) for spec in specs] == [solo(spec) for spec in specs]
    assert sim.scheduler.recorder.totals.retractions > 0
    assert max(delta.num_retractions for told in sim.deltas.values() for delta in told) > 0


def test_prompts_just_above_the_chunk_size_without_a_prefix_cache() -> None:
    sim = Simulation(chunk=32, keep_prefixes=False, pages=200)
    specs = [request(f"r{i}", [i] * 33, 3) for i in range(20)]
    sim.run(*specs)
    assert [sim.tokens(spec.rid) for spec in specs] == [solo(spec) for spec in specs]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("chunk", [1, 8, 64])
def test_any_chunk_size_gives_the_same_tokens(chunk: int, keep: bool) -> None:
    specs = [request(f"r{i}", [7] * 10 + [i] * 20, 5) for i in range(4)]
    sim = Simulation(chunk=chunk, keep_prefixes=keep)
    sim.run(*specs)
    assert [sim.tokens(spec.rid) for spec in specs] == [solo(spec) for spec in specs]


def test_what_is_admitted_near_capacity_runs_and_blocks_nobody_when_cancelled() -> None:
    sim = Simulation(pages=16, page_size=4, context=200)
    sim.submit(request("large", range(61), 100))
    sim.step(2)
    sim.abort("large")
    sim.run(request("small", range(5), 3))
    assert sim.tokens("small") == solo(request("small", range(5), 3))
    sim.run(request("again", range(61), 100))
    assert sim.finish("again").length == 4  # positions 61 .. 63, and a last token that needs none


@pytest.mark.parametrize("context", [33, 200])
def test_a_prompt_beyond_the_pool_is_refused_with_both_numbers(context: int) -> None:
    sim = Simulation(pages=8, page_size=4, context=context)
    sim.run(request("a", range(40), 1))
    reason = sim.finish("a")
    assert (reason.type, reason.status_code, reason.field) == ("abort", 400, "input_ids")
    assert "40" in (reason.message or "")
    assert "32" in (reason.message or "")
    sim.run(request("b", range(32), 1))
    assert sim.finish("b").type == "length"


def test_prompts_that_part_in_the_middle_of_a_page_are_counted_once() -> None:
    sim = Simulation(page_size=4)
    for i in range(5):
        spec = request(f"r{i}", [1, 2, 3, 4, 5, 6, 10 + i, 11, 12], 2)
        sim.run(spec)
        assert sim.tokens(spec.rid) == solo(spec)
    assert sim.deltas["r4"][0].cached_tokens == 6
    assert sim.cache.allocator.free_count + sim.cache.tree.pages == 64


@pytest.mark.parametrize("page_size", [1, 2, 16])
def test_nothing_leaks_over_many_random_requests(page_size: int) -> None:
    seed = 20 + page_size
    rng = random.Random(seed)
    sim = Simulation(pages=96 // page_size, page_size=page_size, context=80)
    for i in range(170):
        stem = [rng.randrange(3)] * rng.randrange(20)
        sim.submit(request(f"r{i}", [*stem, rng.randrange(VOCAB)], rng.randrange(12)))
        sim.step(rng.randrange(3))
        if rng.random() < 0.2 and sim.scheduler.live:
            sim.abort(rng.choice(list(sim.scheduler.live)))
    sim.run()
    assert sim.cache.allocator.free_count + sim.cache.tree.pages == 96 // page_size
    assert sim.scheduler.flush_cache()
    assert sim.cache.allocator.free_count == 96 // page_size


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_an_aborted_prefill_leaves_nothing_wrong_in_the_cache(chunks: int) -> None:
    spec = request("a", range(20))
    sim = Simulation(chunk=4)
    sim.submit(spec)
    sim.step(chunks)
    sim.abort("a")
    assert sim.tokens("a") == []
    sim.forget("a")
    sim.run(spec)
    assert sim.deltas["a"][0].cached_tokens == 4 * chunks
    assert sim.tokens("a") == solo(spec)


@pytest.mark.parametrize("chunk", [3, 16, 64])
def test_the_cache_does_not_change_tokens(chunk: int) -> None:
    rng = random.Random(14)
    stems = [[rng.randrange(VOCAB) for _ in range(rng.randrange(5, 30))] for _ in range(4)]
    specs = [
        request(f"r{i}", [*rng.choice(stems), *[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))]], 6)
        for i in range(50)
    ]
    found = []
    for keep in (True, False):
        sim = Simulation(chunk=chunk, keep_prefixes=keep)
        sim.run(*specs)
        found.append([sim.tokens(spec.rid) for spec in specs])
        assert (sim.scheduler.recorder.totals.cached_tokens > 0) == keep
    assert found[0] == found[1]


def test_minimum_length_holds_back_every_end_token() -> None:
    """The model always wants 7, which with 9 ends a text; after four other tokens it may."""
    sim = Simulation(script=Script(tokens=[7]))
    sim.run(request("a", [1, 2], 10, min_new_tokens=4, eos_token_ids=(7, 9), stop_token_ids=(7,)))
    assert len(sim.tokens("a")) == 5
    assert not {7, 9} & set(sim.tokens("a")[:4])
    assert sim.finish("a").matched == 7


@pytest.mark.parametrize("scored", [True, False])
def test_zero_new_tokens_compute_the_prompt_and_nothing_else(scored: bool) -> None:
    sim = Simulation(chunk=4)
    sim.run(request("a", range(9), 0, return_logprob=scored, logprob_start_len=0 if scored else -1))
    assert sim.tokens("a") == []
    assert (sim.finish("a").type, sim.finish("a").length) == ("length", 0)
    assert len(sim.deltas["a"]) == 1
    entries = sim.deltas["a"][0].input_logprobs
    assert (len(entries) if entries is not None else None) == (9 if scored else None)
    assert sim.deltas["a"][0].queue_s is not None
    assert not sim.cache.leases
    sim.run(request("b", range(9), 1))
    assert sim.deltas["b"][0].cached_tokens == 8  # the cache is warm: two whole pages


def test_zero_new_tokens_may_fill_the_context() -> None:
    sim = Simulation(context=16)
    sim.run(request("a", range(16), 0), request("b", range(16), 1), request("c", range(17), 0))
    assert sim.finish("a").type == "length"
    assert sim.finish("b").status_code == sim.finish("c").status_code == 400
