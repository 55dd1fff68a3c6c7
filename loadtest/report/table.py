"""Both reports' table: one row per cell, text in every field. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from loadtest.cell import Cell
from loadtest.cost import Cost
from loadtest.curves import make_trials, mean_gains
from loadtest.report.cost import name_money
from loadtest.report.words import show_money, show_ms, show_rate, show_ratio, show_tokens
from loadtest.result import Result
from loadtest.stats import Percentiles


@dataclass(frozen=True, slots=True)
class Row:
    """`is_first` where a level begins; the mean ratio of its pairs stands there."""

    fields: tuple[str, ...]
    is_first: bool


@dataclass(frozen=True, slots=True)
class Table:
    headings: tuple[str, ...]
    rows: Sequence[Row]


Column = tuple[str, Callable[[Cell], str]]


def make_table(result: Result) -> Table:
    """Without the percentiles that no cell has samples enough for, and what nobody told the price or the GPUs of."""
    order = {name: index for index, name in enumerate(result.subject.backends)}
    cells = sorted(result.cells, key=lambda cell: (cell.level, order[cell.backend], cell.pair))
    columns = [*_counts(), *_costs(result.plan.known_cost), *_latencies(cells)]
    gains = mean_gains(make_trials(result.cells, result.subject.low))
    ratios = {level: show_ratio(gain) for level, gain in gains.items()}
    rows = []
    for before, cell in zip([None, *cells], cells, strict=False):
        is_first = before is None or before.level != cell.level
        ratio = ratios.get(cell.level, "") if is_first else ""
        rows.append(Row((*(show(cell) for _, show in columns), ratio), is_first))
    return Table((*(heading for heading, _ in columns), "ratio"), rows)


def _counts() -> Iterator[Column]:
    yield "in flight", lambda cell: str(cell.level)
    yield "backend", lambda cell: cell.backend
    yield "tok/s", lambda cell: show_rate(cell.throughput)
    yield "requests", lambda cell: str(cell.requests)


def _costs(cost: Cost) -> Iterator[Column]:
    if cost.gpus:
        yield "M tok/GPU-h", lambda cell: show_tokens(cost.find_tokens_per_gpu_hour(cell.backend, cell.throughput))
    if cost.gpus and cost.price:
        yield name_money(cost), lambda cell: show_money(cost.find_per_million(cell.backend, cell.throughput))


def _latencies(cells: Sequence[Cell]) -> Iterator[Column]:
    for metric, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "E2E")):
        for quantile in ("p50", "p90", "p99"):
            read = partial(_read, metric=metric, quantile=quantile)
            if any(read(cell) is not None for cell in cells):
                yield f"{name} {quantile}", lambda cell, read=read: show_ms(read(cell))  # type: ignore[misc]  # default


def _read(cell: Cell, metric: str, quantile: str) -> float | None:
    times: Percentiles = getattr(cell, metric)
    value: float | None = getattr(times, quantile)
    return value
