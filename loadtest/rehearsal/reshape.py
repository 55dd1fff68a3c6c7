"""A trace with other rates and lengths: whole conversations left out at random, time compressed, long prompts dropped.

In: a trace and what to make of it. Out: a trace, and how many requests were dropped for which reason. Pure.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config

from loadtest.rehearsal.conversations import drop_unshared, find_conversations, link_turns, select
from loadtest.rehearsal.traces import TraceRequest

PARTS = 20  # the busiest stretch is as long as this part of the trace


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, slots=True)
class Reshape:
    """What to make of a trace. `peak`: requests a second in the busiest twentieth. `seconds`: from the first request to
    the last. `max_prompt`: tokens of the longest prompt that is kept, after all were multiplied by `scale_prompt`.
    """

    peak: Annotated[float, Field(gt=0)] | None = None
    seconds: Annotated[float, Field(gt=0)] | None = None
    max_prompt: Annotated[int, Field(ge=1)] | None = None
    scale_prompt: Annotated[float, Field(gt=0, le=100)] = 1.0

    @classmethod
    def parse(cls, terms: Sequence[str]) -> Self:
        """Reads keys like "peak=36". Raises ValueError."""
        try:
            return TypeAdapter(cls).validate_python(dict(term.partition("=")[::2] for term in terms))
        except ValidationError as exc:
            problem, known = exc.errors()[0], ", ".join(field.name for field in fields(cls))
            raise ValueError(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']} (keys: {known})") from exc


def reshape(trace: Sequence[TraceRequest], how: Reshape, seed: int) -> tuple[tuple[TraceRequest, ...], int]:
    """Returns the new trace and how many prompts were too long. Raises ValueError where there are too few requests."""
    scaled = [_scale(request, how.scale_prompt) for request in link_turns(trace)]
    kept = [index for index, each in enumerate(scaled) if each.prompt_tokens <= (how.max_prompt or each.prompt_tokens)]
    result = select(scaled, kept)
    if not result:
        raise ValueError(f"no prompt has at most {how.max_prompt} tokens")
    result = _compress(result, how)
    result = result if how.peak is None else _thin(result, how.peak, seed)
    start = result[0].at
    shifted = tuple(replace(request, at=round(request.at - start, 6)) for request in result)
    return drop_unshared(shifted), len(scaled) - len(kept)


def find_peak(times: Sequence[float], window_s: float) -> float:
    """Returns the most arrivals a second within `window_s`. `times` ascend."""
    if window_s <= 0:
        return 0.0
    return max(bisect_left(times, at + window_s) - index for index, at in enumerate(times)) / window_s


def find_window_s(trace: Sequence[TraceRequest]) -> float:
    """Returns how long the busiest stretch of a trace is."""
    return (trace[-1].at - trace[0].at) / PARTS


def _scale(request: TraceRequest, factor: float) -> TraceRequest:
    if factor == 1.0:
        return request
    prompt_tokens, block = max(round(request.prompt_tokens * factor), 1), max(int(request.block * factor), 1)
    prefix = request.prefix[: -(-prompt_tokens // block)]
    return replace(request, prompt_tokens=prompt_tokens, prefix=prefix, block=block if prefix else 0)


def _compress(trace: Sequence[TraceRequest], how: Reshape) -> tuple[TraceRequest, ...]:
    """Multiplies all times by one factor. Without `seconds` it is 1, unless the peak is above the trace's own."""
    length_s = trace[-1].at - trace[0].at
    if how.seconds is not None:
        factor = how.seconds / length_s if length_s else 1.0
    else:
        peak = find_peak([request.at for request in trace], find_window_s(trace))
        factor = min(peak / how.peak, 1.0) if how.peak and peak else 1.0
    return tuple(replace(each, at=each.at * factor, wait_s=each.wait_s * factor) for each in trace)


def _thin(trace: Sequence[TraceRequest], peak: float, seed: int) -> tuple[TraceRequest, ...]:
    """Keeps as many conversations, in an order drawn at random, as the peak allows."""
    window_s, conversations, draw = find_window_s(trace), find_conversations(trace), random.Random(f"thin {seed}")
    drawn = {number: draw.random() for number in dict.fromkeys(conversations)}
    places = [drawn[number] for number in conversations]

    def keep(most: float) -> list[int]:
        return [index for index, place in enumerate(places) if place <= most]

    def is_above(most: float) -> bool:
        return find_peak([trace[index].at for index in keep(most)], window_s) > peak * (1 + 1e-9)

    order = sorted(drawn.values())
    if not is_above(order[-1]):
        most = find_peak([request.at for request in trace], window_s)
        if most < 0.95 * peak:
            raise ValueError(f"a peak of {peak:g} requests/s: all requests in this time make {most:.3g}")
        return tuple(trace)
    kept = keep(order[max(bisect_left(order, True, key=is_above) - 1, 0)])
    return select(trace, kept)
