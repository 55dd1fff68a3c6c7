"""How long answers are, by those that have ended and by how far the others are: one worker's counts, and estimates.

In: answers that begin, grow past a bound, and end; prompts. Out: means. Pure; older answers count less and less.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

FIRST, THIRDS = 8, 42  # the first bound, and how many thirds of an octave follow it: up to 131,000 tokens
BOUNDS = tuple(round(FIRST * 2 ** (third / 3)) for third in range(THIRDS))  # a bucket ends where the next one begins
BUCKETS = THIRDS + 1
STARTS = (0, *BOUNDS)
FADING = 0.995  # what one more answer that ends leaves of the weight of those before
HEAVY = 1e12
ENDLESS = 1 << 60
# Lengths that count beside those that were seen, one each: the first answers to end are the short ones. Quantiles of a
# conversation's answers (Azure LLM inference trace 2023; Patel et al., Splitwise, ISCA 2024).
PRIOR = (10, 25, 45, 65, 90, 125, 165, 225, 320, 480)
CLASSES = 48  # of prompts by length, two an octave
FEW = 4.0  # so many answers to a class of prompts count as much as all others
# Of a Lengths: ended, passed, running by bucket, the weight of the next answer; answers and their tokens by class.
_WEIGHT = 3 * BUCKETS
_ANSWERS, _TOKENS, WORDS = _WEIGHT + 1, _WEIGHT + 1 + CLASSES, _WEIGHT + 1 + 2 * CLASSES


def find_bucket(tokens: int) -> int:
    return bisect_right(BOUNDS, tokens)


def find_bound(bucket: int) -> int:
    """Returns the number of tokens at which an answer leaves the bucket."""
    return BOUNDS[bucket] if bucket < THIRDS else ENDLESS


def find_class(prompt_tokens: int) -> int:
    """Returns which half octave a prompt's length is in."""
    octave = prompt_tokens.bit_length()
    return min(2 * octave + (prompt_tokens >> (octave - 2) & 1), CLASSES - 1) if octave > 1 else octave


class Lengths:
    """Counts by bucket of length: answers that ended in it, that grew past it, and that are in it now. By class of
    prompt: answers that ended, and their tokens.
    """

    def __init__(self) -> None:
        self.ended = [0.0] * BUCKETS
        self.passed = [0.0] * BUCKETS
        self.running = [0.0] * BUCKETS
        self.answers = [0.0] * CLASSES
        self.tokens = [0.0] * CLASSES
        self.next = 1.0  # weight of the next event: it grows, which costs less than to let all others shrink

    def begin(self, tokens: int) -> int:
        """Counts an answer with so many tokens. Returns its bucket."""
        bucket = find_bucket(tokens)
        self.running[bucket] += 1
        return bucket

    def shift(self, bucket: int, tokens: int) -> int:
        """Counts an answer where it is already, that has begun elsewhere. Returns its bucket."""
        self.running[bucket] -= 1
        return self.begin(tokens)

    def grow(self, bucket: int, tokens: int) -> int:
        """Moves an answer that has grown out of its bucket. Returns the one that it is in."""
        to = find_bucket(tokens)
        self.running[bucket] -= 1
        for each in range(bucket, to):
            self.passed[each] += self.next
        self.running[to] += 1
        return to

    def leave(self, bucket: int) -> None:
        """Counts an answer no more that was left or has gone elsewhere: it is not known how long it was."""
        self.running[bucket] -= 1

    def finish(self, bucket: int, prompt_tokens: int, tokens: int) -> None:
        self.running[bucket] -= 1
        self.ended[bucket] += self.next
        at = find_class(prompt_tokens)
        self.answers[at] += self.next
        self.tokens[at] += self.next * tokens
        self.next /= FADING
        if self.next > HEAVY:
            for counts in (self.ended, self.passed, self.answers, self.tokens):
                counts[:] = [weight / HEAVY for weight in counts]
            self.next /= HEAVY

    def words(self) -> list[float]:
        return [*self.ended, *self.passed, *self.running, self.next, *self.answers, *self.tokens]


