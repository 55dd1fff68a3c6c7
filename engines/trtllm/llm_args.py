"""The YAML that trtllm-serve reads with --config and the LLM API takes: its schema, and a TorchRecipe rendered into it.

The schema has the keys that a recipe sets, with the types and defaults of contract.yaml's section llm_args. The
release refuses keys that it does not know (PR #4600); older ones ignored them and left CUDA graphs off.
"""

from typing import Annotated, Literal, TypeAlias

import yaml
from pydantic import Field, ValidationError, model_validator

from engines.recipes.recipe import Count, Eagle3, NGram, Section, TorchLora, TorchRecipe

Natural: TypeAlias = Annotated[int, Field(ge=0)]


class LlmArgsError(Exception):
    """No recipe makes this YAML, or the release would refuse it; the message has one `key: problem` line each."""


class CudaGraphConfig(Section):
    batch_sizes: list[Count] | None = None
    max_batch_size: Natural = 0
    enable_padding: bool = False

    @model_validator(mode="after")
    def _check_largest(self) -> "CudaGraphConfig":
        if self.batch_sizes and self.max_batch_size not in {0, max(self.batch_sizes)}:
            raise ValueError("max_batch_size must equal max(batch_sizes)")
        return self


class KvCacheConfig(Section):
    enable_block_reuse: bool = True
    max_tokens: Count | None = None
    free_gpu_memory_fraction: Annotated[float, Field(ge=0, le=1)] | None = 0.9
    host_cache_size: Natural | None = None
    dtype: Literal["auto", "fp8"] = "auto"
    tokens_per_block: Count = 32


