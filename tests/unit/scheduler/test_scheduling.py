"""Which requests run when: budget, order, admission and retraction."""

from __future__ import annotations

import pytest

from ramet.errors import BrokenInvariant
from ramet.executor.base import LAST_SAMPLED, Layout
from ramet.scheduler import state
from ramet.scheduler.admission import Capacity, NewTokenRatio
from ramet.scheduler.retract import victim
from ramet.scheduler.state import Request
from support.simulation import VOCAB, Simulation, request, solo


def test_decodes_go_first_and_chunks_fill_the_budget() -> None:
    sim = Simulation(chunk=8)
    sim.submit(request("a", [1, 2, 3], 9), request("b", [4], 9))
    sim.step()
    sim.submit(request("c", range(20), 9), request("d", range(20, 30), 9))
    sim.step()
    batch = sim.executor.batches[-1]
    assert batch.query_lens.tolist() == [1, 1, 6]
    assert batch.token_ids[:2].tolist() == [LAST_SAMPLED] * 2
    assert batch.samples.tolist() == [True, True, False]
    sim.step(3)
    assert [batch.query_lens.tolist() for batch in sim.executor.batches[2:]] == [[1, 1, 6], [1, 1, 6], [1, 1, 2, 4]]


def test_many_decodes_leave_a_newcomer_a_quarter_of_the_budget() -> None:
    sim = Simulation(chunk=8, rows=12, pages=200)
    sim.submit(*[request(f"r{i}", [i], 50) for i in range(10)])
    sim.step(3)
    sim.submit(request("new", range(10), 1))
    sim.step()
    assert sim.executor.batches[-1].query_lens.tolist() == [1] * 10 + [2]


def test_requests_of_the_same_step_share_pages_afterwards() -> None:
    sim = Simulation(chunk=64)
    sim.submit(*[request(f"r{i}", range(16), 20) for i in range(3)])
    sim.step()
    assert sim.cache.tree.pages == 4
    assert sim.cache.allocator.free_count == 60
    sim.run()
    assert sim.tokens("r0") == sim.tokens("r1") == sim.tokens("r2") == solo(request("x", range(16), 20))


def test_generated_tokens_are_cached_but_not_the_last() -> None:
    sim = Simulation(page_size=1)
    sim.run(request("a", [1, 2, 3], 5))
    said = [1, 2, 3, *sim.tokens("a")]
    sim.run(request("b", [*said, 99], 1))
    assert sim.deltas["b"][0].cached_tokens == 3 + 5 - 1


def test_namespaces_share_nothing() -> None:
    sim = Simulation()
    for rid, namespace in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "")):
        sim.run(request(rid, range(9), 2, namespace=namespace))
    assert [sim.deltas[rid][0].cached_tokens for rid in "abcd"] == [0, 0, 8, 0]


def test_first_come_first_served_even_when_the_first_is_large() -> None:
    sim = Simulation(pages=16, page_size=4, chunk=64)
    sim.submit(request("first", range(30), 9))
    sim.step()
    sim.submit(request("large", range(40, 80), 4), request("small", [1], 1))
    sim.step(2)
    assert sim.tokens("small") == []  # it would fit, but must not overtake for ever
    sim.run()
    assert sim.tokens("large") == solo(request("large", range(40, 80), 4))


def test_admission_leaves_room_for_what_is_expected_to_grow() -> None:
    """Ten pages: each request has one for its prompt and is expected to need three more of its four."""
    sim = Simulation(pages=10, page_size=4)
    sim.submit(*[request(f"r{i}", [i] * 4, 16) for i in range(4)])
    sim.step()
    assert [len(sim.scheduler.decoding), len(sim.scheduler.waiting)] == [2, 2]
    sim.run()
    assert sim.scheduler.recorder.totals.retractions == 0


def test_longest_cached_prefix_first() -> None:
    sim = Simulation(rows=1, schedule_policy="lpm")
    sim.run(request("warm", range(20), 1))
    sim.run(request("none", [50, 51], 1), request("some", [0, 1, 2, 9], 1), request("most", range(19), 1))
    assert list(sim.deltas) == ["warm", "most", "some", "none"]


def test_a_prefix_about_to_be_computed_is_waited_for() -> None:
    stem = list(range(50))
    sim = Simulation(schedule_policy="lpm", chunk=200, page_size=16)
    sim.submit(request("a", [*stem, 1], 3), request("b", [*stem, 2], 3), request("c", [70], 3))
    sim.step()
    assert sorted(sim.deltas) == ["a", "c"]
    sim.run()
    assert sim.deltas["b"][0].cached_tokens == 48
    assert sim.tokens("b") == solo(request("b", [*stem, 2], 3))


@pytest.mark.parametrize(("count", "keep"), [(129, True), (5, False)])
def test_long_queues_and_no_cache_fall_back_to_arrival(count: int, keep: bool) -> None:
    sim = Simulation(rows=1, schedule_policy="lpm", keep_prefixes=keep)
    sim.run(request("warm", range(20), 1))
    sim.submit(*[request(f"r{i}", [60 + i % 30], 1) for i in range(count)], request("last", range(19), 1))
    sim.step()
    assert "r0" in sim.deltas


