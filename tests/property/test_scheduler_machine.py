"""The scheduler on pools of a few pages under random arrivals, aborts, failures and settings.

The scripted executor's tokens are a hash of what it reads back through the page table, so a request's output shows
every page that was not its own. Each output must equal that of the request running alone, whatever happened around it.
"""

from __future__ import annotations

from functools import lru_cache

import hypothesis.strategies as st
from hypothesis import note, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ramet.cache.lease import KvCache
from ramet.channel import Abort
from ramet.config.tree import SchedulerSection
from ramet.executor.base import Layout
from ramet.executor.scripted import ScriptedExecutor
from ramet.scheduler.scheduler import Scheduler
from ramet.scheduler.state import State
from ramet.types import EngineRequest, FinishReason, SamplingParams, TokenDelta, TokenLogprob

CONTEXT, VOCAB, EOS = 40, 23, 7
Asked = tuple[tuple[int, ...], int, bool, int, int]  # prompt, new tokens, ignore_eos, first position scored, seed
REQUESTS = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=30).map(tuple),
    st.integers(0, 14),
    st.booleans(),
    st.sampled_from([-2, -2, -1, 0, 3]),
    st.integers(0, 2),
)
Outcome = tuple[list[int], FinishReason | None, list[TokenLogprob], list[TokenLogprob] | None]


def build(
    pages: int, page_size: int, *, rows: int, chunk: int, keep: bool, depth: int, policy: str, retract: int
) -> Scheduler:
    layout = Layout(
        num_pages=pages, page_size=page_size, max_rows=rows, max_row_tokens=CONTEXT, max_step_tokens=chunk + rows
    )
    config = SchedulerSection(chunked_prefill_size=chunk, schedule_policy=policy, retract_every=retract)
    return Scheduler(ScriptedExecutor(layout, VOCAB), KvCache(layout, keep_prefixes=keep), config, depth=depth)


@lru_cache(maxsize=4096)
def solo(prompt: tuple[int, ...], new: int, ignore_eos: bool, logprob_start: int, seed: int) -> Outcome:
    scheduler = build(40, 4, rows=1, chunk=64, keep=False, depth=0, policy="fcfs", retract=0)
    scheduler.submit([request("solo", prompt, new, ignore_eos, logprob_start, seed)])
    while not scheduler.idle:
        scheduler.step()
    return outcome(scheduler.deltas)


def request(
    rid: str, prompt: tuple[int, ...], new: int, ignore_eos: bool, logprob_start: int, seed: int
) -> EngineRequest:
    return EngineRequest(
        rid=rid,
        token_ids=list(prompt),
        sampling=SamplingParams(
            max_new_tokens=new, ignore_eos=ignore_eos, temperature=float(seed > 0), sampling_seed=seed
        ),
        eos_token_ids=(EOS,),
        return_logprob=logprob_start >= -1,
        top_logprobs_num=2 if logprob_start >= 0 else 0,
        logprob_start_len=max(logprob_start, -1),
    )


def outcome(deltas: list[TokenDelta]) -> Outcome:
    """Everything a request was told; also that only its last delta ends it."""
    assert [delta.finish for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    tokens = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs or ()]
    scored = [delta.input_logprobs for delta in deltas if delta.input_logprobs is not None]
    assert len(scored) <= 1
    return tokens, deltas[-1].finish, logprobs, scored[0] if scored else None


class SchedulerMachine(RuleBasedStateMachine):
    scheduler: Scheduler

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        rows=st.integers(1, 5),
        chunk=st.sampled_from([1, 3, 8, 64]),
        keep=st.booleans(),
        depth=st.integers(0, 1),
        policy=st.sampled_from(["fcfs", "lpm"]),
        retract=st.sampled_from([0, 0, 1, 3]),
        spare=st.integers(0, 8),
    )
    def start(
        self, page_size: int, rows: int, chunk: int, keep: bool, depth: int, policy: str, retract: int, spare: int
    ) -> None:
        pages = CONTEXT // page_size + spare
        self.scheduler = build(
            pages, page_size, rows=rows, chunk=chunk, keep=keep, depth=depth, policy=policy, retract=retract
        )
        self.asked: dict[str, Asked] = {}
        self.told: dict[str, list[TokenDelta]] = {}
        self.disturbed: set[str] = set()

    @rule(arrivals=st.lists(REQUESTS, min_size=1, max_size=4))
    def submit(self, arrivals: list[Asked]) -> None:
        specs = []
        for prompt, new, ignore_eos, logprob_start, seed in arrivals:
            rid = f"r{len(self.asked)}"
            self.asked[rid] = prompt, new, ignore_eos, min(logprob_start, len(prompt)), seed
            specs.append(request(rid, *self.asked[rid]))
        self.scheduler.submit(specs)

    @rule(count=st.integers(1, 10))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.scheduler.step()
            self.check()

    @precondition(lambda self: self.scheduler.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.scheduler.live)))
        self.disturbed.add(rid)
        self.scheduler.abort(Abort(rids=[rid, "nobody"]))
        assert rid not in self.scheduler.live

    @precondition(lambda self: self.scheduler.live)
    @rule()
    def fail_a_step(self) -> None:
        executor = self.scheduler.executor
        assert isinstance(executor, ScriptedExecutor)
        executor.script.fail_steps.add(executor.steps)
        note(f"step {executor.steps} fails")
        self.scheduler.step()
        self.check()

    @rule()
    def flush(self) -> None:
        assert self.scheduler.flush_cache() == self.scheduler.idle

    @invariant()
    def check(self) -> None:
        scheduler = self.scheduler
        scheduler.cache.check()
        for delta in scheduler.deltas:
            told = self.told.setdefault(delta.rid, [])
            assert not told or told[-1].finish is None, "a delta after the last"
            told.append(delta)
        scheduler.deltas.clear()
        lists = {
            State.WAITING: scheduler.waiting,
            State.PREFILLING: scheduler.prefilling,
            State.DECODING: scheduler.decoding,
        }
        for state, members in lists.items():
            assert all(member.state is state for member in members)
        assert sum(map(len, lists.values())) == len(scheduler.live)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if self.scheduler.idle:
                break
            self.scheduler.step()
            self.check()
        assert self.scheduler.idle, "a request was never served"
        for rid, asked in self.asked.items():
            found, expected = outcome(self.told[rid]), solo(*asked)
            finish = found[1]
            assert finish is not None
            if finish.type == "abort":
                assert rid in self.disturbed or (finish.message or "").startswith("The step failed")
                assert found[0] == expected[0][: len(found[0])]
            else:
                assert found == expected
        assert not self.scheduler.cache.leases
        assert self.scheduler.cache.free_rows == self.scheduler.executor.layout.max_rows


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
