"""Users' requests as a trace: when each came, and how many tokens its prompt and its answer had.

In: answers that have finished. Out: within a second, lines of JSON at the end of one file for all workers. No text.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

PAUSE_S = 1.0  # between two writes


class ArrivalsFile:
    """`path` None: nothing is kept, and nothing is to be noted.

    What the disk does not take is lost, and the log reports when that begins.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.is_kept = path is not None
        self._lines: list[str] = []
        self._is_failing = False

    def note(self, at: float, model: str, prompt_tokens: int, tokens: int) -> None:
        """Keeps an answer for the next write. `at`: when its request came, in seconds of the Unix epoch."""
        line = {"at": round(at, 4), "model": model, "prompt_tokens": prompt_tokens, "tokens": tokens}
        self._lines.append(json.dumps(line) + "\n")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Writes while inside, and what is left at the end."""
        if self._path is None:
            yield
            return
        async with asyncio.TaskGroup() as tasks:
            writes = tasks.create_task(self._go_on(self._path))
            try:
                yield
            finally:
                writes.cancel()
        self._write(self._path, self._take())

    async def _go_on(self, path: Path) -> None:
        while True:
            await asyncio.sleep(PAUSE_S)
            if self._lines:
                await asyncio.to_thread(self._write, path, self._take())

    def _take(self) -> list[str]:
        """Returns the lines so far. In the loop's thread, so that no line comes between."""
        lines, self._lines = self._lines, []
        return lines

    def _write(self, path: Path, lines: list[str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:  # one write to the end: workers' lines do not mix
                file.write("".join(lines).encode())
        except OSError as exc:
            if not self._is_failing:
                logger.warning("arrivals cannot be written to %s and are lost until they can: %s", path, exc)
            self._is_failing = True
        else:
            self._is_failing = False
