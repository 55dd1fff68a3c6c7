"""Plays a policy against simulated engines: what the workers of a gateway do with it, in simulated time.

In: the events of engines.simulation. Out: placements and moves. The policy is the one that serves, as it is.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from engines.simulation import Engine, Job
from gateway.core import NO_NEEDS, Arrivals, BackendDemand, Demand, Load, Needs, Policy, State
from gateway.metrics.lengths import AnswerLengths

BEAT_S = 0.05
SAMPLES = 64


@dataclass(frozen=True, slots=True)
class _Request:
    """The core.Placeable of a simulated request."""

    prompt_tokens: int
    max_tokens: int
    request_id: str = ""
    model: str = ""
    pin: str | None = None
    run: str | None = None
    needs: Needs = NO_NEEDS
    sequences: int = 1


class PolicyRouter:
    """The simulation.Router of one policy. `tokens_per_s`: as the setting `moves.tokens_per_s`."""

    beat_s = BEAT_S

    def __init__(self, policy: Policy, tokens_per_s: float = 50_000) -> None:
        self._policy = policy
        self.state = policy.start(1, 0.0)
        self._tokens_per_s = tokens_per_s
        self._budget = 0.0
        self._arrived = 0
        self._fixed = dict[str, int]()
        self._lengths = AnswerLengths()
        self._open = list[Job]()
        self._samples: deque[Arrivals] = deque([Arrivals(0.0, 0)], maxlen=SAMPLES)
        self.changes = self.moves = 0

    def place(self, job: Job, engines: Mapping[str, Engine], now: float) -> str:
        self._arrived += 1
        self._open.append(job)
        loads = {name: Load(engine.in_flight, True) for name, engine in engines.items()}
        request = _Request(job.arrival.prompt_tokens, job.arrival.tokens)
        route, state = self._policy.choose(request, loads, self.state, now)
        self._take(state)
        if job.arrival.only is not None:
            self._fixed[job.arrival.only] = self._fixed.get(job.arrival.only, 0) + 1
            return job.arrival.only
        return route.backend

    def beat(self, engines: Mapping[str, Engine], now: float) -> Iterable[tuple[Job, str]]:
        self._samples.append(Arrivals(now, self._arrived))
        self._note_ended()
        if self._policy.plans:
            self._take(self._policy.plan(self._measure(engines), self.state, now))
        left = self._policy.find_left(self.state)
        terms = self._policy.find_terms(self.state, left, sum(engine.in_flight for engine in engines.values()))
        tokens_per_s = min(self._tokens_per_s, terms.tokens_per_s)
        self._budget = min(self._budget + BEAT_S * tokens_per_s, 2 * BEAT_S * tokens_per_s)
        return list(self._move(engines, left, terms.min_left)) if left else ()

    def _move(self, engines: Mapping[str, Engine], left: Iterable[str], min_left: int) -> Iterator[tuple[Job, str]]:
        lengths = self._lengths.table()
        movable = [
            (job.arrival.prompt_tokens + tokens, job)
            for name in left
            for job, tokens in ((job, engines[name].count_tokens(job)) for job in engines[name].jobs())
            if job.arrival.only is None and lengths.left(tokens, job.arrival.tokens - tokens) >= min_left
        ]
        for tokens, job in sorted(movable, key=lambda pair: (pair[0], pair[1].arrival.at)):
            if self._budget <= 0:
                return
            self._budget -= tokens
            self.moves += 1
            yield job, self.state.side

    def _take(self, state: State) -> None:
        self.changes += (state.side, state.is_split) != (self.state.side, self.state.is_split)
        self.state = state

    def _note_ended(self) -> None:
        for job in self._open:
            if job.end_s is not None:
                self._lengths.add(job.arrival.prompt_tokens, job.arrival.tokens)
        self._open = [job for job in self._open if job.end_s is None]

    def _measure(self, engines: Mapping[str, Engine]) -> Demand:
        backends = {name: self._measure_engine(name, engine) for name, engine in engines.items()}
        lengths = self._lengths.table()
        weight = lengths.weight or 1.0
        return Demand(tuple(self._samples), backends, lengths.prompt_tokens / weight, lengths.tokens / weight)

    def _measure_engine(self, name: str, engine: Engine) -> BackendDemand:
        fixed = sum(1 for job in engine.jobs() if job.arrival.only is not None)
        context = sum(
            job.arrival.prompt_tokens + engine.count_tokens(job) for job in engine.jobs() if job.arrival.only is None
        )
        share = self._fixed.get(name, 0) / max(self._arrived, 1)
        return BackendDemand(engine.in_flight, fixed, share, context, generated=engine.generated)
