"""Rules between a recipe's fields: a Recipe in, a `field: problem` line out for each rule that it breaks.

Every rule has its source: the engine's own documentation or error, or arithmetic. Knows no file and no command.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from engines.recipes.recipe import (
    Architecture,
    CompiledRecipe,
    Eagle,
    ExternalDrafts,
    Lookahead,
    Medusa,
    Recipe,
    TorchRecipe,
    Weights,
)

Problems = Iterator[str]

# The tensor cores that multiply each format: FP8 came with Ada and Hopper, FP4 with Blackwell.
FP8_ARCHITECTURES: Final[frozenset[Architecture]] = frozenset({"ada", "hopper", "blackwell"})
FP4_ARCHITECTURES: Final[frozenset[Architecture]] = frozenset({"blackwell"})
NEEDS: Final[Mapping[Weights, frozenset[Architecture]]] = {"fp8": FP8_ARCHITECTURES, "nvfp4": FP4_ARCHITECTURES}
PLAIN: Final[frozenset[Weights]] = frozenset({"bfloat16", "float16"})
# PluginConfig.validate() of the release refuses these on SM 100.
NOT_ON_BLACKWELL = ("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin")
FP8_PLUGINS = NOT_ON_BLACKWELL
FP8_FMHA: Final[frozenset[Weights]] = frozenset({"fp8", "nvfp4"})
EAGLE_BATCH = 512
TORCH_DATASETS: Final = frozenset(
    {"cnn_dailymail", "pile", "pg19", "wikipedia", "c4", "magpie"}
    | {"open_code_reasoning", "open_math_reasoning", "llama-nemotron-post-training-dataset"}
)
TORCH_SAMPLE_LENGTH: Final = 512


def find_contradictions(recipe: Recipe) -> Problems:
    """All problems of a recipe whose fields are sound one by one."""
    for rule in COMMON_RULES:
        yield from rule(recipe)
    if isinstance(recipe, CompiledRecipe):
        for compiled_rule in COMPILED_RULES:
            yield from compiled_rule(recipe)
    else:
        for torch_rule in TORCH_RULES:
            yield from torch_rule(recipe)


def _check_architecture(recipe: Recipe) -> Problems:
    weights, architecture = recipe.precision.weights, recipe.gpus.architecture
    able = NEEDS.get(weights)
    if able is not None and architecture not in able:
        yield f"precision.weights: {weights} needs {_either(able)}, gpus.architecture is {architecture}"
    if recipe.precision.kv_cache == "fp8" and architecture not in FP8_ARCHITECTURES:
        yield f"precision.kv_cache: fp8 needs {_either(FP8_ARCHITECTURES)}, gpus.architecture is {architecture}"
    if weights in PLAIN and recipe.precision.dtype != weights:
        yield f"precision.dtype: must be {weights} too, weights that are not quantized have one type"


def _check_limits(recipe: Recipe) -> Problems:
    limits, tp, pp, count = recipe.limits, recipe.parallel.tp, recipe.parallel.pp, recipe.gpus.count
    if tp * pp > count:
        yield f"parallel: tp {tp} times pp {pp} needs {tp * pp} GPUs, gpus.count is {count}"
    if limits.max_batch_size > limits.max_num_tokens:
        yield (
            f"limits.max_num_tokens: {limits.max_num_tokens} is below max_batch_size {limits.max_batch_size}, "
            "which take a token each in every step"
        )


def _check_whole_prompts(recipe: Recipe) -> Problems:
    """Checks that a prompt fits into one step where it is not taken in chunks."""
    longest = recipe.limits.max_seq_len - 1
    if not _takes_chunks(recipe) and recipe.limits.max_num_tokens < longest:
        yield (
            f"limits.max_num_tokens: {recipe.limits.max_num_tokens} cannot hold a prompt of {longest} tokens "
            "(limits.max_seq_len less one to generate), and prompts are not taken in chunks"
        )


def _takes_chunks(recipe: Recipe) -> bool:
    if isinstance(recipe, CompiledRecipe):
        return recipe.scheduling.chunked_context
    return recipe.scheduling.chunked_prefill


def _check_beams(recipe: Recipe) -> Problems:
    if recipe.speculative is not None and recipe.limits.max_beam_width > 1:
        yield f"speculative: {recipe.speculative.kind} has no beams, limits.max_beam_width must be 1"


def _check_lora(recipe: Recipe) -> Problems:
    lora = recipe.lora
    if lora is not None and not lora.directories and not lora.target_modules:
        yield "lora.target_modules: required where lora.directories names no adapter, which would have them"


def _check_quantized(recipe: CompiledRecipe) -> Problems:
    precision = recipe.precision
    is_quantized = precision.weights not in PLAIN or precision.kv_cache != "auto"
    if is_quantized and precision.calibration is None:
        yield (
            f"precision.calibration: required, quantize.py finds the scales of {precision.weights} weights "
            f"and a {precision.kv_cache} KV cache from data (`calibration: {{}}` takes its defaults)"
        )
    if not is_quantized and precision.calibration is not None:
        yield f"precision.calibration: nothing is quantized with {precision.weights} and kv_cache auto; remove it"


def _check_gemm_plugin(recipe: CompiledRecipe) -> Problems:
    """Follows TensorRT-LLM's tuning guide: the plugin for BF16 and FP16, TensorRT's own kernels for FP8."""
    plugins, weights = recipe.plugins, recipe.precision.weights
    if weights == "fp8" and plugins.gemm_plugin != "disable":
        yield "plugins.gemm_plugin: must be disable with fp8 weights, TensorRT's own kernels are faster"
    if weights != "fp8":
        for name in FP8_PLUGINS:
            if getattr(plugins, name) == "fp8":
                yield f"plugins.{name}: fp8 needs precision.weights fp8, not {weights}"
    if plugins.gemm_swiglu_plugin == "fp8" and plugins.low_latency_gemm_swiglu_plugin == "fp8":
        yield "plugins.low_latency_gemm_swiglu_plugin: gemm_swiglu_plugin fuses the same operations; choose one"


def _check_plugin_architecture(recipe: CompiledRecipe) -> Problems:
    for name in NOT_ON_BLACKWELL:
        if recipe.gpus.architecture == "blackwell" and getattr(recipe.plugins, name) == "fp8":
            yield f"plugins.{name}: the release refuses it on blackwell"
    if recipe.plugins.gemm_swiglu_plugin == "fp8" and recipe.gpus.architecture != "hopper":
        yield f"plugins.gemm_swiglu_plugin: runs on hopper only, gpus.architecture is {recipe.gpus.architecture}"


def _check_context_fmha(recipe: CompiledRecipe) -> Problems:
    """Checks chunks and reuse: they read earlier blocks of the prompt's cache, which only the paged kernel does."""
    plugins = recipe.plugins
    users = (
        ("scheduling.chunked_context", recipe.scheduling.chunked_context),
        ("kv_cache.reuse", recipe.kv_cache.reuse),
    )
    for field, is_on in users:
        if is_on and plugins.use_paged_context_fmha == "disable":
            yield f"{field}: needs plugins.use_paged_context_fmha enable"
        if is_on and not recipe.kv_cache.paged:
            yield f"{field}: needs kv_cache.paged"


