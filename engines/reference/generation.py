"""One request inside the engine: its tokens, how many of them are computed, and when its answer ends.

In: sampled tokens. Out: chunks to compute, and the finish reason. Knows no other request.
"""

from collections.abc import Sequence
from typing import Literal

from engines.reference.checkpoint import Floats
from engines.reference.guide import Walk
from engines.reference.plan import Chunk
from engines.reference.sampling import SampleState, SamplingParams
from engines.reference.scores import Score, score

FinishReason = Literal["stop", "length"]


class Generation:
    """`token_ids` are prompt and answer; the first `computed` of them are in the cache, in `slot`.

    `prompt_scores`: those of the prompt's tokens so far, if wanted; the first token has none.
    """

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        vocab_size: int,
        walk: Walk | None = None,
    ) -> None:
        self.request_id = request_id
        self.token_ids = list(prompt)
        self.computed = 0
        self.slot = -1  # none yet
        self.prompt_tokens = len(prompt)
        self.state = SampleState(params, prompt, vocab_size, walk)
        self.prompt_scores: list[Score | None] | None = None if params.prompt_logprobs is None else [None]

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled: the rest of the prompt, or the last token."""
        return len(self.token_ids) - self.computed

    @property
    def is_scoring(self) -> bool:
        """Whether the next chunk's logits score the tokens that follow in the prompt."""
        return self.prompt_scores is not None and self.pending > 1

    def chunk(self, tokens: int) -> Chunk:
        token_ids = self.token_ids[self.computed : self.computed + tokens]
        return Chunk(self.slot, self.computed, token_ids, self.is_scoring)

    def score_prompt(self, logits: Floats) -> None:
        """Scores the prompt's next tokens; `logits` has a row for each token of the chunk just computed."""
        assert self.prompt_scores is not None
        following = self.token_ids[self.computed + 1 : self.computed + 1 + len(logits)]
        counts = [self.state.params.prompt_logprobs or 0] * len(following)
        self.prompt_scores += score(logits[: len(following)], following, counts)

    def take_prompt_scores(self) -> Sequence[Score | None] | None:
        """Returns the prompt's scores once: they leave with the answer's first token."""
        taken, self.prompt_scores = self.prompt_scores, None
        return taken

    def append(self, token_id: int, context_length: int) -> FinishReason | None:
        """Returns why the answer ends with this token, or None."""
        self.token_ids.append(token_id)
        self.state.record(token_id)
        if token_id in self.state.ending:
            return "stop"
        is_full = self.state.generated == self.state.params.max_tokens or len(self.token_ids) == context_length
        return "length" if is_full else None
