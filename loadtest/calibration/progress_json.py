"""A run's progress for a program: one JSON object a line, each with its `event`; docs/calibration.md lists them.

In: the events of a run, and how it ended. Out: lines on a stream, flushed one by one.
"""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TextIO

import orjson

from loadtest.calibration.progress import Progress
from loadtest.report.text import describe_finding
from loadtest.results.cell import Cell, Pair
from loadtest.results.curves import THROUGHPUT
from loadtest.results.plan import Plan
from loadtest.results.result import Result
from loadtest.results.system import SystemUnderTest


class JsonProgress(Progress):
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._pairs = 0  # of the plan, before refinement
        self._estimate_s = 0.0
        self._began = time.monotonic()
        self._before: int | None = None  # pairs done when the first cell was reported: a resumed run has some

    def begin(self, system: SystemUnderTest, plan: Plan, folder: Path, estimate_s: float) -> None:
        self._pairs, self._estimate_s, self._began = len(plan.schedule()), estimate_s, time.monotonic()
        what = {"model": system.model, "low": system.low, "high": system.high}
        how = {"tokens": plan.tokens, "levels": plan.levels, "pairs": self._pairs}
        where = {"run": folder.name, "folder": str(folder.resolve())}
        self._write("begin", {**where, **what, **how, "refine_pairs": plan.refine_pairs, "left_s": round(estimate_s)})

    def measuring(self, pair: Pair, backend: str) -> None:
        self._write("measuring", {"backend": backend, "level": pair.level})

    def measured(self, cells: Sequence[Cell]) -> None:
        cell, done = cells[-1], sum(1 for cell, other in pairwise(cells) if cell.pair == other.pair)
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

    def end(self, status: str, exit_code: int, failure: str | None = None) -> None:
        """Writes the last line of a run without a result."""
        self._write("end", {"status": status, "exit_code": exit_code, "failure": failure})

    def conclude(self, result: Result, exit_code: int) -> None:
        """Writes the last line of a run with a result."""
        finding = result.finding
        threshold = {"up": result.threshold.up, "down": result.threshold.down} if result.threshold else None
        words = {"verdict": finding.verdict if finding else None, "finding": describe_finding(THROUGHPUT, result)}
        end = {"status": result.status, "exit_code": exit_code, "failure": result.failure}
        self._write("end", {**end, **words, "threshold": threshold, "applied": result.applied})

    def _find_left_s(self, done: int) -> int | None:
        """Estimates the seconds until the sweep is over, by the pace of its pairs so far; None in refinement."""
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
