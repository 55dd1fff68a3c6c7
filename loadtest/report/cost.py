"""Costs in words and columns. Pure."""

from collections.abc import Iterator, Sequence

from loadtest.cell import Cell
from loadtest.cost import Cost
from loadtest.curves import THROUGHPUT, series
from loadtest.report.words import show_money, show_tokens
from loadtest.result import Result


def name_money(cost: Cost) -> str:
    currency = cost.price.currency if cost.price else ""
    return f"{currency or 'money'} per 1M tok"


def describe_costs(result: Result) -> list[str]:
    """A sentence for each backend whose GPUs are known: what it costs at the level where it costs least."""
    cost = result.plan.known_cost
    return [line for backend in result.subject.backends for line in _describe(result.cells, cost, backend)]


def _describe(cells: Sequence[Cell], cost: Cost, backend: str) -> Iterator[str]:
    gpus = cost.find_gpus(backend)
    rates = series(cells, backend, THROUGHPUT.read)
    if gpus is None or not rates:
        return
    level, rate = max(rates, key=lambda point: point[1])
    tokens, money = cost.find_tokens_per_gpu_hour(backend, rate), cost.find_per_million(backend, rate)
    figures = [f"{show_tokens(tokens)} million tokens per GPU-hour"]
    if money is not None:
        figures.append(f"{show_money(money, cost.price)} per million tokens")
    yield f"{backend} on {gpus} GPU{'s' if gpus > 1 else ''}: at best {', '.join(figures)}, at {level} in flight"
