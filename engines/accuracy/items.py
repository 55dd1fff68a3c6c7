"""What is asked and what is right: items of tasks, and how a text is held against the right ones. Pure.

Knows no file, no endpoint.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Messages: TypeAlias = tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Pick the continuation that the model finds likeliest. `by_byte`: by its log-probability per UTF-8 byte."""

    texts: tuple[str, ...]
    right: int
    by_byte: bool = False

    def pick(self, logprobs: Sequence[float]) -> int:
        """The place of the likeliest; of equals the first. `logprobs`: in nats, of each whole continuation.

        Both scores are those of lm-evaluation-harness: `acc`, and with `by_byte` `acc_norm`.
        """
        lengths = [len(text.encode()) if self.by_byte else 1 for text in self.texts]
        scores = [logprob / length for logprob, length in zip(logprobs, lengths, strict=True)]
        return scores.index(max(scores))


@dataclass(frozen=True, slots=True)
class Answer:
    """Write it. Right is what equals one of `texts`, white space at both ends aside.

    `extract`: a regular expression whose first match is the answer, its first group if it has one.
    """

    texts: tuple[str, ...]
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    extract: str | None = None

    def read(self, text: str) -> str | None:
        """The answer in what was written; None where `extract`, or its first group, matches nothing."""
        if self.extract is None:
            return text.strip()
        found = re.search(self.extract, text)
        read = found and found[1 if found.re.groups else 0]
        return None if read is None else read.strip()

    def accepts(self, answer: str | None) -> bool:
        return answer is not None and answer in {text.strip() for text in self.texts}


@dataclass(frozen=True, slots=True)
class Item:
    """`name` says where it came from. A prompt is text that goes on, or the messages of a chat."""

    name: str
    task: str
    prompt: str | Messages
    wanted: Choice | Answer


def select(items: Sequence[Item], only: Sequence[str], skip: Sequence[str], most: int | None) -> list[Item]:
    """Of the tasks named, the first `most` items each. ValueError for a task that is not there, or if none is left."""
    tasks = {item.task for item in items}
    unknown = sorted({*only, *skip} - tasks)
    if unknown:
        raise ValueError(f"no task {', '.join(unknown)}; there are {', '.join(sorted(tasks))}")
    kept = (set(only) or tasks) - set(skip)
    seen = dict.fromkeys(kept, 0)
    chosen = []
    for item in items:
        if item.task in kept and (most is None or seen[item.task] < most):
            seen[item.task] += 1
            chosen.append(item)
    if not chosen:
        raise ValueError("no item is left to ask")
    return chosen
