"""The engine: a scheduler and its executor behind a channel, on a thread of this process.

`EngineCore` is the loop, `EngineThread` runs it here, `ramet.engine_process` in a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ramet.cache.lease import KvCache
from ramet.channel import (
    Abort,
    Call,
    Dead,
    Deltas,
    EngineSide,
    Reply,
    Stop,
    Submit,
    ThreadTextSide,
    ToEngine,
    thread_channel,
)
from ramet.config.tree import CacheSection, SchedulerSection
from ramet.errors import NotFoundError, RametError, RequestError
from ramet.executor.base import Executor
from ramet.grammar import GrammarCompiler
from ramet.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)

#: An idle engine proves its page accounting once, after so long without a message.
IDLE_CHECK_S = 0.05
#: An engine that works says so at least so often, if only with no deltas: a long prefill is not a dead engine.
HEARTBEAT_S = 0.5
#: When nothing can run although requests wait (somebody else holds the pages), look again after this.
STALLED_WAIT_S = 0.01


class EngineCore:
    """The loop: receive, step, send. All of it runs on one thread; `info` is what `server_info` says of the model."""

    def __init__(
        self,
        executor: Executor,
        scheduler: SchedulerSection,
        cache: CacheSection,
        *,
        info: dict[str, Any] | None = None,
        depth: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        # Where later tokens change earlier ones, a prefix computed in one prompt is worth nothing to another.
        keep = not (cache.disable_radix_cache or executor.whole_rows)
        self.cache = KvCache(executor.layout, keep_prefixes=keep, eviction=cache.radix_eviction_policy)
        self.scheduler = Scheduler(executor, self.cache, scheduler, clock=clock, depth=depth)
        self.info = info or {}
        self._clock = clock
        self._started_s = clock()
        self._stop: Stop | None = None
        self._progress = True  # the last pass did something
        self._sent_s = self._started_s
        self._proven = True  # the accounting has been checked since the last step

    def serve(self, channel: EngineSide) -> None:
        """Run until a `Stop`; the last message is `Dead`. An error that is no request's and no step's is raised."""
        reason = "it was stopped"
        try:
            while self._stop is None or (self._stop.drain and not self.scheduler.idle):
                self._receive(channel)
                self._progress = self.scheduler.step()
                self._send(channel)
            self.scheduler.abort(Abort(all=True, message="The engine was shut down."))
            self._send(channel)
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            log.critical("event=engine_failed reason=%r", reason, exc_info=True)
            raise
        finally:
            channel.send(Dead(reason))
            self.scheduler.grammars.close()
            self.executor.close()

    def _receive(self, channel: EngineSide) -> None:
        for message in self._messages(channel):
            if isinstance(message, Submit):
                self._proven = False
                self.scheduler.submit(message.requests)
            elif isinstance(message, Abort):
                self.scheduler.abort(message)
            elif isinstance(message, Stop):
                self._stop = message
                self.scheduler.resume()  # what is to drain must be able to run
            else:
                self._call(channel, message)

    def _messages(self, channel: EngineSide) -> list[ToEngine]:
        """What has arrived; sleeps while there is nothing to do, and proves the accounting before it does."""
        if not self.scheduler.idle:
            paused_s = HEARTBEAT_S / 2 if self.scheduler.paused else STALLED_WAIT_S
            return channel.receive(0 if self._progress else paused_s)
        if self._proven or self._stop is not None:
            return channel.receive(None if self._stop is None else 0)
        messages = channel.receive(IDLE_CHECK_S)
        if not messages:
            self.cache.check()
            self.scheduler.grammars.warm()
            self._proven = True
        return messages

    def _send(self, channel: EngineSide) -> None:
        now_s = self._clock()
        alive = self._progress or self.scheduler.paused
        if self.scheduler.deltas or (alive and now_s - self._sent_s >= HEARTBEAT_S):
            deltas, self.scheduler.deltas = self.scheduler.deltas, []
            channel.send(Deltas(deltas))
            self._sent_s = now_s

    # -- calls --------------------------------------------------------------------------------------------------------

    def _call(self, channel: EngineSide, call: Call) -> None:
        """Answer a call; what it raises on purpose goes back to the caller."""
        methods: dict[str, Callable[..., Any]] = {
            "flush_cache": self.scheduler.flush_cache,
            "set_vocabulary": self.set_vocabulary,
            "server_info": self.server_info,
            "pause_generation": self.scheduler.pause,
            "continue_generation": self.scheduler.resume,
            "set_options": self.scheduler.set_options,
            "freeze_gc": freeze_gc,
        }
        try:
            method = methods.get(call.method)
            if method is None:
                raise NotFoundError(f"The engine has no call {call.method!r}; it has {', '.join(methods)}.")
            try:
                arguments = inspect.signature(method).bind(**call.args)
            except TypeError as error:
                raise RequestError(f"{call.method}: {error}") from error
            reply = Reply(call.id, method(*arguments.args, **arguments.kwargs))
        except RametError as error:
            reply = Reply(call.id, error=(type(error).__name__, error.message))
        channel.send(reply)

    def set_vocabulary(
        self, token_bytes: Sequence[bytes], special_ids: Sequence[int] = (), eos_token_ids: Sequence[int] = ()
    ) -> None:
        """The bytes of each token, for stop strings and grammars. Ids beyond the list stand for no bytes.

        `special_ids` are no text of a grammar, unless it names them; `eos_token_ids` may follow a whole text.
        """
        size = self.executor.vocab_size
        if len(token_bytes) > size:
            raise RequestError(f"{len(token_bytes)} tokens given, but the model has {size}.", field="token_bytes")
        self.scheduler.vocabulary = [*token_bytes, *[b""] * (size - len(token_bytes))]
        self.scheduler.grammars.close()
        self.scheduler.grammars.compiler = GrammarCompiler(token_bytes, special_ids, eos_token_ids, size)

    def server_info(self) -> dict[str, Any]:
        """Sizes, load, counters and recent step times, as plain data."""
        scheduler, cache, capacity = self.scheduler, self.cache, self.scheduler.capacity
        totals, now_s = scheduler.recorder.totals, self._clock()
        held = cache.total_pages - cache.available_pages
        recent = scheduler.recorder.recent(now_s)
        return {
            **self.info,
            "executor": self.executor.name,
            "max_total_num_tokens": capacity.pool_tokens,
            "max_req_input_len": capacity.max_prompt_tokens,
            "context_length": capacity.context_tokens,
            "page_size": cache.page_size,
            "max_running_requests": self.executor.layout.max_rows,
            "num_running_reqs": len(scheduler.decoding) + len(scheduler.prefilling),
            "num_queue_reqs": len(scheduler.waiting),
            "num_retracted_reqs": sum(request.retractions > 0 for request in scheduler.waiting),
            "num_waiting_tokens": sum(len(request.tokens) for request in scheduler.waiting),
            "paused": scheduler.paused,
            "num_grammar_queue_reqs": len(scheduler.grammars.compiling),
            "num_used_tokens": (cache.total_pages - cache.allocator.free_count) * cache.page_size,
            "num_cached_tokens": cache.tree.pages * cache.page_size,
            "token_usage": held / cache.total_pages,  # what running requests hold; cached prefixes can go
            "gen_throughput": recent["generated_tokens_per_s"],
            "cache_hit_rate": totals.cached_tokens / max(totals.prompt_tokens, 1),
            "uptime_s": now_s - self._started_s,
            "totals": totals.as_dict(),
            "recent": recent,
        }


def freeze_gc() -> int:
    """Collect garbage and exempt what is left from further collections; returns how many objects that is."""
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()


class EngineThread:
    """An engine on a thread of this process: no subprocess, no main guard, works in a notebook."""

    def __init__(self, make_core: Callable[[], EngineCore]) -> None:
        self._make_core = make_core
        self._engine_side, self._text_side = thread_channel()
        self._thread = threading.Thread(target=self._run, name="ramet-engine", daemon=True)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.info: dict[str, Any] = {}  # `server_info` at the start

    def start(self) -> ThreadTextSide:
        """Build the core on its thread and return the channel's text side; raises what building raised."""
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self._text_side

    def _run(self) -> None:
        try:
            core = self._make_core()
            self.info = core.server_info()
        except BaseException as error:  # noqa: BLE001 - handed to whoever called start
            self._error = error
            return
        finally:
            self._ready.set()
        with contextlib.suppress(Exception):  # logged by serve, and told to the text side by its Dead
            core.serve(self._engine_side)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end after a `Stop`; whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()
