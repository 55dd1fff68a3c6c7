"""What a calibration shows while it runs: a live table on a terminal, plain lines anywhere else.

In: events of the run. Out: text on a console. Drawn only when a cell begins or ends and once a second in between, so
that drawing does not delay what is being timed.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from loadtest.cell import Cell
from loadtest.cost import NO_COST, Cost
from loadtest.curves import THROUGHPUT, make_trials, mean_gains, series
from loadtest.plan import Pair, Plan
from loadtest.report.cost import name_money
from loadtest.report.words import describe_work, show_money, show_ms, show_rate, show_ratio
from loadtest.subject import Subject

Figure = tuple[str, Callable[[Cell], float | None], Callable[[float], str]]
FIGURES: tuple[Figure, ...] = (
    ("tok/s", THROUGHPUT.read, show_rate),
    ("TTFT", lambda cell: cell.ttft_s.p50, show_ms),
    ("TPOT", lambda cell: cell.tpot_s.p50, show_ms),
)


class Screen(Protocol):
    def begin(self, subject: Subject, plan: Plan, folder: Path, estimate_s: float) -> None: ...

    def measuring(self, pair: Pair, backend: str) -> None: ...

    def measured(self, cells: Sequence[Cell]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def make_screen(console: Console) -> Screen:
    """The right one for the console, already showing; close it."""
    return LiveScreen(console) if console.is_terminal else PlainScreen(console)


class PlainScreen:
    """One line per cell, the ratio on the second of a pair."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._low = ""
        self._cost = NO_COST

    def begin(self, subject: Subject, plan: Plan, folder: Path, estimate_s: float) -> None:
        self._low = subject.low
        self._cost = plan.known_cost
        self._print(f"calibrating {subject.model}: {subject.low} (low load) against {subject.high} (high load)")
        self._print(f"{describe_work(plan)}; about {estimate_s:.0f} s, then refinement; {folder}")
        ratio = f"{subject.low}/{subject.high}"
        money = f"{name_money(self._cost):>16}" if self._cost.price else ""
        self._print(f"{'in flight':>9}  {'backend':<10} {'tok/s':>8} {'TTFT p50':>10} {'TPOT p50':>10}{money}  {ratio}")

    def measuring(self, pair: Pair, backend: str) -> None:
        pass

    def measured(self, cells: Sequence[Cell]) -> None:
        cell = cells[-1]
        pair = [other for other in cells if other.pair == cell.pair]
        ratio = "".join(show_ratio(trial.gain) for trial in make_trials(pair, self._low))
        rate, ttft, tpot = show_rate(cell.throughput), show_ms(cell.ttft_s.p50), show_ms(cell.tpot_s.p50)
        money = f"{self._show_money(cell):>16}" if self._cost.price else ""
        self._print(f"{cell.level:>9}  {cell.backend:<10} {rate:>8} {ttft:>10} {tpot:>10}{money}  {ratio}".rstrip())

    def _show_money(self, cell: Cell) -> str:
        return show_money(self._cost.find_per_million(cell.backend, cell.throughput))

    def note(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveScreen:
    """A row per level that fills as cells finish, and a bar over the sweep."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=1)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("of about {task.fields[eta]}"),
        )
        self._task = self._bar.add_task("probing both backends", total=None, eta="…")
        self._cells: Sequence[Cell] = ()
        self._subject: Subject | None = None
        self._cost = NO_COST
        self._title = ""
        self._live.start()
        self._draw()

    def begin(self, subject: Subject, plan: Plan, folder: Path, estimate_s: float) -> None:
        self._subject, self._cost = subject, plan.known_cost
        self._title = f"{subject.model} · {describe_work(plan)}"
        self._bar.update(self._task, total=2 * len(plan.schedule()), eta=f"{estimate_s:.0f} s + refinement")
        self._draw()

    def measuring(self, pair: Pair, backend: str) -> None:
        self._bar.update(self._task, description=f"{pair.level} in flight on {backend}")
        self._draw()

    def measured(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self._bar.update(self._task, completed=len(cells))
        self._draw()

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.update(self._table() or "", refresh=True)
        self._live.stop()

    def _draw(self) -> None:
        table = self._table()
        self._live.update(Group(table, self._bar) if table else self._bar, refresh=True)

    def _table(self) -> RenderableType | None:
        if self._subject is None:
            return None
        return draw_table(self._cells, self._subject, self._title, self._cost)


def draw_table(cells: Sequence[Cell], subject: Subject, title: str, cost: Cost = NO_COST) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    figures = [*FIGURES, *_costs(cost)]
    for heading in ("in flight", *(f"{name} {what}" for what, _, _ in figures for name in subject.backends)):
        table.add_column(heading, justify="right")
    table.add_column(f"{subject.low}/{subject.high}", justify="right")
    columns = [
        {level: show(value) for level, value in series(cells, backend, read)}
        for _, read, show in figures
        for backend in subject.backends
    ]
    ratios = {level: show_ratio(gain) for level, gain in mean_gains(make_trials(cells, subject.low)).items()}
    for level in sorted({cell.level for cell in cells}):
        table.add_row(str(level), *(column.get(level, "") for column in columns), ratios.get(level, ""))
    return table


def _costs(cost: Cost) -> Iterator[Figure]:
    if cost.price:
        yield name_money(cost), lambda cell: cost.find_per_million(cell.backend, cell.throughput), show_money
