"""The figures of one workload against one endpoint. Pure.

In: a closed loop's cell, or an open loop's answers. Out: Figures, with sentences on what makes them doubtful.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from loadtest.client.streamed_answer import StreamedAnswer
from loadtest.decide.cost import Cost
from loadtest.decide.slo import Slo
from loadtest.results.cell import Cell, count_kept, mean_in_flight
from loadtest.results.checks import find_flaw
from loadtest.results.percentiles import Percentiles, percentiles

MAX_LAG_SHARE = 0.1  # of the time to first token
MAX_GROWTH = 1.2


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds and events per second. `offered`: requests due per second, in an open loop. `lag_s`: how late requests
    were sent; it is part of their latencies. `tokens_per_gpu_hour` and `cost_per_million_tokens` are set where GPUs and
    price are known.
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


def add_cost(figures: Figures, cost: Cost, backend: str) -> Figures:
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
    answers: Sequence[StreamedAnswer], start: float, end: float, slo: Slo | None, *, is_ramp: bool = False
) -> Figures:
    """Finds latencies of requests due in the window, and rates of tokens that arrived in it. `is_ramp`: the number of
    requests in flight is expected to grow.
    """
    inside = [answer for answer in answers if answer.due_at is not None and start <= answer.due_at < end]
    ended = [answer for answer in answers if start < (answer.finished_at or 0.0) <= end]
    window_s = end - start
    figures = Figures(
        requests=len(inside),
        window_s=window_s,
        tokens_per_s=sum(each.count_between(start, end) * each.tokens_per_count for each in answers) / window_s,
        requests_per_s=len(ended) / window_s,
        in_flight=mean_in_flight(answers, start, end),
        ttft_s=percentiles(answer.ttft_s for answer in inside),
        tpot_s=percentiles(answer.tpot_s for answer in inside),
        e2e_s=percentiles(answer.e2e_s for answer in inside),
        goodput=count_kept(ended, slo) / window_s if slo else None,
        offered=len(inside) / window_s,
        lag_s=percentiles(answer.started_at - (answer.due_at or 0.0) for answer in inside),
    )
    growth = () if is_ramp else _doubt_growth(answers, start, end)
    return replace(figures, doubts=(*_doubt_lag(figures), *growth))


def _doubt_lag(figures: Figures) -> Iterator[str]:
    lag_s, ttft_s = figures.lag_s.p50 if figures.lag_s else None, figures.ttft_s.p50
    if lag_s is not None and ttft_s is not None and lag_s > MAX_LAG_SHARE * ttft_s:
        yield f"CLIENT-BOUND: requests left {lag_s * 1000:.1f} ms late, which is in their latencies."


def _doubt_growth(answers: Sequence[StreamedAnswer], start: float, end: float) -> Iterator[str]:
    """Compares requests in flight in the window's first half with those in its second."""
    middle = (start + end) / 2
    first, second = mean_in_flight(answers, start, middle), mean_in_flight(answers, middle, end)
    if second > MAX_GROWTH * first + 1:
        grown = f"{first:.1f} requests in flight in the first half, {second:.1f} in the second"
        cause = "the endpoint does not keep up with this rate; latencies are as long as the run"
        yield f"NOT STEADY: {grown}: {cause}."
