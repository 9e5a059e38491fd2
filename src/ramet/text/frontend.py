"""The one generation pipeline behind every dialect: normalise, tokenize, check, submit, and deltas back into chunks.

A `Frontend` owns the text side of a `Channel` and everything per request on this side of it: ids, queues, usage, the
one finish reason. It lives on one event loop. It knows no HTTP; renderers (`ramet.server`, `ramet.engine_api`) know no
tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ramet.channel import Abort, Call, Dead, Deltas, Reply, Stop, Submit, TextSide, ToText
from ramet.errors import DuplicateRequestError, EngineDeadError, RametError, RequestError, error_named
from ramet.text.chat import ChatSpec, OutputFormats, PreparedChat, prepare
from ramet.text.detokenizer import Detokenizer
from ramet.text.embedding import MAX_VECTORS, NO_VECTORS, VectorModel, VectorRequest, tokens_of
from ramet.text.generation import WHOLE, Choice, GenerateRequest, Generation
from ramet.text.limits import Limits, check_samples, check_sendable, fit
from ramet.text.processors import thinking_budget
from ramet.text.stats import Stats
from ramet.types import EngineRequest, FinishReason, SamplingParams, TokenDelta

if TYPE_CHECKING:
    from ramet.text.chat_template import ChatTemplate
    from ramet.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

#: Longer prompts (characters) are tokenized on a thread: 20,000 take about 5 ms, which live streams would feel.
THREAD_TOKENIZE_CHARS = 20_000

#: A prompt shorter than this (tokens) is not worth computing before its other samples start.
MIN_SHARED_PROMPT = 64

#: How long a flush waits for the engine to become idle although no request is known to be live.
FLUSH_SETTLE_S = 0.25

_SEED_LIMIT = 1 << 63

_NOBODY = (None, None)

#: Of a request for a vector.
_NOTHING_DRAWN = SamplingParams(max_new_tokens=0, temperature=0.0, sampling_seed=0)


class Frontend:
    """Owner of the text side. Make it anywhere, then `start()` it on the event loop that will use it."""

    def __init__(
        self,
        channel: TextSide,
        tokenizer: Tokenizer,
        limits: Limits,
        *,
        template: ChatTemplate | None = None,
        formats: OutputFormats | None = None,
        vectors: VectorModel | None = None,
        stream_interval: int = 1,
        random_seed: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.template = template
        self.formats = formats or OutputFormats()
        self.vectors = vectors  # None: the model generates
        self.stats = Stats()
        self.stream_interval = stream_interval
        self.last_message_s = time.monotonic()  # of anything from the engine: its heartbeat
        self.last_submit_s = 0.0
        self.paused = False
        self.on_dead: Callable[[EngineDeadError], None] | None = None
        self._channel = channel
        self._random = random.Random(random_seed) if random_seed is not None else random.SystemRandom()
        self._live: dict[str, tuple[Generation, Choice]] = {}
        #: By id, requests without a reader whose last delta is still to come: the engine sends one for each, in order.
        self._leaving: Counter[str] = Counter()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count(1)
        self._dead: EngineDeadError | None = None
        self._pump_task: asyncio.Task[None] | None = None

    # Life

    def start(self) -> None:
        """Begin reading the channel, on the running loop."""
        self._pump_task = asyncio.get_running_loop().create_task(self._pump(), name="ramet-frontend")

    async def stop(self, *, drain: bool = False, message: str = "The engine was shut down.") -> None:
        """End the engine and fail what is left. With `drain`, what is queued and running finishes first."""
        if self._dead is None:
            try:
                self._channel.send(Stop(drain=drain))
                if drain and self._pump_task is not None:
                    await self._pump_task
            except EngineDeadError:
                pass  # it ended first, which is what was asked
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.gather(self._pump_task, return_exceptions=True)
        self._fail_all(EngineDeadError(message))

    @property
    def dead(self) -> EngineDeadError | None:
        """Why the engine has ended; None while it runs."""
        return self._dead

    @property
    def num_live(self) -> int:
        """Requests submitted and not finished."""
        return len(self._live)

    async def _pump(self) -> None:
        """Hand every message of the engine to whom it concerns, until the engine ends."""
        while self._dead is None:
            try:
                message = await self._channel.receive()
            except EngineDeadError as error:
                self._fail_all(error)
                return
            self.last_message_s = time.monotonic()
            try:
                self._handle(message)
            except Exception as error:
                # Our own bookkeeping is wrong. Nobody reads the engine any more, so let nobody wait for it.
                log.critical("event=frontend_failed", exc_info=True)
                self._fail_all(EngineDeadError(f"The server's pipeline failed: {type(error).__name__}: {error}"))
                raise

    def _handle(self, message: ToText) -> None:
        if isinstance(message, Deltas):
            for delta in message.deltas:
                self._deliver(delta)
        elif isinstance(message, Reply):
            future = self._calls.pop(message.id, None)
            if future is None or future.done():
                return
            if message.error is None:
                future.set_result(message.value)
            else:
                name, text = message.error
                future.set_exception(error_named(name, text) or RametError(f"{name}: {text}"))
        elif isinstance(message, Dead):
            self._fail_all(EngineDeadError(f"The engine has ended: {message.reason}"))

    def _deliver(self, delta: TokenDelta) -> None:
        if delta.rid in self._leaving:  # its reader has gone; the id may already be another request's
            if delta.finish is not None:
                self._leaving[delta.rid] -= 1
                if not self._leaving[delta.rid]:
                    del self._leaving[delta.rid]
        elif delta.rid in self._live:
            self._hand_out(delta)

    def _hand_out(self, delta: TokenDelta) -> None:
        generation, choice = self._live[delta.rid]
        if delta.finish is not None:
            del self._live[delta.rid]
        generation.deliver(choice, delta)
        if delta.finish is not None:
            self.stats.record(choice, delta)

    def _fail_all(self, error: EngineDeadError) -> None:
        if self._dead is not None:
            return
        self._dead = error
        live, self._live = self._live, {}
        self._leaving.clear()
        for generation in {id(generation): generation for generation, _ in live.values()}.values():
            generation.fail(error)
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                future.set_exception(error)
        if self.on_dead is not None:
            self.on_dead(error)

    # Requests

    async def generate(self, requests: Sequence[GenerateRequest], *, stream: bool) -> Generation:
        """Start every prompt and sample. Errors of a prompt are raised here, before anything runs.

        The caller must read the result to its end or `close` it.
        """
        if self.vectors is not None:
            raise self.vectors.refuse_text()
        prompts = [await self.tokenize(request) for request in requests]
        warnings: list[str] = []
        choices: list[Choice] = []
        hold: dict[int, list[Choice]] = {}
        samples = requests[0].sampling.n
        check_samples(len(requests), samples)
        for request, prompt in zip(requests, prompts, strict=True):
            fitted, sampling, warning = fit(request, prompt, self.limits)
            if warning:
                warnings.append(warning)
            first = len(choices)
            seed = sampling.sampling_seed
            for sample in range(samples):
                rid = f"{request.rid}_{sample}" if samples > 1 and request.rid else request.rid
                one = msgspec.structs.replace(sampling, n=1, sampling_seed=self._seed(seed, sample))
                choices.append(self._choice(len(choices), rid, request, fitted, one, stream))
            if samples > 1 and len(fitted) >= MIN_SHARED_PROMPT:
                hold[first] = choices[first + 1 :]
        return self._begin(choices, samples, hold, warnings)

    async def embed(self, requests: Sequence[VectorRequest]) -> Generation:
        """Start every prompt; when the result has been waited for, its choices have an `embedding` each.

        The caller must read the result to its end or `close` it.
        """
        model = self.vectors
        if model is None:
            raise RequestError(NO_VECTORS, field="model")
        if len(requests) > MAX_VECTORS:
            raise RequestError(
                f"{requests[0].field}: {len(requests)} inputs are more than the {MAX_VECTORS} allowed at once.",
                field=requests[0].field,
            )

        def encode() -> list[tuple[list[int], list[int], str | None]]:
            return [tokens_of(request, self.tokenizer, self.limits, model) for request in requests]

        size = sum(request.size for request in requests)
        prompts = encode() if size <= THREAD_TOKENIZE_CHARS else await asyncio.to_thread(encode)
        choices: list[Choice] = []
        for request, (ids, types, _) in zip(requests, prompts, strict=True):
            engine_request = EngineRequest(
                rid=request.rid or uuid.uuid4().hex,
                token_ids=ids,
                sampling=_NOTHING_DRAWN,
                embed=True,
                token_types=types,
                namespace=request.namespace,
                priority=request.priority,
            )
            decoder, table = Detokenizer(self.tokenizer), self.tokenizer.token_bytes
            choices.append(Choice(len(choices), engine_request, decoder, table, WHOLE))
        return self._begin(choices, 1, {}, list(filter(None, (warning for *_, warning in prompts))))

    def _begin(
        self, choices: list[Choice], samples: int, hold: dict[int, list[Choice]], warnings: list[str]
    ) -> Generation:
        self._refuse_duplicates([choice.rid for choice in choices])
        for choice in choices:
            check_sendable(choice.request)
        generation = Generation(choices, samples, self._submit_more, self._forget, warnings)
        for choice in choices:
            self._live[choice.rid] = (generation, choice)
        try:
            self._submit(generation.start(hold))
        except Exception:  # whatever it is, nobody will read them
            for choice in choices:
                self._live.pop(choice.rid, None)
            raise
        return generation

    async def tokenize(self, request: GenerateRequest) -> list[int]:
        """The prompt's token ids, checked."""
        prompt = request.prompt
        if isinstance(prompt, str):
            ids = await self.encode(prompt, request.add_special_tokens)
            if not ids:
                raise RequestError("The prompt is empty.", field="prompt")
            return ids
        self.limits.check_ids(prompt, "input_ids")
        if not prompt:
            raise RequestError("The prompt has no tokens.", field="input_ids")
        return prompt

    async def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, computed on a thread when it is long."""
        if len(text) <= THREAD_TOKENIZE_CHARS:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        size: int = 0,
        continue_final_message: bool = False,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a chat. `size` is about the number of characters: long chats are rendered on a thread."""
        spec = ChatSpec(
            messages=messages,
            size=size,
            continue_final_message=continue_final_message,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs or {},
        )
        return (await self.prepare_chat(spec)).token_ids

    async def prepare_chat(self, spec: ChatSpec) -> PreparedChat:
        """The chat's prompt, and what its output has to be and who will read it."""
        if self.vectors is not None:
            raise self.vectors.refuse_text()
        if spec.size <= THREAD_TOKENIZE_CHARS:
            return prepare(spec, self.template, self.tokenizer, self.formats)
        return await asyncio.to_thread(prepare, spec, self.template, self.tokenizer, self.formats)

    def text_of(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of any ids of the model, also of those that its tokenizer does not have."""
        decoder = Detokenizer(self.tokenizer, skip_special_tokens=skip_special_tokens)
        return decoder.push(token_ids) + decoder.finish()

    def _choice(
        self,
        index: int,
        rid: str | None,
        request: GenerateRequest,
        prompt: list[int],
        sampling: SamplingParams,
        stream: bool,
    ) -> Choice:
        budget = None
        if request.thinking_tokens is not None:
            budget = thinking_budget(request.thinking_tokens, prompt, self.formats, self.tokenizer)
        engine_request = EngineRequest(
            rid=rid or uuid.uuid4().hex,
            token_ids=prompt,
            sampling=sampling,
            eos_token_ids=self.limits.eos_token_ids,
            namespace=request.namespace,
            priority=request.priority,
            return_logprob=request.return_logprob,
            top_logprobs_num=request.top_logprobs_num,
            logprob_start_len=request.logprob_start_len,
            token_ids_logprob=request.token_ids_logprob,
            grammar_after=request.grammar_after,
            allowed_ids=request.allowed_ids,
            banned_ids=request.banned_ids,
            thinking_budget=budget,
            deadline_s=None if request.timeout_s is None else time.monotonic() + request.timeout_s,
        )
        decoder = Detokenizer(
            self.tokenizer, skip_special_tokens=sampling.skip_special_tokens, prompt_tail_ids=prompt[-4:]
        )
        interval = (request.stream_interval or self.stream_interval) if stream else WHOLE
        parser = request.make_parser() if request.make_parser is not None else None
        return Choice(index, engine_request, decoder, self.tokenizer.token_bytes, interval, parser)

    def _seed(self, given: int | None, sample: int) -> int:
        """A request's seed; samples of one prompt differ in a way that depends on the seed only."""
        if given is None:
            return self._random.getrandbits(63)
        return (given + sample) % _SEED_LIMIT if sample else given

    def _refuse_duplicates(self, rids: Sequence[str]) -> None:
        seen: set[str] = set()
        for rid in rids:
            if rid in self._live or rid in seen:
                raise DuplicateRequestError(f"Duplicate request ID detected: {rid}", field="rid")
            seen.add(rid)

    def _submit(self, choices: list[Choice]) -> None:
        if self._dead is not None:
            raise self._dead
        self.last_submit_s = time.monotonic()
        for choice in choices:
            choice.submitted = True
        if choices:
            self._channel.send(Submit([choice.request for choice in choices]))

    def _submit_more(self, choices: list[Choice]) -> None:
        """`_submit` while messages are being handled: if the engine has just ended, its `Dead` is among them."""
        with contextlib.suppress(EngineDeadError):
            self._submit(choices)

    def _forget(self, choices: list[Choice]) -> None:
        """Their reader has gone: late deltas are dropped and the engine frees their rows and pages."""
        # Closing comes twice or late: by then the id may be somebody else's.
        gone = [choice for choice in choices if self._live.get(choice.rid, _NOBODY)[1] is choice]
        rids = [choice.rid for choice in gone if choice.submitted]
        for choice in gone:
            del self._live[choice.rid]
        self._leaving.update(rids)
        self.stats.requests += len(gone)
        self.stats.aborted += len(gone)
        if rids and self._dead is None:
            try:
                self._channel.send(Abort(rids))
            except EngineDeadError as error:
                self._fail_all(error)

    def abort(self, prefix: str | None = None, *, everything: bool = False) -> None:
        """End live requests whose id begins with `prefix`, or all; their readers get a finish of type abort."""
        if prefix is None and not everything:
            return
        for rid, (_, choice) in list(self._live.items()):
            chosen = everything or (prefix and rid.startswith(prefix))
            if chosen and not choice.submitted and choice.finished_s is None:
                finish = FinishReason(type="abort", message="Aborted by the client.")
                self._hand_out(TokenDelta(rid=rid, finish=finish))
        self._channel.send(Abort(prefix=prefix, all=everything))

    # Control

    async def call(self, method: str, **args: Any) -> Any:
        """A control call of the engine; raises what the engine raised."""
        if self._dead is not None:
            raise self._dead
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._channel.send(Call(call_id, method, args))
            return await future
        finally:
            self._calls.pop(call_id, None)

    async def pause(self, mode: str) -> None:
        """Let the engine start no step; `mode`: what becomes of live requests (`Scheduler.pause`)."""
        if mode == "abort":
            self.abort(everything=True)  # also those that were not submitted yet
        await self.call("pause_generation", mode=mode)
        self.paused = True

    async def resume(self) -> None:
        """The end of a pause."""
        await self.call("continue_generation")
        self.paused = False

    async def send_vocabulary(self) -> None:
        """Tell the engine what its token ids stand for. Without it there are no stop strings and no grammars."""
        await self.call(
            "set_vocabulary",
            token_bytes=self.tokenizer.token_bytes,
            special_ids=sorted(self.tokenizer.special_ids),
            eos_token_ids=sorted(self.limits.eos_token_ids),
        )

    async def flush_cache(self, timeout_s: float = 0.0) -> bool:
        """Empty the prefix cache; False if requests were running or waiting for all of that time.

        When none is known to be live, the engine gets a moment to let go of one whose last token has just been read.
        """
        now = time.monotonic()
        until, settled = now + timeout_s, now + FLUSH_SETTLE_S
        while not await self.call("flush_cache"):
            now = time.monotonic()
            if now >= until and (self._live or now >= settled):
                return False
            await asyncio.sleep(0.005)
        return True

    async def smallest_request(self, rid: str) -> Generation:
        """One token, or the vector of one: proves that the engine works."""
        if self.vectors is not None:
            return await self.embed([VectorRequest(prompt=[0], rid=rid)])
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
        return await self.generate([GenerateRequest(prompt=[0], sampling=sampling, rid=rid)], stream=True)

    async def probe(self, timeout_s: float) -> bool:
        """Whether the engine says anything within the time: whatever it is doing, or one token made for this."""
        if self._dead is not None:
            return False
        began = time.monotonic()
        generation = None
        if self.paused:
            await asyncio.wait_for(self.call("server_info"), timeout_s)
        elif not self._live:
            generation = await self.smallest_request(f"HEALTH_CHECK_{uuid.uuid4().hex}")
        try:
            while self._dead is None and time.monotonic() - began < timeout_s:
                if self.last_message_s > began:
                    return True
                await asyncio.sleep(0.005 if generation is not None else 0.05)
            return False
        finally:
            if generation is not None:
                generation.close()
