"""What a calibration reports while it runs. progress_display is for people, progress_json for programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from loadtest.results.cell import Cell, Pair
from loadtest.results.plan import Plan
from loadtest.results.system import SystemUnderTest


class Progress(Protocol):
    """`measured`: all cells so far, the new one last. `estimate_s`: how long the sweep may take."""

    def begin(self, system: SystemUnderTest, plan: Plan, folder: Path, estimate_s: float) -> None: ...

    def measuring(self, pair: Pair, backend: str) -> None: ...

    def measured(self, cells: Sequence[Cell]) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...
