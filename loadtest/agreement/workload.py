"""The work that every tester is given, and the prompts for those that read them from a file. Pure.

What a prompt is made of is that of `crossover bench`, so that prompts are of one size whoever sends them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from loadtest.work import Place, write_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A closed loop: `concurrency` requests in flight until `requests` are answered, each by `tokens` tokens."""

    concurrency: int = 16
    requests: int = 96
    tokens: int = 64
    prompt_words: int = 48

    def __post_init__(self) -> None:
        if self.requests % self.concurrency or self.requests <= 0:
            # Requests of equal work that start together end together: a last wave that is not full would count as a
            # slower engine with those testers that divide by the whole run.
            raise ValueError("the number of requests is a multiple of the concurrency")
        if self.tokens < 2:
            raise ValueError("an answer needs at least 2 tokens, or it has no time per token")

    @property
    def waves(self) -> int:
        return self.requests // self.concurrency

    def prompts(self, seed: int) -> Iterator[str]:
        """One for each request and for each of the warm-up's, of which there are `concurrency`."""
        for number in range(self.requests + self.concurrency):
            yield write_prompt(seed, Place(0, 0, number), self.prompt_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """An engine's: until the first token, and from one token to the next."""

    ttft_s: float = 0.5
    interval_s: float = 0.025

    def e2e_s(self, tokens: int) -> float:
        return self.ttft_s + (tokens - 1) * self.interval_s