class SchedulerConfig(Section):
    capacity_scheduler_policy: Literal["MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "STATIC_BATCH"] = "GUARANTEED_NO_EVICT"


class NGramDecodingConfig(Section):
    decoding_type: Literal["NGram"]
    max_draft_len: Count
    max_matching_ngram_size: Count = 2


class EagleDecodingConfig(Section):
    """EAGLE-3 by the names that sources before and after 1.2 take; later ones prefer Eagle3 and speculative_model.

    Where the drafts are made within the model, 1.2 without `allow_advanced_sampling` answers every request greedily,
    whatever its temperature (TensorRT-LLM PR #9885); later releases ignore the key.
    """

    decoding_type: Literal["Eagle"]
    max_draft_len: Count
    speculative_model_dir: str
    eagle3_one_model: bool = True
    allow_advanced_sampling: bool = False


class LoraConfig(Section):
    lora_dir: list[str] = Field(default_factory=list)
    max_lora_rank: Count = 64
    lora_target_modules: list[str] = Field(default_factory=list)
    max_loras: Count | None = None
    max_cpu_loras: Count | None = None


class LlmArgs(Section):
    """The arguments of `tensorrt_llm.LLM` for its PyTorch backend that a recipe sets."""

    dtype: Literal["auto", "float16", "bfloat16"] = "auto"
    tensor_parallel_size: Count = 1
    pipeline_parallel_size: Count = 1
    max_batch_size: Count = 2048
    max_num_tokens: Count = 8192
    max_seq_len: Count | None = None
    max_beam_width: Count = 1
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    enable_chunked_prefill: bool = False
    scheduler_config: SchedulerConfig = SchedulerConfig()
    cuda_graph_config: CudaGraphConfig | None = CudaGraphConfig()
    disable_overlap_scheduler: bool = False
    stream_interval: Count = 1
    enable_iter_perf_stats: bool = False
    return_perf_metrics: bool = False
    guided_decoding_backend: Literal["xgrammar", "llguidance"] | None = None
    speculative_config: (
        Annotated[NGramDecodingConfig | EagleDecodingConfig, Field(discriminator="decoding_type")] | None
    ) = None
    lora_config: LoraConfig | None = None


def make_llm_args(recipe: TorchRecipe) -> LlmArgs:
    """Sets only what the recipe sets: a release refuses keys that it does not know."""
    limits, scheduling = recipe.limits, recipe.scheduling
    args = LlmArgs(
        dtype=recipe.precision.dtype,
        tensor_parallel_size=recipe.parallel.tp,
        pipeline_parallel_size=recipe.parallel.pp,
        max_batch_size=limits.max_batch_size,
        max_num_tokens=limits.max_num_tokens,
        max_seq_len=limits.max_seq_len,
        max_beam_width=limits.max_beam_width,
        kv_cache_config=_make_kv_cache(recipe),
        enable_chunked_prefill=scheduling.chunked_prefill,
        scheduler_config=SchedulerConfig.model_validate({"capacity_scheduler_policy": scheduling.policy.upper()}),
        cuda_graph_config=_make_graphs(recipe),
        disable_overlap_scheduler=not scheduling.overlap,
        stream_interval=scheduling.stream_interval,
        # /metrics and /prometheus/metrics are empty without these.
        enable_iter_perf_stats=True,
        return_perf_metrics=True,
    )
    additions = {
        "guided_decoding_backend": recipe.guided_decoding,
        "speculative_config": _make_speculation(recipe.speculative),
        "lora_config": _make_lora(recipe.lora),
    }
    return args.model_copy(update={key: value for key, value in additions.items() if value is not None})


def dump_llm_args(args: LlmArgs) -> str:
    """The YAML of all that is set, defaults included, so that a default that changes upstream changes nothing here."""
    return yaml.safe_dump(args.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def parse_llm_args(text: str) -> LlmArgs:
    """Parses the YAML. Raises LlmArgsError with every key that is wrong."""
    try:
        return LlmArgs.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as exc:
        raise LlmArgsError(f"not YAML: {' '.join(str(exc).split())}") from exc
    except ValidationError as exc:
        places = ((".".join(map(str, error["loc"])), error) for error in exc.errors())
        words = (
            f"{place}: {'no recipe sets it' if e['type'] == 'extra_forbidden' else e['msg']}" for place, e in places
        )
        raise LlmArgsError("\n".join(words)) from exc


def _make_kv_cache(recipe: TorchRecipe) -> KvCacheConfig:
    cache = recipe.kv_cache
    config = KvCacheConfig(
        enable_block_reuse=cache.reuse,
        free_gpu_memory_fraction=cache.free_gpu_memory_fraction,
        dtype="fp8" if recipe.precision.kv_cache == "fp8" else "auto",
        tokens_per_block=cache.tokens_per_block,
    )
    sizes = {"max_tokens": cache.max_tokens, "host_cache_size": cache.host_memory_bytes}
    return config.model_copy(update={key: size for key, size in sizes.items() if size})


def _make_graphs(recipe: TorchRecipe) -> CudaGraphConfig | None:
    """Sets either the sizes or the largest one: some releases refuse a file with both."""
    graphs = recipe.cuda_graphs
    if not graphs.enabled:
        return None
    if graphs.batch_sizes:
        return CudaGraphConfig(batch_sizes=list(graphs.batch_sizes), enable_padding=graphs.padding)
    return CudaGraphConfig(
        max_batch_size=graphs.max_batch_size or recipe.limits.max_batch_size, enable_padding=graphs.padding
    )


def _make_speculation(speculative: NGram | Eagle3 | None) -> NGramDecodingConfig | EagleDecodingConfig | None:
    match speculative:
        case NGram(max_draft_len=length, max_matching_ngram_size=size):
            return NGramDecodingConfig(decoding_type="NGram", max_draft_len=length, max_matching_ngram_size=size)
        case Eagle3(max_draft_len=length, draft_model=model):
            return EagleDecodingConfig(
                decoding_type="Eagle",
                max_draft_len=length,
                speculative_model_dir=model,
                allow_advanced_sampling=True,
            )
    return None


def _make_lora(lora: TorchLora | None) -> LoraConfig | None:
    if lora is None:
        return None
    return LoraConfig(
        lora_dir=list(lora.directories),
        max_lora_rank=lora.max_rank,
        lora_target_modules=list(lora.target_modules),
        max_loras=lora.max_loras,
        max_cpu_loras=lora.max_cpu_loras,
    )
