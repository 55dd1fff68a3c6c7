"""A run's progress for people: a live table on a terminal, plain lines anywhere else.

In: the events of a run. Out: text on a console. The table is drawn only when a cell begins or ends and once a second in
between, so that drawing does not delay what is being timed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from loadtest.calibration.progress import Progress
from loadtest.decide.cost import NO_COST, Cost
from loadtest.report.text import describe_work, name_money, show_money, show_ms, show_rate, show_ratio
from loadtest.results.cell import Cell, Pair
from loadtest.results.curves import THROUGHPUT, ReadFigure, make_curve, make_trials, mean_gains
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest

Figure = tuple[str, ReadFigure, Callable[[float], str]]
FIGURES: tuple[Figure, ...] = (
    ("tok/s", THROUGHPUT.read, show_rate),
    ("TTFT", lambda cell: cell.ttft_s.p50, show_ms),
    ("TPOT", lambda cell: cell.tpot_s.p50, show_ms),
)


def open_progress(console: Console) -> Progress:
    """Returns the progress that suits the console, already shown. The caller closes it."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class PlainProgress(Progress):
    """One line per cell, with the ratio on the second of a pair."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._low = ""
        self._cost = NO_COST

    def begin(self, system: SystemUnderTest, plan: Plan, folder: Path, estimate_s: float) -> None:
        self._low = system.low
        self._cost = plan.known_cost
        self.note(f"calibrating {system.model}: {system.low} (low load) against {system.high} (high load)")
        self.note(f"{describe_work(plan)}; about {estimate_s:.0f} s, then refinement; {folder}")
        ratio = f"{system.low}/{system.high}"
        money = f"{name_money(self._cost):>16}" if self._cost.price else ""
        self.note(f"{'in flight':>9}  {'backend':<10} {'tok/s':>8} {'TTFT p50':>10} {'TPOT p50':>10}{money}  {ratio}")

    def measured(self, cells: Sequence[Cell]) -> None:
        cell = cells[-1]
        pair = [other for other in cells if other.pair == cell.pair]
        ratio = "".join(show_ratio(trial.gain) for trial in make_trials(pair, self._low))
        rate, ttft, tpot = show_rate(cell.throughput), show_ms(cell.ttft_s.p50), show_ms(cell.tpot_s.p50)
        amount = self._cost.find_per_million(cell.backend, cell.throughput)
        money = f"{show_money(amount):>16}" if self._cost.price else ""
        self.note(f"{cell.level:>9}  {cell.backend:<10} {rate:>8} {ttft:>10} {tpot:>10}{money}  {ratio}".rstrip())

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveProgress(Progress):
    """A table with a row per level, filled as cells finish, and a bar over the sweep."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=1)
        self._bar = ProgressBar(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("of about {task.fields[eta]}"),
        )
        self._task = self._bar.add_task("probing both backends", total=None, eta="…")
        self._cells: Sequence[Cell] = ()
        self._system: SystemUnderTest | None = None
        self._cost = NO_COST
        self._title = ""
        self._live.start()
        self._draw()

    def begin(self, system: SystemUnderTest, plan: Plan, folder: Path, estimate_s: float) -> None:
        self._system, self._cost = system, plan.known_cost
        self._title = f"{system.model} · {describe_work(plan)}"
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
        self._live.update(self._make_table() or "", refresh=True)
        self._live.stop()

    def _draw(self) -> None:
        table = self._make_table()
        self._live.update(Group(table, self._bar) if table else self._bar, refresh=True)

    def _make_table(self) -> Table | None:
        return draw_table(self._cells, self._system, self._title, self._cost) if self._system else None


def draw_table(cells: Sequence[Cell], system: SystemUnderTest, title: str, cost: Cost = NO_COST) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    money: Figure = (name_money(cost), lambda cell: cost.find_per_million(cell.backend, cell.throughput), show_money)
    figures = [*FIGURES, *([money] if cost.price else [])]
    for heading in ("in flight", *(f"{name} {what}" for what, _, _ in figures for name in system.backends)):
        table.add_column(heading, justify="right")
    table.add_column(f"{system.low}/{system.high}", justify="right")
    columns = [
        {level: show(value) for level, value in make_curve(cells, backend, read)}
        for _, read, show in figures
        for backend in system.backends
    ]
    ratios = {level: show_ratio(gain) for level, gain in mean_gains(make_trials(cells, system.low)).items()}
    for level in sorted({cell.level for cell in cells}):
        table.add_row(str(level), *(column.get(level, "") for column in columns), ratios.get(level, ""))
    return table
