"""A small byte-level vocabulary, and what the grammar tests ask of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ramet.executor.base import U32
from ramet.grammar import FLEXIBLE_WHITESPACE, CompiledGrammar, GrammarCompiler, GrammarSpec, Matcher
from ramet.grammar.spec import GrammarKind

EOS, UNUSED, CALL, CALL_END = 256, 257, 258, 259
TOKENS = [bytes([value]) for value in range(256)] + [b"<eos>", b"<unused>", b"<call>", b"</call>"]
TOKENS += [b'{"', b'":', b'": ', b'",', b"  ", b"\n ", b"true", b"null", b"ab", b"ab", b"12", b"]}", "é鱼".encode()[:3]]
VOCAB_SIZE = 300  # ids beyond the tokens stand for nothing

Accepts = Callable[..., bool]
Compile = Callable[..., CompiledGrammar]


def allowed(matcher: Matcher) -> set[int]:
    """Ids that may come next."""
    row: U32 = np.zeros(-(-VOCAB_SIZE // 32), np.uint32)
    matcher.fill_mask(row)
    return {int(i) for i in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))}


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(TOKENS, [EOS, UNUSED, CALL, CALL_END], [EOS], VOCAB_SIZE)


@pytest.fixture(scope="session")
def compiled(compiler: GrammarCompiler) -> Compile:
    def compiled(kind: GrammarKind, text: str, whitespace: str | None = FLEXIBLE_WHITESPACE) -> CompiledGrammar:
        return compiler.compile(GrammarSpec(kind, text, whitespace), timeout_s=30)

    return compiled


@pytest.fixture(scope="session")
def accepts(compiled: Compile) -> Accepts:
    """Whether a grammar's texts include one: fed byte by byte, each byte allowed by the mask before it."""

    def accepts(
        kind: GrammarKind, text: str, sample: str | bytes, whitespace: str | None = FLEXIBLE_WHITESPACE
    ) -> bool:
        matcher = compiled(kind, text, whitespace).matcher()
        for byte in sample if isinstance(sample, bytes) else sample.encode():
            masked = byte not in allowed(matcher)
            assert matcher.accept(byte) is not masked
            if masked:
                return False
        assert (EOS in allowed(matcher)) is matcher.accepting
        return matcher.accepting

    return accepts
