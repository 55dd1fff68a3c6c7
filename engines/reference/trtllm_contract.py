"""The tensor contract of TensorRT-LLM's `tensorrt_llm` model, used by both servers that implement it.

In: named arrays with a leading batch dimension. Out: a TokenRequest, or a ContractError with the backend's own text.
Knows neither gRPC nor Triton. Semantics are those of the C++ backend of TensorRT-LLM 1.2.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.reference.guide import KINDS, Guide, GuideKind
from engines.reference.sampling import SamplingParams

Array = NDArray[Any]  # the element type is the tensor's own: INT32, FP32, BOOL, UINT64, or bytes objects


@dataclass(frozen=True)
class Tensor:
    """A declared tensor; `dims` without the batch dimension, -1 for any length."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (1,)
    is_required: bool = False


INPUTS = (
    Tensor("input_ids", "INT32", (-1,)),
    Tensor("input_lengths", "INT32", is_required=True),
    Tensor("request_output_len", "INT32", is_required=True),
    Tensor("end_id", "INT32"),
    Tensor("pad_id", "INT32"),
    Tensor("stop_words_list", "INT32", (2, -1)),
    Tensor("num_return_sequences", "INT32"),
    Tensor("beam_width", "INT32"),
    Tensor("temperature", "FP32"),
    Tensor("runtime_top_k", "INT32"),
    Tensor("runtime_top_p", "FP32"),
    Tensor("repetition_penalty", "FP32"),
    Tensor("presence_penalty", "FP32"),
    Tensor("frequency_penalty", "FP32"),
    Tensor("min_tokens", "INT32"),
    Tensor("seed", "UINT64"),
    Tensor("embedding_bias", "FP32", (-1,)),
    Tensor("lora_task_id", "UINT64"),
    Tensor("guided_decoding_guide_type", "BYTES"),
    Tensor("guided_decoding_guide", "BYTES"),
    Tensor("return_log_probs", "BOOL"),
    Tensor("exclude_input_in_output", "BOOL"),
    Tensor("stop", "BOOL"),
    Tensor("streaming", "BOOL"),
)
OUTPUTS = (
    Tensor("output_ids", "INT32", (-1, -1)),
    Tensor("sequence_length", "INT32", (-1,)),
    Tensor("cum_log_probs", "FP32", (-1,)),
    Tensor("output_log_probs", "FP32", (-1, -1)),
)
NUMPY_TYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_, "BYTES": np.object_}
PLAIN_OUTPUTS = ("output_ids", "sequence_length")
LOGPROB_OUTPUTS = ("cum_log_probs", "output_log_probs")
STOP_WITHOUT_ID = "Trying to stop a request but request ID is not provided"
NO_BIAS = np.zeros(0, np.float32)
GUIDE_KINDS: Mapping[str, GuideKind] = {kind: kind for kind in KINDS if kind != "choice"}
GUIDED_DECODING_BACKEND = "llguidance"  # the parameter's value; with an empty one a model follows no guide
MAX_BATCH_SIZE = 256  # of the model configuration; it bounds Triton's batch, not the engine's


class ContractError(Exception):
    """The request is wrong; the message is for the client."""


@dataclass(frozen=True)
class Limits:
    """The bounds of the served model.

    `check_guide` raises ValueError for an invalid guide; without it the model follows no guide. `lora_task_ids`: those
    of its LoRA adapters. `unfollowed`: tensors that its engine ignores or refuses, with the reason; a request that one
    of them would change is refused here.
    """

    vocab_size: int
    context_length: int
    check_guide: Callable[[Guide], object] | None = None
    lora_task_ids: Collection[int] = ()
    unfollowed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenRequest:
    """One decoded generation. Stop words are matched on ids here, not by the engine: they ignore `min_tokens`."""

    prompt: tuple[int, ...]
    params: SamplingParams
    stop_words: tuple[tuple[int, ...], ...]
    is_streaming: bool
    includes_prompt: bool
    returns_logprobs: bool
    lora_task_id: int | None = None


def is_stop(inputs: Mapping[str, Array]) -> bool:
    """Whether this asks to cancel the request of the same id."""
    return bool(_scalar(inputs, "stop", default=False))


