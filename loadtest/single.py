"""One workload against one endpoint, told as figures. Pure.

In: a closed loop's cell, or an open loop's answers. Out: Figures, and what makes them doubtful.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadtest import stats
from loadtest.answer import Answer
from loadtest.cell import Cell
from loadtest.checks import find_flaw
from loadtest.cost import Cost
from loadtest.slo import Slo
from loadtest.stats import Percentiles, percentiles

MAX_LAG_SHARE = 0.1  # of the time to first token
MAX_GROWTH = 1.2


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds and events per second. `offered`: requests due per second, in an open loop. `lag_s`: what requests were
    sent late by; it is in their latencies. `tokens_per_gpu_hour` and `cost_per_million_tokens`: where GPUs
    and price were told.
    """

    requests: int
    window_s: float
    tokens_per_s: float
    requests_per_s: float
    in_flight: float
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles
    goodput: float | None = None
    offered: float | None = None
    lag_s: Percentiles | None = None
    tokens_per_gpu_hour: float | None = None
    cost_per_million_tokens: float | None = None
    doubts: tuple[str, ...] = ()


def price(figures: Figures, cost: Cost, backend: str) -> Figures:
    return replace(
        figures,
        tokens_per_gpu_hour=cost.find_tokens_per_gpu_hour(backend, figures.tokens_per_s),
        cost_per_million_tokens=cost.find_per_million(backend, figures.tokens_per_s),
    )


def figures_of_cell(cell: Cell) -> Figures:
    flaw = find_flaw(cell)
    return Figures(
        requests=cell.requests,
        window_s=cell.window_s,
        tokens_per_s=cell.throughput,
        requests_per_s=cell.requests_per_s,
        in_flight=cell.in_flight,
        ttft_s=cell.ttft_s,
        tpot_s=cell.tpot_s,
        e2e_s=cell.e2e_s,
        goodput=cell.goodput,
        doubts=(flaw,) if flaw else (),
    )


def figures_of_answers(
    answers: Sequence[Answer], start: float, end: float, slo: Slo | None, *, is_ramp: bool = False
) -> Figures:
    """Latencies of requests due in the window, tokens that came in it. In a ramp what is in flight has to change."""
    inside = [answer for answer in answers if answer.due_at is not None and start <= answer.due_at < end]
    ended = [answer for answer in answers if start < (answer.finished_at or 0.0) <= end]
    window_s = end - start
    lags = percentiles([answer.started_at - (answer.due_at or 0.0) for answer in inside])
    ttft = percentiles([seconds for answer in inside if (seconds := stats.ttft_s(answer)) is not None])
    tokens = sum(stats.tokens_between(answer, start, end) * stats.scale(answer) for answer in answers)
    return Figures(
        requests=len(inside),
        window_s=window_s,
        tokens_per_s=tokens / window_s,
        requests_per_s=len(ended) / window_s,
        in_flight=_in_flight(answers, start, end),
        ttft_s=ttft,
        tpot_s=percentiles([seconds for answer in inside if (seconds := stats.tpot_s(answer)) is not None]),
        e2e_s=percentiles([seconds for answer in inside if (seconds := stats.e2e_s(answer)) is not None]),
        goodput=sum(map(slo.is_kept, ended)) / window_s if slo else None,
        offered=len(inside) / window_s,
        lag_s=lags,
        doubts=(*_doubt_lag(lags, ttft), *(() if is_ramp else _doubt_growth(answers, start, end))),
    )


def _doubt_lag(lags: Percentiles, ttft: Percentiles) -> tuple[str, ...]:
    if lags.p50 is None or ttft.p50 is None or lags.p50 <= MAX_LAG_SHARE * ttft.p50:
        return ()
    return (f"CLIENT-BOUND: requests left {lags.p50 * 1000:.1f} ms late, which is in their latencies.",)


def _doubt_growth(answers: Sequence[Answer], start: float, end: float) -> tuple[str, ...]:
    """Whether more are in flight in the window's second half than in its first."""
    middle = (start + end) / 2
    first, second = _in_flight(answers, start, middle), _in_flight(answers, middle, end)
    if second <= MAX_GROWTH * first + 1:
        return ()
    grown = f"{first:.1f} requests in flight in the first half, {second:.1f} in the second"
    return (f"NOT STEADY: {grown}: the endpoint does not keep up with this rate; latencies are as long as the run.",)


def _in_flight(answers: Sequence[Answer], start: float, end: float) -> float:
    spans = (
        (answer.due_at or answer.started_at, answer.finished_at if answer.finished_at is not None else end)
        for answer in answers
    )
    return sum(max(0.0, min(left, end) - max(began, start)) for began, left in spans) / (end - start)
