"""A run's progress for a program: one JSON object a line, each with its `event`; docs/calibration.md lists them.

In: what a Screen hears, and how the run ended. Out: lines on a stream, flushed one by one.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import orjson

from loadtest.cell import Cell
from loadtest.curves import THROUGHPUT
from loadtest.plan import Pair, Plan
from loadtest.report.words import describe_finding
from loadtest.result import Result
from loadtest.subject import Subject


class ProgressLines:
    """A Screen that a program reads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pairs = 0  # of the plan, before refinement
        self._estimate_s = 0.0
        self._began = time.monotonic()
        self._before: int | None = None  # pairs done when the first cell was told: a run that is resumed has some

    def begin(self, subject: Subject, plan: Plan, folder: Path, estimate_s: float) -> None:
        self._pairs, self._estimate_s, self._began = len(plan.schedule()), estimate_s, time.monotonic()
        what = {"model": subject.model, "low": subject.low, "high": subject.high}
        how = {"tokens": plan.tokens, "levels": plan.levels, "pairs": self._pairs}
        where = {"run": folder.name, "folder": str(folder.resolve())}
        self._write("begin", {**where, **what, **how, "refine_pairs": plan.refine_pairs, "left_s": round(estimate_s)})

    def measuring(self, pair: Pair, backend: str) -> None:
        self._write("measuring", {"backend": backend, "level": pair.level})

    def measured(self, cells: Sequence[Cell]) -> None:
        cell, done = cells[-1], _count_pairs(cells)
        figures = {
            "throughput": round(cell.throughput, 2),
            "ttft_p50_s": cell.ttft_s.p50,
            "tpot_p50_s": cell.tpot_s.p50,
        }
        place = {"backend": cell.backend, "level": cell.level, "pair": cell.pair}
        count = {"pairs_done": done, "pairs": self._pairs, "left_s": self._find_left_s(done)}
        self._write("cell", {**place, **figures, "foreign": cell.foreign, **count})

    def note(self, text: str) -> None:
        self._write("note", {"text": text})

    def close(self) -> None:
        pass

    def end(self, status: str, exit_code: int, failure: str | None = None) -> None:
        """Of a run that left no result to tell of."""
        self._write("end", {"status": status, "exit_code": exit_code, "failure": failure})

    def conclude(self, result: Result, exit_code: int) -> None:
        finding = result.finding
        threshold = {"up": result.threshold.up, "down": result.threshold.down} if result.threshold else None
        words = {"verdict": finding.verdict if finding else None, "finding": describe_finding(THROUGHPUT, result)}
        end = {"status": result.status, "exit_code": exit_code, "failure": result.failure}
        self._write("end", {**end, **words, "threshold": threshold, "applied": result.applied})

    def _find_left_s(self, done: int) -> int | None:
        """Until the sweep is over, by what its pairs took so far; how long refinement takes nobody knows."""
        if done >= self._pairs:
            return None
        if self._before is None:
            self._before = done
        if done == self._before:
            return round(self._estimate_s)
        return round((time.monotonic() - self._began) / (done - self._before) * (self._pairs - done))

    def _write(self, event: str, fields: Mapping[str, object]) -> None:
        self._stream.write(orjson.dumps({"event": event, **fields}).decode() + "\n")
        self._stream.flush()


def _count_pairs(cells: Sequence[Cell]) -> int:
    """Whole ones."""
    return sum(1 for cell, other in pairwise(cells) if cell.pair == other.pair)
