"""Requests under a grammar: they wait until it is compiled, then each carries its state and its next mask.

A mask is filled when the token before it is settled, so it is there before the next step is built, and a grammar that
cannot go on ends its request at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from ramet.config.tree import SchedulerSection
from ramet.errors import RametError, RequestError
from ramet.grammar import FLEXIBLE_WHITESPACE, CompiledGrammar, GrammarCompiler, grammar_of
from ramet.grammar.compiler import too_slow
from ramet.scheduler import state
from ramet.scheduler.finish import NOTHING_ALLOWED
from ramet.scheduler.state import Request, State
from ramet.types import EngineRequest, FinishReason

log = logging.getLogger(__name__)


class Grammars:
    """Owner of the requests that wait for a grammar. `compiler` is there once the vocabulary is known."""

    def __init__(self, config: SchedulerSection, vocab_size: int, clock: Callable[[], float]) -> None:
        self.compiler: GrammarCompiler | None = None
        self.compiling: list[Request] = []
        self._enabled = config.grammar_backend != "none"
        self._timeout_s = config.grammar_compile_timeout
        self._whitespace = None if config.constrained_json_disable_any_whitespace else FLEXIBLE_WHITESPACE
        if config.constrained_json_whitespace_pattern is not None:
            self._whitespace = config.constrained_json_whitespace_pattern
        self._mask_words = -(-vocab_size // 32)
        self._clock = clock

    def refusal(self, spec: EngineRequest) -> FinishReason | None:
        """Why the grammar that a request asks for cannot be had here."""
        grammar = grammar_of(spec.sampling)
        if grammar is None or (self._enabled and self.compiler is not None):
            return None
        why = "grammars need the tokens' bytes, which this engine was not given" if self._enabled else "it is disabled"
        return FinishReason(type="abort", message=f"{grammar.kind}: {why}.", status_code=400, field=grammar.kind)

    def begin(self, request: Request) -> bool:
        """Have the request's grammar compiled; False if it has none."""
        grammar = grammar_of(request.spec.sampling, self._whitespace)
        if grammar is None:
            return False
        assert self.compiler is not None
        request.grammar = self.compiler.submit(grammar)
        state.await_grammar(request)
        self.compiling.append(request)
        return True

    def ready(self) -> list[tuple[Request, FinishReason | None]]:
        """Requests whose grammar has come (they are WAITING now), and those that end because it cannot."""
        outcomes: list[tuple[Request, FinishReason | None]] = []
        for request in self.compiling:
            assert request.grammar is not None
            if request.grammar.done():
                outcomes.append((request, self._take(request)))
            elif self._clock() - request.arrived_s > self._timeout_s:
                grammar = grammar_of(request.spec.sampling)
                assert grammar is not None
                outcomes.append((request, _refused(too_slow(grammar, self._timeout_s))))
        taken = {id(request) for request, _ in outcomes}
        self.compiling = [request for request in self.compiling if id(request) not in taken]
        return outcomes

    def _take(self, request: Request) -> FinishReason | None:
        assert request.grammar is not None
        try:
            compiled: CompiledGrammar = request.grammar.result()
        except RametError as error:
            return _refused(error)
        except Exception as error:  # a defect in the compiler ends this request, not the engine
            log.exception("event=grammar_failed rid=%s", request.rid)
            return FinishReason(type="abort", message=f"The grammar compiler failed: {error}", status_code=500)
        request.matcher = compiled.matcher(request.spec.grammar_after)
        request.mask = np.zeros(self._mask_words, np.uint32)
        request.matcher.fill_mask(request.mask)
        if request.rules is not None:
            request.mask &= request.rules.mask
            if not request.mask.any():
                return NOTHING_ALLOWED
        state.join_queue(request)
        return None

    def forget_finished(self) -> None:
        """Take ended requests out of the list."""
        self.compiling = [request for request in self.compiling if request.state is State.COMPILING]

    def warm(self) -> None:
        """Prepare for a first grammar; for an idle moment, since it holds the interpreter for about 0.1 s."""
        if self.compiler is not None and self._enabled:
            self.compiler.warm()

    def close(self) -> None:
        """End the compiler's threads."""
        if self.compiler is not None:
            self.compiler.close()

    def clear(self) -> None:
        """Forget compiled grammars; running requests keep theirs."""
        if self.compiler is not None:
            self.compiler.clear()


def _refused(error: RametError) -> FinishReason:
    status = 400 if isinstance(error, RequestError) else 500
    return FinishReason(type="abort", message=error.message, status_code=status, field=error.field)
