"""The fields of a recipe: the model, its precision, its limits, how it is built and how it is served.

Values with their types and ranges; rules.py has the rules between fields. Knows no command and no file.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field

# Unknown keys are errors, and "8" is not 8: TensorRT-LLM itself ignores unknown keys without an error.
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Architecture: TypeAlias = Literal["ampere", "ada", "hopper", "blackwell"]
DType: TypeAlias = Literal["bfloat16", "float16"]
Weights: TypeAlias = Literal["bfloat16", "float16", "fp8", "int8_sq", "int4_awq", "nvfp4"]
CacheDType: TypeAlias = Literal["auto", "fp8", "int8"]
Switch: TypeAlias = Literal["enable", "disable"]
LoraModule: TypeAlias = Literal[
    "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate"
]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Bytes: TypeAlias = Annotated[int, Field(ge=0)]
Text: TypeAlias = Annotated[str, Field(min_length=1)]
Fraction: TypeAlias = Annotated[float, Field(gt=0, lt=1)]
Choices: TypeAlias = Annotated[tuple[Annotated[tuple[Bytes, ...], Field(min_length=1)], ...], Field(min_length=1)]


class Section(BaseModel):
    model_config = ConfigDict(**STRICT, frozen=True)


class Model(Section):
    """`family` is the folder under examples/models/core of TensorRT-LLM that converts this model."""

    name: Text
    family: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")] = "llama"


class Gpus(Section):
    """The GPUs that the engine is built for and runs on."""

    architecture: Architecture = "hopper"
    count: Count = 1


class Calibration(Section):
    """The data that scales are computed from. A dataset's name is fetched; the compiled flow also takes a directory."""

    dataset: Text = "cnn_dailymail"
    samples: Count = 512
    batch_size: Count = 1
    max_seq_length: Count = 512
    awq_block_size: Count = 128


class Precision(Section):
    """`dtype`: the type of all that is not quantized. Without `calibration` nothing is quantized during the build."""

    weights: Weights
    dtype: DType = "bfloat16"
    kv_cache: CacheDType = "auto"
    calibration: Calibration | None = None


class Parallel(Section):
    tp: Count = 1
    pp: Count = 1

    @property
    def world_size(self) -> int:
        return self.tp * self.pp


class Limits(Section):
    """Requests in one batch, tokens in one step, and prompt and answer of one request together."""

    max_batch_size: Count = 256
    max_num_tokens: Count = 8192
    max_seq_len: Count = 8192
    max_beam_width: Count = 1


class KvCache(Section):
    """`max_tokens` fixes the size; without it the engine takes a share of the memory that is free after loading."""

    paged: bool = True
    tokens_per_block: Annotated[int, Field(ge=1)] = 32
    reuse: bool = True
    free_gpu_memory_fraction: Fraction = 0.9
    max_tokens: Count | None = None
    host_memory_bytes: Bytes = 0


class CompiledScheduling(Section):
    in_flight_batching: bool = True
    policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    chunked_context: bool = True


class TorchScheduling(Section):
    """Has no switch for in-flight batching: this flow always batches in flight."""

    policy: Literal["guaranteed_no_evict", "max_utilization"] = "guaranteed_no_evict"
    chunked_prefill: bool = True
    overlap: bool = True
    stream_interval: Count = 1


class CompiledGraphs(Section):
    """CUDA graphs of the C++ executor: off by default there, and with a cache of 0 none is kept."""

    enabled: bool = True
    cache_size: Annotated[int, Field(ge=0)] = 64


class TorchGraphs(Section):
    """CUDA graphs of decode-only batches; with `padding` a batch runs in the next larger graph."""

    enabled: bool = True
    max_batch_size: Count | None = None
    batch_sizes: tuple[Count, ...] | None = None
    padding: bool = True


class Plugins(Section):
    """Arguments of trtllm-build, by its own names."""

    gemm_plugin: Literal["auto", "float16", "bfloat16", "disable"] = "auto"
    gemm_swiglu_plugin: Literal["fp8", "disable"] = "disable"
    low_latency_gemm_plugin: Literal["fp8", "disable"] = "disable"
    low_latency_gemm_swiglu_plugin: Literal["fp8", "disable"] = "disable"
    use_paged_context_fmha: Switch = "enable"
    use_fp8_context_fmha: Switch = "disable"
    reduce_fusion: Switch = "disable"
    user_buffer: Switch = "disable"
    multiple_profiles: Switch = "enable"
    opt_num_tokens: Count | None = None


