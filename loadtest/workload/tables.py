"""What `crossover bench` prints on a terminal."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.decide.cost import Price
from loadtest.decide.slo import Slo
from loadtest.report.text import show_money, show_ms, show_rate, show_tokens
from loadtest.results.percentiles import Percentiles
from loadtest.workload.ceiling import Ceiling, Load
from loadtest.workload.figures import Figures

Rows = Iterable[tuple[str, ...]]


def print_figures(figures: Figures, title: str, slo: Slo | None, price: Price | None) -> None:
    rows = [("TTFT", figures.ttft_s), ("TPOT", figures.tpot_s), ("whole answer", figures.e2e_s)]
    rows += [("sent late by", figures.lag_s)] if figures.lag_s else []
    rates = [f"{show_rate(figures.tokens_per_s)} tok/s", f"{figures.requests_per_s:.2f} requests/s"]
    rates += [f"{figures.goodput:.2f} within {slo}"] if figures.goodput is not None else []
    rates += [f"{figures.in_flight:.1f} in flight", f"{figures.requests} requests in {figures.window_s:.1f} s"]
    lines = (" · ".join(rates), " · ".join(_describe_cost(figures, price)), *figures.doubts)
    _print(title, ("p50", "p90", "p99"), ((name, *_show(times)) for name, times in rows), lines)


def print_ceiling(ceiling: Ceiling) -> None:
    title = f"One client process, {ceiling.streams} streams, a null backend on this machine"
    headings = ("events/s", "CPU", "per CPU s", "lag p99", "late p50", "late p99")
    loads = (("flat out", ceiling.flat_out), ("spread", ceiling.spread), ("in step", ceiling.in_step))
    _print(title, headings, ((name, *_show_load(load)) for name, load in loads), ceiling.doubts)


def _print(title: str, headings: Sequence[str], rows: Rows, lines: Iterable[str]) -> None:
    """Prints a table whose first column has no heading, and the lines below it that are not empty."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    for line in filter(None, lines):
        console.print(line, highlight=False, markup=False)


def _show(times: Percentiles) -> tuple[str, str, str]:
    return show_ms(times.p50), show_ms(times.p90), show_ms(times.p99)


def _show_load(load: Load) -> tuple[str, ...]:
    late = load.lateness_s
    rates = (show_rate(load.events_per_s), f"{load.client_cpu:.0%}", show_rate(load.events_per_cpu_s))
    delays = (show_ms(load.loop_lag_p99_s), show_ms(late.p50) if late else "", show_ms(late.p99) if late else "")
    return *rates, *delays


def _describe_cost(figures: Figures, price: Price | None) -> Iterator[str]:
    if figures.tokens_per_gpu_hour is not None:
        yield f"{show_tokens(figures.tokens_per_gpu_hour)} million tokens per GPU-hour"
    if figures.cost_per_million_tokens is not None and price:
        yield f"{show_money(figures.cost_per_million_tokens, price)} per million tokens"
