"""The sums of a worker's answers, against a recount of the answers themselves."""

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest

from gateway.core import FirstToken
from gateway.flow import FIRSTS, PROMPTS, Flow, ModelFlow, count_words, read_firsts, read_prompts, read_standing

BACKENDS = ("low", "high")


@dataclass(eq=False)
class Answer:
    backend: str
    is_fixed: bool
    prompt_tokens: int
    tokens: int = 0
    has_begun: bool = False


class Traffic:
    """Random answers, their flow, and what it should amount to."""

    def __init__(self, seed: int) -> None:
        self.flow = ModelFlow(BACKENDS)
        self.live = list[Answer]()
        self.generated, self.begun = Counter[str](), Counter[str]()
        self.firsts: dict[str, list[FirstToken]] = {name: [] for name in BACKENDS}
        self._chance, self._now = Random(seed), 0.0

    def go_on(self) -> None:
        chance, self._now = self._chance, self._now + 0.01
        if not self.live or chance.random() < 0.3:
            answer = Answer(chance.choice(BACKENDS), chance.random() < 0.3, chance.randrange(1, 500))
            self._find(answer).begin(answer.prompt_tokens)
            self.live.append(answer)
            return
        answer = chance.choice(self.live)
        flow = self._find(answer)
        if chance.random() < 0.2:
            flow.end(answer.prompt_tokens, answer.tokens, has_begun=answer.has_begun)
            self.live.remove(answer)
            return
        if not answer.has_begun:
            flow.decode(answer.prompt_tokens, self._now)
            answer.has_begun = True
            self.begun[answer.backend] += 1
            self.firsts[answer.backend].append(FirstToken(self._now, answer.prompt_tokens))
        count = chance.randrange(1, 4)
        flow.generated += count
        flow.held += count
        answer.tokens += count
        self.generated[answer.backend] += count

    def recount(self, backend: str) -> tuple[int, ...]:
        """Returns what a Standing has."""
        here = [each for each in self.live if each.backend == backend]
        decoding = [each for each in here if each.has_begun]
        return (
            sum(each.is_fixed for each in here) + self.flow.relayed[backend],
            self.flow.relayed[backend],
            len(decoding),
            sum(each.prompt_tokens + each.tokens for each in decoding),
            sum(each.prompt_tokens + each.tokens for each in here if not each.is_fixed),
            self.generated[backend],
            self.begun[backend],
            *map(int, self.flow.cache_use[backend]),
        )

    def _find(self, answer: Answer) -> Flow:
        return (self.flow.fixed if answer.is_fixed else self.flow.free)[answer.backend]


@pytest.mark.parametrize("seed", range(10))
def test_the_sums_equal_a_recount_after_any_events(seed: int) -> None:
    traffic = Traffic(seed)
    for turn in range(2400):
        traffic.go_on()
        traffic.flow.relayed["high"] = turn % 3
        traffic.flow.cache_use["low"] = traffic.flow.cache_use["low"].add(100, turn)
        row = traffic.flow.words()
        for index, name in enumerate(BACKENDS):
            assert read_standing(row, index) == traffic.recount(name)
            free, fixed = traffic.flow.free[name], traffic.flow.fixed[name]
            assert free.streams + fixed.streams == sum(answer.backend == name for answer in traffic.live)
    row = traffic.flow.words()
    for index, name in enumerate(BACKENDS):
        assert len(traffic.firsts[name]) > FIRSTS
        assert read_firsts(row, index, 5) == traffic.firsts[name][-5:]
        assert len(read_firsts(row, index, 1000)) == FIRSTS
        assert read_firsts(row, index, 0) == []


@pytest.mark.parametrize("count", [0, 3, PROMPTS, PROMPTS + 5])
def test_a_row_has_the_last_prompts(count: int) -> None:
    flow = ModelFlow(BACKENDS)
    for tokens in range(1, count + 1):
        flow.arrive(tokens)
    row = flow.words()
    assert sorted(read_prompts(row)) == list(range(max(count - PROMPTS, 0) + 1, count + 1))


@pytest.mark.parametrize("backends", [("only",), BACKENDS, ("a", "b", "c")])
def test_a_row_has_the_size_that_is_laid_out_for_it(backends: tuple[str, ...]) -> None:
    assert len(ModelFlow(backends).words()) == count_words(len(backends))
