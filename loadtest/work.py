"""The work of one request: a prompt nobody has sent before, and how many tokens the answer is to have. Pure.

Both backends get the same prompts, and none is reused within a run or by the next one, so that no prefix cache takes
part; for the same reason what makes a prompt unique stands at its beginning.
"""

import hashlib
import random
from dataclasses import dataclass

WORDS = (  # noqa: SIM905 a list of seventy quoted words is no easier to read
    "amber anchor autumn basket beacon bridge candle canyon carbon castle cedar circle cliff cloud copper coral "
    "desert ember engine falcon feather field forest garden glacier granite harbor hollow island ivory jacket kettle "
    "ladder lantern lemon marble meadow mirror mountain needle ocean orchard paper pebble planet prairie quartz river "
    "saddle sailor shadow silver spring stone summer thunder timber tunnel valley velvet violin walnut willow winter"
).split()


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in a run a prompt belongs, whichever backend gets it."""

    pair: int
    stream: int
    number: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The work one request was to be. `backend`: the one it is pinned to; empty where the endpoint may choose."""

    backend: str
    place: Place
    tokens: int

    @property
    def server(self) -> str:
        """Who is to answer, for a message."""
        return self.backend or "the endpoint"


def write_prompt(seed: int, place: Place, words: int) -> str:
    """Sixteen digits of their own, then `words` words: nearly the same number of tokens for every place."""
    name = f"{seed}/{place.pair}/{place.stream}/{place.number}"
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % 10**16
    digits = f"{number:016d}"
    groups = " ".join(digits[start : start + 4] for start in range(0, 16, 4))
    return f"{groups}. Tell a long story about: {' '.join(random.Random(name).choices(WORDS, k=words))}."
