"""The table of cells in both reports: one row per cell, text in every field. Pure."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter

from loadtest.decide.cost import Cost
from loadtest.report.text import name_money, show_money, show_ms, show_rate, show_ratio, show_tokens
from loadtest.results.cell import Cell
from loadtest.results.curves import make_trials, mean_gains
from loadtest.results.result import Result

Column = tuple[str, Callable[[Cell], str]]


def make_table(result: Result) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Returns headings and rows, without percentiles that every cell has too few samples for, and without costs that
    are not known. The first row of each level has the mean ratio of the level's pairs.
    """
    order = {name: index for index, name in enumerate(result.system.backends)}
    cells = sorted(result.cells, key=lambda cell: (cell.level, order[cell.backend], cell.pair))
    columns = [*_counts(), *_costs(result.plan.known_cost), *_latencies(cells)]
    gains = mean_gains(make_trials(result.cells, result.system.low))
    ratios = {level: show_ratio(gain) for level, gain in gains.items()}
    rows: list[Sequence[str]] = []
    for before, cell in zip([None, *cells], cells, strict=False):
        is_first = before is None or before.level != cell.level
        rows.append([*(show(cell) for _, show in columns), ratios.get(cell.level, "") if is_first else ""])
    return [*(heading for heading, _ in columns), "ratio"], rows


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
            read = attrgetter(f"{metric}.{quantile}")
            if any(read(cell) is not None for cell in cells):
                yield f"{name} {quantile}", partial(_show, read)


def _show(read: Callable[[Cell], float | None], cell: Cell) -> str:
    return show_ms(read(cell))
