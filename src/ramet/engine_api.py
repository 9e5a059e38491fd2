"""The offline engine: generation from Python, without a server, a subprocess or a main guard."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ramet.errors import EngineDeadError, RequestError
from ramet.types import SamplingParams

if TYPE_CHECKING:
    from types import TracebackType

    from ramet.launch import Running
    from ramet.server.native_format import NativeAnswer, NativeRequest
    from ramet.text.generation import Generation

T = TypeVar("T")

if TYPE_CHECKING:
    Starter = Callable[[], Coroutine[Any, Any, tuple[Generation, NativeAnswer]]]

Params = Mapping[str, Any] | SamplingParams


class Engine:
    """A model in this process.

    `model_path` and `options` are those of `ramet serve` (`context_length=2048`, `threads=2`, …). Results have the
    shape of `/generate`: `{"text", "output_ids", "meta_info"}`, a list of those for several prompts or samples.

    Methods may be called from any thread, also where an event loop is running (notebooks). Close it with `shutdown` or
    `with`; an engine that was not closed does not hold up the end of the process.
    """

    def __init__(self, model_path: str | None = None, **options: Any) -> None:
        """Loads the model. Raises `ConfigError` or `CheckpointError` and leaves nothing behind when that fails."""
        from ramet.config import layer
        from ramet.launch import launch

        given = dict(options)
        if model_path is not None:
            given["model_path"] = model_path
        given.setdefault("engine_process", False)
        config, origins = layer(("argument", given))
        self._running: Running = launch(config, origins)
        self._closed = False
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ramet-text", daemon=True)
        self._thread.start()
        self._at_exit = _shutdown_at_exit(weakref.ref(self))
        atexit.register(self._at_exit)
        try:
            self._run(self._running.begin())
        except BaseException:
            self.shutdown()
            raise

    # Generation

    def generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        token_ids_logprob: Sequence[int] | Sequence[Sequence[int]] | None = None,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
        priority: int | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        custom_logit_processor: str | Sequence[str | None] | None = None,
        return_prompt_token_ids: bool = False,
        progress: bool = False,
    ) -> Any:
        """Continue prompts. One prompt gives a dict, a list gives a list; with `stream` an iterator of dicts, each with
        everything so far (several prompts or samples: with `index`).

        `progress` draws a bar of finished answers on standard error.

        Raises `RequestError` for what the model cannot do, before anything runs.
        """
        body = _request({name: value for name, value in locals().items() if name != "progress"})
        if stream and progress:
            raise RequestError("progress is for whole answers; a stream shows its own.", field="progress")
        if stream:
            return self._iterate(lambda: self._start(body))
        return self._run(self._whole(lambda: self._start(body), progress=progress))

    async def async_generate(
        self,
        prompt: str | Sequence[str] | None = None,
        sampling_params: Params | Sequence[Params] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        return_logprob: bool | Sequence[bool] = False,
        logprob_start_len: int | Sequence[int] | None = None,
        top_logprobs_num: int | Sequence[int] | None = None,
        token_ids_logprob: Sequence[int] | Sequence[Sequence[int]] | None = None,
        stream: bool = False,
        rid: str | Sequence[str] | None = None,
        priority: int | None = None,
        cache_salt: str | Sequence[str | None] | None = None,
        custom_logit_processor: str | Sequence[str | None] | None = None,
        return_prompt_token_ids: bool = False,
    ) -> Any:
        """`generate` for code on an event loop: awaits to the result, with `stream` to an async iterator."""
        body = _request(locals())
        if stream:
            return self._aiterate(lambda: self._start(body))
        return await asyncio.wrap_future(self._submit(self._whole(lambda: self._start(body))))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: Params | None = None,
        *,
        stream: bool = False,
        rid: str | None = None,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer a chat with the model's template; results as for `generate`, but as long as the context holds."""
        params = sampling_params if sampling_params is not None else {"max_new_tokens": None}
        if isinstance(params, Mapping) and "max_new_tokens" not in params:
            params = {**params, "max_new_tokens": None}

        async def start() -> tuple[Generation, NativeAnswer]:
            ids = await self._running.frontend.chat_prompt(
                messages,
                continue_final_message=continue_final_message,
                add_generation_prompt=add_generation_prompt,
                template_kwargs=chat_template_kwargs,
            )
            body = _request({"input_ids": ids, "sampling_params": params, "stream": stream, "rid": rid})
            return await self._start(body)

        return self._iterate(start) if stream else self._run(self._whole(start))

    # Vectors

    def embed(
        self,
        prompt: str | Sequence[str] | None = None,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        *,
        dimensions: int | None = None,
        rid: str | Sequence[str] | None = None,
    ) -> Any:
        """Embeddings of prompts: `{"embedding": [float], "meta_info"}` for one, a list of those for a list.

        `dimensions`: how many numbers are wanted, where the model's embeddings may be cut (Matryoshka). Raises
        `RequestError` for what the model cannot do, before anything runs.
        """
        from ramet.engine_vectors import embed

        values = {"text": prompt, "input_ids": input_ids, "dimensions": dimensions, "rid": rid}
        return self._run(embed(self._running, values))

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None) -> list[dict[str, Any]]:
        """Documents by how well they answer the query, by a cross-encoder, best first: `{"score", "document", "index",
        "meta_info"}`. Raises `RequestError` as `embed` does."""
        from ramet.engine_vectors import rerank

        return self._run(rerank(self._running, {"query": query, "documents": documents, "top_n": top_n}))

    # Text and ids

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        return self._running.frontend.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids."""
        return self._running.frontend.tokenizer.decode(token_ids, skip_special_tokens)

    # Control

    def flush_cache(self, timeout: float = 0.0) -> bool:
        """Empty the prefix cache; False if requests were running for all of that time (seconds)."""
        return self._run(self._running.frontend.flush_cache(timeout))

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
        """End the requests whose id begins with `rid`, or all."""

        async def abort() -> None:
            self._running.frontend.abort(rid or None, everything=abort_all)

        self._run(abort())

    def get_server_info(self) -> dict[str, Any]:
        """Every option, and what the engine says of itself."""
        from ramet.launch import public_settings

        state: dict[str, Any] = self._run(self._running.frontend.call("server_info"))
        return {**public_settings(self._running.resolved.config), **state}

    def get_model_info(self) -> dict[str, Any]:
        """Facts about the model."""
        card = self._running.card
        limits = self._running.frontend.limits
        return {
            **msgspec.to_builtins(card),
            "max_model_len": limits.context_length,
            "vocab_size": limits.vocab_size,
        }

    def shutdown(self) -> None:
        """End the engine and free its memory. What runs is aborted. Idempotent, and nothing in a forked child."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        asyncio.run_coroutine_threadsafe(self._running.end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._running.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # Between the caller's thread and the loop

    async def _start(self, body: NativeRequest) -> tuple[Generation, NativeAnswer]:
        from ramet.server.native_format import NativeAnswer, to_requests

        frontend = self._running.frontend
        requests, batched = to_requests(body, [])
        generation = await frontend.generate(requests, stream=bool(body.stream))
        answer = NativeAnswer(
            body,
            batched=batched,
            weight_version=self._running.card.weight_version,
            decode=lambda ids: frontend.text_of(ids, skip_special_tokens=False),
        )
        return generation, answer

    async def _whole(self, start: Starter, *, progress: bool = False) -> Any:
        generation, answer = await start()
        try:
            if progress:
                from ramet.cli.progress import Progress

                with Progress("Generating", total=len(generation.choices), unit="answers") as bar:
                    await generation.wait(bar.advance)
            else:
                await generation.wait()
        finally:
            generation.close()
        return answer.whole(generation.choices)

    def _iterate(self, start: Starter) -> Iterator[dict[str, Any]]:
        generation, answer = self._run(start())  # here, so that a refusal is raised by the call and not by the loop
        return self._chunks(generation, answer)

    def _chunks(self, generation: Generation, answer: NativeAnswer) -> Iterator[dict[str, Any]]:
        try:
            while (shown := self._run(_next(generation, answer))) is not None:
                yield shown
        finally:
            self._close(generation)

    async def _aiterate(self, start: Starter) -> AsyncIterator[dict[str, Any]]:
        generation, answer = await asyncio.wrap_future(self._submit(start()))
        try:
            while (shown := await asyncio.wrap_future(self._submit(_next(generation, answer)))) is not None:
                yield shown
        finally:
            self._close(generation)

    def _close(self, generation: Generation) -> None:
        if not self._closed and os.getpid() == self._pid:
            self._loop.call_soon_threadsafe(generation.close)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if self._closed:
            work.close()
            raise EngineDeadError("The engine was shut down.")
        if os.getpid() != self._pid:  # threads do not survive a fork: waiting for them would never end
            work.close()
            raise EngineDeadError("This process was forked from the engine's; make an engine after the fork.")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt of the caller ends what it waited for
            raise


