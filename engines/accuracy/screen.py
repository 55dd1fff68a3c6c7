"""How far a run is: a bar on a terminal, a line for every tenth elsewhere; always on stderr."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

STEPS = 10


class Screen:
    def __init__(self, items: int) -> None:
        self._console = Console(stderr=True)
        self._items = items
        self._done = 0
        self._began = time.monotonic()
        self._bar = Progress(
            *Progress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("asking both", total=items)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self._bar.stop()

    def advance(self) -> None:
        self._done += 1
        self._bar.advance(self._task)
        if self._bar.disable and self._done * STEPS // self._items > (self._done - 1) * STEPS // self._items:
            seconds = time.monotonic() - self._began
            self._console.print(f"{self._done} of {self._items} items, {seconds:.0f} s", highlight=False)
