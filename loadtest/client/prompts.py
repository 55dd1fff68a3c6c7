"""The work of one request: a prompt that nobody has sent before, and how many tokens the answer should have. Pure.

Both backends get the same prompts. No prompt is used twice within a run or by the next run, so that no prefix cache
takes part. For the same reason the part that makes a prompt unique stands at its beginning. Only what prompts share by
their trace stands before it: prefix caches then work as they would.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

WORDS = (  # noqa: SIM905 a list of seventy quoted words is no easier to read
    "amber anchor autumn basket beacon bridge candle canyon carbon castle cedar circle cliff cloud copper coral "
    "desert ember engine falcon feather field forest garden glacier granite harbor hollow island ivory jacket kettle "
    "ladder lantern lemon marble meadow mirror mountain needle ocean orchard paper pebble planet prairie quartz river "
    "saddle sailor shadow silver spring stone summer thunder timber tunnel valley velvet violin walnut willow winter"
).split()


@dataclass(frozen=True, slots=True, order=True)
class PromptId:
    """Identifies a prompt within a run, whichever backend gets it: pair of cells, stream, number within the stream."""

    pair: int
    stream: int
    number: int


@dataclass(frozen=True, slots=True)
class Lead:
    """What a prompt begins with: the text of each of `blocks`, with `words_per_block` words in the mean."""

    blocks: tuple[int, ...] = ()
    words_per_block: float = 0.0


NO_LEAD = Lead()


@dataclass(frozen=True, slots=True)
class Work:
    """What one request asks for. `backend`: the one it is pinned to; empty where the endpoint may choose. `words`: of
    its prompt, those of its `lead` included; None for as many as all have.
    """

    backend: str
    prompt: PromptId
    tokens: int
    words: int | None = None
    lead: Lead = NO_LEAD

    @property
    def server(self) -> str:
        """The server's name in messages."""
        return self.backend or "the endpoint"


def write_prompt(seed: int, prompt: PromptId, words: int, lead: Lead = NO_LEAD) -> str:
    """Writes sixteen digits that no other prompt has, then `words` words: nearly equal numbers of tokens for all.

    The words of a lead are the first of them, and stand before the digits. Equal blocks give equal words under one
    seed and others under another: what one run has cached is of no use to the next.
    """
    shared = list(islice(_write_lead(seed, lead), max(words - 1, 0)))
    name = f"{seed}/{prompt.pair}/{prompt.stream}/{prompt.number}"
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % 10**16
    digits = f"{number:016d}"
    groups = " ".join(digits[start : start + 4] for start in range(0, 16, 4))
    story = " ".join(random.Random(name).choices(WORDS, k=words - len(shared)))
    return " ".join((*shared, f"{groups}. Tell a long story about: {story}."))


def _write_lead(seed: int, lead: Lead) -> Iterator[str]:
    for index, block in enumerate(lead.blocks):
        first, end = (round(edge * lead.words_per_block) for edge in (index, index + 1))
        yield from random.Random(f"{seed}/block {block}").choices(WORDS, k=end - first)