def _request(arguments: dict[str, Any]) -> NativeRequest:
    """The body of `/generate` with these values; types are checked as there."""
    from ramet.server.errors import type_error
    from ramet.server.native_format import NativeRequest

    values = {key: value for key, value in arguments.items() if value is not None and key != "self"}
    values["text"] = values.pop("prompt", None)
    params = values.pop("sampling_params", None)
    try:
        body: NativeRequest = msgspec.convert(values, NativeRequest)
    except msgspec.ValidationError as error:
        raise type_error(str(error)) from None
    if isinstance(params, Sequence):
        params = list(params)
    elif params is not None and not isinstance(params, Mapping | SamplingParams):
        raise RequestError("sampling_params must be a mapping, SamplingParams, or a list of them.")
    body.sampling_params = params
    return body


async def _next(generation: Generation, answer: NativeAnswer) -> dict[str, Any] | None:
    """The next chunk rendered, None at the end. A refusal by the engine is raised, as without streaming."""
    from ramet.text.generation import abort_error

    try:
        chunk = await generation.__anext__()
    except StopAsyncIteration:
        return None
    error = abort_error(chunk.finish)
    if error is not None:
        raise error
    return answer.chunk(chunk)


def _shutdown_at_exit(engine: weakref.ref[Engine]) -> Any:
    def shutdown() -> None:
        alive = engine()
        if alive is not None:
            alive.shutdown()

    return shutdown
