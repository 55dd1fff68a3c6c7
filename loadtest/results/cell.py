"""The figures of one cell: a recording of answers in, one row of numbers out. Pure.

A cell is one backend at one level, which is the number of requests in flight.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtest.client.recording import Recording, Tick
from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.decide.slo import Slo
from loadtest.results.percentiles import Percentiles, percentiles

SLICES = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """Two cells at one level, measured back to back: one of each backend, or with `is_null` two of one backend.

    `low_first`: whether the low-load backend is measured first, or is the one that a null pair measures. `number` is
    assigned when the pair is measured and never used again.
    """

    level: int
    low_first: bool
    number: int = -1
    is_null: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU over a window: means of power, clock and `busy` (a share of the time), maxima of memory and temperature.
    None where the exporter did not report a value. `readings`: how many were taken; an exporter may repeat one.
    """

    gpu: str
    name: str
    readings: int
    power_w: float | None
    sm_clock_mhz: float | None
    least_sm_clock_mhz: float | None
    memory_used_mib: float | None
    temperature_c: float | None
    busy: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One row. Seconds, tokens per second and shares; `requests` are complete answers, warm-up included.

    `fill`: throughput over what the request times allow. `evenness`: tokens in the poorest fifth of the window over
    those in the mean fifth. `is_null`: its pair compares a backend with itself. `requests_per_s`: requests that ended
    in the window; `goodput`: those of them that kept the plan's SLO. `cached`: share of prompt tokens from a cache,
    where answers report it. `foreign`: share of other clients' requests in flight on the backend, None if unknown.
    `gpus`: the node's GPUs, where an exporter reports them. `void`: why the cell was measured again, None if it counts.
    """

    backend: str
    level: int
    pair: int
    window_s: float
    throughput: float
    requests: int
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    prompt_tokens: float
    in_flight: float
    fill: float | None
    evenness: float
    phase_order: float | None
    tokens_per_chunk: float
    counted_by: str
    client_cpu: float
    loop_lag_p99_s: float
    loop_lag_max_s: float
    machine_load: float
    is_null: bool = False
    requests_per_s: float = 0.0
    goodput: float | None = None
    cached: float | None = None
    foreign: float | None = None
    gpus: tuple[Gpu, ...] = ()
    void: str | None = None


def summarise(recording: Recording, backend: str, pair: Pair, tokens: int, slo: Slo | None = None) -> Cell:
    """Sums up tokens in the window and latencies of requests that began in it. `tokens`: the length of an answer."""
    complete = [answer for answer in recording.answers if answer.is_complete]
    inside = [answer for answer in recording.answers if answer.started_at >= recording.opened_at]
    ended = [answer for answer in complete if recording.opened_at < (answer.finished_at or 0.0) <= recording.closed_at]
    e2e = percentiles(answer.e2e_s for answer in inside if answer.is_complete)
    throughput = _count_tokens(recording, complete, recording.opened_at, recording.closed_at) / recording.window_s
    ticks = [tick for tick in recording.ticks if recording.holds(tick.at)]
    lags = sorted(tick.lag_s for tick in ticks) or [0.0]
    return Cell(
        backend=backend,
        level=pair.level,
        pair=pair.number,
        window_s=recording.window_s,
        throughput=throughput,
        requests=len(complete),
        ttft_s=percentiles(answer.ttft_s for answer in inside),
        tpot_s=percentiles(answer.tpot_s for answer in inside if answer.is_complete),
        e2e_s=e2e,
        prompt_tokens=statistics.fmean(answer.prompt_tokens or 0 for answer in complete),
        in_flight=mean_in_flight(recording.answers, recording.opened_at, recording.closed_at),
        fill=throughput * e2e.p50 / (pair.level * tokens) if e2e.p50 else None,
        evenness=_find_evenness(recording, complete),
        phase_order=find_phase_order([answer.started_at for answer in inside][-pair.level :], e2e.p50),
        tokens_per_chunk=sum(each.completion_tokens or 0 for each in complete)
        / sum(len(each.times) for each in complete),
        counted_by="usage" if all(answer.is_counted for answer in complete) else "chunks",
        client_cpu=_find_cpu_share(ticks),
        loop_lag_p99_s=lags[int(0.99 * (len(lags) - 1))],
        loop_lag_max_s=lags[-1],
        machine_load=max((tick.machine_load for tick in recording.ticks), default=0.0),
        is_null=pair.is_null,
        requests_per_s=len(ended) / recording.window_s,
        goodput=count_kept(ended, slo) / recording.window_s if slo else None,
        cached=_find_cached_share(complete),
    )


def count_kept(answers: Sequence[StreamedAnswer], slo: Slo) -> int:
    """Counts the complete answers that kept the SLO."""
    return sum(slo.is_kept(answer.ttft_s, answer.tpot_s, answer.e2e_s) for answer in answers)


def mean_in_flight(answers: Sequence[StreamedAnswer], start: float, end: float) -> float:
    """Returns the mean number of requests in flight from `start` to `end`, each from the moment it was due. One that
    has not finished counts until `end`.
    """
    spans = (
        (
            answer.started_at if answer.due_at is None else answer.due_at,
            end if answer.finished_at is None else answer.finished_at,
        )
        for answer in answers
    )
    return sum(max(0.0, min(finished, end) - max(began, start)) for began, finished in spans) / (end - start)


def find_phase_order(starts: Sequence[float], period_s: float | None) -> float | None:
    """Returns |mean exp(2 pi i start / period)|: 1 where requests start together, near 0 where they are spread out."""
    if not starts or not period_s:
        return None
    angles = [2 * math.pi * start / period_s for start in starts]
    return math.hypot(sum(map(math.cos, angles)), sum(map(math.sin, angles))) / len(starts)


def _count_tokens(recording: Recording, complete: Sequence[StreamedAnswer], start: float, end: float) -> float:
    """Counts tokens in (start, end]. An answer cut off has no usage: its events weigh the mean of the others'."""
    usual = statistics.fmean(answer.tokens_per_count for answer in complete)
    return sum(
        answer.count_between(start, end)
        * (answer.tokens_per_count if answer.is_complete else 1.0 if answer.is_counted else usual)
        for answer in recording.answers
    )


def _find_evenness(recording: Recording, complete: Sequence[StreamedAnswer]) -> float:
    edges = np.linspace(recording.opened_at, recording.closed_at, SLICES + 1)
    counts = [_count_tokens(recording, complete, start, end) for start, end in pairwise(edges)]
    return min(counts) / statistics.fmean(counts)


def _find_cached_share(complete: Sequence[StreamedAnswer]) -> float | None:
    known = [(each.cached_tokens, each.prompt_tokens or 0) for each in complete if each.cached_tokens is not None]
    prompt_tokens = sum(tokens for _, tokens in known)
    return sum(cached for cached, _ in known) / prompt_tokens if prompt_tokens else None


def _find_cpu_share(ticks: Sequence[Tick]) -> float:
    """Returns the share of one core that the busiest of the client's processes took."""
    processes: dict[int, list[Tick]] = {}
    for tick in ticks:
        processes.setdefault(tick.process, []).append(tick)
    spans = [(own[0], own[-1]) for own in processes.values() if len(own) > 1]
    return max(((last.cpu_s - first.cpu_s) / (last.at - first.at) for first, last in spans), default=0.0)
