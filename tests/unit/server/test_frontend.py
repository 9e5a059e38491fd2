"""The pipeline over a channel that the test plays: ids, coalescing, errors, calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ramet.channel import Abort, Call, Dead, Deltas, Inbox, Reply, Stop, Submit, ToEngine
from ramet.config import layer, resolve
from ramet.engine_load import open_model
from ramet.errors import DuplicateRequestError, EngineDeadError, NotFoundError, RequestError
from ramet.text.frontend import Frontend
from ramet.text.generation import GenerateRequest
from ramet.types import FinishReason, SamplingParams, TokenDelta
from support import toy
from support.server import MACHINE, OPTIONS, make_frontend

LENGTH = FinishReason(type="length", length=1)


class PlayedChannel:
    """The test is the engine."""

    def __init__(self) -> None:
        self.sent: list[ToEngine] = []
        self.inbox = Inbox()

    def send(self, message: ToEngine) -> None:
        if self.inbox.ended is not None:
            raise EngineDeadError("ended")
        self.sent.append(message)

    async def receive(self) -> Any:
        return await self.inbox.get()

    def close(self) -> None:
        pass

    def say(self, *deltas: TokenDelta) -> None:
        self.inbox.put(Deltas(list(deltas)))

    def submitted(self) -> list[str]:
        return [request.rid for message in self.sent if isinstance(message, Submit) for request in message.requests]


@pytest.fixture
def channel() -> PlayedChannel:
    return PlayedChannel()


@pytest.fixture
async def frontend(channel: PlayedChannel, model: Path) -> Frontend:
    config, origins = layer(("test", {**OPTIONS, "model_path": str(model)}))
    opened = open_model(config.model)
    frontend = make_frontend(channel, resolve(config, origins, MACHINE, opened.facts).config, opened)
    frontend.start()
    return frontend


def request(prompt: Any = "go", rid: str | None = "r", **sampling: Any) -> GenerateRequest:
    return GenerateRequest(prompt=prompt, sampling=SamplingParams(**sampling), rid=rid)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_deltas_that_arrive_while_nobody_reads_leave_as_one_chunk(
    frontend: Frontend, channel: PlayedChannel
) -> None:
    generation = await frontend.generate([request()], stream=True)
    for token in toy.ids("a", "b", "c"):
        channel.say(TokenDelta(rid="r", token_ids=[token]))
    await settle()
    chunk = await generation.__anext__()
    assert (chunk.text, chunk.token_ids) == ("abc", toy.ids("a", "b", "c"))
    channel.say(TokenDelta(rid="r", token_ids=[ord("d")], finish=LENGTH))
    last = await generation.__anext__()
    assert (last.text, last.finish, last.choice.text) == ("d", LENGTH, "abcd")
    with pytest.raises(StopAsyncIteration):
        await generation.__anext__()
    assert generation.usage().completion_tokens == 4


async def test_ids_wait_for_the_text_they_belong_to(frontend: Frontend, channel: PlayedChannel) -> None:
    generation = await frontend.generate([request()], stream=True)
    for byte in "é".encode():
        channel.say(TokenDelta(rid="r", token_ids=[byte]))
        await settle()
    chunk = await generation.__anext__()
    assert (chunk.text, chunk.token_ids) == ("é", list("é".encode()))


async def test_closing_sends_one_abort_and_drops_what_comes_late(frontend: Frontend, channel: PlayedChannel) -> None:
    generation = await frontend.generate([request()], stream=True)
    generation.close()
    generation.close()
    assert [message for message in channel.sent if isinstance(message, Abort)] == [Abort(["r"])]
    channel.say(TokenDelta(rid="r", token_ids=[97], finish=LENGTH))
    await settle()
    assert frontend.num_live == 0
    await frontend.generate([request()], stream=True)  # the id is free at once


async def test_an_id_used_again_gets_no_delta_of_who_had_it_before(frontend: Frontend, channel: PlayedChannel) -> None:
    for _ in range(2):
        (await frontend.generate([request()], stream=True)).close()
    again = await frontend.generate([request()], stream=True)
    channel.say(TokenDelta(rid="r", token_ids=[97]), TokenDelta(rid="r", finish=LENGTH))  # of the first
    channel.say(TokenDelta(rid="r", token_ids=[98], finish=LENGTH))  # of the second
    channel.say(TokenDelta(rid="r", token_ids=[99], finish=LENGTH))
    await again.wait()
    assert again.choices[0].output_ids == [99]


async def test_closing_late_leaves_alone_who_has_the_id_now(frontend: Frontend, channel: PlayedChannel) -> None:
    gone = await frontend.generate([request(rid="a")], stream=True)
    gone.close()
    unread = await frontend.generate([request(rid="b")], stream=True)
    channel.say(TokenDelta(rid="b", token_ids=[97], finish=LENGTH))
    await settle()
    now = await frontend.generate([request(rid="a"), request(rid="b")], stream=True)
    gone.close()
    unread.close()
    assert frontend.num_live == 2
    assert [message for message in channel.sent if isinstance(message, Abort)] == [Abort(["a"])]
    channel.say(TokenDelta(rid="a", finish=LENGTH))
    channel.say(*(TokenDelta(rid=rid, token_ids=[98], finish=LENGTH) for rid in "ab"))
    await now.wait()
    assert [choice.output_ids for choice in now.choices] == [[98], [98]]


async def test_a_finished_generation_is_closed_without_an_abort(frontend: Frontend, channel: PlayedChannel) -> None:
    generation = await frontend.generate([request()], stream=False)
    channel.say(TokenDelta(rid="r", token_ids=[97], finish=LENGTH))
    await generation.wait()
    generation.close()
    assert not any(isinstance(message, Abort) for message in channel.sent)


async def test_a_live_id_cannot_be_taken(frontend: Frontend) -> None:
    await frontend.generate([request()], stream=True)
    with pytest.raises(DuplicateRequestError):
        await frontend.generate([request()], stream=True)
    with pytest.raises(DuplicateRequestError):
        await frontend.generate([request(rid="x"), request(rid="x")], stream=True)
    assert frontend.num_live == 1


async def test_samples_of_a_long_prompt_wait_for_its_first_token(frontend: Frontend, channel: PlayedChannel) -> None:
    generation = await frontend.generate([request("x" * 80, n=3, sampling_seed=5)], stream=True)
    assert channel.submitted() == ["r_0"]
    channel.say(TokenDelta(rid="r_0", token_ids=[97]))
    await generation.__anext__()
    assert channel.submitted() == ["r_0", "r_1", "r_2"]
    seeds = [choice.request.sampling.sampling_seed for choice in generation.choices]
    assert seeds == [5, 6, 7]
    assert all(choice.request.sampling.n == 1 for choice in generation.choices)


async def test_short_prompts_start_together(frontend: Frontend, channel: PlayedChannel) -> None:
    await frontend.generate([request(n=3)], stream=True)
    assert channel.submitted() == ["r_0", "r_1", "r_2"]


async def test_the_engines_end_reaches_everybody(frontend: Frontend, channel: PlayedChannel) -> None:
    seen: list[EngineDeadError] = []
    frontend.on_dead = seen.append
    generation = await frontend.generate([request()], stream=True)
    channel.say(TokenDelta(rid="r", token_ids=[97]))
    call = asyncio.ensure_future(frontend.call("server_info"))
    await settle()
    channel.inbox.put(Dead("out of luck"))
    await settle()
    assert (await generation.__anext__()).text == "a"  # what had arrived is not lost
    with pytest.raises(EngineDeadError, match="out of luck"):
        await generation.__anext__()
    with pytest.raises(EngineDeadError, match="out of luck"):
        await call
    with pytest.raises(EngineDeadError):
        await frontend.generate([request(rid="late")], stream=True)
    assert not await frontend.probe(1.0)
    assert len(seen) == 1
    assert frontend.num_live == 0


async def test_calls_get_their_answers_and_errors(frontend: Frontend, channel: PlayedChannel) -> None:
    first = asyncio.ensure_future(frontend.call("one", x=1))
    second = asyncio.ensure_future(frontend.call("two"))
    await settle()
    one, two = (message for message in channel.sent if isinstance(message, Call))
    assert (one.method, one.args) == ("one", {"x": 1})
    channel.inbox.put(Reply(two.id, error=("NotFoundError", "no such call")))
    channel.inbox.put(Reply(one.id, "yes"))
    assert await first == "yes"
    with pytest.raises(NotFoundError, match="no such call"):
        await second


async def test_an_engines_refusal_is_raised_with_its_field(frontend: Frontend, channel: PlayedChannel) -> None:
    generation = await frontend.generate([request()], stream=False)
    refusal = FinishReason(type="abort", message="too big", status_code=400, field="input_ids")
    channel.say(TokenDelta(rid="r", finish=refusal))
    with pytest.raises(RequestError, match="too big") as caught:
        await generation.wait()
    assert caught.value.field == "input_ids"


async def test_a_failed_check_leaves_nothing_behind(frontend: Frontend, channel: PlayedChannel) -> None:
    for bad in (request([]), request([toy.VOCAB_SIZE]), request("x" * 999)):
        with pytest.raises(RequestError):
            await frontend.generate([request(rid="good"), bad], stream=True)
    assert frontend.num_live == 0
    assert channel.submitted() == []


@pytest.mark.parametrize("error", [OverflowError("too large for 64 bits"), EngineDeadError("ended")])
async def test_what_could_not_be_sent_is_not_live(
    frontend: Frontend, channel: PlayedChannel, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(message: ToEngine) -> None:
        raise error

    monkeypatch.setattr(channel, "send", fail)
    with pytest.raises(type(error)):
        await frontend.generate([request(rid="good")], stream=True)
    assert frontend.num_live == 0  # else /health would wait for it, and report a dead engine 20 s later


async def test_stop_ends_the_engine(frontend: Frontend, channel: PlayedChannel) -> None:
    generation = await frontend.generate([request()], stream=True)
    await frontend.stop()
    assert channel.sent[-1] == Stop()
    with pytest.raises(EngineDeadError):
        await generation.__anext__()
