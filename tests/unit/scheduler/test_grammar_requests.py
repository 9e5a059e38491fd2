"""Requests under grammars, on the scripted executor: waiting, masks, ends, neighbours, retraction, overlap."""

from __future__ import annotations

import json
import time

import pytest

from ramet.executor.scripted import Script
from ramet.grammar import GrammarCompiler, matcher
from ramet.scheduler.state import State
from ramet.types import EngineRequest
from support.simulation import VOCAB, Simulation, request

EOS = 100
#: The printable ASCII characters and a line break; token 96 is `{"`, 97 stands for nothing, 99 is special, 100 ends.
TABLE = [bytes([32 + i]) for i in range(95)] + [b"\n", b'{"', b"", b"ab", b"<x>", b"<eos>"]
assert len(TABLE) == VOCAB

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def ids(text: str) -> list[int]:
    return [TABLE.index(character.encode()) for character in text]


def text(sim: Simulation, rid: str) -> str:
    return b"".join(TABLE[token] for token in sim.tokens(rid)).decode()


def constrained(rid: str, prompt: list[int], max_new: int = 60, **sampling: object) -> EngineRequest:
    spec = request(rid, prompt, max_new, ignore_eos=False, **sampling)
    return EngineRequest(rid=spec.rid, token_ids=spec.token_ids, sampling=spec.sampling, eos_token_ids=(EOS,))


def simulation(script: Script | None = None, **options: object) -> Simulation:
    sim = Simulation(script=script, **options)  # type: ignore[arg-type]
    sim.scheduler.vocabulary = TABLE
    sim.scheduler.grammars.compiler = GrammarCompiler(TABLE, [99, EOS], [EOS], VOCAB)
    return sim


def compiled(sim: Simulation) -> None:
    """Wait for the compiler's thread (outside the simulation's clock)."""
    until = time.monotonic() + 20
    while any(not request.grammar.done() for request in sim.scheduler.grammars.compiling if request.grammar):
        assert time.monotonic() < until
        time.sleep(0.001)


def run(sim: Simulation, *specs: EngineRequest) -> None:
    sim.submit(*specs)
    compiled(sim)
    sim.run()
    sim.scheduler.grammars.close()


def test_a_request_waits_for_its_grammar_and_others_do_not() -> None:
    sim = simulation(Script(tokens=ids("7")))
    sim.submit(constrained("g", [1], regex="[0-9]{3}"), request("plain", [2], 4))
    held = sim.scheduler.live["g"]
    assert held.state is State.COMPILING
    compiled(sim)
    sim.run()
    assert text(sim, "g") == "777"
    assert sim.finish("g").type == "stop"
    assert sim.finish("g").matched is None  # the last token is text and stays
    assert text(sim, "plain") == "7777"
    assert sim.finish("plain").type == "length"


def test_what_the_model_prefers_is_masked_and_neighbours_are_untouched() -> None:
    sim = simulation(Script(tokens=[99]))  # always a special token
    run(sim, constrained("g", [1], regex="(yes|no)"), request("plain", [2], 3))
    assert text(sim, "g") in ("yes", "no")
    assert sim.tokens("plain") == [99] * 3


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("retract_every", [0, 3])
def test_json_under_a_schema_is_valid_whatever_happens_around_it(depth: int, retract_every: int) -> None:
    specs = [constrained(f"g{i}", [i, i + 1, 3], json_schema=json.dumps(OBJECT)) for i in range(5)]
    texts = []
    for around in ((depth, retract_every), (0, 0)):
        sim = simulation(depth=around[0], retract_every=around[1], pages=40)
        run(sim, *specs, *[request(f"plain{i}", [i], 20) for i in range(3)])
        texts.append([text(sim, spec.rid).removesuffix("<eos>") for spec in specs])
        for spec in specs:
            if sim.finish(spec.rid).type == "stop":
                assert isinstance(json.loads(text(sim, spec.rid).removesuffix("<eos>"))["a"], int)
    assert texts[0] == texts[1]


