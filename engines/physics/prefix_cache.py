"""A replica's prefix cache: the blocks of prompts that it has read, of which those unused for longest leave first.

In: a job's blocks. Out: how many of its tokens need not be read. It holds hashes alone; knows no keys and values.
"""

from collections.abc import Sequence

from engines.physics.replica import Job

BLOCK_TOKENS = 16  # vLLM's default


def hash_blocks(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Returns a hash for each whole block, which goes by all tokens before it too."""
    hashes, last = [], 0
    for begin in range(0, len(token_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        last = hash((last, *token_ids[begin : begin + BLOCK_TOKENS]))
        hashes.append(last)
    return tuple(hashes)


class PrefixCache:
    """`queried` and `found`: prompt tokens since the start."""

    def __init__(self, kv_tokens: float) -> None:
        self._room = kv_tokens // BLOCK_TOKENS
        self._blocks: dict[int, None] = {}  # the one unused for longest first
        self.queried = self.found = 0

    def find(self, job: Job) -> int:
        """Returns how many of the prompt's first tokens are here; never all: the last one has to be computed."""
        blocks = job.blocks[: (job.prompt_tokens - 1) // BLOCK_TOKENS]
        count = next((index for index, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        self._touch(blocks[:count])
        self.queried += job.prompt_tokens
        self.found += count * BLOCK_TOKENS
        return count * BLOCK_TOKENS

    def keep(self, job: Job) -> None:
        self._touch(job.blocks)
        while len(self._blocks) > self._room:
            del self._blocks[next(iter(self._blocks))]

    def _touch(self, blocks: Sequence[int]) -> None:
        """Makes these the last to leave. A prompt's end leaves before its beginning, as in vLLM."""
        for block in reversed(blocks):
            self._blocks.pop(block, None)
            self._blocks[block] = None
