"""cells.csv: one row per cell that was not measured again, units in the columns' names. Pure."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter

from loadtest.decide.cost import NO_COST, Cost
from loadtest.report.gpu_table import sum_power_w
from loadtest.results.cell import Cell

Value = str | int | float | bool | None
Column = tuple[str, Callable[[Cell], Value]]


def render_csv(cells: Iterable[Cell], cost: Cost = NO_COST) -> str:
    """Writes a heading line and the cells in the order measured. Percentiles of too few samples and unknown costs are
    empty fields.
    """
    columns, text = [*_columns(), *_costs(cost)], io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading for heading, _ in columns)
    writer.writerows([read(cell) for _, read in columns] for cell in cells if not cell.void)
    return text.getvalue()


def _columns() -> Iterator[Column]:
    yield from map(_plain, ("backend", "level", "pair", "is_null", "window_s"))
    yield "throughput_tok_s", attrgetter("throughput")
    yield from map(_plain, ("requests", "requests_per_s"))
    yield "goodput_requests_per_s", attrgetter("goodput")
    for name in ("ttft", "tpot", "e2e"):
        yield f"{name}_samples", attrgetter(f"{name}_s.n")
        yield from ((f"{name}_{quantile}_s", attrgetter(f"{name}_s.{quantile}")) for quantile in ("p50", "p90", "p99"))
    yield from map(_plain, ("prompt_tokens", "in_flight", "fill", "evenness", "phase_order", "tokens_per_chunk"))
    yield "cached_prompt_share", attrgetter("cached")
    yield "foreign_share", attrgetter("foreign")
    yield "counted_by", attrgetter("counted_by")
    yield "client_cpu_share", attrgetter("client_cpu")
    yield from map(_plain, ("loop_lag_p99_s", "loop_lag_max_s"))
    yield "machine_load_per_core", attrgetter("machine_load")
    yield "gpu_power_w", sum_power_w


def _costs(cost: Cost) -> Iterator[Column]:
    """Yields the columns of costs: output tokens, and money in the price's currency."""
    yield "gpu_count", lambda cell: cost.find_gpus(cell.backend)
    yield "tokens_per_gpu_hour", lambda cell: cost.find_tokens_per_gpu_hour(cell.backend, cell.throughput)
    yield "cost_per_million_tokens", lambda cell: cost.find_per_million(cell.backend, cell.throughput)


def _plain(name: str) -> Column:
    return name, attrgetter(name)
