"""The result of all items together: B's loss, with intervals, and whether it is more than allowed. Pure.

In: Comparisons and what is allowed. Out: Findings. A positive difference is a loss of B's.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engines.accuracy.comparison import Comparison
from engines.accuracy.divergence import Divergence
from engines.accuracy.intervals import Interval, mcnemar, paired_difference, ratio_of_sums

Verdict: TypeAlias = Literal["loss", "none found", "ruled out", "not judged"]
SCORE, SURPRISAL, DIVERGENCE = "score", "surprisal", "divergence"
# In nats per token. Log-probabilities are float32, and sums whose order depends on the batch move them by 1e-6; for
# divergences, which go by its square, what counts is the mass beyond the likeliest tokens (divergence.MIN_MASS).
RESOLUTION = {SCORE: 0.0, SURPRISAL: 1e-5, DIVERGENCE: 1e-6}


@dataclass(frozen=True, slots=True)
class Allowed:
    """`points` of score out of 100; `surprisal` and `divergence` in nats per token. None: reported, not judged."""

    points: float = 0.0
    surprisal: float | None = 0.0
    divergence: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One measure, of `items` items; `task` is None for all tasks together."""

    measure: str
    task: str | None
    unit: str
    items: int
    interval: Interval
    allowed: float | None

    @property
    def verdict(self) -> Verdict:
        """A loss where the whole interval lies above what is allowed; ruled out where the whole lies within."""
        if self.allowed is None:
            return "not judged"
        limit = max(self.allowed, RESOLUTION[self.measure])
        if self.interval.low > limit:
            return "loss"
        return "ruled out" if self.interval.high <= limit else "none found"


@dataclass(frozen=True, slots=True)
class Score:
    """How many items of a task A and B got right; `lost`: A alone, `gained`: B alone. `p`: McNemar's exact p-value."""

    task: str
    items: int
    a_right: int
    b_right: int
    lost: int
    gained: int
    p: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """Greedy answers of which both endpoints returned the ids.

    `equal` and `prefix` are shares of all tokens: equal place by place, and before the first that differs.
    `median_divergence`: the (lower) median place of that first one, from 0, in answers that have one.
    """

    answers: int
    same_answers: int
    equal: float
    prefix: float
    median_divergence: int | None


@dataclass(frozen=True, slots=True)
class Distance:
    """Means per token: KL, bounds of the total variation distance, A's mass beyond the likeliest tokens, A's own KL."""

    kl: float
    tv_low: float
    tv_high: float
    unseen: float
    floor: float | None


@dataclass(frozen=True, slots=True)
class Findings:
    scores: tuple[Score, ...]
    judged: tuple[Finding, ...]
    tokens: Tokens | None
    distance: Distance | None

    @property
    def losses(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.judged if finding.verdict == "loss")

    @property
    def is_ruled_out(self) -> bool:
        return all(finding.verdict in {"ruled out", "not judged"} for finding in self.judged)


def find(comparisons: Sequence[Comparison], allowed: Allowed, confidence: float) -> Findings:
    """Puts the findings together; intervals that are judged share the risk of a false alarm among them (Bonferroni)."""
    by_task: dict[str | None, list[Comparison]] = defaultdict(list)
    for one in comparisons:
        by_task[one.task].append(one)
    groups = {None: list(comparisons)} | (by_task if len(by_task) > 1 else {})
    nats = _count_nats(comparisons, allowed)
    level = 1 - (1 - confidence) / (len(groups) + sum(bound is not None for _, _, bound in nats))
    return Findings(
        scores=tuple(_count_score(str(task), ones) for task, ones in by_task.items()),
        judged=(
            *(_judge_points(task, ones, allowed.points, level) for task, ones in groups.items()),
            *(_judge_nats(measure, pairs, bound, level) for measure, pairs, bound in nats),
        ),
        tokens=_summarize_tokens(comparisons),
        distance=_summarize_distance(comparisons),
    )


def _count_score(task: str, ones: Sequence[Comparison]) -> Score:
    lost, gained = _count_changed(ones)
    a_right = sum(one.a.is_right for one in ones)
    return Score(task, len(ones), a_right, a_right - lost + gained, lost, gained, mcnemar(lost, gained))


def _count_changed(ones: Sequence[Comparison]) -> tuple[int, int]:
    lost = sum(one.a.is_right and not one.b.is_right for one in ones)
    return lost, sum(one.b.is_right and not one.a.is_right for one in ones)


def _judge_points(task: str | None, ones: Sequence[Comparison], allowed: float, level: float) -> Finding:
    found = paired_difference(*_count_changed(ones), len(ones), level)
    points = Interval(100 * found.point, 100 * found.low, 100 * found.high, level)
    return Finding(SCORE, task, "points", len(ones), points, allowed)


Pairs: TypeAlias = list[tuple[float, float]]  # nats and tokens of each item


def _judge_nats(measure: str, pairs: Pairs, allowed: float | None, level: float) -> Finding:
    nats, tokens = zip(*pairs, strict=True)
    return Finding(measure, None, "nats per token", len(pairs), ratio_of_sums(nats, tokens, level), allowed)


def _count_nats(comparisons: Sequence[Comparison], allowed: Allowed) -> list[tuple[str, Pairs, float | None]]:
    """Lists measures that two items or more have. A's own divergence, between writing and reading, is subtracted."""
    surprise = [
        (one.b.surprisal.nats - one.a.surprisal.nats, float(one.a.surprisal.tokens))
        for one in comparisons
        if one.a.surprisal and one.b.surprisal
    ]
    apart = [
        (one.divergence.kl - (one.floor.kl if one.floor else 0.0), float(one.divergence.tokens))
        for one in comparisons
        if one.divergence
    ]
    measures = ((SURPRISAL, surprise, allowed.surprisal), (DIVERGENCE, apart, allowed.divergence))
    return [measure for measure in measures if len(measure[1]) > 1]


def _summarize_tokens(comparisons: Iterable[Comparison]) -> Tokens | None:
    agreements = [one.agreement for one in comparisons if one.agreement]
    if not agreements:
        return None
    total = sum(one.tokens for one in agreements) or 1
    places = sorted(one.first_difference for one in agreements if one.first_difference is not None)
    return Tokens(
        answers=len(agreements),
        same_answers=len(agreements) - len(places),
        equal=sum(one.equal for one in agreements) / total,
        prefix=sum(one.prefix for one in agreements) / total,
        median_divergence=places[(len(places) - 1) // 2] if places else None,
    )


def _summarize_distance(comparisons: Iterable[Comparison]) -> Distance | None:
    both = [(one.divergence, one.floor) for one in comparisons if one.divergence]
    if not both:
        return None
    apart = [divergence for divergence, _ in both]
    floors = [floor for _, floor in both if floor]
    kl, low, high, unseen = (_find_mean(apart, name) for name in ("kl", "tv_low", "tv_high", "unseen"))
    return Distance(kl, low, high, unseen, _find_mean(floors, "kl") if floors else None)


def _find_mean(ones: Sequence[Divergence], name: str) -> float:
    total: float = sum(getattr(one, name) for one in ones)
    return total / (sum(one.tokens for one in ones) or 1)
