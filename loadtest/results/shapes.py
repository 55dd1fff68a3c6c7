"""Sizes of requests, and how the crossing moves with them. Pure.

In: the results of one calibration's shapes, the first of which made the threshold. Out: a ShapeComparison.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from loadtest.decide.confidence import do_overlap
from loadtest.decide.crossing import Change, find_clear
from loadtest.decide.estimate import estimate
from loadtest.decide.threshold import Threshold
from loadtest.results.curves import make_trials
from loadtest.results.plan import Plan
from loadtest.results.result import Result

SHAPE = re.compile(r"(\d{1,6})x(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Shape:
    """The words of the prompt, besides some twenty tokens that make it unique; the exact tokens of the answer."""

    prompt_words: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parses "WORDSxTOKENS". Raises ValueError that names what is wrong."""
        if not (found := SHAPE.fullmatch(text)):
            raise ValueError(f"{text}: a shape is words of a prompt and tokens of an answer, like 512x64")
        shape = cls(int(found[1]), int(found[2]))
        if shape.prompt_words < 1 or shape.tokens < 2:
            raise ValueError(f"{text}: a prompt has at least one word, an answer at least two tokens")
        return shape

    @classmethod
    def of(cls, plan: Plan) -> "Shape":
        return cls(plan.prompt_words, plan.tokens)

    def __str__(self) -> str:
        return f"{self.prompt_words}x{self.tokens}"


@dataclass(frozen=True, slots=True)
class LevelLoss:
    """The share by which `backend`, to which a threshold sends requests at `level`, is behind the other backend."""

    level: int
    backend: str
    share: float


@dataclass(frozen=True, slots=True)
class ShapeResult:
    """One shape's result. `losses`: what the first shape's threshold loses, at levels whose winner is sure."""

    shape: Shape
    result: Result
    losses: tuple[LevelLoss, ...]

    @property
    def change(self) -> Change | None:
        return self.result.finding.change if self.result.finding else None

    @property
    def worst(self) -> LevelLoss | None:
        return max(self.losses, key=lambda loss: loss.share, default=None)


@dataclass(frozen=True, slots=True)
class ShapeComparison:
    """The shapes compared. `moved`: pairs of shapes whose crossings' confidence sets have nothing in common."""

    threshold: Threshold | None
    rows: tuple[ShapeResult, ...]
    moved: tuple[tuple[Shape, Shape], ...]


def compare_shapes(results: Sequence[Result]) -> ShapeComparison:
    """Compares at least one result. The threshold is that of the first."""
    threshold = results[0].threshold
    rows = tuple(
        ShapeResult(Shape.of(result.plan), result, tuple(_find_losses(result, threshold))) for result in results
    )
    placed = [(row.shape, row.change) for row in rows if row.change is not None]
    moved = tuple((one, other) for (one, a), (other, b) in combinations(placed, 2) if not do_overlap(a.set, b.set))
    return ShapeComparison(threshold, rows, moved)


def _find_losses(result: Result, threshold: Threshold | None) -> list[LevelLoss]:
    """Finds losses, none between down and up: there the load's direction decides which backend gets a request."""
    known = estimate(make_trials(result.cells, result.system.low))
    if threshold is None or known is None:
        return []
    low, high = result.system.backends
    return [
        LevelLoss(level.level, low if level.gain < 0 else high, 1 - math.exp(-abs(level.gain)))
        for level in find_clear(known)
        if (level.gain < 0 and level.level <= threshold.down) or (level.gain > 0 and level.level >= threshold.up)
    ]