class Eagle(Section):
    """EAGLE-1 with a fixed tree of drafts; `choices` are its paths, by default the executor's tree of 63."""

    kind: Literal["eagle"]
    draft_model: Text
    choices: Choices | None = None
    layers: Count = 4
    max_draft_len: Annotated[int, Field(ge=1, le=256)] = 63
    max_non_leaves_per_layer: Count = 10


class Medusa(Section):
    kind: Literal["medusa"]
    draft_model: Text
    choices: Choices | None = None
    heads: Count = 4
    max_draft_len: Annotated[int, Field(ge=1, le=256)] = 63


class Lookahead(Section):
    """Lookahead decoding (W, N, G): drafts come from the model's own n-grams."""

    kind: Literal["lookahead"]
    window: Count = 7
    ngram: Count = 7
    verification_set: Annotated[int, Field(ge=0)] = 7

    @property
    def max_draft_len(self) -> int:
        """The length as TensorRT-LLM's examples/lookahead/README.md defines it; another one is refused at load."""
        return max(0, self.ngram - 2) + (self.window - 1 + self.verification_set) * (self.ngram - 1)


class ExternalDrafts(Section):
    """Drafts arrive with the request (`draft_input_ids`)."""

    kind: Literal["draft_tokens_external"]
    max_draft_len: Count


CompiledSpeculation: TypeAlias = Annotated[Eagle | Medusa | Lookahead | ExternalDrafts, Discriminator("kind")]


class NGram(Section):
    """Prompt lookup: the tokens after an earlier occurrence of the last ones are the draft."""

    kind: Literal["ngram"]
    max_draft_len: Count
    max_matching_ngram_size: Count = 2


class Eagle3(Section):
    kind: Literal["eagle3"]
    draft_model: Text
    max_draft_len: Count


TorchSpeculation: TypeAlias = Annotated[NGram | Eagle3, Discriminator("kind")]


class Lora(Section):
    """`cache_*` are the C++ executor's; the PyTorch flow keeps `max_loras` adapters on the GPU."""

    directories: tuple[Text, ...] = ()
    max_rank: Count = 64
    target_modules: tuple[LoraModule, ...] = ()


class CompiledLora(Lora):
    cache_optimal_adapter_size: Count = 8
    cache_max_adapter_size: Count = 64
    cache_gpu_memory_fraction: Fraction = 0.05
    cache_host_memory_bytes: Count = 1 << 30
    prefetch_dir: Text | None = None


class TorchLora(Lora):
    max_loras: Count = 4
    max_cpu_loras: Count = 16


class TritonServing(Section):
    """Values of config.pbtxt. `gpu_device_ids` count among the GPUs that the server sees; a queue of 0 has no bound."""

    max_queue_size: Annotated[int, Field(ge=0)] = 0
    cancellation_check_period_ms: Count = 50
    stats_check_period_ms: Count = 100
    iter_stats_max_iterations: Count = 1000
    gpu_device_ids: tuple[Bytes, ...] | None = None
    xgrammar_tokenizer_info_path: Text | None = None


class BothFlows(Section):
    release: Literal["1.2.1"]
    model: Model
    precision: Precision
    gpus: Gpus = Gpus()
    parallel: Parallel = Parallel()
    limits: Limits = Limits()
    kv_cache: KvCache = KvCache()


class CompiledRecipe(BothFlows):
    """A recipe for the compiled-engine flow of the pinned release, served by Triton's C++ backend."""

    flow: Literal["compiled"]
    scheduling: CompiledScheduling = CompiledScheduling()
    cuda_graphs: CompiledGraphs = CompiledGraphs()
    plugins: Plugins = Plugins()
    speculative: CompiledSpeculation | None = None
    lora: CompiledLora | None = None
    serving: TritonServing = TritonServing()


class TorchRecipe(BothFlows):
    """A recipe for PyTorch's flow: nothing is compiled ahead, trtllm-serve or the LLM API reads a YAML of arguments."""

    flow: Literal["pytorch"]
    scheduling: TorchScheduling = TorchScheduling()
    cuda_graphs: TorchGraphs = TorchGraphs()
    speculative: TorchSpeculation | None = None
    lora: TorchLora | None = None
    guided_decoding: Literal["xgrammar", "llguidance"] | None = None


Recipe: TypeAlias = Annotated[CompiledRecipe | TorchRecipe, Discriminator("flow")]
