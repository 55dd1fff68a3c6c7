"""How far two models' next tokens are apart, as far as the log-probabilities of the likeliest few show it. Pure.

In: the likeliest tokens of both models, place by place. Out: bounds in nats and in probability mass.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

# Log-probabilities come as float32: a sum of them is no more exact than this, and a smaller mass counts as none.
MIN_MASS = 1e-7


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token at its place in a text, its log-probability, and the likeliest tokens there with theirs.

    `logprob` is None, and `top` empty, for the first token of a text, which nothing predicts.
    """

    text: str
    logprob: float | None
    top: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two greedy answers: `tokens` of the longer one, how many are `equal` place by place, and how many come before
    the first that differs (`prefix`)."""

    tokens: int
    equal: int
    prefix: int

    @property
    def first_difference(self) -> int | None:
        """The place of the first token that differs, from 0; None if the answers are the same."""
        return None if self.prefix == self.tokens else self.prefix


@dataclass(frozen=True, slots=True)
class Divergence:
    """Sums over `tokens` places of a text, of KL(A || B) in nats and of the total variation distance.

    `kl` is a lower bound: all tokens beyond the likeliest few count as one, and joining outcomes never adds to
    the divergence (the log sum inequality; Cover and Thomas, Elements of Information Theory, 2.7). A finite upper bound
    does not exist, for B may exclude a token that A did not list. `tv_low` and `tv_high` bound the distance on
    both sides: the rest agrees as far as its mass allows, or not at all. `unseen` is A's mass in that rest.
    """

    tokens: int
    kl: float
    tv_low: float
    tv_high: float
    unseen: float


def count_equal(a: Sequence[int], b: Sequence[int]) -> Agreement:
    pairs = [first == second for first, second in zip_longest(a, b)]
    prefix = pairs.index(False) if False in pairs else len(pairs)
    return Agreement(len(pairs), sum(pairs), prefix)


def measure_divergence(a: Sequence[ScoredToken], b: Sequence[ScoredToken]) -> Divergence:
    """Sums the divergence place by place; both sequences are of the same text."""
    places = [_measure_place(p.top, q.top) for p, q in zip(a, b, strict=True)]
    kl, low, high, unseen = (math.fsum(column) for column in zip(*places, strict=True)) if places else (0.0,) * 4
    return Divergence(len(places), kl, low, high, unseen)


def _measure_place(p_logs: Mapping[str, float], q_logs: Mapping[str, float]) -> tuple[float, float, float, float]:
    p = {token: math.exp(logprob) for token, logprob in p_logs.items()}
    q = {token: math.exp(logprob) for token, logprob in q_logs.items()}
    # Half a character is U+FFFD, whichever half: such a key may be another token on the other side.
    common = [t for t in p.keys() & q.keys() if min(p[t], q[t]) > MIN_MASS and "\N{REPLACEMENT CHARACTER}" not in t]
    p_rest, q_rest = (max(1 - math.fsum(side[t] for t in common), MIN_MASS) for side in (p, q))
    kl = math.fsum(p[t] * math.log(p[t] / q[t]) for t in common) + p_rest * math.log(p_rest / q_rest)
    apart = math.fsum(abs(p[t] - q[t]) for t in common)
    unseen = max(1 - math.fsum(p.values()), 0.0)
    return max(kl, 0.0), (apart + abs(p_rest - q_rest)) / 2, min((apart + p_rest + q_rest) / 2, 1.0), unseen