def _check_fmha_precision(recipe: CompiledRecipe) -> Problems:
    """Checks settings by which build() of tensorrt_llm/builder.py turns kernels off and on, with a mere warning."""
    weights, cache = recipe.precision.weights, recipe.precision.kv_cache
    is_paged = recipe.plugins.use_paged_context_fmha == "enable"
    is_fp8 = recipe.plugins.use_fp8_context_fmha == "enable"
    if is_fp8 and weights not in FP8_FMHA:
        yield f"plugins.use_fp8_context_fmha: needs precision.weights {_either(FP8_FMHA)}, not {weights}"
    if is_fp8 and is_paged and cache != "fp8":
        yield f"plugins.use_fp8_context_fmha: beside paged context FMHA it needs precision.kv_cache fp8, not {cache}"
    if is_paged and cache == "fp8" and weights not in FP8_FMHA:
        yield f"plugins.use_paged_context_fmha: over an fp8 KV cache it needs precision.weights {_either(FP8_FMHA)}"
    if is_paged and cache == "fp8" and weights in FP8_FMHA and not is_fp8:
        yield "plugins.use_fp8_context_fmha: must be enable for paged context FMHA over an fp8 KV cache"
    if is_paged and cache == "int8":
        yield "plugins.use_paged_context_fmha: does not work with an int8 KV cache, nor do chunked context and reuse"