def decode_request(inputs: Mapping[str, Array], limits: Limits) -> TokenRequest:
    _refuse_unsupported(inputs)
    prompt = _decode_prompt(inputs, limits)
    try:
        params = _decode_params(inputs, limits, len(prompt))
    except ValueError as exc:
        raise ContractError(str(exc)) from exc
    for name in _asked(params):
        if name in limits.unfollowed:
            raise ContractError(f"{name} is not supported by this engine: {limits.unfollowed[name]}")
    is_streaming = bool(_scalar(inputs, "streaming", default=False))
    return TokenRequest(
        prompt=prompt,
        params=params,
        stop_words=decode_words(inputs["stop_words_list"]) if "stop_words_list" in inputs else (),
        is_streaming=is_streaming,
        includes_prompt=not is_streaming and not _scalar(inputs, "exclude_input_in_output", default=False),
        returns_logprobs=bool(_scalar(inputs, "return_log_probs", default=False)),
        lora_task_id=_decode_lora(inputs, limits.lora_task_ids),
    )


def output_names(listed: Collection[str], request: TokenRequest) -> tuple[str, ...]:
    """The outputs to send: all that the request produces, or those of them that the client lists."""
    produced = (*PLAIN_OUTPUTS, *LOGPROB_OUTPUTS) if request.returns_logprobs else PLAIN_OUTPUTS
    if not listed:
        return produced
    for name in PLAIN_OUTPUTS:
        if name not in listed:
            raise ContractError(f"{name} tensor must be present in list of output tensors")
    return tuple(name for name in produced if name in listed)


def decode_words(words: Array) -> tuple[tuple[int, ...], ...]:
    """Row 0: all word ids, flat; row 1: inclusive cumulative ends, strictly rising, padded with -1 at the end only."""
    flat, ends = words.reshape(2, -1).tolist()
    used = ends[: ends.index(-1)] if -1 in ends else ends
    text = "".join(f"{value} " for value in (*flat, *ends))
    if any(end != -1 for end in ends[len(used) :]):
        raise ContractError(f"Sparse list must not have additional -1s: {text}")
    if any(end > len(flat) for end in used):
        raise ContractError(f"Sparse list must not have out-of-bound offsets: {text}")
    starts = [0, *used][: len(used)]
    if any(end <= start for start, end in zip(starts, used, strict=True)):
        raise ContractError(f"Sparse list must not have non-increasing offsets: {text}")
    return tuple(tuple(flat[start:end]) for start, end in zip(starts, used, strict=True))


def _refuse_unsupported(inputs: Mapping[str, Array]) -> None:
    for name, array in inputs.items():
        if array.shape[0] != 1:
            raise ContractError(f"{name}: a batch of {array.shape[0]} is not supported; send one request per batch")
    for name in ("num_return_sequences", "beam_width"):
        if _scalar(inputs, name, default=1) != 1:
            raise ContractError(f"{name} must be 1 on this model")


def _decode_prompt(inputs: Mapping[str, Array], limits: Limits) -> tuple[int, ...]:
    if "input_ids" not in inputs:
        raise ContractError("input_ids or encoder_input_features is not present in the request.")
    ids = inputs["input_ids"].reshape(-1)
    length = int(_scalar(inputs, "input_lengths", default=len(ids)))
    if not 1 <= length <= len(ids):
        raise ContractError(f"input_lengths is {length}, but input_ids holds {len(ids)} tokens")
    if length >= limits.context_length:
        # The executor keeps room for one new token.
        raise ContractError(
            f"Prompt length ({length}) exceeds maximum input length ({limits.context_length - 1}). "
            "Set log level to info and check TRTGptModel logs for how maximum input length is set"
        )
    prompt = tuple(ids[:length].tolist())
    if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
        raise ContractError(f"input_ids must lie in [0, {limits.vocab_size})")
    return prompt


def _decode_params(inputs: Mapping[str, Array], limits: Limits, prompt_tokens: int) -> SamplingParams:
    end_id = int(_scalar(inputs, "end_id", default=-1))
    if not -1 <= end_id < limits.vocab_size:
        raise ContractError(f"EndId ({end_id}) is not within acceptable range [-1, {limits.vocab_size}).")
    max_tokens = _decode_max_tokens(inputs, limits.context_length - prompt_tokens)
    temperature, top_k, top_p = _decode_sampling(inputs)
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(max(0, int(_scalar(inputs, "min_tokens", default=0))), max_tokens),
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=int(_scalar(inputs, "seed", default=0)),  # the executor's default is a fixed 0, not a random seed
        repetition_penalty=float(_scalar(inputs, "repetition_penalty", default=1.0)),
        presence_penalty=float(_scalar(inputs, "presence_penalty", default=0.0)),
        frequency_penalty=float(_scalar(inputs, "frequency_penalty", default=0.0)),
        end_ids=() if end_id == -1 else (end_id,),
        logit_bias=_decode_bias(inputs, limits.vocab_size),
        guide=_decode_guide(inputs, limits.check_guide),
        logprobs=0 if _scalar(inputs, "return_log_probs", default=False) else None,
    )


