"""What a calibration reports while it runs. progress_display is for people, progress_json for programs."""

from collections.abc import Sequence
from pathlib import Path

from loadtest.results.cell import Cell, Pair
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest


class Progress:
    """Reports nothing; subclasses override what they report. `cells`: all cells so far, the new one last. `estimate_s`:
    how long the sweep may take.
    """

    def begin(self, system: SystemUnderTest, plan: Plan, folder: Path, estimate_s: float) -> None:
        pass

    def measuring(self, pair: Pair, backend: str) -> None:
        pass

    def measured(self, cells: Sequence[Cell]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def close(self) -> None:
        pass
