"""Log-probabilities of tokens in the model's own distribution, and the likeliest tokens.

In: rows of logits, a token of each. Out: Scores. As in vLLM (v1/sample/sampler.py, gather_logprobs) they are of the raw
logits, before bias, penalties and temperature, but after a guide's mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engines.reference.checkpoint import Floats


@dataclass(frozen=True, slots=True)
class Score:
    """`rank`: how many tokens are at least as likely. `top`: likeliest tokens with log-probabilities, best first."""

    token_id: int
    logprob: float
    rank: int
    top: Sequence[tuple[int, float]] = ()


def score(logits: Floats, token_ids: Sequence[int], counts: Sequence[int]) -> list[Score]:
    """Scores a token for each row of [rows, vocab_size], with `counts` of the likeliest beside it; -1 means all."""
    counts = [logits.shape[1] if count == -1 else count for count in counts]
    logprobs = logits - logits.max(axis=1, keepdims=True)
    logprobs -= np.log(np.exp(logprobs).sum(axis=1, keepdims=True))
    chosen = np.take_along_axis(logprobs, np.array(token_ids)[:, None], axis=1)
    ranks = (logprobs >= chosen).sum(axis=1)
    tops = likeliest(logprobs, max(counts))
    rows = zip(token_ids, chosen[:, 0].tolist(), ranks.tolist(), tops, counts, strict=True)
    return [Score(token_id, logprob, rank, top[:count]) for token_id, logprob, rank, top, count in rows]


def likeliest(logprobs: Floats, count: int) -> list[list[tuple[int, float]]]:
    """Returns the likeliest tokens of each row, the likeliest first; of equal ones the lowest id first."""
    if count == 0:
        return [[]] * len(logprobs)
    count = min(count, logprobs.shape[1])
    ids = np.sort(np.argpartition(-logprobs, count - 1, axis=1)[:, :count], axis=1)
    values = np.take_along_axis(logprobs, ids, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    ids, values = np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)
    return [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
