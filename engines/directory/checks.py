"""Whether an engine directory is whole, is what a recipe asks, and fits a node: findings, each with its cure.

In: a directory's content as values. Out: findings; none means that it fits. Reads no file, runs nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engines.directory.engine_config import CONFIG, LIMITS, EngineConfig
from engines.directory.manifest import FileMark, Manifest
from engines.directory.node import NodeFacts
from engines.recipes.recipe import CompiledRecipe, Eagle, ExternalDrafts, Lookahead, Medusa, Recipe, TorchRecipe
from engines.trtllm.llm_args import LlmArgs, make_llm_args
from engines.trtllm.release import CAPABILITIES, name_architecture, name_cache, name_weights
from engines.trtllm.torch_flow import LLM_ARGS

# Why a setting that differs cannot be corrected at run time.
REASONS: Mapping[str, str] = {
    "parallel.tp": "the split is fixed when the checkpoint is converted",
    "parallel.pp": "the split is fixed when the checkpoint is converted",
    "precision.weights": "weights are quantized before the engine is built",
    "precision.kv_cache": "the cache's scales are part of the converted checkpoint",
    "precision.dtype": "the type is fixed when the checkpoint is converted",
    "max_batch_size": "the executor takes the engine's limit, config.pbtxt cannot raise it",
    "max_num_tokens": "the executor takes the engine's limit, config.pbtxt cannot raise it",
    "max_seq_len": "longer requests are refused or cut short by the engine's limit",
    "use_paged_context_fmha": "chunked context and reuse of the KV cache stay off without it",
    "use_fp8_context_fmha": "attention over prompts is compiled in one precision",
    "speculative_decoding_mode": "drafts are verified by a part of the compiled network",
    "max_draft_len": "buffers for drafts are part of the compiled network",
    "lora_plugin": "adapters are applied by a part of the compiled network",
}
# Without gemm_plugin: "auto" in a recipe is a type in config.json, and the setting concerns speed alone.
SWITCHES = (
    *("use_paged_context_fmha", "use_fp8_context_fmha", "reduce_fusion", "user_buffer", "multiple_profiles"),
    *("gemm_swiglu_plugin", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin"),
)
Findings = Iterator["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One setting that does not fit, and the cure: a sentence or a command. `field` is the setting's name."""

    field: str
    problem: str
    cure: str


def check_shape(config: EngineConfig, rank_files: frozenset[str], rebuild: str) -> Findings:
    """Checks that each rank of the split has one plan."""
    if config.tp * config.pp * config.cp != config.world_size:
        product = f"tp {config.tp} x pp {config.pp} x cp {config.cp}"
        yield Finding("mapping", f"config.json has {product}, and a world of {config.world_size}", rebuild)
    expected = {f"rank{rank}.engine" for rank in range(config.world_size)}
    for name in sorted(expected - rank_files):
        yield Finding(name, f"missing; tp {config.tp} and pp {config.pp} make {config.world_size} ranks", rebuild)
    for name in sorted(rank_files - expected):
        problem = f"left over from another build; tp {config.tp} and pp {config.pp} make {config.world_size} ranks"
        yield Finding(name, problem, f"empty the directory, then {rebuild}")


def check_files(marked: Mapping[str, FileMark], found: Mapping[str, FileMark], rebuild: str) -> Findings:
    """Checks that every file is as the build wrote it. Missing ranks and configurations are other checks' findings."""
    for name, mark in marked.items():
        now = found.get(name)
        if now is None:
            if not (name.endswith(".engine") or name in {CONFIG, LLM_ARGS}):
                yield Finding(name, "missing since the build", rebuild)
        elif now.bytes != mark.bytes:
            problem = f"has {now.bytes:,} bytes, the build wrote {mark.bytes:,}"
            yield Finding(name, problem, f"copy it again from where it was built, or {rebuild}")
        elif now.sha256 != mark.sha256:
            yield Finding(name, "was changed since the build: it no longer holds what was built", rebuild)


def check_node(manifest: Manifest, facts: NodeFacts, rebuild: str) -> Findings:
    """Compares the serving node with the builder's; unknown facts are not compared."""
    builder = manifest.builder
    is_compiled = isinstance(manifest.recipe, CompiledRecipe)
    if _differ(builder.tensorrt_llm, facts.tensorrt_llm):
        problem = f"built by {builder.tensorrt_llm}, {facts.tensorrt_llm} serves here"
        why = "; TensorRT-LLM does not compare them, the plan fails to deserialize" if is_compiled else ""
        cure = f"serve with release {builder.tensorrt_llm}, or with {facts.tensorrt_llm} installed: {rebuild}"
        yield Finding("tensorrt_llm", problem + why, cure)
    if is_compiled and _differ(builder.tensorrt, facts.tensorrt):
        problem = f"the plan was made by TensorRT {builder.tensorrt}, {facts.tensorrt} is here and loads no other's"
        yield Finding("tensorrt", problem, f"serve from the image that built it, or in this one: {rebuild}")
    if is_compiled and _differ(builder.capability, facts.capability):
        built, here = (
            f"{name_architecture(number or '')} ({number})" for number in (builder.capability, facts.capability)
        )
        problem = f"the plan was built on {built}, this GPU is {here}; plans do not move between them"
        yield Finding("compute_capability", problem, f"on this node: {rebuild}")
    yield from _check_room(manifest.recipe, facts)