def _check_step_tokens(recipe: CompiledRecipe) -> Problems:
    """Checks the bounds to which check_max_num_tokens() and build() move the limit, with a mere warning."""
    limits, block = recipe.limits, recipe.kv_cache.tokens_per_block
    drafted = 0 if recipe.speculative is None else recipe.speculative.max_draft_len
    most, least = limits.max_batch_size * limits.max_seq_len, limits.max_batch_size * (drafted + 1)
    if limits.max_num_tokens > most:
        yield f"limits.max_num_tokens: max_batch_size times max_seq_len is {most}, more never come together"
    if limits.max_num_tokens < block:
        yield f"limits.max_num_tokens: is below kv_cache.tokens_per_block {block}"
    if drafted and limits.max_num_tokens < least:
        yield f"limits.max_num_tokens: max_batch_size requests with {drafted} drafts each need {least}"


def _check_blackwell(recipe: CompiledRecipe) -> Problems:
    """Checks the formats for which build() raises on SM 100 and above."""
    if recipe.gpus.architecture != "blackwell":
        return
    if recipe.precision.weights in {"int8_sq", "int4_awq"}:
        yield f"precision.weights: the release builds no {recipe.precision.weights} engine for blackwell"
    if recipe.precision.kv_cache == "int8":
        yield "precision.kv_cache: the release builds no engine with an int8 KV cache for blackwell"


def _check_batching(recipe: CompiledRecipe) -> Problems:
    if recipe.scheduling.in_flight_batching and not recipe.kv_cache.paged:
        yield "scheduling.in_flight_batching: needs kv_cache.paged, requests come and go by blocks"
    if recipe.scheduling.chunked_context and not recipe.scheduling.in_flight_batching:
        yield "scheduling.chunked_context: needs in_flight_batching, a static batch has no chunks"


def _check_fusions(recipe: CompiledRecipe) -> Problems:
    plugins, tp = recipe.plugins, recipe.parallel.tp
    if plugins.reduce_fusion == "enable" and tp == 1:
        yield "plugins.reduce_fusion: fuses what follows an all-reduce, and with parallel.tp 1 there is none"
    if plugins.reduce_fusion == "enable" and isinstance(recipe.speculative, Eagle):
        yield "plugins.reduce_fusion: the release turns it off in engines with eagle"
    if plugins.user_buffer == "enable" and plugins.reduce_fusion == "disable":
        yield "plugins.user_buffer: needs plugins.reduce_fusion enable"
    if plugins.user_buffer == "enable" and (recipe.precision.weights, recipe.model.family) != ("fp8", "llama"):
        yield "plugins.user_buffer: is for FP8 models of the Llama family only"


def _check_sizes(recipe: CompiledRecipe) -> Problems:
    plugins, lora, graphs, limit = recipe.plugins, recipe.lora, recipe.cuda_graphs, recipe.limits.max_num_tokens
    if lora is not None and lora.cache_max_adapter_size < lora.max_rank:
        yield f"lora.cache_max_adapter_size: {lora.cache_max_adapter_size} is below lora.max_rank {lora.max_rank}"
    if graphs.enabled and graphs.cache_size == 0:
        yield "cuda_graphs.cache_size: with 0 no graph is kept, and every step would capture one again"
    if plugins.opt_num_tokens is not None and plugins.multiple_profiles == "enable":
        yield "plugins.opt_num_tokens: multiple_profiles has optima of its own; give one of them"
    elif plugins.opt_num_tokens is not None and plugins.opt_num_tokens > limit:
        yield f"plugins.opt_num_tokens: is above limits.max_num_tokens {limit}"


def _check_compiled_speculation(recipe: CompiledRecipe) -> Problems:
    speculative = recipe.speculative
    if speculative is None:
        return
    if isinstance(speculative, Eagle | ExternalDrafts) and recipe.plugins.use_paged_context_fmha == "disable":
        yield f"speculative: {speculative.kind} needs plugins.use_paged_context_fmha enable"
    if isinstance(speculative, Eagle | Medusa):
        yield from _check_heads(recipe, speculative)
    if isinstance(speculative, Lookahead) and speculative.max_draft_len < 1:
        yield "speculative.ngram: with 1 nothing is drafted; (2, 2, 1) is the least that speculates"


