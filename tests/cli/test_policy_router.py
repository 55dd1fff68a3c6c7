"""The simulated planner is the live one: two workers' counts of the same answers give the same demand and plan."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from engines.physics import Job
from engines.simulation import Engine, NodeSpec, simulate
from gateway.commands.policy_router import PolicyRouter
from gateway.core import Demand, State
from gateway.lengths import find_bound
from gateway.routing.demand import DemandCounts
from gateway.routing.policies import Curve
from tests.fakes.seats import make_seats
from tests.routing.nodes import read_node

NAMES = ("low", "high")
BEATS = 10_000


@dataclass(frozen=True, slots=True)
class Noting(Curve):
    """Notes what it was asked and what it answered."""

    seen: list[tuple[Demand, State, float, State]] = field(default_factory=list)

    def plan(self, demand: Demand, state: State, now: float) -> State:
        after = Curve.plan(self, demand, state, now)
        self.seen.append((demand, state, now, after))
        return after


@dataclass(eq=False)
class Stream:
    """An answer as a worker counts it: its prompt at the engine where it is, and its tokens from there."""

    counts: DemandCounts
    engine: str
    prompt_tokens: int
    bucket: int
    tokens: int = 0
    has_begun: bool = False


class Live(PolicyRouter):
    """Counts all answers once more, as the streams of a gateway with two workers are counted while they go on."""

    def __init__(self, policy: Noting) -> None:
        super().__init__(policy, NAMES)
        self._workers = [DemandCounts(NAMES, seat) for seat in make_seats(2)]
        self._streams = dict[Job, Stream]()
        self.demands = list[Demand]()

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        engine = super().place(job, engines, now)
        counts = self._workers[round(1000 * job.at) % 2]
        counts.arrive(1, None, job.prompt_tokens)
        counts.flow.free[engine].begin(job.prompt_tokens)
        self._streams[job] = Stream(counts, engine, job.prompt_tokens, counts.flow.lengths.begin(0))
        return engine

    def began(self, job: Job, engine: str, now: float) -> None:
        super().began(job, engine, now)
        stream = self._streams[job]
        stream.has_begun = True
        stream.counts.flow.free[engine].decode(stream.prompt_tokens, now)
        self._count(job, stream)

    def ended(self, job: Job, engine: str, now: float) -> None:
        super().ended(job, engine, now)
        stream = self._streams.pop(job)
        self._count(job, stream)
        stream.counts.flow.free[engine].end(stream.prompt_tokens, stream.tokens, has_begun=True)
        stream.counts.flow.lengths.finish(stream.bucket, job.prompt_tokens, job.tokens)

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        for job, stream in self._streams.items():
            self._count(job, stream)
        for counts in self._workers:
            counts.note()
        in_flight = {name: engine.in_flight for name, engine in engines.items()}
        demand = self._workers[len(self.demands) % 2].sample(in_flight, dict.fromkeys(NAMES, 0), now)
        assert demand is not None
        self.demands.append(demand)
        moved = list(super().beat(engines, now))
        for job, engine in moved:
            self._move(job, self._streams[job], engine)
        return moved

    def _count(self, job: Job, stream: Stream) -> None:
        """Counts the tokens that have come since."""
        before = job.prompt_tokens + int(job.so_far) - stream.prompt_tokens - stream.tokens
        if stream.has_begun and before:
            flow = stream.counts.flow.free[stream.engine]
            flow.generated += before
            flow.held += before
            stream.tokens += before
            if job.so_far >= find_bound(stream.bucket):
                stream.bucket = stream.counts.flow.lengths.grow(stream.bucket, int(job.so_far))

    def _move(self, job: Job, stream: Stream, engine: str) -> None:
        counts, tokens = stream.counts, int(job.so_far)
        counts.flow.free[stream.engine].end(stream.prompt_tokens, stream.tokens, has_begun=stream.has_begun)
        counts.flow.lengths.leave(stream.bucket)
        prompt_tokens = job.prompt_tokens + tokens
        counts.flow.free[engine].begin(prompt_tokens)
        bucket = counts.flow.lengths.shift(counts.flow.lengths.begin(0), tokens)
        self._streams[job] = Stream(counts, engine, prompt_tokens, bucket)


def make_jobs(seconds: float) -> list[Job]:
    """Returns Poisson arrivals at 6 and at 150 a second, in turns of 25 s, of answers of all lengths."""
    chance, at, jobs = Random(1), 0.0, list[Job]()
    while at < seconds:
        at += chance.expovariate(150 if at % 50 > 25 else 6)
        jobs.append(Job(at, chance.randrange(20, 300), min(1 + round(chance.expovariate(1 / 100)), 1000)))
    return jobs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_workers_counts_give_the_simulations_demand_and_plan_at_each_beat() -> None:
    node = replace(read_node("tp-dp"), prompt_tokens=160, answer_tokens=100)
    policy = Noting(*NAMES, node=node)
    live = Live(policy)
    simulate(make_jobs(BEATS * 0.05), NodeSpec({"low": node.low, "high": node.high}, node.interference, 0.05), live)
    assert len(policy.seen) == len(live.demands) >= BEATS
    assert live.changes > 10
    assert live.moves > 20
    others = 0
    for beat, ((demand, state, now, after), counted) in enumerate(zip(policy.seen, live.demands, strict=True)):
        assert counted.arrivals == demand.arrivals
        assert counted.backends == demand.backends
        same = replace(counted, prompts=demand.prompts, answer_tokens=demand.answer_tokens)
        assert Curve.plan(policy, same, state, now) == after
        if beat % 10 == 0:
            others += Curve.plan(policy, counted, state, now).side != after.side
    # Each worker has prompts of its own, and forgets older answers by its own count: such means differ a little.
    assert others <= 2
