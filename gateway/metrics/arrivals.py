"""Users' requests as a trace: when each came, how many tokens its prompt and its answer had, and what prompts share.

In: answers that have finished. Out: within a second, lines of JSON at the end of one file for all workers. No text.
"""

import asyncio
import json
import logging
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path

from gateway.background import running

logger = logging.getLogger(__name__)

PAUSE_S = 1.0  # between two writes
MAX_LINES = 100_000  # that wait for a write, about 30 MB
BLOCK = 256  # tokens of a block of a prompt
MAX_BLOCKS = 128  # of one prompt
HASH_BYTES = 6


class ArrivalsFile:
    """`path` None: nothing is kept, and nothing is to be noted. `salt`: of the blocks' hashes, up to 64 bytes.

    What the disk does not take is lost, and the log reports when that begins.
    """

    def __init__(self, path: Path | None, salt: bytes = b"") -> None:
        self._path = path
        self._salt = salt
        self.is_kept = path is not None
        self._lines: list[str] = []
        self._is_failing = False

    def note(self, at: float, model: str, prompt: int | Sequence[int], tokens: int) -> None:
        """Keeps an answer for the next write. `at`: when its request came, in seconds of the Unix epoch. `prompt`: its
        token ids, or how many they are where the ids are not known.
        """
        if len(self._lines) >= MAX_LINES:
            self._report_loss("the disk takes them more slowly than they come")
            return
        count, prefix = (
            (prompt, []) if isinstance(prompt, int) else (len(prompt), list(hash_blocks(prompt, self._salt)))
        )
        line: dict[str, object] = {"at": round(at, 4), "model": model, "prompt_tokens": count, "tokens": tokens}
        if prefix:
            line |= {"prefix": prefix, "block": BLOCK}
        self._lines.append(json.dumps(line) + "\n")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Writes while inside, and what is left at the end."""
        if self._path is None:
            yield
            return
        async with running(self._go_on(self._path)):
            yield
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
            self._report_loss(exc)
        else:
            self._is_failing = False

    def _report_loss(self, cause: object) -> None:
        if not self._is_failing:
            logger.warning("arrivals cannot be written to %s and are lost until they can: %s", self._path, cause)
        self._is_failing = True


def hash_blocks(token_ids: Sequence[int], salt: bytes) -> Iterator[int]:
    """Yields a hash for each of the leading whole blocks, of all tokens up to the block's end: 140 us for 8,000 tokens.

    The salt keeps anybody who does not have it from finding out by trial what a prompt was.
    """
    count = min(len(token_ids) // BLOCK, MAX_BLOCKS)
    packed = memoryview(array("I", token_ids[: count * BLOCK])).cast("B")
    size, state = BLOCK * array("I").itemsize, blake2b(digest_size=HASH_BYTES, key=salt)
    for start in range(0, count * size, size):
        state.update(packed[start : start + size])
        yield int.from_bytes(state.digest(), "big")
