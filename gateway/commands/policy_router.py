"""Plays a policy against simulated engines: what the workers of a gateway do with it, in simulated time.

In: the events of engines.simulation. Out: placements and moves. The policy, the demand and the budget of moves are
those that serve, as they are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from engines.physics import Job
from engines.simulation import Engine
from gateway.core import Load, Policy, RelayRequest, State
from gateway.lengths import Survival
from gateway.routing import BEAT_S, Extent, MoveBudget
from gateway.routing.demand import DemandCounts
from gateway.shared import Seat

REQUEST = RelayRequest("", "", b"", (), b"")  # of which a policy sees the lengths alone


class PolicyRouter:
    """The simulation.Router of one policy."""

    beat_s = BEAT_S

    def __init__(self, policy: Policy, backends: Iterable[str]) -> None:
        self._policy = policy
        self.state = policy.start(1, 0.0)
        self._budget = MoveBudget()
        names = tuple(backends)
        self._demand = DemandCounts(names, Seat.alone())
        self._foreign = dict.fromkeys(names, 0)
        self._buckets = dict[Job, int]()  # of the answers under way, by length
        self.changes = self.moves = 0

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        self._buckets[job] = self._demand.flow.lengths.begin(0)
        loads = {name: Load(engine.in_flight, True) for name, engine in engines.items()}
        request = replace(REQUEST, prompt_tokens=job.prompt_tokens, max_tokens=job.tokens)
        route, state = self._policy.choose(request, loads, self.state, now)
        self._take(state)
        self._demand.arrive(1, job.only, job.prompt_tokens)
        return job.only or route.backend

    def began(self, job: Job, engine: str, now: float) -> None:
        flow, prompt_tokens = self._demand.flow, job.prompt_tokens + int(job.generated) - 1
        flow.free[engine].decode(prompt_tokens, now)
        flow.cache_use[engine] = flow.cache_use[engine].add(prompt_tokens, job.cached)

    def ended(self, job: Job, engine: str, now: float) -> None:
        self._demand.flow.lengths.finish(self._grow(job), job.prompt_tokens, job.tokens)
        del self._buckets[job]

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        if self._policy.plans:
            self._note(engines)
            in_flight = {name: engine.in_flight for name, engine in engines.items()}
            if (demand := self._demand.sample(in_flight, self._foreign, now)) is not None:
                self._take(self._policy.plan(demand, self.state, now))
        left = [name for name in self._policy.find_left(self.state) if engines[name].in_flight]
        if not left:
            self._budget.rest()
            return ()
        terms = self._policy.find_terms(self.state, left, sum(engine.in_flight for engine in engines.values()))
        lengths = self._demand.find_lengths()
        running = [(job, _measure(job, lengths)) for name in left for job in engines[name].jobs()]
        moved = list(self._budget.choose(running, terms))
        self.moves += len(moved)
        return [(job, self.state.side) for job in moved]

    def _take(self, state: State) -> None:
        self.changes += state.side != self.state.side
        self.state = state

    def _grow(self, job: Job) -> int:
        bucket = self._demand.flow.lengths.grow(self._buckets[job], int(job.so_far))
        self._buckets[job] = bucket
        return bucket

    def _note(self, engines: Mapping[str, Engine]) -> None:
        """Counts what is under way, as the streams of a gateway are counted while they go on."""
        flow = self._demand.flow
        for job in self._buckets:
            self._grow(job)
        for name, engine in engines.items():
            free, fixed = flow.free[name], flow.fixed[name]
            bound = [job for job in engine.jobs() if job.only is not None]
            held = round(sum(job.prompt_tokens + job.so_far for job in bound))
            coming = sum(job.prompt_tokens + job.so_far for job in engine.jobs() if job.since is None)
            fixed.streams, fixed.held = len(bound), held
            free.streams, free.decoding = engine.in_flight - len(bound), engine.decoding
            free.held, free.coming = round(engine.context) - held, round(coming)
            free.generated = round(engine.generated)
        self._demand.note()


def _measure(job: Job, lengths: Survival) -> Extent:
    tokens = int(job.so_far)
    left = lengths.left(tokens, job.tokens - tokens)
    return Extent(job.prompt_tokens + tokens, left, may_move=job.only is None)
