"""What a Triton model can do, by the configuration that its server tells.

In: a ModelConfig message. Out: needs and the length of a bias. Knows no connection.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from gateway.core import Need

BIAS, GUIDE = "embedding_bias", "guided_decoding_guide"
PENALTIES = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
MIN_TOKENS = "min_tokens"
GUIDE_BACKEND = "guided_decoding_backend"
# The C++ Triton backend follows guides where both are filled in. It needs both to be there, so an empty one is "off"
# (getGuidedDecodingConfigFromParams of its model_instance_state.cc; tensorrtllm_backend@c1e1963, TensorRT-LLM@0c8de69).
CPP_BACKEND = "tensorrtllm"
CPP_GUIDE_PARAMETERS = (GUIDE_BACKEND, "xgrammar_tokenizer_info_path")
PLACEHOLDER = "${"  # left as it is by a template that was not filled in; TensorRT-LLM takes the parameter for unset
# What TensorRT-LLM's own template declares, and every model can do unless its configuration leaves it out.
PLAIN = frozenset({Need.PENALTIES, Need.MIN_TOKENS})


class Abilities(NamedTuple):
    """`vocab_size`: of a bias, 0 where none can be sent."""

    needs: frozenset[Need]
    vocab_size: int


def read_abilities(config: Any, vocab_size: int) -> Abilities:  # Any: an untyped protobuf message
    """`vocab_size`: what is known of it from elsewhere; the config of a TensorRT-LLM model leaves it open.

    Log-probabilities are never among them: TensorRT-LLM tells only those of the tokens taken, and crashes when a
    request that asks for them is cancelled (NVIDIA/TensorRT-LLM#10810).
    """
    dims = {tensor.name: tuple(tensor.dims) for tensor in config.input}
    length = _bias_length(dims.get(BIAS, ()), vocab_size)
    return Abilities(frozenset(_needs(dims, length, _follows_guides(config))), length)


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
