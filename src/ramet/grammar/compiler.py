"""Grammars compiled off the step loop, each once: a small pool of threads and a cache keyed by what was asked for."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal

from ramet.errors import RequestError
from ramet.grammar import lark, schema, structural_tag
from ramet.grammar.matcher import Matcher
from ramet.grammar.spec import GrammarKind, GrammarSpec
from ramet.grammar.tokens import Tokens, build_tokens

if TYPE_CHECKING:
    import llguidance

#: Longest text of each kind. A rule takes 6 bytes at least, and 10,000 rules in a chain need 80 MB of stack.
MAX_TEXT_BYTES: dict[GrammarKind, int] = {
    "json_schema": 1 << 19,
    "regex": 1 << 15,
    "ebnf": 1 << 16,
    "structural_tag": 1 << 19,
}

#: llguidance recurses over a grammar's depth; the default 8 MB end at about a thousand levels, with a crash. Only
#: touched pages are real memory.
_STACK_BYTES = 256 << 20

#: Compilations run in llguidance's native code, without the GIL. Two, so that one slow grammar does not hold up others.
_THREADS = 2
_JOIN_S = 1.0

#: What one mask may cost. Reaching a limit ends the request that needed more: 200,000 units of lexer fuel are about
#: 15 ms, 50,000 items 3 ms; 50,000 lexer states take about 100 MB.
_STEP_FUEL, _STEP_ITEMS, _LEXER_STATES = 200_000, 50_000, 50_000


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar ready for any number of requests. `compile_s`: what it took."""

    spec: GrammarSpec
    compile_s: float
    _matcher: llguidance.LLMatcher
    _tokens: Tokens

    def matcher(self, start_after: Sequence[int] = ()) -> Matcher:
        """A fresh state; with `start_after` it waits for those token ids first."""
        return Matcher(self._matcher.deep_copy(), self._tokens, start_after)


_Job = tuple[GrammarSpec, "Future[CompiledGrammar]"]


class GrammarCompiler:
    """Compiles for one vocabulary. `submit`, `compile` and `clear` may be called from any thread."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        special_ids: Iterable[int],
        eos_token_ids: Iterable[int],
        vocab_size: int,
        *,
        cache_size: int = 512,
    ) -> None:
        self._vocabulary = (list(token_bytes), frozenset(special_ids), frozenset(eos_token_ids), vocab_size)
        self._built: Tokens | None = None
        self._building = threading.Lock()
        self._cache_size = cache_size
        self._lock = threading.Lock()
        self._cache: OrderedDict[GrammarSpec, Future[CompiledGrammar]] = OrderedDict()
        self._queue: SimpleQueue[_Job | Literal["warm", "close"]] = SimpleQueue()
        self._threads = self._start_threads()

    def submit(self, spec: GrammarSpec) -> Future[CompiledGrammar]:
        """The grammar when it is ready; failures (`RequestError`) are remembered as well."""
        with self._lock:
            future = self._cache.get(spec)
            if future is not None:
                self._cache.move_to_end(spec)
                return future
            future = self._cache[spec] = Future()
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)
        self._queue.put((spec, future))
        return future

    def warm(self) -> None:
        """Have the vocabulary's trie built in the background, so that the first grammar need not wait for it."""
        if self._built is None:
            self._queue.put("warm")

    def close(self) -> None:
        """End the threads; one that is compiling is left to end by itself. Idempotent."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put("close")
        for thread in threads:
            thread.join(_JOIN_S)

    def compile(self, spec: GrammarSpec, timeout_s: float | None = None) -> CompiledGrammar:
        """Wait for the grammar. Raises `RequestError`, also when the time is up (the compilation still ends)."""
        try:
            return self.submit(spec).result(timeout_s)
        except TimeoutError:
            raise too_slow(spec, timeout_s or 0) from None

    def clear(self) -> None:
        """Forget all grammars; requests keep theirs."""
        with self._lock:
            self._cache.clear()

    def _start_threads(self) -> list[threading.Thread]:
        names = [f"ramet-grammar-{i}" for i in range(_THREADS)]
        threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        before = threading.stack_size(_STACK_BYTES)
        try:
            for thread in threads:
                thread.start()
        finally:
            threading.stack_size(before)
        return threads

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            if job == "close":
                return
            if job == "warm":
                self._tokens()
                continue
            spec, future = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._compile(spec))
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                future.set_exception(error)

    def _tokens(self) -> Tokens:
        with self._building:
            if self._built is None:
                self._built = build_tokens(*self._vocabulary)
            return self._built

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        import llguidance

        tokens = self._tokens()
        started_s = time.monotonic()
        try:
            grammar = _to_grammar(spec, tokens)
        except RequestError as error:
            raise lark.refuse(spec.kind, error.message) from error
        limits = llguidance.LLParserLimits(
            step_lexer_fuel=_STEP_FUEL, step_max_items=_STEP_ITEMS, max_lexer_states=_LEXER_STATES, verbose_errors=False
        )
        matcher = llguidance.LLMatcher(tokens.tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise lark.refuse(spec.kind, lark.reason(matcher.get_error()))
        warnings = matcher.get_grammar_warnings()
        if warnings:  # parts that llguidance would pass over
            raise lark.refuse(spec.kind, "; ".join(warnings))
        # The first mask builds much of the lexer, which all copies share.
        first = Matcher(matcher.deep_copy(), tokens)
        if not first.fill_mask(tokens.row()) and not first.accepting:
            raise lark.refuse(spec.kind, f"no text matches it {first.error}".strip())
        return CompiledGrammar(spec, time.monotonic() - started_s, matcher, tokens)


def too_slow(spec: GrammarSpec, timeout_s: float) -> RequestError:
    """The answer to a request whose grammar is not ready in time."""
    return lark.refuse(spec.kind, f"it takes longer than {timeout_s:g} s; a simpler one may do")


def _to_grammar(spec: GrammarSpec, tokens: Tokens) -> str:
    """What llguidance compiles. Raises `RequestError`."""
    text, limit = spec.text, MAX_TEXT_BYTES[spec.kind]
    size = len(text.encode(errors="replace"))
    if size > limit:
        raise RequestError(f"its {size} bytes exceed the limit of {limit}")
    if "\0" in text:
        raise RequestError("it contains a NUL character")
    if spec.kind == "json_schema":
        return f"{lark.HEADER}start: %json {schema.prepare(text, spec.whitespace)}\n"
    if spec.kind == "regex":
        return f"{lark.HEADER}start: {lark.regex(text)}\n"
    if spec.kind == "ebnf":
        return lark.HEADER + lark.ebnf(text, "ebnf")
    return structural_tag.to_grammars(text, spec.whitespace, tokens.specials)
