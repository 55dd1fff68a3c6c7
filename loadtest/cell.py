"""What one cell measured: a recording of answers in, one row of numbers out. Pure.

A cell is one backend at one level; a recording is everything its streams saw, with the window that counts.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadtest import stats
from loadtest.answer import Answer
from loadtest.plan import Pair
from loadtest.slo import Slo
from loadtest.stats import Percentiles, percentiles

SLICES = 5


@dataclass(frozen=True, slots=True)
class Tick:
    """The client's own state at one moment: how late its event loop was, CPU seconds used so far, and its machine's
    load average per core. `process`: which of its processes says so.
    """

    at: float
    lag_s: float
    cpu_s: float
    machine_load: float
    process: int = 0


@dataclass(frozen=True, slots=True)
class Recording:
    """Answers of all streams in order of their starts: whole ones, and those cut off when the window closed."""

    backend: str
    pair: Pair
    opened_at: float
    closed_at: float
    answers: tuple[Answer, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU over a window: means of power, clock and how busy it was (a share), the most of the others; None is not
    told. `readings`: what they are of; an exporter may tell the same for a while.
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
    """One row. Seconds and tokens per second; `requests` are whole answers, warm-up included.

    `fill`: throughput over what the request times allow. `evenness`: the poorest fifth of the window over the mean
    one. `is_null`: of a pair of the backend with itself. `requests_per_s`: that ended in the window; `goodput`: those
    of them that kept the plan's limits. `cached`: the share of prompt tokens from a cache, where answers tell.
    `foreign`: the share of those in flight there that others had sent, None if unknown. `gpus`: of the
    node, where an exporter tells. `void` says why the cell was measured again.
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


def summarise(recording: Recording, tokens: int, slo: Slo | None = None) -> Cell:
    """The cell's numbers: throughput from token events in the window, latencies of requests that began in it."""
    window_s = recording.closed_at - recording.opened_at
    whole = [answer for answer in recording.answers if answer.is_complete]
    inside = [answer for answer in recording.answers if answer.started_at >= recording.opened_at]
    e2e = percentiles(_known(stats.e2e_s(answer) for answer in inside if answer.is_complete))
    throughput = _tokens(recording, whole, recording.opened_at, recording.closed_at) / window_s
    lags = sorted(tick.lag_s for tick in _ticks_inside(recording)) or [0.0]
    return Cell(
        backend=recording.backend,
        level=recording.pair.level,
        pair=recording.pair.number,
        window_s=window_s,
        throughput=throughput,
        requests=len(whole),
        ttft_s=percentiles(_known(stats.ttft_s(answer) for answer in inside)),
        tpot_s=percentiles(_known(stats.tpot_s(answer) for answer in inside if answer.is_complete)),
        e2e_s=e2e,
        prompt_tokens=statistics.fmean(answer.prompt_tokens or 0 for answer in whole),
        in_flight=_in_flight(recording),
        fill=throughput * e2e.p50 / (recording.pair.level * tokens) if e2e.p50 else None,
        evenness=_evenness(recording, whole),
        phase_order=_phase_order(inside, recording, e2e.p50),
        tokens_per_chunk=_tokens_per_chunk(whole),
        counted_by="usage" if all(answer.is_counted for answer in whole) else "chunks",
        client_cpu=_cpu_share(recording),
        loop_lag_p99_s=lags[int(0.99 * (len(lags) - 1))],
        loop_lag_max_s=lags[-1],
        machine_load=max((tick.machine_load for tick in recording.ticks), default=0.0),
        is_null=recording.pair.is_null,
        requests_per_s=_goodput(recording, whole, Slo()),
        goodput=_goodput(recording, whole, slo) if slo else None,
        cached=_cached(whole),
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _tokens(recording: Recording, whole: list[Answer], start: float, end: float) -> float:
    """Tokens in (start, end]. An answer cut off has no usage: its events weigh what the whole ones' do on average."""
    usual = statistics.fmean(stats.scale(answer) for answer in whole)
    return sum(
        stats.tokens_between(answer, start, end)
        * (stats.scale(answer) if answer.is_complete else 1.0 if answer.is_counted else usual)
        for answer in recording.answers
    )


def _evenness(recording: Recording, whole: list[Answer]) -> float:
    edges = np.linspace(recording.opened_at, recording.closed_at, SLICES + 1)
    counts = [_tokens(recording, whole, start, end) for start, end in pairwise(edges)]
    return min(counts) / statistics.fmean(counts)


def _in_flight(recording: Recording) -> float:
    """Mean number of requests in flight over the window; one cut off was in flight until it closed."""
    start, end = recording.opened_at, recording.closed_at
    ends = (answer.finished_at if answer.finished_at is not None else end for answer in recording.answers)
    spans = zip((answer.started_at for answer in recording.answers), ends, strict=True)
    return sum(max(0.0, min(left, end) - max(began, start)) for began, left in spans) / (end - start)


def _phase_order(inside: list[Answer], recording: Recording, period_s: float | None) -> float | None:
    starts = [answer.started_at for answer in inside][-recording.pair.level :]
    return stats.phase_order(starts, period_s) if starts and period_s else None


def _goodput(recording: Recording, whole: list[Answer], slo: Slo) -> float:
    ended = (answer for answer in whole if recording.opened_at < (answer.finished_at or 0.0) <= recording.closed_at)
    return sum(1 for answer in ended if slo.is_kept(answer)) / (recording.closed_at - recording.opened_at)


def _cached(whole: list[Answer]) -> float | None:
    told = [(answer.cached_tokens, answer.prompt_tokens or 0) for answer in whole if answer.cached_tokens is not None]
    prompts = sum(tokens for _, tokens in told)
    return sum(cached for cached, _ in told) / prompts if prompts else None


def _tokens_per_chunk(whole: list[Answer]) -> float:
    return sum(answer.completion_tokens or 0 for answer in whole) / sum(len(answer.times) for answer in whole)


def _cpu_share(recording: Recording) -> float:
    """Of one core, by the busiest of the client's processes."""
    processes: dict[int, list[Tick]] = {}
    for tick in _ticks_inside(recording):
        processes.setdefault(tick.process, []).append(tick)
    spans = [(ticks[0], ticks[-1]) for ticks in processes.values() if len(ticks) > 1]
    return max(((last.cpu_s - first.cpu_s) / (last.at - first.at) for first, last in spans), default=0.0)


def _ticks_inside(recording: Recording) -> list[Tick]:
    return [tick for tick in recording.ticks if recording.opened_at <= tick.at <= recording.closed_at]
