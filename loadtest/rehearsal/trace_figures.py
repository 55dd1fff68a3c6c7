"""The figures of a trace: its rate over time, its lengths, and how much of its prompts repeats. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtest.rehearsal.conversations import count_seen, find_conversations
from loadtest.rehearsal.reshape import find_peak, find_window_s
from loadtest.rehearsal.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of prompts or answers, in tokens."""

    mean: float
    p50: int
    p95: int
    most: int


@dataclass(frozen=True, slots=True)
class TraceFigures:
    """`peak_per_s`: in the busiest twentieth. `waiting`: requests that wait for another's answer. `repeated`: the part
    of all prompt tokens that stand in leading blocks which an earlier prompt had.
    """

    requests: int
    seconds: float
    requests_per_s: float
    peak_per_s: float
    prompt_tokens: Lengths
    tokens: Lengths
    conversations: int
    waiting: int
    repeated: float


def find_trace_figures(trace: Sequence[TraceRequest]) -> TraceFigures:
    seconds = trace[-1].at - trace[0].at
    return TraceFigures(
        requests=len(trace),
        seconds=seconds,
        requests_per_s=len(trace) / seconds if seconds else 0.0,
        peak_per_s=find_peak([request.at for request in trace], find_window_s(trace)),
        prompt_tokens=_find_lengths([request.prompt_tokens for request in trace]),
        tokens=_find_lengths([request.tokens for request in trace]),
        conversations=len(set(find_conversations(trace))),
        waiting=sum(request.after is not None for request in trace),
        repeated=_count_repeated(trace) / sum(request.prompt_tokens for request in trace),
    )


def count_rates(trace: Sequence[TraceRequest], parts: int) -> list[float]:
    """Returns arrivals a second in each of `parts` equal parts of the trace's time."""
    start, seconds, counts = trace[0].at, trace[-1].at - trace[0].at, [0] * parts
    for request in trace:
        counts[min(int((request.at - start) / seconds * parts), parts - 1) if seconds else 0] += 1
    return [count * parts / seconds if seconds else float(count) for count in counts]


def _find_lengths(lengths: Sequence[int]) -> Lengths:
    ascending = sorted(lengths)
    p50, p95 = (ascending[min(int(len(ascending) * part), len(ascending) - 1)] for part in (0.5, 0.95))
    return Lengths(fmean(ascending), p50, p95, ascending[-1])


def _count_repeated(trace: Sequence[TraceRequest]) -> int:
    seen, repeated = set[int](), 0
    for request in trace:
        repeated += min(count_seen(request.prefix, seen) * request.block, request.prompt_tokens)
        seen.update(request.prefix)
    return repeated
