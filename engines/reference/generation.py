"""One request inside the engine: its tokens, how far they are computed, and when its answer ends.

In: sampled tokens. Out: chunks to compute, and the finish reason. Knows no other request.
"""

from collections.abc import Sequence
from typing import Literal

from engines.reference.plan import Chunk
from engines.reference.sampling import SampleState, SamplingParams

FinishReason = Literal["stop", "length"]


class Generation:
    """Its `token_ids` are prompt and answer; the first `computed` of them lie in the cache, in `slot`."""

    def __init__(self, request_id: str, prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt)
        self.computed = 0
        self.slot = -1  # none yet
        self.prompt_tokens = len(prompt)
        self.state = SampleState(params, prompt, vocab_size)

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled: the rest of the prompt, or the last token."""
        return len(self.token_ids) - self.computed

    def chunk(self, tokens: int) -> Chunk:
        return Chunk(self.slot, self.computed, self.token_ids[self.computed : self.computed + tokens])

    def append(self, token_id: int, context_length: int) -> FinishReason | None:
        """Why the answer ends here, if it does."""
        self.token_ids.append(token_id)
        self.state.record(token_id)
        if token_id in self.state.ending:
            return "stop"
        is_full = self.state.generated == self.state.params.max_tokens or len(self.token_ids) == context_length
        return "length" if is_full else None