def check_recipe(config: EngineConfig, recipe: CompiledRecipe, rebuild: str) -> Findings:
    """Compares the engine with the recipe. trtllm-build ignores unknown settings without an error."""
    built, asked = _describe_engine(config), _describe_recipe(recipe)
    for field, value in asked.items():
        if built[field] != value:
            problem = f"the engine has {_show(built[field])}, the recipe asks for {_show(value)}"
            reason = f"; {REASONS[field]}" if field in REASONS else ""
            yield Finding(field, problem + reason, rebuild)


def check_llm_args(args: LlmArgs, recipe: TorchRecipe, rebuild: str) -> Findings:
    """Compares the file that trtllm-serve would read with the one that the recipe makes."""
    found, asked = args.model_dump(), make_llm_args(recipe).model_dump()
    for field, value in asked.items():
        if found[field] != value:
            yield Finding(field, f"the file has {_show(found[field])}, the recipe makes {_show(value)}", rebuild)


def check_export(algorithms: tuple[str | None, str | None], recipe: TorchRecipe, rebuild: str) -> Findings:
    """Compares the precision of a checkpoint that was quantized here (its hf_quant_config.json) with the recipe."""
    weights, cache = algorithms
    held = (
        ("precision.weights", name_weights(weights, recipe.precision.dtype), recipe.precision.weights),
        ("precision.kv_cache", name_cache(cache), recipe.precision.kv_cache),
    )
    for field, found, asked in held:
        if found != asked:
            yield Finding(field, f"the quantized checkpoint has {found}, the recipe asks for {asked}", rebuild)


def check_plan(recipe: Recipe, facts: NodeFacts) -> Findings:
    """Checks before a build that this node is one that the recipe is for."""
    if _differ(recipe.release, facts.tensorrt_llm):
        problem = f"the recipe is for {recipe.release}, {facts.tensorrt_llm} is installed"
        yield Finding("tensorrt_llm", problem, "build in the pinned image: --container")
    architecture, capability = recipe.gpus.architecture, facts.capability
    if capability is not None and capability not in CAPABILITIES[architecture]:
        here, known = name_architecture(capability), " or ".join(CAPABILITIES[architecture])
        problem = f"the recipe is for {architecture} ({known}), this GPU is {here} ({capability})"
        yield Finding("gpus.architecture", problem, f"build on a GPU of {architecture}, or write a recipe for {here}")
    yield from _check_room(recipe, facts)


def list_unknown(recipe: Recipe, facts: NodeFacts) -> list[str]:
    """Lists the unknown facts that would have been compared, each by the option that gives it."""
    options = {"--trtllm-version": facts.tensorrt_llm, "--gpus": facts.gpu_count}
    if isinstance(recipe, CompiledRecipe):
        options |= {"--tensorrt-version": facts.tensorrt, "--compute-capability": facts.capability}
    return [option for option, value in options.items() if value is None]


def _check_room(recipe: Recipe, facts: NodeFacts) -> Findings:
    tp, pp, here = recipe.parallel.tp, recipe.parallel.pp, facts.gpu_count
    if here is not None and here < tp * pp:
        problem = f"tp {tp} x pp {pp} needs {tp * pp} GPUs, {here} {'is' if here == 1 else 'are'} here"
        yield Finding("gpus.count", problem, "take a node with more, or a recipe with a smaller split")


def _describe_engine(config: EngineConfig) -> dict[str, str | int | None]:
    return {
        "parallel.tp": config.tp,
        "parallel.pp": config.pp,
        "precision.weights": name_weights(config.quant_algo, config.dtype),
        "precision.kv_cache": name_cache(config.kv_cache_quant_algo),
        "precision.dtype": config.dtype,
        **config.settings,
    }


def _describe_recipe(recipe: CompiledRecipe) -> dict[str, str | int | None]:
    """The engine's fields, with the values that the recipe should lead to."""
    return {
        "parallel.tp": recipe.parallel.tp,
        "parallel.pp": recipe.parallel.pp,
        "precision.weights": recipe.precision.weights,
        "precision.kv_cache": recipe.precision.kv_cache,
        "precision.dtype": recipe.precision.dtype,
        **{name: getattr(recipe.limits, name) for name in LIMITS},
        "max_seq_len": recipe.limits.max_seq_len + _count_draft_room(recipe),
        "kv_cache_type": "paged" if recipe.kv_cache.paged else "continuous",
        "tokens_per_block": recipe.kv_cache.tokens_per_block,
        **{name: getattr(recipe.plugins, name) for name in SWITCHES},
        **_describe_additions(recipe),
    }


def _describe_additions(recipe: CompiledRecipe) -> dict[str, str | int | None]:
    speculative, lora = recipe.speculative, recipe.lora
    modes: dict[type, str] = {
        Lookahead: "lookahead_decoding",
        Eagle: "eagle",
        Medusa: "medusa",
        ExternalDrafts: "draft_tokens_external",
    }
    return {
        "speculative_decoding_mode": modes.get(type(speculative), "none"),
        "max_draft_len": 0 if speculative is None else speculative.max_draft_len,
        "lora_plugin": "disable" if lora is None else "enable",
        "max_lora_rank": None if lora is None else lora.max_rank,
    }


def _count_draft_room(recipe: CompiledRecipe) -> int:
    """Counts tokens that build() of tensorrt_llm/builder.py adds for drafts; prompts and answers keep their lengths."""
    speculative = recipe.speculative
    if speculative is None:
        return 0
    return speculative.max_draft_len + (speculative.layers if isinstance(speculative, Eagle) else 0)


def _differ(ours: object, theirs: object) -> bool:
    return ours is not None and theirs is not None and ours != theirs


def _show(value: object) -> str:
    return "none" if value is None else str(value)
