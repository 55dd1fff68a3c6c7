"""What is shown while a calibration runs, on a terminal and elsewhere."""

from io import StringIO
from pathlib import Path

from rich.console import Console

from loadtest.plan import QUICK, Pair
from loadtest.screen import LiveScreen, PlainScreen, Screen, make_screen
from tests.loadtest.samples import SUBJECT, make_pair


def run_screen(screen: Screen) -> None:
    low, high = make_pair(8, ratio=1.25, number=0)
    screen.begin(SUBJECT, QUICK, Path("runs/x"), estimate_s=75.0)
    for cells in ([low], [low, high]):
        screen.measuring(Pair(8, low_first=True, number=0), cells[-1].backend)
        screen.measured(cells)
    screen.note("measuring again: NOT STEADY [c=8]")
    screen.close()


def test_plain_screen_writes_a_line_per_cell_and_the_ratio_on_the_second() -> None:
    file = StringIO()
    screen = make_screen(Console(file=file))
    assert isinstance(screen, PlainScreen)
    run_screen(screen)
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["8", "triton", "1,000", "20", "ms", "8", "ms"] in lines
    assert ["8", "vllm", "800.0", "20", "ms", "10", "ms", "1.250"] in lines
    assert "measuring again: NOT STEADY [c=8]" in file.getvalue()
    assert "exactly 32 tokens per answer" in file.getvalue()


def test_live_screen_fills_a_row_per_level_and_leaves_the_table() -> None:
    file = StringIO()
    screen = make_screen(Console(file=file, force_terminal=True, width=120))
    assert isinstance(screen, LiveScreen)
    run_screen(screen)
    shown = file.getvalue()
    assert "probing both backends" in shown
    assert "8 in flight on vllm" in shown
    assert "measuring again: NOT STEADY [c=8]" in shown
    last = shown.rpartition("in flight")[2]
    assert {"1,000", "800.0", "1.250"} <= set(last.split())


def test_live_screen_closes_before_anything_was_measured() -> None:
    file = StringIO()
    make_screen(Console(file=file, force_terminal=True)).close()
    assert "probing" in file.getvalue()