def test_eos_is_allowed_where_the_grammar_may_end_even_with_ignore_eos() -> None:
    for ignore in (False, True):
        sim = simulation(Script(tokens=[EOS]))
        spec = constrained("g", [1], regex="a+")
        if ignore:
            sampling = request("g", [1], 60, regex="a+").sampling
            spec = EngineRequest(rid="g", token_ids=[1], sampling=sampling, eos_token_ids=(EOS,))
        run(sim, spec)
        assert text(sim, "g") == "a<eos>"
        assert sim.finish("g").matched == EOS


def test_a_length_limit_may_cut_a_text_and_the_end_of_the_grammar_comes_first() -> None:
    sim = simulation(Script(tokens=ids("1")))
    run(sim, constrained("cut", [1], 2, regex="1{3}"), constrained("whole", [2], 3, regex="1{3}"))
    assert sim.finish("cut").type == "length"
    assert sim.finish("whole").type == "stop"


def test_stop_strings_work_inside_a_grammar() -> None:
    sim = simulation(Script(tokens=ids("abc")))
    run(sim, constrained("g", [1], regex="[a-z]+", stop=("bc",)))
    assert sim.finish("g").matched == "bc"
    assert sim.deltas["g"][-1].cut_bytes == 2


def test_min_new_tokens_does_not_strand_a_grammar_at_its_end() -> None:
    sim = simulation(Script(tokens=ids("a")))
    run(sim, constrained("g", [1], regex="a{0,2}", min_new_tokens=20))
    assert text(sim, "g") == "aa"
    assert sim.finish("g").type == "stop"
    empty = simulation(Script(tokens=ids("a")))
    run(empty, constrained("g", [1], regex="()", min_new_tokens=20))
    assert empty.finish("g").type == "stop"
    assert empty.finish("g").matched is None


def test_a_nan_under_a_grammar_is_a_failure_not_an_end() -> None:
    sim = simulation(Script(tokens=[*ids("a"), -1]))
    run(sim, constrained("g", [1], regex="a+"))
    assert sim.finish("g").status_code == 500


def test_f23_a_grammar_without_an_exit_fails_that_request_only() -> None:
    sim = simulation(Script(tokens=ids("ab")))
    dead = "%llguidance {}\nstart: W /[^\\x00-\\x{10FFFF}]/\nW: /ab/"
    run(sim, constrained("g", [1], ebnf=dead), request("plain", [2], 6))
    assert sim.finish("g").type == "abort"
    assert "cannot go on" in (sim.finish("g").message or "")
    assert sim.finish("plain").type == "length"
    assert sim.scheduler.idle


@pytest.mark.parametrize(
    ("sampling", "field"),
    [({"regex": "("}, "regex"), ({"json_schema": '{"uniqueItems":true}'}, "json_schema"), ({"ebnf": "?"}, "ebnf")],
)
def test_grammars_that_cannot_be_had_are_refused_by_name(sampling: dict[str, object], field: str) -> None:
    sim = simulation()
    run(sim, constrained("g", [1], 60, **sampling), request("plain", [2], 2))
    finish = sim.finish("g")
    assert (finish.type, finish.status_code, finish.field) == ("abort", 400, field)
    assert (finish.message or "").startswith(f"Failed to compile {field} grammar: ")
    assert sim.finish("plain").type == "length"


def test_a_defect_of_the_compiler_ends_the_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(GrammarCompiler, "_compile", broken)
    sim = simulation()
    run(sim, constrained("g", [1], regex="a"), request("plain", [2], 2))
    assert sim.finish("g").status_code == 500
    assert "inside" in (sim.finish("g").message or "")
    assert sim.finish("plain").type == "length"


