"""Nodes that a policy is tried on in simulated time: the physics that it plans with, and others it does not know."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias

from engines.physics import EngineModel, Job, Replica
from engines.simulation import Engine, Node, NodeSpec, Router

MakeNode: TypeAlias = Callable[[NodeSpec, Router], Node]
MOST_SEQUENCES = 64  # of a PromptsFirst replica
STEP_NOISE, TOKENS_SPREAD = 0.05, 0.3
SLOWER, SLOWS_AT_S = 1.2, 20.0


class SumNode(Node):
    """A step that begins while the other engine works takes a share of the other one's step longer, not of its own."""

    def _begin_step(self, engine: Engine, replica: Replica) -> None:
        if step_ms := replica.begin():
            beside = (
                each.step_ms for other in self._engines.values() if other is not engine for each in other.replicas
            )
            more_ms = self._interference * max(beside, default=0.0)
            self._push(self._now + (step_ms + more_ms) / 1e3, engine, replica)


class SlowingNode(Node):
    """The engine `slows` takes a fifth more for everything after twenty seconds, as one whose GPU gets too hot."""

    def __init__(self, slows: str, spec: NodeSpec, router: Router) -> None:
        super().__init__(spec, router)
        self._slows = slows

    def _begin_step(self, engine: Engine, replica: Replica) -> None:
        if step_ms := replica.begin():
            beside = 1 + self._interference if self._interference and self._works_beside(engine) else 1.0
            slower = SLOWER if engine.name == self._slows and self._now > SLOWS_AT_S else 1.0
            self._push(self._now + step_ms * beside * slower / 1e3, engine, replica)


class PromptsFirst(Replica):
    """A batcher of another kind: a step reads whole prompts or generates, never both, and prompts go first.

    With speculation each answer gains tokens of its own a step. Steps scatter.
    """

    def __init__(self, engine: EngineModel) -> None:
        super().__init__(replace(engine, max_sequences=min(engine.max_sequences, MOST_SEQUENCES)))
        self._draw = Random(len(engine.steps_ms))
        self._gains: dict[Job, float] = {}
        self._reads = False

    def begin(self) -> float:
        engine = self.engine
        self._chosen, tokens, squared = [], 0, 0.0
        while self._queue and self._has_room(job := self._queue[0]):
            whole = job.prompt_tokens + int(job.generated)
            if self._chosen and tokens + whole > engine.budget_tokens:
                break
            self._chosen.append(self._queue.popleft())
            tokens, squared = tokens + whole, squared + float(whole) ** 2
        self._reads, count = bool(self._chosen), len(self._decoding)
        if self._reads:
            needed = engine.decode_ms(1, 0) + engine.prefill_ms(tokens, squared)
            self.step_ms = max(needed, engine.floor_ms(0, tokens))
        else:
            self.step_ms = engine.step_ms(count, self.context) if count else 0.0
        self.step_ms *= math.exp(self._draw.gauss(0, STEP_NOISE))
        return self.step_ms

    def end(self, now: float) -> list[Job]:
        self.step_ms = 0.0
        return self._end_prompts(now) if self._reads else self._end_decoding(now)

    def drop(self, job: Job) -> None:
        self._gains.pop(job, None)
        if job in self._decoding:
            del self._decoding[job]
            self.context -= job.prompt_tokens + job.generated
        elif job in self._chosen:
            self._chosen.remove(job)
        else:
            self._queue.remove(job)
        job.since = job.replica = None

    def _end_prompts(self, now: float) -> list[Job]:
        chosen, self._chosen = self._chosen, []
        for job in chosen:
            job.generated += 1
            job.first_s = job.first_s or now
            job.since = self.steps  # `steps` stays as it is, so that a job has what `generated` says
            self._decoding[job] = None
            self._gains[job] = self._find_gain()
            self.context += job.prompt_tokens + job.generated
        self.made += len(chosen)
        return self._leave(now)

    def _end_decoding(self, now: float) -> list[Job]:
        for job in self._decoding:
            gain = min(self._gains[job], job.tokens - job.generated)
            job.generated += gain
            self.made += gain
            self.context += gain
        return self._leave(now)

    def _leave(self, now: float) -> list[Job]:
        ended = [job for job in self._decoding if job.generated >= job.tokens]
        for job in ended:
            job.end_s = now
            self.drop(job)
        return ended

    def _find_gain(self) -> float:
        each = self.engine.tokens_per_step
        return 1 + (each - 1) * self._draw.lognormvariate(-(TOKENS_SPREAD**2) / 2, TOKENS_SPREAD)
