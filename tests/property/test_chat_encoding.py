"""Whatever clients write, control tokens come from the template alone, and nothing of the text is lost."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ramet.text import gguf_vocab, vocabulary
from ramet.text.chat_template import ChatTemplate
from ramet.text.tokenizer import Tokenizer

SPECIALS = ["<|start|>", "<|end|>"]
SOURCE = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}{{ '<|start|>assistant\n' }}"


def tokenizer() -> Tokenizer:
    alphabet = [chr(code) for code in vocabulary.byte_level_map()]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*alphabet, "nd", "end", *SPECIALS],
        "tokenizer.ggml.token_type": [1] * 258 + [3] * 2,
        "tokenizer.ggml.merges": ["n d", "e nd"],
    }
    return Tokenizer(gguf_vocab.build(metadata))


TOKENIZER = tokenizer()
TEMPLATE = ChatTemplate(SOURCE, special_texts=TOKENIZER.special_texts)
words = st.sampled_from([*SPECIALS, "<|", "end", "|>", "<|st", "art|>", "\ufdd0", "你", " ", "\n"])
contents = st.lists(st.lists(words | st.text(max_size=3), max_size=8).map("".join), min_size=1, max_size=4)


@given(contents)
def test_control_tokens_come_from_the_template_alone(texts: list[str]) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    pieces = TEMPLATE.render_pieces(messages)
    ids = TOKENIZER.encode_chat(pieces)
    start, end = (TOKENIZER.token_to_id(text) for text in SPECIALS)
    assert [id for id in ids if id in TOKENIZER.special_ids] == [start, end] * len(texts) + [start]
    expected = "".join(f"<|start|>user\n{text}<|end|>" for text in texts) + "<|start|>assistant\n"
    assert TOKENIZER.decode(ids, False) == expected
    if not any(special in text for text in texts for special in SPECIALS):
        assert ids == TOKENIZER.encode(expected)
