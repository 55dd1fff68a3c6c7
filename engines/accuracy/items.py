"""Items of tasks: what is asked, what is right, and how a text is compared with the right ones. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Messages: TypeAlias = tuple[Mapping[str, object], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The model is to find the right continuation the likeliest. `by_byte`: by log-probability per UTF-8 byte."""

    texts: tuple[str, ...]
    right: int
    by_byte: bool = False

    def pick(self, logprobs: Sequence[float]) -> int:
        """Returns the place of the likeliest, the first of equal ones. `logprobs`: each whole continuation's, in nats.

        Both scores are those of lm-evaluation-harness: `acc`, and with `by_byte` `acc_norm`.
        """
        lengths = [len(text.encode()) if self.by_byte else 1 for text in self.texts]
        scores = [logprob / length for logprob, length in zip(logprobs, lengths, strict=True)]
        return scores.index(max(scores))


@dataclass(frozen=True, slots=True)
class FreeText:
    """The model is to write the answer, which is right if it equals one of `texts`, white space at both ends aside.

    `extract`: a regular expression whose first match is the answer, its first group if it has one.
    """

    texts: tuple[str, ...]
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    extract: str | None = None

    def read(self, text: str) -> str | None:
        """The answer within `text`; None where `extract`, or its first group, matches nothing."""
        if self.extract is None:
            return text.strip()
        found = re.search(self.extract, text)
        read = found and found[1 if found.re.groups else 0]
        return None if read is None else read.strip()

    def accepts(self, answer: str | None) -> bool:
        return answer is not None and answer in {text.strip() for text in self.texts}


@dataclass(frozen=True, slots=True)
class Item:
    """`name` is for reports. A prompt is text to be continued, or the messages of a chat."""

    name: str
    task: str
    prompt: str | Messages
    wanted: Choice | FreeText


def select(items: Sequence[Item], only: Sequence[str], skip: Sequence[str], max_items: int | None) -> list[Item]:
    """Returns the first `max_items` of each chosen task. Raises ValueError for an unknown task, or if none is left."""
    tasks = {item.task for item in items}
    unknown = sorted({*only, *skip} - tasks)
    if unknown:
        raise ValueError(f"no task {', '.join(unknown)}; there are {', '.join(sorted(tasks))}")
    kept = (set(only) or tasks) - set(skip)
    seen = dict.fromkeys(kept, 0)
    chosen = []
    for item in items:
        if item.task in kept and (max_items is None or seen[item.task] < max_items):
            seen[item.task] += 1
            chosen.append(item)
    if not chosen:
        raise ValueError("no item is left to ask")
    return chosen
