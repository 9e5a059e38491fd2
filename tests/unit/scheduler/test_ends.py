"""Every way a request ends: stop strings and tokens, length, aborts in every state, deadlines, failures."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.executor.scripted import Script
from ramet.scheduler.state import State
from support.simulation import VOCAB, Simulation, request, solo

#: Token i is the letter of the alphabet at i % 26, 30 is an en dash (three bytes), 31 is "ab" in one token.
LETTERS = [bytes([97 + i % 26]) for i in range(VOCAB)]
LETTERS[30], LETTERS[31] = "–".encode(), b"ab"


def spelled(*tokens: int, **options: object) -> Simulation:
    """A simulation whose model says these tokens."""
    sim = Simulation(script=Script(tokens=tokens), **options)  # type: ignore[arg-type]
    sim.scheduler.vocabulary = LETTERS
    return sim


def text_shown(sim: Simulation, rid: str) -> bytes:
    """What a client saw; also that nothing shown was ever taken back."""
    data, shown = b"", b""
    for delta in sim.deltas[rid]:
        data += b"".join(LETTERS[token] for token in delta.token_ids)
        now = data[: len(data) - delta.held_bytes - delta.cut_bytes]
        assert now.startswith(shown)
        shown = now
    return shown


def test_a_stop_string_over_several_tokens_is_held_and_cut() -> None:
    sim = spelled(5, 0, 1, 5, 0, 1, 2, 3)  # f a b f a b c d
    sim.run(request("a", [1], 20, stop=("abc",)))
    assert sim.finish("a").matched == "abc"
    assert sim.tokens("a") == [5, 0, 1, 5, 0, 1, 2]
    assert text_shown(sim, "a") == b"fabf"
    assert [delta.held_bytes for delta in sim.deltas["a"]] == [0, 1, 2, 0, 1, 2, 0]
    assert sim.deltas["a"][-1].cut_bytes == 3


def test_a_stop_string_inside_a_token_cuts_the_rest_of_it_too() -> None:
    sim = spelled(5, 31, 2)  # f ab c
    sim.run(request("a", [1], 20, stop=("a",)))
    assert sim.tokens("a") == [5, 31]
    assert text_shown(sim, "a") == b"f"


def test_a_kept_stop_string_cuts_only_what_follows_it() -> None:
    sim = spelled(5, 31, 2)
    sim.run(request("a", [1], 20, stop=("fa",), no_stop_trim=True))
    assert [delta.held_bytes for delta in sim.deltas["a"]] == [0, 0]
    assert text_shown(sim, "a") == b"fa"


def test_what_was_held_is_shown_when_the_request_ends_otherwise() -> None:
    sim = spelled(5, 0, 1)
    sim.run(request("a", [1], 3, stop=("abc",)))
    assert sim.finish("a").type == "length"
    assert text_shown(sim, "a") == b"fab"


def test_a_stop_string_of_several_bytes_per_character() -> None:
    sim = spelled(0, 30, 1)
    sim.run(request("a", [1], 3, stop=("–",)))
    assert text_shown(sim, "a") == b"a"


def test_a_stop_string_goes_before_an_end_token_and_that_before_length() -> None:
    sim = spelled(0, 1)
    sim.run(
        request("string", [1], 2, stop=("b",), stop_token_ids=(1,)),
        request("token", [1], 2, stop_token_ids=(1,)),
        request("length", [1], 2),
    )
    assert sim.finish("string").matched == "b"
    assert sim.finish("token").matched == 1
    assert sim.finish("length").length == 2


def test_ignoring_eos_leaves_the_requests_own_stop_tokens() -> None:
    sim = spelled(3, 4, 5)
    sim.run(
        request("eos", [1], 3, eos_token_ids=(3,)),
        request("on", [1], 3, eos_token_ids=(3,), ignore_eos=True),
        request("own", [1], 3, eos_token_ids=(3,), ignore_eos=True, stop_token_ids=(4,)),
    )
    assert sim.tokens("eos") == [3]
    assert sim.tokens("on") == [3, 4, 5]
    assert sim.tokens("own") == [3, 4]


@pytest.mark.parametrize("passes", range(6))
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("how", ["rid", "twice", "prefix", "all"])
def test_an_abort_in_any_state_ends_once_and_frees_all(passes: int, depth: int, how: str) -> None:
    sim = Simulation(chunk=4, rows=1, depth=depth)
    sim.submit(request("job-1", range(10), 4), request("job-2", range(10), 4))
    sim.step(passes)
    if how == "rid":
        sim.abort("job-1", "job-2", "unknown")
    elif how == "twice":
        sim.abort("job-1", "job-1", prefix="job-")
    else:
        sim.abort(prefix="job-" if how == "prefix" else None, everything=how == "all")
    for rid in ("job-1", "job-2"):
        assert (sim.finish(rid).type, sim.finish(rid).status_code) == ("abort", None)
    sim.step(3)
    assert sim.scheduler.idle
    assert not sim.cache.leases
    assert set(sim.deltas) == {"job-1", "job-2"}


def test_an_abort_without_a_meaning_ends_nothing() -> None:
    sim = Simulation()
    sim.submit(request("a", [1]))
    sim.abort(prefix="")
    sim.abort()
    assert list(sim.scheduler.live) == ["a"]


def test_cancelling_a_queued_request_leaves_the_running_one_alone() -> None:
    spec = request("a", range(5), 9)
    sim = Simulation(rows=1)
    sim.submit(spec, request("b", range(5), 9))
    sim.step(3)
    sim.abort("b")
    sim.run()
    assert sim.tokens("a") == solo(spec)


def test_an_id_is_free_again_after_an_abort_in_the_queue() -> None:
    sim = Simulation(rows=1)
    sim.submit(request("busy", [1], 50), request("job-7", [1], 3))
    sim.step()
    sim.abort(everything=True)
    sim.forget("job-7")
    sim.run(request("job-7", [1], 3))
    assert sim.finish("job-7").type == "length"


def test_a_live_id_is_refused_and_the_first_holder_unharmed() -> None:
    sim = Simulation()
    sim.submit(request("a", [1, 2], 5))
    sim.step()
    sim.scheduler.submit([request("a", [3], 2)])
    duplicate = sim.scheduler.deltas.pop()
    assert duplicate.finish is not None
    assert duplicate.finish.status_code == 400
    assert duplicate.finish.message == "Duplicate request ID detected: a"
    sim.run()
    assert sim.tokens("a") == solo(request("a", [1, 2], 5))


def test_an_abort_stops_between_chunks() -> None:
    sim = Simulation(chunk=4)
    sim.submit(request("a", range(20), 5))
    sim.step(2)
    assert [batch.token_ids.size for batch in sim.executor.batches] == [4, 4]
    sim.abort("a")
    sim.step()
    assert len(sim.executor.batches) == 2


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    sim = Simulation(rows=1)
    sim.submit(
        request("runs", [1], 50, deadline_s=3.0),
        request("waits", [1], 50, deadline_s=3.0),
        request("done", [1], 1, deadline_s=90.0),
    )
    sim.run()
    for rid in ("runs", "waits"):
        assert (sim.finish(rid).type, sim.finish(rid).status_code) == ("abort", 503)
    assert len(sim.tokens("runs")) == 2
    sim.now_s = 100.0  # passes over the deadline of a request that has ended long ago
    sim.step()
    assert sim.finish("done").type == "length"


def test_deadlines_of_ended_requests_are_forgotten() -> None:
    sim = Simulation(rows=4)
    for index in range(300):
        sim.run(request(f"r{index}", [1], 1, deadline_s=1e9))
    assert len(sim.scheduler._deadlines) <= 2 * 4 + 64 + 1


def test_a_failed_step_ends_its_requests_only_and_keeps_nothing_of_them() -> None:
    sim = Simulation(chunk=8, rows=2)
    long, late = request("long", range(30), 4), request("late", range(5), 4)
    sim.executor.script.fail_steps = {1}
    sim.submit(long, late)
    sim.step(2)
    assert (sim.finish("long").type, sim.finish("long").status_code) == ("abort", 500)
    assert "scripted failure of step 1" in (sim.finish("long").message or "")
    assert sim.scheduler.recorder.totals.failed_steps == 1
    sim.run()
    assert sim.tokens("late") == solo(late)
    sim.forget("long")
    sim.run(long)
    assert sim.deltas["long"][0].cached_tokens == 8  # of the step that did not fail
    assert sim.tokens("long") == solo(long)


def test_a_request_in_the_step_after_the_failed_one_goes_on() -> None:
    """Two steps are on their way when the first fails."""
    sim = Simulation(chunk=8, depth=1, script=Script(fail_steps={0}))
    first, second = request("first", range(4), 5), request("second", range(6), 5)
    sim.submit(first)
    sim.step()
    sim.run(second)
    assert sim.finish("first").status_code == 500
    assert sim.tokens("second") == solo(second)


@pytest.mark.parametrize("index", [0, 2])
def test_logits_that_hold_a_nan_end_that_request_alone(index: int) -> None:
    bad, good = request("bad", [1, 2, 3, 4, 5], 6), request("good", [6], 6)
    script = Script(choose=lambda prompt, at: -1 if prompt[0] == 1 and at == index else None)
    sim = Simulation(script=script)
    sim.run(bad, good)
    assert (sim.finish("bad").type, sim.finish("bad").status_code) == ("abort", 500)
    assert "NaN" in (sim.finish("bad").message or "")
    assert len(sim.tokens("bad")) == index
    assert sim.tokens("good") == solo(good)
    if index == 0:  # its keys and values may hold NaN as well
        sim.run(request("again", [1, 2, 3, 4, 5, 9], 0))
        assert sim.deltas["again"][0].cached_tokens == 0


def test_a_request_that_nobody_can_make_room_for_ends_with_the_numbers() -> None:
    sim = Simulation(pages=8, page_size=4)
    held = sim.cache.acquire("", np.arange(16, dtype=np.int32), 0)
    assert held is not None
    sim.submit(request("a", range(12), 20))
    sim.scheduler._ratio.value = 0.0
    while sim.scheduler.live:
        sim.step()
    assert sim.finish("a").status_code == 500
    assert "4 pages of 4 tokens" in (sim.finish("a").message or "")
    assert len(sim.tokens("a")) == 5
    held.release()
    sim.cache.check()


def states(sim: Simulation) -> list[State]:
    return [request.state for request in sim.scheduler.live.values()]


def test_states_and_queue_limits() -> None:
    sim = Simulation(rows=1, chunk=4, max_queued_requests=1)
    sim.submit(request("a", range(6), 3))
    sim.step()
    assert states(sim) == [State.PREFILLING]
    sim.submit(request("b", [1], 3), request("c", [1], 3))
    assert (sim.finish("c").status_code, sim.finish("c").message) == (503, "The request queue is full.")
    sim.step()
    assert states(sim) == [State.DECODING, State.WAITING]
    assert not sim.scheduler.flush_cache()
    sim.run()
    assert sim.finish("b").type == "length"
    assert not sim.scheduler.step()


def test_requests_that_arrive_together_queue_only_beyond_the_free_rows() -> None:
    sim = Simulation(rows=2, max_queued_requests=1)
    sim.submit(*[request(f"r{i}", [1], 3) for i in range(4)])
    assert sim.finish("r3").status_code == 503
    sim.step()
    assert states(sim) == [State.DECODING, State.DECODING, State.WAITING]
    sim.submit(request("r4", [1], 3))
    assert sim.finish("r4").status_code == 503
    sim.run()
    assert sim.finish("r2").type == "length"
