"""Reads from a Triton model's configuration which needs the model serves.

In: a ModelConfig message. Out: needs and the length of a bias. Knows no connection.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from gateway.core import Need

BIAS, GUIDE = "embedding_bias", "guided_decoding_guide"
PENALTIES = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
MIN_TOKENS = "min_tokens"
GUIDE_BACKEND = "guided_decoding_backend"
# The C++ Triton backend follows guides if both parameters have a value; an empty one switches guides off
# (getGuidedDecodingConfigFromParams of its model_instance_state.cc; tensorrtllm_backend@c1e1963, TensorRT-LLM@0c8de69).
CPP_BACKEND = "tensorrtllm"
CPP_GUIDE_PARAMETERS = (GUIDE_BACKEND, "xgrammar_tokenizer_info_path")
PLACEHOLDER = "${"  # from a template that was not filled in; TensorRT-LLM treats the parameter as unset
# TensorRT-LLM's own template declares these, so every model serves them unless its configuration lacks them.
DEFAULT_NEEDS = frozenset({Need.PENALTIES, Need.MIN_TOKENS})


class ModelCapabilities(NamedTuple):
    """The needs that a model serves. `vocab_size`: the length of a bias, 0 where none can be sent."""

    needs: frozenset[Need]
    vocab_size: int


def read_capabilities(config: Any, vocab_size: int) -> ModelCapabilities:  # Any: an untyped protobuf message
    """Reads what a model serves. `vocab_size`: the gateway's tokenizer's; the config of TensorRT-LLM leaves it open.

    The needs never include log-probabilities: TensorRT-LLM returns only those of the chosen tokens, and crashes when a
    request that asks for them is cancelled (NVIDIA/TensorRT-LLM#10810).
    """
    dims = {tensor.name: tuple(tensor.dims) for tensor in config.input}
    length = _bias_length(dims.get(BIAS, ()), vocab_size)
    return ModelCapabilities(frozenset(_needs(dims, length, _follows_guides(config))), length)


def _bias_length(dims: tuple[int, ...], vocab_size: int) -> int:
    return dims[0] if len(dims) == 1 and dims[0] > 0 else vocab_size


def _follows_guides(config: Any) -> bool:  # Any: as above
    parameters = {name: parameter.string_value for name, parameter in config.parameters.items()}
    names = CPP_GUIDE_PARAMETERS if config.backend == CPP_BACKEND else (GUIDE_BACKEND,)
    values = [parameters.get(name, "") for name in names]
    return all(value and not value.startswith(PLACEHOLDER) for value in values)


def _needs(inputs: Collection[str], bias_length: int, follows_guides: bool) -> Iterator[Need]:
    if BIAS in inputs and bias_length:
        yield Need.LOGIT_BIAS
    if PENALTIES.issubset(inputs):
        yield Need.PENALTIES
    if MIN_TOKENS in inputs:
        yield Need.MIN_TOKENS
    if GUIDE in inputs and follows_guides:
        yield Need.GUIDE