def test_retraction_takes_who_loses_least() -> None:
    def with_outputs(number: int, prompt: int, outputs: int) -> Request:
        made = Request(request(f"r{number}", range(prompt)), 50, number, 0.0)
        made.outputs = [0] * outputs
        return made

    requests = [with_outputs(0, 5, 3), with_outputs(1, 5, 1), with_outputs(2, 9, 1), with_outputs(3, 9, 1)]
    assert [victim(requests[:count], lambda request: 0).number for count in (1, 2, 3, 4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("every", [1, 2, 3, 7])
@pytest.mark.parametrize("depth", [0, 1])
def test_forced_retraction_changes_no_token(every: int, depth: int) -> None:
    specs = [request(f"r{i}", [i] * (3 + 5 * i), 9, temperature=float(i % 2), sampling_seed=i) for i in range(5)]
    sim = Simulation(retract_every=every, depth=depth, chunk=8)
    sim.run(*specs)
    assert [sim.tokens(spec.rid) for spec in specs] == [solo(spec) for spec in specs]
    assert sim.scheduler.recorder.totals.retractions > 0
    returned = [params for batch in sim.executor.batches for _, params in batch.new_rows if params.generated]
    assert returned


def test_states_refuse_illegal_changes() -> None:
    made = Request(request("a", [1]), 5, 0, 0.0)
    with pytest.raises(BrokenInvariant, match="request a is waiting"):
        state.start_decoding(made)
    with pytest.raises(BrokenInvariant):
        state.retract(made)
    state.finish(made)
    with pytest.raises(BrokenInvariant):
        state.finish(made)


def test_capacity_is_what_is_shown_and_tested() -> None:
    layout = Layout(num_pages=8, page_size=4, max_rows=2, max_row_tokens=20, max_step_tokens=8)
    by_context = Capacity.of(layout, VOCAB)
    assert by_context.max_prompt_tokens == 19
    assert by_context.new_tokens(5, None) == by_context.new_tokens(5, 99) == 15
    assert by_context.new_tokens(5, 2) == 2
    by_pool = Capacity(context_tokens=100, pool_tokens=32, vocab_size=VOCAB)
    assert by_pool.max_prompt_tokens == 32
    assert by_pool.new_tokens(32, None) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": []}, "input_ids"),
        ({"prompt": [VOCAB]}, "input_ids"),
        ({"prompt": [-1]}, "input_ids"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ({"logit_bias": {VOCAB + 9: 1.0}}, "logit_bias"),
        ({"token_ids_logprob": (-2,)}, "token_ids_logprob"),
        ({"logprob_start_len": 4, "return_logprob": True}, "logprob_start_len"),
        ({"stop": ("",)}, "stop"),
        ({"stop": ("x",)}, "stop"),  # no vocabulary was given
        ({"regex": "a"}, "regex"),
        ({"n": 2}, "n"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_field(fields: dict[str, object], field: str) -> None:
    sim = Simulation()
    prompt = fields.pop("prompt", [1, 2, 3])
    sim.run(request("a", prompt, 3, **fields), request("b", [1], 2))  # type: ignore[arg-type]
    assert (sim.finish("a").status_code, sim.finish("a").field) == (400, field)
    assert sim.finish("b").type == "length"
    assert sim.scheduler.recorder.totals.refused == 1


def test_prompts_of_id_zero_are_prompts() -> None:
    sim = Simulation()
    sim.run(request("a", [0], 2), request("b", [0, 0, 0], 2))
    assert sim.tokens("a") == solo(request("a", [0], 2))
    assert sim.tokens("b") == solo(request("b", [0, 0, 0], 2))


def test_the_ratio_falls_while_memory_lasts_and_recovers() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.value == 0.7
    for _ in range(700):
        ratio.step()
    assert ratio.value == pytest.approx(0.098)
    made = Request(request("a", [1], 99), 99, 0, 0.0)
    assert ratio.expected_tokens(made) == 10
    made.outputs = [1] * 30
    ratio.retracted([made])
    assert ratio.value == 0.5
    ratio.retracted([])
    assert ratio.value == 0.0
    ratio.idle()
    assert ratio.value == 0.7
    assert NewTokenRatio(9.0).value == 1.0
    eager = Request(request("b", [1], 9999, ignore_eos=True), 9999, 0, 0.0)
    assert ratio.expected_tokens(eager) == 4096


def test_row_params_translate_what_the_request_said() -> None:
    spec = request(
        "a",
        [1],
        9,
        temperature=1e-7,
        top_k=-1,
        sampling_seed=-1,
        logit_bias={4: 2.0},
        min_new_tokens=2,
        stop_token_ids=(5,),
        eos_token_ids=(6,),
        return_logprob=True,
        top_logprobs_num=3,
        token_ids_logprob=(7,),
    )
    params = Request(spec, 9, 0, 0.0).row_params()
    assert (params.temperature, params.top_k, params.seed) == (0.0, 0, 2**64 - 1)
    assert (list(params.bias_ids), list(params.bias_values)) == ([4], [2.0])
    assert (sorted(params.suppress_ids), params.suppress_until) == ([5, 6], 2)
    assert (params.top_logprobs, list(params.logprob_ids)) == (3, [7])
    plain = Request(request("b", [1], 9, temperature=0.5, top_k=4), 9, 0, 0.0).row_params()
    assert (plain.temperature, plain.top_k, plain.top_logprobs, plain.suppress_ids) == (0.5, 4, -1, ())
