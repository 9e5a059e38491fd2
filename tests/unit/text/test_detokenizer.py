"""The detokenizer's written rules, one input each."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ramet.errors import BrokenInvariant
from ramet.text.detokenizer import Detokenizer


@dataclass(frozen=True)
class Table:
    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int] = frozenset()


BYTES = Table((*(bytes([value]) for value in range(256)), b"<|end|>"), frozenset({256}))


def pieces(*texts: str) -> Detokenizer:
    return Detokenizer(Table(tuple(text.encode() for text in texts)))


def test_every_cut_of_mixed_scripts_as_single_bytes_loses_nothing() -> None:
    text = "říz 떡볶이 🧭 कि"
    ids = list(text.encode())
    for cut in range(len(ids) + 1):
        detokenizer = Detokenizer(BYTES)
        assert detokenizer.push(ids[:cut]) + detokenizer.push(ids[cut:]) + detokenizer.finish() == text
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push([id]) for id in "떡".encode()] == ["", "", "떡"]


@pytest.mark.parametrize("deltas", [[[0xE2, 0x82]], [[0xE2], [0x82]], [[0xE2], [], [0x82]]])
def test_a_character_unfinished_at_the_end_is_one_replacement(deltas: list[list[int]]) -> None:
    detokenizer = Detokenizer(BYTES)
    assert "".join(map(detokenizer.push, deltas)) == ""
    assert detokenizer.finish() == "\ufffd"


def test_a_stop_of_one_character_in_four_byte_tokens_is_cut_exactly() -> None:
    detokenizer = Detokenizer(BYTES)
    shown = detokenizer.push(b"mid")
    for count, byte in enumerate("🧀".encode(), start=1):
        shown += detokenizer.push([byte], held_bytes=count)
    assert shown + detokenizer.finish(cut_bytes=4) == "mid"


def test_a_stop_that_ends_inside_a_token() -> None:
    detokenizer = pieces("ab", "cdef")
    assert detokenizer.push([0]) == "ab"
    assert detokenizer.push([1], held_bytes=4) == ""
    assert detokenizer.finish(cut_bytes=2) == "cd"


def test_near_misses_of_a_stop_are_shown_when_the_hold_shrinks() -> None:
    detokenizer = pieces("sun", "moon", "star", "light")
    assert detokenizer.push([0]) == "sun"
    assert detokenizer.push([1], held_bytes=4) == ""
    assert detokenizer.push([2], held_bytes=8) == ""
    assert detokenizer.push([3], held_bytes=0) == "moonstarlight"


def test_the_prompts_half_character_is_shown_whole_when_the_output_completes_it() -> None:
    prompt = [*b"menu ", 0xE2, 0x82]
    detokenizer = Detokenizer(BYTES, prompt_tail_ids=prompt)
    assert detokenizer.push([0xAC]) == "€"
    assert detokenizer.push(b"5") == "5"


def test_the_prompts_half_character_is_not_shown_when_the_output_drops_it() -> None:
    detokenizer = Detokenizer(BYTES, prompt_tail_ids=[*b"menu ", 0xE2, 0x82])
    assert detokenizer.push(b"A") + detokenizer.finish() == "A"
    silent = Detokenizer(BYTES, prompt_tail_ids=[*b"menu ", 0xE2, 0x82])
    assert silent.finish() == ""


def test_the_prompts_half_character_left_open_by_both_is_one_replacement() -> None:
    detokenizer = Detokenizer(BYTES, prompt_tail_ids=[0xF0])
    assert detokenizer.push([0x9F]) == ""
    assert detokenizer.finish() == "\ufffd"


def test_special_tokens_are_hidden_but_counted() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push([*b"ok", 256], held_bytes=7) == "ok"
    assert detokenizer.finish(cut_bytes=7) == ""
    shown = Detokenizer(BYTES, skip_special_tokens=False)
    assert shown.push([*b"ok", 256]) == "ok<|end|>"


def test_a_hidden_token_between_the_bytes_of_a_character_does_not_break_it() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push([0xC3, 256, 0xA9]) == "é"


def test_an_id_of_the_padded_vocabulary_has_no_text() -> None:
    assert Detokenizer(BYTES).push([0x61, 300, 0x62]) == "ab"


def test_holding_back_what_was_already_released_is_a_broken_invariant() -> None:
    detokenizer = pieces("ab", "cd")
    detokenizer.push([0])
    with pytest.raises(BrokenInvariant, match="3 bytes to hold, of which only 2"):
        detokenizer.push([1], held_bytes=3)
