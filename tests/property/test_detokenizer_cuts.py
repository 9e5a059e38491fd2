"""However the tokens are cut into deltas, and whatever is held back, the deltas join to the one-shot text."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ramet.text.detokenizer import Detokenizer, unfinished_tail


@dataclass(frozen=True)
class Table:
    """A token table by hand, whose last id is special."""

    token_bytes: tuple[bytes, ...]

    @property
    def special_ids(self) -> frozenset[int]:
        return frozenset({len(self.token_bytes) - 1})


ALL_BYTES = Table((*(bytes([value]) for value in range(256)), b"<|end|>"))

# bytes at the borders of well-formed UTF-8, far more often than chance would give them
_EDGES = (0x41, 0x7F, 0x80, 0xBF, 0xC0, 0xC2, 0xE0, 0xE2, 0x82, 0xAC, 0xED, 0xA0, 0xF0, 0x9F, 0x90, 0xF4, 0xF5, 0xFF)
byte_ids = st.lists(st.sampled_from(_EDGES) | st.integers(0, 256), max_size=30)


def whole_text(ids: list[int], *, cut_bytes: int = 0, skip: bool = True) -> str:
    """The definition: every byte but the last `cut_bytes`, the visible ones decoded at once."""
    marked = [(byte, not (skip and id in ALL_BYTES.special_ids)) for id in ids for byte in ALL_BYTES.token_bytes[id]]
    kept = marked[: len(marked) - cut_bytes]
    return bytes(byte for byte, visible in kept if visible).decode("utf-8", "replace")


def draw_deltas(data: st.DataObject, ids: list[int]) -> list[list[int]]:
    """Some way to cut `ids`, empty deltas included."""
    ends = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return [ids[start:end] for start, end in zip([0, *ends], [*ends, len(ids)], strict=True)]


@given(st.data(), byte_ids, st.booleans())
def test_any_cut_of_any_bytes_with_any_holds_joins_to_the_whole(
    data: st.DataObject, ids: list[int], skip: bool
) -> None:
    detokenizer = Detokenizer(ALL_BYTES, skip_special_tokens=skip)
    text, pending = "", 0
    for delta in draw_deltas(data, ids):
        pending += sum(len(ALL_BYTES.token_bytes[id]) for id in delta)
        pending = data.draw(st.integers(0, pending))
        text += detokenizer.push(delta, held_bytes=pending)
    cut = data.draw(st.integers(0, pending))
    assert text + detokenizer.finish(cut) == whole_text(ids, cut_bytes=cut, skip=skip)


@given(st.data(), st.text(max_size=12))
def test_no_cut_of_valid_text_shows_a_part_of_a_character(data: st.DataObject, text: str) -> None:
    detokenizer = Detokenizer(ALL_BYTES)
    ids = list(text.encode())
    shown = ""
    for delta in draw_deltas(data, ids):
        shown += detokenizer.push(delta)
        assert text.startswith(shown)
    assert shown + detokenizer.finish() == text


@given(st.data(), byte_ids)
def test_what_is_held_is_never_shown(data: st.DataObject, ids: list[int]) -> None:
    detokenizer = Detokenizer(ALL_BYTES)
    shown, seen, pending = "", 0, 0
    for delta in draw_deltas(data, ids):
        seen += len(delta)
        pending += sum(len(ALL_BYTES.token_bytes[id]) for id in delta)
        pending = data.draw(st.integers(0, pending))
        shown += detokenizer.push(delta, held_bytes=pending)
        assert whole_text(ids[:seen], cut_bytes=pending).startswith(shown)


@given(st.data(), byte_ids, byte_ids)
def test_a_prompt_that_ends_inside_a_character_changes_at_most_that_character(
    data: st.DataObject, prompt: list[int], ids: list[int]
) -> None:
    detokenizer = Detokenizer(ALL_BYTES, prompt_tail_ids=prompt)
    text = "".join(detokenizer.push(delta) for delta in draw_deltas(data, ids)) + detokenizer.finish()
    half = unfinished_tail(b"".join(ALL_BYTES.token_bytes[id] for id in prompt[-4:]))
    generated = b"".join(ALL_BYTES.token_bytes[id] for id in ids if id not in ALL_BYTES.special_ids)
    assert text in {generated.decode("utf-8", "replace"), (half + generated).decode("utf-8", "replace")}
