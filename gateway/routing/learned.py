"""What policies have learned of the engines, in a file with which the gateway's next start goes on.

In: what policies keep of their states, and the engines that they learned it of. Out: the same, at the next start. Knows
neither policies nor what they keep.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import orjson

from gateway.background import running
from gateway.core import Kept
from gateway.routing.states import Fingerprint
from gateway.state_folder import locked, read_anew, read_object, set_aside, write_whole

logger = logging.getLogger(__name__)

NAME = "learned.json"
PAUSE_S = 30.0  # between two writes


@dataclass(frozen=True, slots=True)
class Learned:
    """`kind`: of the policy that keeps it. `engines`: those that it was learned of."""

    kind: str
    kept: Kept
    engines: Fingerprint


AllLearned: TypeAlias = Mapping[str, Learned | None]  # by model; None: nothing


class LearnedFile:
    """learned.json in a folder; `folder` None: nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.path = folder / NAME if folder else None
        self._written: AllLearned = {}
        self._is_failing = False

    def read(self, model: str, kind: str) -> Learned | None:
        """Returns what a model's policy of this kind has learned. Raises OSError, and ValueError for anything else."""
        try:
            entry = read_object(self.path).get(model)
        except ValueError as exc:
            if self._folder is not None and self.path is not None:
                with suppress(OSError), locked(self._folder):
                    set_aside(self.path, exc)
            raise
        match entry:
            case None:
                return None
            case {"kind": str(by), "kept": dict(kept), "engines": dict(engines)}:
                if by != kind:
                    raise ValueError(f"a policy of kind {by} has learned it")
                if all(isinstance(engine, dict) for engine in engines.values()):
                    return Learned(kind, kept, engines)
        raise ValueError(f"its entry of {model} has another form")

    def write(self, learned: AllLearned) -> None:
        """Writes it, all or nothing, if it is other than what was written last. Other models' entries stay."""
        if self._folder is None or learned == self._written:
            return
        try:
            with locked(self._folder) as folder:
                entries = {**read_anew(self.path), **{model: each and asdict(each) for model, each in learned.items()}}
                if entries := {model: entry for model, entry in entries.items() if entry is not None}:
                    write_whole(self._folder / NAME, orjson.dumps(entries, option=orjson.OPT_INDENT_2))
                else:
                    (self._folder / NAME).unlink(missing_ok=True)
                os.fsync(folder)
        except OSError as exc:
            if not self._is_failing:
                logger.warning("what policies have learned ends with this gateway: cannot write %s: %s", self.path, exc)
            self._is_failing = True
        else:
            self._written, self._is_failing = learned, False


@asynccontextmanager
async def keeping(file: LearnedFile, find: Callable[[], AllLearned]) -> AsyncIterator[None]:
    """Writes what `find` returns, every PAUSE_S while inside, and at the end. One process of the node does this."""
    async with running(_go_on(file, find)):
        yield
    file.write(find())


async def _go_on(file: LearnedFile, find: Callable[[], AllLearned]) -> None:
    while True:
        await asyncio.sleep(PAUSE_S)
        await asyncio.to_thread(file.write, find())