def estimate(rows: Sequence[Sequence[float]]) -> "Survival":
    """Returns how long answers are by the words of several Lengths."""
    ended, passed, running = [0.0] * BUCKETS, [0.0] * BUCKETS, [0.0] * BUCKETS
    for row in rows:
        weight = row[_WEIGHT] or 1.0
        for bucket in range(BUCKETS):
            ended[bucket] += row[bucket] / weight
            passed[bucket] += row[BUCKETS + bucket] / weight
            running[bucket] += row[2 * BUCKETS + bucket]
    for bucket in range(BUCKETS):
        ended[bucket] += _PRIOR_ENDED[bucket]
        passed[bucket] += _PRIOR_PASSED[bucket]
    return _survive(ended, passed, running)


def find_usual(rows: Sequence[Sequence[float]], prompts: Sequence[float]) -> float:
    """Returns how long answers to such prompts are, in tokens, in the mean.

    Who asks changes from minute to minute, and with it both lengths; but a prompt's is known at once, and an answer's
    when it has ended. So the mean of all answers counts as many times as answers to such prompts were longer.
    """
    mean, (answers, tokens) = estimate(rows).mean, _sum_classes(rows)
    total = sum(answers)
    if not total or not prompts:
        return mean
    all_alike = sum(tokens) / total
    each = [(long + FEW * all_alike) / (count + FEW) for count, long in zip(answers, tokens, strict=True)]
    known = sum(count * length for count, length in zip(answers, each, strict=True)) / total
    return mean * sum(each[find_class(int(prompt))] for prompt in prompts) / len(prompts) / known


def _sum_classes(rows: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    answers, tokens = [0.0] * CLASSES, [0.0] * CLASSES
    for row in rows:
        weight = row[_WEIGHT] or 1.0
        for at in range(CLASSES):
            answers[at] += row[_ANSWERS + at] / weight
            tokens[at] += row[_TOKENS + at] / weight
    return answers, tokens


class Survival(NamedTuple):
    """By bucket: which part of all answers reaches it, and how many tokens they have beyond its start, in the mean.

    `mean`: of a whole answer.
    """

    reaches: Sequence[float]
    beyond: Sequence[float]

    @property
    def mean(self) -> float:
        return self.beyond[0]

    def left(self, tokens: int, most: int) -> float:
        """Returns how many more tokens an answer with so many so far will have, in the mean; never more than `most`."""
        bucket = find_bucket(tokens)
        return min(max(STARTS[bucket] + self.beyond[bucket] - tokens, self.beyond[bucket] / 2, 1.0), most)


def _survive(ended: Sequence[float], passed: Sequence[float], running: Sequence[float]) -> Survival:
    """Estimates which part of answers outlives each bucket, where some are still under way: who is in it counts half.

    The form for life tables of E. L. Kaplan and P. Meier, Nonparametric estimation from incomplete observations, 1958.
    """
    reaches = [1.0]
    for bucket in range(BUCKETS):
        at_risk = ended[bucket] + passed[bucket] + running[bucket] / 2
        reaches.append(reaches[-1] * (1 - ended[bucket] / at_risk if at_risk else 0.0))
    beyond, total = [0.0] * BUCKETS, 0.0
    for bucket in reversed(range(BUCKETS)):
        width = (STARTS[bucket + 1] if bucket < THIRDS else 2 * STARTS[bucket]) - STARTS[bucket]
        total += width * (reaches[bucket] + reaches[bucket + 1]) / 2
        beyond[bucket] = total / reaches[bucket] if reaches[bucket] else width / 2
    return Survival(reaches[:-1], beyond)


def _count_prior() -> tuple[list[float], list[float]]:
    lengths = Lengths()
    for tokens in PRIOR:
        lengths.finish(lengths.grow(lengths.begin(0), tokens), 0, tokens)
    weight = lengths.next
    return [each / weight for each in lengths.ended], [each / weight for each in lengths.passed]


_PRIOR_ENDED, _PRIOR_PASSED = _count_prior()
UNKNOWN = estimate(())
