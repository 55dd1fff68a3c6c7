"""The demand as the model reads it: rates, lengths and what is in flight, by engine.

In: core.Demand. Out: a Load. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from engines.physics import Mix
from gateway.core import BackendDemand, Demand
from gateway.routing.policies.curve.node_model import NodeModel

FEW = 4  # in flight: then their own context says little of a usual one's


class Part(NamedTuple):
    """What a plan gives one engine: its share of all that arrives, and how many of those that are in flight now."""

    share: float
    in_flight: float


@dataclass(frozen=True, slots=True)
class Load:
    """`backends`: the low-load and the high-load one. `rate`: arrivals a second. `mixes`: what arrives as each of them
    would prefill it, without what its cache holds; `mix`: in the mean of both.
    """

    backends: tuple[BackendDemand, BackendDemand]
    rate: float
    mix: Mix
    elapsed_s: float
    mixes: tuple[Mix, Mix]

    @classmethod
    def of(cls, demand: Demand, names: Sequence[str], node: NodeModel, rate: float) -> Self:
        low, high = (demand.backends[name] for name in names)
        prompts = demand.prompts or (node.prompt_tokens,)
        answer = demand.answer_tokens or node.answer_tokens
        decoding = low.decoding + high.decoding
        each = (low.held + high.held) / decoding if decoding > FEW else None
        arrivals = demand.arrivals
        elapsed_s = arrivals[-1].at - arrivals[-2].at if len(arrivals) > 1 else 0.0
        mix = _make_mix(prompts, answer, each, (low.cached + high.cached) / 2)
        if low.cached == high.cached:
            return cls((low, high), rate, mix, elapsed_s, (mix, mix))
        mixes = _make_mix(prompts, answer, each, low.cached), _make_mix(prompts, answer, each, high.cached)
        return cls((low, high), rate, mix, elapsed_s, mixes)

    @property
    def in_flight(self) -> int:
        return self.backends[0].in_flight + self.backends[1].in_flight

    @property
    def free(self) -> int:
        """How many of them may run on either engine."""
        return self.in_flight - self.backends[0].fixed - self.backends[1].fixed

    @property
    def context(self) -> int:
        return self.backends[0].context + self.backends[1].context

    def split(self, side: int) -> tuple[Part, Part]:
        """Returns what each engine gets if all that is free runs on one; 0 is the low-load one."""
        free = max(1 - self.backends[0].fixed_share - self.backends[1].fixed_share, 0.0)
        low, high = (
            Part(backend.fixed_share + free * (index == side), backend.fixed + self.free * (index == side))
            for index, backend in enumerate(self.backends)
        )
        return low, high


def _make_mix(prompts: Sequence[float], answer: float, context: float | None, cached: float) -> Mix:
    """`cached`: which part of the prompts is not prefilled; it is context like the rest."""
    if not cached:
        return Mix.of(prompts, answer, context)
    if context is None:
        context = Mix.of(prompts, answer).context
    return Mix.of([(1 - cached) * tokens for tokens in prompts], answer, context)
