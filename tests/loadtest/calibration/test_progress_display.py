"""What is shown while a calibration runs, on a terminal and elsewhere."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from loadtest.calibration.progress import Progress
from loadtest.calibration.progress_display import LiveProgress, PlainProgress, open_progress
from loadtest.decide.cost import Cost, Price
from loadtest.results.cell import Pair
from loadtest.results.plan import QUICK, Plan
from tests.loadtest.samples import SYSTEM, make_pair

PRICED = replace(QUICK, cost=Cost(gpus={"triton": 2, "vllm": 1}, price=Price(3.6, "EUR")))


def show(progress: Progress, plan: Plan = QUICK) -> None:
    low, high = make_pair(8, ratio=1.25, number=0)
    progress.begin(SYSTEM, plan, Path("runs/x"), estimate_s=75.0)
    for cells in ([low], [low, high]):
        progress.measuring(Pair(8, low_first=True, number=0), cells[-1].backend)
        progress.measured(cells)
    progress.note("measuring again: NOT STEADY [c=8]")
    progress.close()


def test_without_a_terminal_there_is_a_line_per_cell_with_the_ratio_on_the_second() -> None:
    file = StringIO()
    progress = open_progress(Console(file=file))
    assert isinstance(progress, PlainProgress)
    show(progress)
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["8", "triton", "1,000", "20", "ms", "8", "ms"] in lines
    assert ["8", "vllm", "800.0", "20", "ms", "10", "ms", "1.250"] in lines
    assert "measuring again: NOT STEADY [c=8]" in file.getvalue()
    assert "exactly 128 tokens per answer" in file.getvalue()


def test_on_a_terminal_a_row_per_level_is_filled_and_the_table_stays() -> None:
    file = StringIO()
    progress = open_progress(Console(file=file, force_terminal=True, width=120))
    assert isinstance(progress, LiveProgress)
    show(progress)
    shown = file.getvalue()
    assert "probing both backends" in shown
    assert "8 in flight on vllm" in shown
    assert "measuring again: NOT STEADY [c=8]" in shown
    last = shown.rpartition("in flight")[2]
    assert {"1,000", "800.0", "1.250"} <= set(last.split())


@pytest.mark.parametrize(
    ("terminal", "heading", "amount"),
    [(False, "EUR per 1M tok  triton/vllm", "1.25"), (True, "vllm EUR per 1M tok", "1.25")],
)
def test_money_is_shown_where_a_price_was_given(terminal: bool, heading: str, amount: str) -> None:
    file = StringIO()
    show(open_progress(Console(file=file, force_terminal=terminal, width=200)), PRICED)
    assert heading in file.getvalue()
    assert amount in file.getvalue().split()  # 800 tokens a second of vllm's GPU


def test_a_run_that_ends_before_anything_was_measured_closes_its_display() -> None:
    file = StringIO()
    open_progress(Console(file=file, force_terminal=True)).close()
    assert "probing" in file.getvalue()
