"""A grammar's state in a request: masks, ends, dead ends, looking ahead and taking back (cases F17, F22, F23, E07)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ramet.errors import RequestError
from ramet.grammar import CompiledGrammar, GrammarCompiler, GrammarSpec, Matcher, grammar_of
from ramet.types import SamplingParams

Compile = Callable[..., CompiledGrammar]
EOS, UNUSED, CALL = 256, 257, 258
VOCAB_SIZE = 300


def allowed(matcher: Matcher, words: int = 10) -> set[int]:
    row = np.full(words, 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(row)
    return {int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))}


def feed(matcher: Matcher, text: str) -> None:
    assert all(matcher.accept(byte) for byte in text.encode())


def test_f17_special_tokens_and_ids_without_tokens_are_masked(compiled: Compile) -> None:
    matcher = compiled("ebnf", 'root ::= "q"+').matcher()
    assert allowed(matcher) == {ord("q")}
    assert not matcher.accept(UNUSED)
    assert not matcher.accept(VOCAB_SIZE - 1)
    assert matcher.accept(ord("q"))  # a refused token has changed nothing
    assert allowed(matcher) == {ord("q"), EOS}


def test_free_text_takes_every_token_but_special_ones(compiled: Compile) -> None:
    matcher = compiled("regex", "(.|\n)*").matcher()
    ids = allowed(matcher)
    assert {ord("a"), EOS} <= ids
    assert not ids & {UNUSED, CALL}
    assert max(ids) < VOCAB_SIZE


def test_all_tokens_that_fit_are_allowed_not_only_one_way_to_cut_the_text(compiled: Compile) -> None:
    # 268 and 269 are two ids of "ab"
    assert allowed(compiled("regex", "abab").matcher()) == {ord("a"), 268, 269}


def test_the_end_stops_whether_by_eos_or_because_nothing_can_follow(compiled: Compile) -> None:
    matcher = compiled("regex", "a+b?").matcher()
    assert not matcher.accepting
    feed(matcher, "a")
    assert (matcher.accepting, matcher.stopped) == (True, False)
    at_end = matcher.copy()
    assert at_end.accept(EOS)
    assert at_end.stopped
    feed(matcher, "b")
    assert matcher.stopped
    assert matcher.accepting


def test_f22_drafts_that_break_the_grammar_are_found_and_taken_back(compiled: Compile) -> None:
    matcher = compiled(
        "json_schema", '{"type":"object","properties":{"a":{"enum":["x","yy"]}},"required":["a"]}'
    ).matcher()
    feed(matcher, '{"a":"')
    before = allowed(matcher)
    ahead = matcher.copy()
    taken = [byte for byte in b"yyz" if ahead.accept(byte)]
    assert bytes(taken) == b"yy"
    for byte in taken:
        assert matcher.accept(byte)
    matcher.rollback(2)
    assert allowed(matcher) == before
    feed(matcher, 'yy"}')
    assert matcher.stopped
    matcher.rollback(2)
    assert ord('"') in allowed(matcher)
    feed(matcher, '"}')


def test_f23_closing_early_is_only_possible_where_the_grammar_says_so(compiled: Compile) -> None:
    matcher = compiled("ebnf", 'root ::= "<t>" .* "</t>" "fin"').matcher()
    feed(matcher, "<t>a</t>")
    assert not matcher.accepting
    assert EOS not in allowed(matcher)
    feed(matcher, "fin")
    assert matcher.accepting


def test_f23_a_state_without_an_exit_says_so(compiled: Compile) -> None:
    # maximal munch: the lexeme takes the x, so the grammar never gets to its end after it
    matcher = compiled("ebnf", "%llguidance {}\nstart: W /[^\\x00-\\x{10FFFF}]/\nW: /ab/").matcher()
    feed(matcher, "ab")
    row = np.zeros(10, np.uint32)
    assert not matcher.fill_mask(row)
    assert not matcher.accepting
    assert not matcher.accept(ord("a"))


def test_e07_the_grammar_waits_for_the_end_of_thinking(compiled: Compile) -> None:
    end = list(b"</t>")
    matcher = compiled("regex", r"^\d{3}$").matcher(start_after=end)
    feed(matcher, "abc 123 </")
    assert ord("a") in allowed(matcher)
    assert UNUSED in allowed(matcher)
    assert EOS not in allowed(matcher)  # an answer must follow
    assert not matcher.accepting
    feed(matcher, "t>")
    assert allowed(matcher) <= set(range(256)) | {270}
    assert ord("a") not in allowed(matcher)
    feed(matcher, "123")
    assert matcher.stopped
    matcher.rollback(5)  # into the end of thinking
    assert ord("a") in allowed(matcher)
    again = matcher.copy()
    for one in (matcher, again):
        feed(one, "t>987")
        assert one.stopped


def test_without_an_end_of_text_a_grammar_ends_where_nothing_can_follow() -> None:
    for size in (256, 288, 289):  # its own end of text falls into a new word, or not
        compiler = GrammarCompiler([bytes([value]) for value in range(256)], [], [], size)
        matcher = compiler.compile(GrammarSpec("regex", "ab*c"), timeout_s=30).matcher()
        words = -(-size // 32)
        assert allowed(matcher, words) == {ord("a")}
        feed(matcher, "a")
        assert allowed(matcher, words) == {ord("b"), ord("c")}
        feed(matcher, "c")
        assert matcher.stopped
        assert allowed(matcher, words) == set()


def test_grammars_are_compiled_once_and_failures_remembered(compiler: GrammarCompiler) -> None:
    spec = GrammarSpec("regex", "once")
    assert compiler.compile(spec, timeout_s=30) is compiler.compile(spec, timeout_s=30)
    compiler.clear()
    wrong = GrammarSpec("regex", "(once")
    assert compiler.submit(wrong) is compiler.submit(wrong)
    with pytest.raises(RequestError):
        compiler.compile(wrong, timeout_s=30)


def test_the_cache_is_bounded() -> None:
    compiler = GrammarCompiler([b"a"], [], [], 1, cache_size=2)
    first = compiler.submit(GrammarSpec("regex", "a"))
    compiler.submit(GrammarSpec("regex", "aa"))
    compiler.submit(GrammarSpec("regex", "a"))  # used again, so "aa" goes next
    compiler.submit(GrammarSpec("regex", "aaa"))
    assert compiler.submit(GrammarSpec("regex", "a")) is first


def test_a_grammar_that_takes_too_long_is_refused() -> None:
    compiler = GrammarCompiler([bytes([value]) for value in range(256)], [], [], 256)
    slow = GrammarSpec("json_schema", '{"type":"integer","multipleOf":65521}')
    with pytest.raises(RequestError, match="takes longer than"):
        compiler.compile(slow, timeout_s=1e-6)
    compiler.compile(slow, timeout_s=60)


def test_what_a_request_asks_for() -> None:
    assert grammar_of(SamplingParams()) is None
    assert grammar_of(SamplingParams(regex="")) is None
    assert grammar_of(SamplingParams(regex="a"), None) == GrammarSpec("regex", "a", None)
    assert grammar_of(SamplingParams(json_schema="{}")) == GrammarSpec("json_schema", "{}")
