"""Logprobs of prompts and outputs: the same however the prompt is cut, cached or accompanied."""

from __future__ import annotations

import pytest

from ramet.types import EngineRequest, TokenLogprob
from support.simulation import VOCAB, Simulation, request

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def ask(rid: str = "a", start: int = 0, top: int = 2) -> EngineRequest:
    return request(
        rid,
        PROMPT,
        4,
        return_logprob=True,
        logprob_start_len=start,
        top_logprobs_num=top,
        token_ids_logprob=(8, 1),
    )


def scored(sim: Simulation, rid: str = "a") -> list[TokenLogprob]:
    entries = sim.deltas[rid][0].input_logprobs
    assert entries is not None
    assert all(delta.input_logprobs is None for delta in sim.deltas[rid][1:])
    return entries


def cold(start: int = 0, top: int = 2) -> Simulation:
    sim = Simulation(chunk=64)
    sim.run(ask(start=start, top=top))
    return sim


def test_prompt_logprobs_name_every_token_and_none_for_the_first() -> None:
    entries = scored(cold())
    assert [entry.token_id for entry in entries] == PROMPT
    assert entries[0].logprob is None
    for entry in entries[1:]:
        assert entry.logprob is not None
        assert entry.top is not None
        assert len(entry.top) == 2
        assert entry.top[0][1] >= entry.top[1][1]
        assert entry.chosen is not None
        assert [token for token, _ in entry.chosen] == [8, 1]
        assert all(logprob <= entry.top[0][1] for _, logprob in entry.chosen)
    assert entries[3].chosen is not None
    assert entries[3].chosen[1] == (entries[3].token_id, entries[3].logprob)


@pytest.mark.parametrize("start", [0, 1, 4, 10, 11])
def test_a_later_start_gives_the_tail(start: int) -> None:
    assert scored(cold(start)) == scored(cold())[start:]


@pytest.mark.parametrize("start", [0, 1, 5])
@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
@pytest.mark.parametrize("retract", [0, 1])
def test_chunks_cache_neighbours_and_retraction_change_nothing(start: int, chunk: int, retract: int) -> None:
    sim = Simulation(chunk=chunk, retract_every=retract)
    sim.run(request("warm", PROMPT, 1))
    sim.run(request("other", [7, 7, 7], 9), ask(start=start), request("third", PROMPT, 3))
    expected = cold(start)
    assert scored(sim) == scored(expected)
    assert [d.logprobs for d in sim.deltas["a"]] == [d.logprobs for d in expected.deltas["a"]]
    assert sim.deltas["a"][0].cached_tokens == max(start - 1, 0)


def test_a_prefill_that_is_retracted_starts_its_prompt_logprobs_over() -> None:
    sim = Simulation(chunk=4)
    sim.submit(ask())
    sim.step(2)
    sim.scheduler._retract(sim.scheduler.prefilling[0])
    sim.run()
    assert scored(sim) == scored(cold())
    assert sim.deltas["a"][0].num_retractions == 1


def test_output_logprobs_of_the_drawn_the_best_and_the_chosen_tokens() -> None:
    sim = Simulation()
    sim.run(ask("two"), ask("none", top=0), request("plain", PROMPT, 4))
    for delta in sim.deltas["two"]:
        assert delta.logprobs is not None
        (entry,) = delta.logprobs
        assert entry.token_id == delta.token_ids[0]
        assert entry.top is not None
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert entry.chosen is not None
        assert [token for token, _ in entry.chosen] == [8, 1]
    for delta in sim.deltas["none"]:
        assert delta.logprobs is not None
        assert delta.logprobs[0].top is None
    assert all(delta.logprobs is None and delta.input_logprobs is None for delta in sim.deltas["plain"])
    assert [entry.top for entry in scored(sim, "none")] == [None] * len(PROMPT)


def test_a_start_without_logprobs_asks_for_nothing() -> None:
    sim = Simulation()
    sim.run(request("a", PROMPT, 1, logprob_start_len=0))
    assert sim.deltas["a"][0].input_logprobs is None


def test_more_top_logprobs_than_tokens_are_refused_and_neighbours_go_on() -> None:
    sim = Simulation()
    sim.run(
        request("good", [1, 2], 3),
        request("bad", [1, 2], 3, return_logprob=True, top_logprobs_num=VOCAB + 1, logprob_start_len=0),
        request("most", [1, 2], 1, return_logprob=True, top_logprobs_num=VOCAB, logprob_start_len=0),
    )
    assert (sim.finish("bad").status_code, sim.finish("bad").field) == (400, "top_logprobs_num")
    assert [sim.finish(rid).type for rid in ("good", "most")] == ["length", "length"]
