"""What the items together say: how much was lost, with intervals, and whether that is more than allowed. Pure.

In: Compared items and what is allowed. Out: Findings. Positive is a loss of B's everywhere.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engines.accuracy.examine import Compared
from engines.accuracy.intervals import Interval, mcnemar, paired_difference, ratio_of_sums
from engines.accuracy.rows import Divergence

Verdict: TypeAlias = Literal["loss", "none found", "ruled out", "told"]
SCORE, SURPRISAL, DIVERGENCE = "score", "surprisal", "divergence"
# In nats per token. Log-probabilities are float32, and sums whose order depends on the batch move them by 1e-6; of
# divergences, which go by its square, what counts is the mass that the likeliest tokens leave out (rows.LEAST_MASS).
RESOLUTION = {SCORE: 0.0, SURPRISAL: 1e-5, DIVERGENCE: 1e-6}


@dataclass(frozen=True, slots=True)
class Allowed:
    """`points` of score out of 100; `surprisal` and `divergence` in nats per token. None: told, not judged."""

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
            return "told"
        most = max(self.allowed, RESOLUTION[self.measure])
        if self.interval.low > most:
            return "loss"
        return "ruled out" if self.interval.high <= most else "none found"


@dataclass(frozen=True, slots=True)
class Score:
    """Items of a task that each got right; `lost`: A alone did, `gained`: B alone did. `p`: McNemar's, exact."""

    task: str
    items: int
    a_right: int
    b_right: int
    lost: int
    gained: int
    p: float

    @property
    def a_share(self) -> float:
        """Of 100."""
        return 100 * self.a_right / self.items

    @property
    def b_share(self) -> float:
        return 100 * self.b_right / self.items


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of greedy answers whose ids both told.

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
    """Means per token: KL, bounds of the total variation distance, A's mass that was not told, A's KL from itself."""

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
        return all(finding.verdict in {"ruled out", "told"} for finding in self.judged)


def find(compared: Sequence[Compared], allowed: Allowed, confidence: float) -> Findings:
    """Intervals that are judged share the risk of a false alarm among them (Bonferroni)."""
    by_task: dict[str | None, list[Compared]] = defaultdict(list)
    for one in compared:
        by_task[one.task].append(one)
    scores = tuple(_score(str(task), ones) for task, ones in by_task.items())
    groups = {None: list(compared)} | (by_task if len(by_task) > 1 else {})
    nats = _count_nats(compared, allowed)
    level = 1 - (1 - confidence) / (len(groups) + sum(bound is not None for _, _, bound in nats))
    return Findings(
        scores=scores,
        judged=(
            *(_judge_score(task, ones, allowed.points, level) for task, ones in groups.items()),
            *(
                Finding(measure, None, "nats per token", len(pairs), _interval(pairs, level), bound)
                for measure, pairs, bound in nats
            ),
        ),
        tokens=_tokens(compared),
        distance=_distance(compared),
    )


def _score(task: str, ones: Sequence[Compared]) -> Score:
    lost, gained = _changed(ones)
    a_right = sum(one.a.is_right for one in ones)
    return Score(task, len(ones), a_right, a_right - lost + gained, lost, gained, mcnemar(lost, gained))


def _changed(ones: Sequence[Compared]) -> tuple[int, int]:
    lost = sum(one.a.is_right and not one.b.is_right for one in ones)
    return lost, sum(one.b.is_right and not one.a.is_right for one in ones)


def _judge_score(task: str | None, ones: Sequence[Compared], allowed: float, level: float) -> Finding:
    found = paired_difference(*_changed(ones), len(ones), level)
    points = Interval(100 * found.point, 100 * found.low, 100 * found.high, level)
    return Finding(SCORE, task, "points", len(ones), points, allowed)


Pairs: TypeAlias = list[tuple[float, float]]  # nats and tokens of each item


def _count_nats(compared: Sequence[Compared], allowed: Allowed) -> list[tuple[str, Pairs, float | None]]:
    """Those measures that two items and more have. A divergence counts beyond A's own between writing and reading."""
    surprise = [
        (one.b.surprisal.nats - one.a.surprisal.nats, float(one.a.surprisal.tokens))
        for one in compared
        if one.a.surprisal and one.b.surprisal
    ]
    apart = [
        (one.divergence.kl - (one.floor.kl if one.floor else 0.0), float(one.divergence.tokens))
        for one in compared
        if one.divergence
    ]
    measures: list[tuple[str, Pairs, float | None]] = [
        (SURPRISAL, surprise, allowed.surprisal),
        (DIVERGENCE, apart, allowed.divergence),
    ]
    return [measure for measure in measures if len(measure[1]) > 1]


def _interval(pairs: Pairs, level: float) -> Interval:
    nats, tokens = zip(*pairs, strict=True)
    return ratio_of_sums(nats, tokens, level)


def _tokens(compared: Iterable[Compared]) -> Tokens | None:
    told = [one.agreement for one in compared if one.agreement]
    if not told:
        return None
    total = sum(one.tokens for one in told) or 1
    places = sorted(one.first_divergence for one in told if one.first_divergence is not None)
    return Tokens(
        answers=len(told),
        same_answers=len(told) - len(places),
        equal=sum(one.equal for one in told) / total,
        prefix=sum(one.prefix for one in told) / total,
        median_divergence=places[(len(places) - 1) // 2] if places else None,
    )


def _distance(compared: Iterable[Compared]) -> Distance | None:
    told = [(one.divergence, one.floor) for one in compared if one.divergence]
    if not told:
        return None
    apart = [divergence for divergence, _ in told]
    floors = [floor for _, floor in told if floor]
    kl, low, high, unseen = (_mean(apart, name) for name in ("kl", "tv_low", "tv_high", "unseen"))
    return Distance(kl, low, high, unseen, _mean(floors, "kl") if floors else None)


def _mean(ones: Sequence[Divergence], name: str) -> float:
    total: float = sum(getattr(one, name) for one in ones)
    return total / (sum(one.tokens for one in ones) or 1)
