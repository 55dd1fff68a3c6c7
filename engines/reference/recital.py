"""Answers that no model computes: which ids they have, and when they end.

In: a prompt, sampling parameters, the ids to choose from. Out: one id after the other. Pure.
"""

import zlib
from collections.abc import Sequence

from engines.reference.generation import FinishReason
from engines.reference.sampling import SamplingParams

HASHED_IDS = 32  # of a prompt and its answer: the first ones
MASK = 2**32 - 1


class Recital:
    """An answer's ids are hashes of the first 32 ids, of prompt and answer, and of the position. So a prompt that is
    another's prompt and the beginning of its answer goes on as that one did.

    End ids never come, stop ids not before `min_tokens`. What samples, or forms the answer, changes nothing.
    """

    def __init__(self, prompt: Sequence[int], params: SamplingParams, words: Sequence[int], tokens: int) -> None:
        self._words = words
        self._position = len(prompt)
        self._last = len(prompt) + tokens
        self._min = len(prompt) + params.min_tokens
        self._stops = frozenset(params.stop_ids)
        self._held = self._stops | frozenset(params.end_ids)
        self._seed = 0
        for token_id in prompt[:HASHED_IDS]:
            self._add(token_id)

    def take(self) -> tuple[int, FinishReason | None]:
        """Returns the next id, and why the answer ends with it."""
        position = self._position
        mixed = (self._seed + position * 0x9E3779B1) & MASK
        mixed = ((mixed ^ mixed >> 15) * 0x85EBCA6B) & MASK
        token_id = self._words[(mixed ^ mixed >> 13) % len(self._words)]
        if token_id in self._held and (position < self._min or token_id not in self._stops):
            token_id = next((each for each in self._words if each not in self._held), token_id)
        self._position = position + 1
        if position < HASHED_IDS:
            self._add(token_id)
        if token_id in self._stops:
            return token_id, "stop"
        return token_id, "length" if self._position == self._last else None

    def _add(self, token_id: int) -> None:
        self._seed = zlib.crc32(token_id.to_bytes(4, "little"), self._seed)