def _asked(params: SamplingParams) -> Iterator[str]:
    """The tensors that not every engine follows, where this request uses them."""
    asked = {
        "repetition_penalty": params.repetition_penalty != 1.0,
        "presence_penalty": params.presence_penalty != 0.0,
        "frequency_penalty": params.frequency_penalty != 0.0,
        "min_tokens": params.min_tokens > 0,
        "embedding_bias": bool(params.logit_bias),
        "return_log_probs": params.logprobs is not None,
        "temperature": not params.is_greedy,
    }
    return (name for name, is_asked in asked.items() if is_asked)


def _decode_max_tokens(inputs: Mapping[str, Array], room: int) -> int:
    if "request_output_len" not in inputs:
        raise ContractError("request_output_len is not present in the request")
    wanted = int(_scalar(inputs, "request_output_len", default=0))
    if wanted < 1:
        raise ContractError(f"request_output_len must be at least 1, got {wanted}")
    return min(wanted, room)  # as the executor does, without an error


def _decode_sampling(inputs: Mapping[str, Array]) -> tuple[float, int, float]:
    """Returns temperature (0 is greedy), top_k, top_p. The executor's defaults top_k 0 with top_p 0 are greedy."""
    top_k = int(_scalar(inputs, "runtime_top_k", default=0))
    top_p = float(_scalar(inputs, "runtime_top_p", default=0.0))
    temperature = float(_scalar(inputs, "temperature", default=1.0))
    if temperature == 0 or top_k == 1 or (top_k <= 0 and top_p <= 0):
        return 0.0, 0, 1.0
    return temperature, top_k, top_p if top_p > 0 else 1.0


def _decode_bias(inputs: Mapping[str, Array], vocab_size: int) -> tuple[tuple[int, float], ...]:
    bias = inputs.get("embedding_bias", NO_BIAS).reshape(-1)
    if len(bias) not in {0, vocab_size}:  # empty means none, as in TensorRT-LLM
        raise ContractError(f"embedding_bias must hold {vocab_size} values, got {len(bias)}")
    (biased,) = bias.nonzero()
    return tuple(zip(biased.tolist(), bias[biased].tolist(), strict=True))


def _decode_guide(inputs: Mapping[str, Array], check: Callable[[Guide], object] | None) -> Guide | None:
    """Decodes the guide. TensorRT-LLM ignores an unknown type without an error; here it is refused."""
    name = _text(inputs, "guided_decoding_guide_type")
    if name is None:
        return None
    if check is None:
        raise ContractError("guided decoding is off: the model's parameter guided_decoding_backend is empty")
    if name not in GUIDE_KINDS:
        raise ContractError(f"guided_decoding_guide_type must be one of {', '.join(GUIDE_KINDS)}, got '{name}'")
    text = _text(inputs, "guided_decoding_guide")
    if text is None and name != "json":
        raise ContractError("The guide string must be provided unless using GuideType::kJSON.")
    guide = Guide(GUIDE_KINDS[name], text or "")
    check(guide)
    return guide


def _decode_lora(inputs: Mapping[str, Array], served: Collection[int]) -> int | None:
    """Decodes an adapter's id. TensorRT-LLM takes its weights with the first request; here the operator gives them."""
    if "lora_task_id" not in inputs:
        return None
    task_id = int(_scalar(inputs, "lora_task_id", default=0))
    if task_id not in served:
        raise ContractError(f"lora_task_id {task_id} is no adapter of this model, which has {sorted(served) or 'none'}")
    return task_id


def _text(inputs: Mapping[str, Array], name: str) -> str | None:
    if name not in inputs:
        return None
    encoded: bytes = inputs[name].reshape(-1)[0]
    return encoded.decode(errors="replace")


def _scalar(inputs: Mapping[str, Array], name: str, default: float) -> Any:  # the element's own Python type
    return inputs[name].reshape(-1)[0].item() if name in inputs else default