def test_a_token_outside_the_grammar_is_the_executors_fault() -> None:
    sim = simulation(Script(tokens=ids("a")))
    sim.submit(constrained("g", [1], regex="ab"))
    compiled(sim)
    sim.step(0)
    sim.scheduler._take_compiled()
    mask = sim.scheduler.live["g"].mask
    assert mask is not None
    mask[:] = 0xFFFFFFFF  # as if it were not applied
    sim.executor.script = Script(tokens=ids("z"))
    sim.run()
    assert sim.finish("g").status_code == 500
    assert "does not allow" in (sim.finish("g").message or "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "[ 1 ]"),
        ({"constrained_json_disable_any_whitespace": True}, "[1]"),
        ({"constrained_json_whitespace_pattern": "[ ]{2}"}, "[  1  ]"),
    ],
)
def test_whitespace_is_as_configured(options: dict[str, object], expected: str) -> None:
    sim = simulation(Script(tokens=ids(expected)), **options)
    run(sim, constrained("g", [1], json_schema='{"type":"array","items":{"const":1},"minItems":1,"maxItems":1}'))
    assert text(sim, "g") == expected


def test_without_a_vocabulary_or_a_backend_grammars_are_refused() -> None:
    for sim in (Simulation(), simulation(grammar_backend="none")):
        sim.submit(constrained("g", [1], regex="a"))
        assert sim.finish("g").status_code == 400
        assert sim.finish("g").field == "regex"


def test_a_grammar_that_takes_too_long_is_refused() -> None:
    sim = simulation(grammar_compile_timeout=3.0)
    compiler = sim.scheduler.grammars.compiler
    assert compiler is not None
    compiler.close()  # nobody ever compiles
    sim.submit(constrained("g", [1], regex="a"))
    sim.step(3)
    assert sim.scheduler.live
    sim.step()
    assert sim.finish("g").status_code == 400
    assert "takes longer than 3 s" in (sim.finish("g").message or "")
    assert sim.scheduler.idle


def test_a_request_can_be_aborted_while_its_grammar_is_compiled() -> None:
    sim = simulation(max_queued_requests=1)
    compiler = sim.scheduler.grammars.compiler
    assert compiler is not None
    compiler.close()
    sim.submit(constrained("g", [1], regex="a"), constrained("too many", [1], regex="a"))
    assert sim.finish("too many").status_code == 503  # it waits like any other
    sim.abort("g")
    assert sim.finish("g").type == "abort"
    assert sim.scheduler.idle
    assert not sim.scheduler.grammars.compiling


def test_the_grammar_waits_for_the_end_of_thinking() -> None:
    sim = simulation(Script(tokens=ids("hm 1 </t> 123456")))
    spec = request("g", [1], 60, regex="[0-9]{3}")
    after = tuple(ids("</t>"))
    run(sim, EngineRequest(rid="g", token_ids=[1], sampling=spec.sampling, grammar_after=after))
    thought, _, answer = text(sim, "g").partition("</t>")
    assert thought == "hm 1 "
    assert len(answer) == 3
    assert answer.isdigit()
    assert sim.finish("g").type == "stop"


def test_a_grammar_that_holds_up_everybody_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "ALLOWANCE_S", 0.0)
    monkeypatch.setattr(matcher, "TOKEN_ALLOWANCE_S", 0.0)
    sim = simulation(Script(tokens=ids("a")))
    run(sim, constrained("g", [1], 100, regex="a+"), request("plain", [2], 6))
    assert sim.finish("g").status_code == 400
    assert "too long to follow" in (sim.finish("g").message or "")
    assert sim.finish("plain").type == "length"


def test_masks_travel_only_with_entries_that_draw() -> None:
    sim = simulation(Script(tokens=ids("1")), chunk=4)
    run(sim, constrained("g", list(range(10)), regex="1{3}"), request("plain", [2], 8))
    seen = 0
    for batch in sim.executor.batches:
        assert len(batch.masks) == len(batch.mask_entries)
        assert batch.samples[batch.mask_entries].all()
        seen += len(batch.mask_entries)
    assert seen == 3


def test_flush_forgets_compiled_grammars() -> None:
    sim = simulation(Script(tokens=ids("1")))
    compiler = sim.scheduler.grammars.compiler
    assert compiler is not None
    run(sim, constrained("g", [1], regex="1"))
    assert compiler._cache
    assert sim.scheduler.flush_cache()
    assert not compiler._cache
