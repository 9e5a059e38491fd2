"""Perplexity: which tokens count, and what they amount to."""

import math
from typing import Any

import pytest

from ramet.bench import perplexity
from ramet.errors import RequestError


class Oracle:
    """Token i of the text has logprob -i; the first of a prompt has none."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(range(len(text)))

    def generate(self, *, input_ids: list[list[int]], **options: Any) -> list[dict[str, Any]]:
        assert options["return_logprob"]
        assert options["logprob_start_len"] == 0
        entries = [
            [(None if i == 0 else float(-token), token, None) for i, token in enumerate(ids)] for ids in input_ids
        ]
        return [{"meta_info": {"input_token_logprobs": row}} for row in entries]


def test_the_second_half_of_each_whole_window_counts() -> None:
    row = perplexity.measure(Oracle(), "x" * 11, window_tokens=4, limit_tokens=100)
    assert row["tokens"] == 4
    assert row["perplexity"] == round(math.exp((2 + 3 + 6 + 7) / 4), 4)


def test_no_more_of_the_text_is_read_than_asked_for() -> None:
    assert perplexity.measure(Oracle(), "x" * 100, window_tokens=4, limit_tokens=8)["tokens"] == 4


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(RequestError, match="3 tokens"):
        perplexity.measure(Oracle(), "xxx", window_tokens=4, limit_tokens=100)
