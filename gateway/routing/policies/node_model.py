"""What a calibration measured of a node's two engines, and what it predicts of them.

In: how many are in flight. Out: seconds. Knows no request and no clock.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, Field, with_config

from gateway.settings import FORM, number

STEP_MS = number(0.001, 600_000)
IN_FLIGHT = number(1, 100_000)


Times = tuple[tuple[int, float], ...]  # pairs of in-flight and milliseconds


def _check_times(times: Times) -> Times:
    if any(above <= below for (below, _), (above, _) in pairwise(times)):
        raise ValueError("must be sorted by in-flight, each once")
    return times


TimesForm = Annotated[
    tuple[tuple[Annotated[int, IN_FLIGHT], Annotated[float, STEP_MS]], ...],
    Field(min_length=1, max_length=64),
    AfterValidator(_check_times),
]


@with_config(FORM)
@dataclass(frozen=True)
class EngineModel:
    """One engine alone on its GPUs. `steps_ms`: pairs of in-flight and milliseconds from a token to the next.

    `ttft_ms`: the same to the first token; None: not measured. Between two pairs a time grows in a straight line;
    beyond the last one in proportion to what is in flight, because then requests wait.
    """

    steps_ms: TimesForm
    prefill_tokens_per_s: Annotated[float, number(1, 1e9)]
    max_in_flight: Annotated[int, IN_FLIGHT]
    ttft_ms: TimesForm | None = None

    def step_s(self, in_flight: float) -> float:
        """Returns seconds from a token of an answer to its next while so many are in flight all the time."""
        return self._read(self._table, in_flight)

    def ttft_s(self, in_flight: float) -> float:
        """Returns seconds to the first token while so many are in flight; 0 where it was not measured."""
        return self._read(self._ttft_table, in_flight)

    def answers_per_s(self, prompt_tokens: float, tokens: float) -> float:
        """Returns how many answers of this length the engine completes in a second at most."""
        prefill_s = prompt_tokens / self.prefill_tokens_per_s
        return max(count / (prefill_s + tokens * self._table[count]) for count in self._levels)

    def at_pace(self, pace: float) -> "EngineModel":
        steps_ms, ttft_ms = (
            tuple((count, ms * pace) for count, ms in times or ()) for times in (self.steps_ms, self.ttft_ms)
        )
        return replace(self, steps_ms=steps_ms, ttft_ms=ttft_ms or None)

    def at_headroom(self, headroom: float) -> "EngineModel":
        """Returns the model of an engine whose times are those of this one with such a part more in flight."""
        more = 1 + headroom
        counts = sorted({max(round(count / more), 1) for count in self._levels} | {self.max_in_flight})
        return replace(
            self,
            steps_ms=tuple((count, 1000 * self.step_s(count * more)) for count in counts),
            ttft_ms=self.ttft_ms and tuple((count, 1000 * self.ttft_s(count * more)) for count in counts),
        )

    @cached_property
    def _levels(self) -> tuple[int, ...]:
        return tuple({min(count, self.max_in_flight) for count, _ in self.steps_ms} | {self.max_in_flight})

    @cached_property
    def _table(self) -> tuple[float, ...]:
        """Seconds of a step for 0 to `max_in_flight` in flight."""
        return self._tabulate(self.steps_ms)

    @cached_property
    def _ttft_table(self) -> tuple[float, ...]:
        return self._tabulate(self.ttft_ms or ((1, 0.0),))

    def _tabulate(self, times: Times) -> tuple[float, ...]:
        return tuple(_interpolate(times, max(count, 1)) / 1000 for count in range(self.max_in_flight + 1))

    def _read(self, table: Sequence[float], in_flight: float) -> float:
        most = self.max_in_flight
        if in_flight >= most:
            return table[most] * in_flight / most
        below = int(in_flight)
        return table[below] + (in_flight - below) * (table[below + 1] - table[below])


def _interpolate(times: Times, count: int) -> float:
    for (below, below_ms), (above, above_ms) in pairwise(times):
        if count <= above:
            return below_ms + (above_ms - below_ms) * max(count - below, 0) / (above - below)
    last, last_ms = times[-1]
    return last_ms * max(count / last, 1)


@with_config(FORM)
@dataclass(frozen=True)
class NodeModel:
    """A pair of engines, `low` and `high`, by the names of a policy's backends.

    `interference`: how much of the other engine's step each step takes longer while both work: 0 on GPUs of their own,
    1 where they slice the time of the same ones. `prompt_tokens` and `answer_tokens`: the lengths that it was measured
    with; the prefill of such prompts is part of the steps. `move_s`: what a move costs besides the prefill that it
    causes.
    """

    low: EngineModel
    high: EngineModel
    interference: Annotated[float, number(0, 4)]
    prompt_tokens: Annotated[int, number(1, 10_000_000)]
    answer_tokens: Annotated[int, number(1, 10_000_000)]
    move_s: Annotated[float, number(0, 60)] = 0.05

    def at_paces(self, paces: tuple[float, float]) -> "NodeModel":
        """Returns the model of engines whose steps, the low-load one's and the other's, take so many times as long."""
        if paces == (1.0, 1.0):
            return self
        if (model := self._at_paces.get(paces)) is None:
            low, high = (engine.at_pace(pace) for engine, pace in zip(self, paces, strict=True))
            model = self._at_paces[paces] = replace(self, low=low, high=high)
        return model

    def at_headroom(self, headroom: float) -> "NodeModel":
        """Returns the model with the low-load engine as slow as it is with such a part more in flight."""
        if (model := self._at_headroom.get(headroom)) is None:
            model = self._at_headroom[headroom] = replace(self, low=self.low.at_headroom(headroom))
        return model

    @cached_property
    def _at_paces(self) -> dict[tuple[float, float], "NodeModel"]:
        return {}

    @cached_property
    def _at_headroom(self) -> dict[float, "NodeModel"]:
        return {}

    @cached_property
    def crossing(self) -> int:
        """How many are in flight when the high-load engine's steps become the shorter ones."""
        most = self.high.max_in_flight
        return next((count for count in range(1, most) if self.high.step_s(count) < self.low.step_s(count)), most)

    def __iter__(self) -> Iterator[EngineModel]:
        return iter((self.low, self.high))
