"""How long answers are, by those that have ended and by how far the others are."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from gateway.lengths import (
    BOUNDS,
    CLASSES,
    HEAVY,
    PRIOR,
    UNKNOWN,
    WORDS,
    Lengths,
    Survival,
    estimate,
    find_bound,
    find_bucket,
    find_class,
    find_usual,
)


@dataclass(eq=False)
class Answer:
    row: Lengths
    most: int
    bucket: int
    tokens: int = 0


def serve(draw: Callable[[Random], float], ended: int, running: int, workers: int = 1) -> tuple[Survival, list[int]]:
    """Ends so many answers of a closed loop in which `running` are under way. Returns the estimate, and all lengths.

    All grow a token at a time, so that what runs at the end are rather the long ones.
    """
    chance = Random(1)
    rows, drawn = [Lengths() for _ in range(workers)], list[int]()

    def begin() -> Answer:
        drawn.append(max(round(draw(chance)), 1))
        row = chance.choice(rows)
        return Answer(row, drawn[-1], row.begin(0))

    live = [begin() for _ in range(running)]
    while ended > 0:
        for answer in tuple(live):
            answer.tokens += min(7, answer.most - answer.tokens)
            if answer.tokens >= find_bound(answer.bucket):
                answer.bucket = answer.row.grow(answer.bucket, answer.tokens)
            if answer.tokens == answer.most:
                answer.row.finish(answer.bucket, 100, answer.most)
                ended -= 1
                live.remove(answer)
                live.append(begin())
    return estimate([row.words() for row in rows]), drawn


DRAWS: dict[str, Callable[[Random], float]] = {
    "exponential": lambda chance: chance.expovariate(1 / 200),
    "heavy-tailed": lambda chance: min(50 * chance.paretovariate(1.3), 20_000),
    "all alike": lambda _: 256,
    "short or long": lambda chance: chance.choice((20, 1000)),
}


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("name", DRAWS)
def test_the_mean_is_near_the_truth_though_some_are_under_way(name: str, workers: int) -> None:
    survival, drawn = serve(DRAWS[name], ended=400, running=60, workers=workers)
    assert survival.mean == pytest.approx(statistics.fmean(drawn), rel=0.2)


def test_the_first_to_end_are_short_and_are_not_taken_for_all() -> None:
    """300 answers under way and 60 that have ended: their own mean is far off."""
    survival, drawn = serve(DRAWS["exponential"], ended=60, running=300)
    truth = statistics.fmean(drawn)
    ended_of_all = sorted(drawn[:300])[:60]
    assert statistics.fmean(ended_of_all) < 0.3 * truth
    assert survival.mean == pytest.approx(truth, rel=0.3)


@pytest.mark.parametrize(
    ("name", "tokens", "left"),
    [
        ("exponential", 0, 200),
        ("exponential", 300, 200),  # it knows no age
        ("all alike", 0, 256),
        ("all alike", 100, 156),
        ("short or long", 100, 900),  # it is one of the long ones
        ("short or long", 700, 300),
    ],
)
def test_what_is_left_is_of_the_answers_that_came_as_far(name: str, tokens: int, left: float) -> None:
    survival, _ = serve(DRAWS[name], ended=1000, running=60)
    assert survival.left(tokens, 100_000) == pytest.approx(left, rel=0.3)


def test_the_longer_a_heavy_tailed_answer_is_the_more_is_left_of_it() -> None:
    survival, _ = serve(DRAWS["heavy-tailed"], ended=1000, running=60)
    left = [survival.left(tokens, 100_000) for tokens in (100, 400, 1600)]
    assert left == sorted(left)
    assert left[2] > 3 * left[0]


def test_no_more_is_left_than_the_answer_may_have_and_at_least_one() -> None:
    assert UNKNOWN.left(0, 7) == 7
    assert all(UNKNOWN.left(tokens, 1 << 40) >= 1 for tokens in (0, 5, 500, 140_000, 1 << 30))


def test_before_any_answer_has_ended_the_usual_ones_are_expected() -> None:
    assert UNKNOWN.mean == pytest.approx(statistics.fmean(PRIOR), rel=0.1)
    assert estimate([[0.0] * WORDS] * 3).mean == pytest.approx(UNKNOWN.mean)  # rows of workers that never began


def end(lengths: Lengths, tokens: int) -> None:
    lengths.finish(lengths.grow(lengths.begin(0), tokens), 100, tokens)


def test_older_answers_count_less_and_less() -> None:
    lengths = Lengths()
    for tokens, count in ((1000, 2000), (40, 1000)):
        for _ in range(count):
            end(lengths, tokens)
    assert estimate([lengths.words()]).mean == pytest.approx(50, abs=15)


def test_weights_stay_finite() -> None:
    lengths = Lengths()
    for _ in range(20_000):
        end(lengths, 100)
    assert lengths.next <= HEAVY
    before = estimate([lengths.words()]).mean
    for _ in range(200):
        end(lengths, 100)
    assert estimate([lengths.words()]).mean == pytest.approx(before, rel=0.01)


def test_an_answer_that_was_left_or_has_moved_on_ended_nowhere() -> None:
    one, other = Lengths(), Lengths()
    bucket = one.grow(one.begin(0), 300)
    one.leave(bucket)
    assert (sum(one.ended), sum(one.running)) == (0, 0)
    there = other.shift(other.begin(0), 300)
    assert there == bucket
    assert [index for index, count in enumerate(other.running) if count] == [bucket]
    assert sum(other.passed) == 0  # which the first has counted


def test_a_bucket_ends_at_its_bound() -> None:
    assert [find_bucket(tokens) for tokens in (0, 7, 8)] == [0, 0, 1]
    for bucket, bound in enumerate(BOUNDS):
        assert (find_bound(bucket), find_bucket(bound - 1), find_bucket(bound)) == (bound, bucket, bucket + 1)
    assert find_bound(find_bucket(1 << 30)) > 1 << 30


def test_a_class_of_prompts_is_half_an_octave() -> None:
    assert [find_class(tokens) for tokens in range(9)] == [0, 1, 4, 5, 6, 6, 7, 7, 8]
    assert find_class(1 << 60) == CLASSES - 1


def serve_two_kinds(lengths: Lengths, count: int) -> None:
    """Half of them ask with 40 tokens and get 20, half with 1,000 and get 400."""
    for _ in range(count):
        for prompt_tokens, tokens in ((40, 20), (1000, 400)):
            lengths.finish(lengths.grow(lengths.begin(0), tokens), prompt_tokens, tokens)


def test_answers_are_as_long_as_those_to_such_prompts_were() -> None:
    workers = Lengths(), Lengths()
    for each in workers:
        serve_two_kinds(each, 300)
    rows = [each.words() for each in workers]
    mean = estimate(rows).mean
    assert mean == pytest.approx(210, rel=0.1)
    assert find_usual(rows, [40] * 64) == pytest.approx(20, rel=0.2)
    assert find_usual(rows, [1000] * 64) == pytest.approx(400, rel=0.1)
    assert find_usual(rows, [40, 1000] * 32) == pytest.approx(mean, rel=0.05)


def test_prompts_of_a_length_that_nobody_asked_with_get_the_usual_answer() -> None:
    lengths = Lengths()
    serve_two_kinds(lengths, 300)
    assert find_usual([lengths.words()], [200_000]) == pytest.approx(210, rel=0.1)
    assert find_usual([Lengths().words()], [200_000]) == UNKNOWN.mean
    assert find_usual([lengths.words()], []) == estimate([lengths.words()]).mean


def test_one_odd_answer_makes_no_kind() -> None:
    lengths = Lengths()
    serve_two_kinds(lengths, 100)
    lengths.finish(lengths.grow(lengths.begin(0), 8000), 90, 8000)
    assert find_usual([lengths.words()], [90] * 64) < 0.25 * 8000
