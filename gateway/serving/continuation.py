"""What is left of a generation whose beginning another engine has made: whether it may go on elsewhere, and with what.

Pure functions of a request and of the answer's token ids so far. docs/routing.md lists what may move, and why.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.core import FinishReason, GenerateRequest, Prompt


def find_obstacle(request: GenerateRequest, tokens: int, has_scores: bool) -> str | None:
    """Returns the name of what forbids the generation to move; None if it may.

    `tokens`: how many of its answer exist. `has_scores`: log-probabilities have come already.
    """
    params = request.params
    if not tokens:  # another engine starts from the prompt, as this one did
        return "prompt_logprobs" if params.prompt_logprobs is not None and has_scores else None
    if params.seed is not None and params.temperature > 0:
        return "seed"  # an engine's generator starts anew, and draws other numbers
    if params.presence_penalty or params.frequency_penalty:
        return "penalties"  # engines count the tokens of the answer, which would be tokens of the prompt
    if params.guide is not None:
        return "guide"  # engines match it from the first token that they generate
    return None


def find_end(request: GenerateRequest, token_ids: Sequence[int]) -> FinishReason | None:
    """Returns the finish reason of an answer that is complete with these ids; None if more has to come.

    Its engine was left, or lost, before it could report the end.
    """
    params, tokens = request.params, len(token_ids)
    if not tokens:
        return None
    end_ids = params.stop_token_ids + (() if params.ignore_eos else request.eos_token_ids)
    if token_ids[-1] in end_ids and tokens >= params.min_tokens:
        return FinishReason.STOP
    return FinishReason.LENGTH if tokens >= params.max_tokens else None


def make_rest(request: GenerateRequest, token_ids: Sequence[int]) -> GenerateRequest:
    """Returns the request that generates what follows these ids: they are the end of its prompt."""
    params, tokens = request.params, len(token_ids)
    if not tokens:
        return request
    left = replace(
        params,
        max_tokens=params.max_tokens - tokens,
        min_tokens=max(params.min_tokens - tokens, 0),
        prompt_logprobs=None,  # reported before the first token
    )
    return replace(request, prompt=Prompt((*request.prompt.token_ids, *token_ids)), params=left)
