"""Reads a Triton model's configuration: its tensors, and TensorRT-LLM's parameters.

In: a ModelConfig message. Out: plain values, statements, and what is wrong with it. Knows no connection. Parameters and
their defaults are those of inflight_batcher_llm/tensorrt_llm/config.pbtxt in TensorRT-LLM 1.2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tritonclient.grpc import model_config_pb2

from gateway.backends.triton_config import MIN_TOKENS, PENALTIES
from gateway.doctor import Statement, Topic
from gateway.doctor.node import TRTLLM

Tensors: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]  # by name: datatype and dims, without the batch's

SCALAR = (1,)
# What every request of the gateway has, or may have, by backends/triton_tensors.py.
INPUTS: Tensors = {
    "input_ids": ("INT32", (-1,)),
    "input_lengths": ("INT32", SCALAR),
    "request_output_len": ("INT32", SCALAR),
    "streaming": ("BOOL", SCALAR),
    "end_id": ("INT32", SCALAR),
    "stop_words_list": ("INT32", (2, -1)),
    "min_tokens": ("INT32", SCALAR),
    "temperature": ("FP32", SCALAR),
    "runtime_top_k": ("INT32", SCALAR),
    "runtime_top_p": ("FP32", SCALAR),
    "seed": ("UINT64", SCALAR),
    "repetition_penalty": ("FP32", SCALAR),
    "presence_penalty": ("FP32", SCALAR),
    "frequency_penalty": ("FP32", SCALAR),
}
OF_A_NEED = PENALTIES | {MIN_TOKENS}  # a model without them gets no request that has them
OUTPUTS: Tensors = {"output_ids": ("INT32", (-1, -1)), "sequence_length": ("INT32", (-1,))}

ENGINE_FOLDER = "gpt_model_path"
PLACEHOLDER = "${"
# As model_state.cc of TensorRT-LLM's Triton backend reads them (tensorrtllm_backend@c1e1963, GetParameter<bool>).
BOOLEANS = dict.fromkeys(("True", "true", "TRUE", "1"), True) | dict.fromkeys(("False", "false", "FALSE", "0"), False)


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """A model's configuration. `backend`: the Triton backend, which runs the model."""

    backend: str
    is_decoupled: bool
    max_batch_size: int
    inputs: Tensors
    outputs: Tensors
    parameters: Mapping[str, str]

    @property
    def is_trtllm(self) -> bool:
        """Whether this is TensorRT-LLM's own model, in C++ or in Python, so that the parameters are its own."""
        return self.backend == TRTLLM or ENGINE_FOLDER in self.parameters


def read_config(config: Any) -> TritonConfig:  # Any: an untyped protobuf message
    return TritonConfig(
        backend=config.backend or config.platform,
        is_decoupled=config.model_transaction_policy.decoupled,
        max_batch_size=config.max_batch_size,
        inputs=_read_tensors(config.input),
        outputs=_read_tensors(config.output),
        parameters={name: parameter.string_value for name, parameter in config.parameters.items()},
    )


def _read_tensors(tensors: Any) -> Tensors:  # Any: as above
    return {
        tensor.name: (model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_"), tuple(tensor.dims))
        for tensor in tensors
    }


def find_differences(config: TritonConfig) -> Iterator[str]:
    """Yields the differences between the model's tensors and those that the gateway speaks."""
    if config.max_batch_size < 1:
        yield "max_batch_size is 0, so its tensors have no batch dimension"
    for kind, wanted, declared in (("input", INPUTS, config.inputs), ("output", OUTPUTS, config.outputs)):
        for name, form in wanted.items():
            if name in declared and declared[name] != form:
                yield f"{kind} {name} is {_describe(declared[name])}, not {_describe(form)}"
            elif name not in declared and name not in OF_A_NEED:
                yield f"{kind} {name} is missing"


def find_placeholders(config: TritonConfig) -> list[str]:
    """Returns the names of the parameters that a template left unfilled."""
    return [name for name, value in config.parameters.items() if PLACEHOLDER in value]


def read_statements(config: TritonConfig) -> Iterator[Statement]:
    """Yields what the parameters turn on or off; nothing where they are not TensorRT-LLM's."""
    if not config.is_trtllm:
        return
    yield Statement(Topic.IS_ON_GPU, True, "its Triton backend, TensorRT-LLM's")
    yield from _read_batching(config.parameters.get("gpt_model_type", ""))
    for topic, name, default in SWITCHES:
        yield Statement(topic, *_read_switch(config.parameters, name, default))
    if "max_tokens_in_paged_kv_cache" in config.parameters:
        is_fixed = config.parameters["max_tokens_in_paged_kv_cache"].isdigit()
        yield Statement(Topic.HAS_FIXED_CACHE, is_fixed, "max_tokens_in_paged_kv_cache")
    else:
        yield Statement(Topic.HAS_FIXED_CACHE, False, "max_tokens_in_paged_kv_cache, which is unset")


SWITCHES = (
    (Topic.CUDA_GRAPHS, "cuda_graph_mode", False),
    (Topic.CHUNKED_PREFILL, "enable_chunked_context", False),
    (Topic.PREFIX_CACHING, "enable_kv_cache_reuse", True),
)


def _read_batching(model_type: str) -> Iterator[Statement]:
    source = f"gpt_model_type, which is {model_type}"
    if model_type.lower().startswith("inflight"):
        yield Statement(Topic.IN_FLIGHT_BATCHING, True, source)
    elif model_type.upper() == "V1":
        yield Statement(Topic.IN_FLIGHT_BATCHING, False, source)


def _read_switch(parameters: Mapping[str, str], name: str, default: bool) -> tuple[bool, str]:
    """Returns value and source. A value that cannot be read counts as unset, as in TensorRT-LLM, which only warns."""
    value = parameters.get(name, "")
    if not value or PLACEHOLDER in value:
        return default, f"{name}, which is unset"
    return BOOLEANS.get(value, default), f"{name}, which is {value}"


def _describe(form: tuple[str, tuple[int, ...]]) -> str:
    datatype, dims = form
    return f"{datatype} {list(dims)}"
