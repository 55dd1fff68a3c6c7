"""The checks that vLLM's engine makes after its front end has taken a request, in the engine's order and words.

In: a parsed call. Out: the call with its guide. A call that is not admitted is refused by status, but a stream by an
event, because its status 200 has been sent by then.
"""

from collections.abc import Sequence
from dataclasses import replace

from engines.reference.guide import Guide
from engines.reference.vllm_http.errors import Invalid, WireError
from engines.reference.vllm_http.requests import GenerateCall
from engines.reference.vllm_http.served import ServedModel

MAX_LOGPROBS = 20  # vLLM's default of --max-logprobs


def admit(call: GenerateCall, model: ServedModel) -> GenerateCall:
    """Returns the call with its guide. Raises WireError for a whole answer; a stream gets its `refusal` instead."""
    try:
        check_computed(call, model)
        check_logprobs("sample", "logprobs", call.params.logprobs, model.vocab_size)
        check_logprobs("prompt", "prompt_logprobs", call.params.prompt_logprobs, model.vocab_size)
        check_tokens("logit_bias", [token_id for token_id, _ in call.params.logit_bias], model.vocab_size)
        check_tokens("stop_token_ids", call.params.stop_ids, model.vocab_size)
        guide = None if call.structured is None else checked(call.structured.to_guide(), model)
        check_prompt(call.prompt, model)
    except WireError as exc:
        if not call.is_streaming:
            raise
        return replace(call, refusal=exc)
    return replace(call, params=replace(call.params, guide=guide))


def check_computed(call: GenerateCall, model: ServedModel) -> None:
    """Refuses what an engine without a model could only invent."""
    for name in ("logprobs", "prompt_logprobs"):
        if not model.computes and getattr(call.params, name) is not None:
            raise Invalid(f"`{name}` are not supported: this engine computes nothing", name)


def check_logprobs(kind: str, parameter: str, count: int | None, vocab_size: int) -> None:
    count = vocab_size if count == -1 else count
    if count is not None and count > MAX_LOGPROBS:
        message = f"Requested {kind} logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS}"
        raise Invalid(message, parameter, count)


def check_tokens(parameter: str, token_ids: Sequence[int], vocab_size: int) -> None:
    unknown = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if unknown:
        message = f"token_id(s) {unknown} in {parameter} contain out-of-vocab token ids. Vocabulary size: {vocab_size}"
        raise Invalid(message, parameter, unknown)


def checked(guide: Guide, model: ServedModel) -> Guide:
    if model.grammars is None:
        raise Invalid("Structured outputs are not supported: this engine computes nothing")
    try:
        model.grammars.walk(guide)
    except ValueError as exc:
        raise Invalid(str(exc)) from exc
    return guide


def check_prompt(prompt: Sequence[int], model: ServedModel) -> None:
    length, longest = len(prompt), model.max_model_len
    if max(prompt) >= model.vocab_size:
        raise WireError(f"Token id {max(prompt)} is out of vocabulary")
    if length > longest:
        raise WireError(
            f"The decoder prompt (length {length}) is longer than the maximum model length of {longest}. Make sure "
            "that `max_model_len` is no smaller than the number of text tokens."
        )
    if length == longest:
        raise WireError(
            f"The decoder prompt (length {length}) plus the number of requested output tokens (at least 1) is longer "
            f"than the maximum model length of {longest}. Make sure that `max_model_len` is no smaller than the number "
            "of text tokens (prompt + requested output tokens)."
        )