def _check_heads(recipe: CompiledRecipe, speculative: Eagle | Medusa) -> Problems:
    precision = recipe.precision
    if recipe.parallel.pp > 1:
        yield f"speculative: {speculative.kind} runs without pipeline parallelism, parallel.pp must be 1"
    if isinstance(speculative, Eagle) and recipe.limits.max_batch_size > EAGLE_BATCH:
        yield f"limits.max_batch_size: eagle takes up to {EAGLE_BATCH}"
    if isinstance(speculative, Eagle) and (precision.weights not in PLAIN or precision.kv_cache != "auto"):
        yield f"speculative: eagle's converter quantizes nothing, precision is {precision.weights}/{precision.kv_cache}"
    if speculative.choices is not None:
        yield from _check_tree(speculative, speculative.choices)


def _check_tree(speculative: Eagle | Medusa, choices: tuple[tuple[int, ...], ...]) -> Problems:
    levels, field = (speculative.layers, "layers") if isinstance(speculative, Eagle) else (speculative.heads, "heads")
    depth, limit = max(map(len, choices)), speculative.max_draft_len
    if depth > levels:
        yield f"speculative.choices: the deepest path has {depth} steps, speculative.{field} is {levels}"
    if len(choices) > limit:
        yield f"speculative.choices: has {len(choices)} paths, speculative.max_draft_len is {limit}"
    for path in choices:
        if len(path) > 1 and path[:-1] not in choices:
            yield f"speculative.choices: {list(path)} hangs in the air, {list(path[:-1])} is missing"


def _check_torch_precision(recipe: TorchRecipe) -> Problems:
    if recipe.precision.kv_cache == "int8":
        yield "precision.kv_cache: the pytorch flow has auto and fp8"
    if recipe.precision.weights == "int8_sq":
        yield "precision.weights: int8_sq is of the compiled flow; the pytorch flow runs no SmoothQuant checkpoints"
    if recipe.precision.weights in PLAIN and recipe.precision.calibration is not None:
        yield f"precision.calibration: nothing is quantized with {recipe.precision.weights} weights; remove it"
    if not recipe.kv_cache.paged:
        yield "kv_cache.paged: the pytorch flow has no other cache"
    if recipe.kv_cache.host_memory_bytes and not recipe.kv_cache.reuse:
        yield "kv_cache.host_memory_bytes: holds blocks for reuse, and kv_cache.reuse is false"
    # hf_ptq.py of Model Optimizer 0.37 has no option for the length, and stops at a dataset that it does not know.
    calibration = recipe.precision.calibration
    if calibration is not None and calibration.dataset not in TORCH_DATASETS:
        yield f"precision.calibration.dataset: the pytorch flow takes {_either(TORCH_DATASETS)}"
    if calibration is not None and calibration.max_seq_length != TORCH_SAMPLE_LENGTH:
        yield f"precision.calibration.max_seq_length: is {TORCH_SAMPLE_LENGTH} in the pytorch flow, nothing sets it"


def _check_torch_graphs(recipe: TorchRecipe) -> Problems:
    graphs, limit = recipe.cuda_graphs, recipe.limits.max_batch_size
    sizes = (graphs.max_batch_size or 0, *(graphs.batch_sizes or ()))
    if not graphs.enabled and (graphs.max_batch_size or graphs.batch_sizes):
        yield "cuda_graphs: is not enabled, and yet names batch sizes"
    if max(sizes) > limit:
        yield f"cuda_graphs: a graph for {max(sizes)} requests never runs, limits.max_batch_size is {limit}"
    if graphs.max_batch_size and graphs.batch_sizes and graphs.max_batch_size != max(graphs.batch_sizes):
        yield "cuda_graphs.max_batch_size: must be the largest of batch_sizes, or left out"


def _either(names: Collection[str]) -> str:
    return " or ".join(sorted(names))


COMMON_RULES: tuple[Callable[[Recipe], Problems], ...] = (
    _check_architecture,
    _check_limits,
    _check_whole_prompts,
    _check_beams,
    _check_lora,
)
COMPILED_RULES: tuple[Callable[[CompiledRecipe], Problems], ...] = (
    _check_quantized,
    _check_gemm_plugin,
    _check_plugin_architecture,
    _check_context_fmha,
    _check_fmha_precision,
    _check_step_tokens,
    _check_blackwell,
    _check_batching,
    _check_fusions,
    _check_sizes,
    _check_compiled_speculation,
)
TORCH_RULES: tuple[Callable[[TorchRecipe], Problems], ...] = (
    _check_torch_precision,
    _check_torch_graphs,
)
