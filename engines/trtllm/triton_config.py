"""config.pbtxt of the C++ Triton backend, rendered strictly: no placeholder stays unfilled, no value without a place.

In: the template in model_repo/cpp and a CompiledRecipe. Out: the text, parsed once as Triton's own message ModelConfig.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Final, TypeAlias

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engines.recipes.recipe import CompiledLora, CompiledRecipe, DType, Eagle, Lookahead, Medusa

TEMPLATE: Final = Path(__file__).resolve().parents[2] / "model_repo/cpp/tensorrt_llm/config.pbtxt"
Values: TypeAlias = Mapping[str, str | None]  # None leaves a parameter out, with its line
TENSOR_TYPES: Final[Mapping[DType, str]] = {"bfloat16": "TYPE_BF16", "float16": "TYPE_FP16"}
SHOWN = 60  # characters of a setting that is a message of its own
# Inputs that the executor ignores without an error in its modes for drafts: the model does not declare them, so the
# gateway sends no such request. Flags: DecodingMode in tensorrt_llm/executor/types.h (TensorRT-LLM@a98a906, @0396172).
PENALTIES: Final = frozenset({"repetition_penalty", "presence_penalty", "frequency_penalty"})
UNFOLLOWED: Final[Mapping[type, frozenset[str]]] = {
    Eagle: PENALTIES | {"min_tokens"},
    Medusa: PENALTIES,
    Lookahead: PENALTIES,
}
_INPUT = re.compile(r'^  \{ name: "(\w+)" data_type: .* optional: true .*\},$')
_PARAMETER = re.compile(r'^parameters \{ key: "(\w+)" value \{ string_value: "\$\{(\w+)\}" \} \}$')


class RenderError(Exception):
    """The template and the values do not fit; the message names the placeholder or the key."""


def render_config(recipe: CompiledRecipe, engine: Path, tokenizer: Path | None, template: str | None = None) -> str:
    """The file's text. `engine` and `tokenizer` are paths where Triton runs.

    Raises RenderError for a placeholder without a value, a value without a placeholder, a text that is no ModelConfig.
    """
    unfollowed = UNFOLLOWED.get(type(recipe.speculative), frozenset())
    lines = (TEMPLATE.read_text() if template is None else template).splitlines(keepends=True)
    text = "".join(line for line in lines if not _is_comment(line) and _find_input(line) not in unfollowed)
    rendered = fill(
        text, {**_executor(recipe, engine), **_speculation(recipe), **_lora(recipe.lora), **_guide(recipe, tokenizer)}
    )
    parse_config(rendered)
    return f"# Rendered by `crossover engine render` for {recipe.model.name}: change the recipe, not this.\n{rendered}"


def find_differences(
    found: model_config_pb2.ModelConfig, asked: model_config_pb2.ModelConfig
) -> Iterator[tuple[str, str, str]]:
    """Lists (setting, as found, as asked) for all that differ but the engine's path, which Triton may see elsewhere."""
    ours, theirs = (_parameters(config) for config in (asked, found))
    for name in sorted(ours.keys() | theirs.keys()):
        if name != "gpt_model_path" and ours.get(name) != theirs.get(name):
            yield name, _show(theirs.get(name)), _show(ours.get(name))
    for field in asked.DESCRIPTOR.fields_by_name:
        if field != "parameters" and getattr(found, field) != getattr(asked, field):
            yield field, _shorten(getattr(found, field)), _shorten(getattr(asked, field))


def fill(template: str, values: Values) -> str:
    """The template with every value in its place. Raises RenderError."""
    known = set(Template(template).get_identifiers())
    if missing := sorted(known - values.keys()):
        raise RenderError(f"no value for the placeholder {missing[0]}")
    if unknown := sorted(values.keys() - known):
        raise RenderError(f"the template has no placeholder {unknown[0]}")
    lines = [line for line in template.splitlines() if not _is_left_out(line, values)]
    escaped = {name: _escape(value) for name, value in values.items() if value is not None}
    try:
        filled = Template("\n".join(lines)).substitute(escaped)
    except KeyError as exc:
        raise RenderError(
            f"the placeholder {exc.args[0]} has no value, and its line is no parameter to leave out"
        ) from exc
    except ValueError as exc:
        raise RenderError(f"the template has a $ that begins no placeholder: {exc}") from exc
    return filled + "\n"


def parse_config(text: str) -> model_config_pb2.ModelConfig:
    """The message that Triton reads from this text. Raises RenderError with the parser's line and column."""
    if "${" in text:
        raise RenderError(f"unfilled placeholder: {text[text.index('${') :].splitlines()[0]}")
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except text_format.ParseError as exc:
        raise RenderError(f"not a model configuration: {exc}") from exc


def _is_comment(line: str) -> bool:
    """Whether the line is a comment; comments explain the template."""
    return line.startswith("#")


def _find_input(line: str) -> str | None:
    """The optional input that a line declares."""
    tensor = _INPUT.match(line)
    return None if tensor is None else tensor.group(1)


def _parameters(config: model_config_pb2.ModelConfig) -> dict[str, str]:
    return {name: parameter.string_value for name, parameter in config.parameters.items()}


def _show(value: str | None) -> str:
    """Shows a missing parameter unlike an empty one: to the backend they are two things."""
    return "not set" if value is None else value or "empty"


def _shorten(value: object) -> str:
    text = " ".join(str(value).split())
    return (text if len(text) <= SHOWN else f"{text[:SHOWN]}...") or "not set"


def _is_left_out(line: str, values: Values) -> bool:
    parameter = _PARAMETER.match(line)
    return parameter is not None and values[parameter.group(2)] is None


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


def _executor(recipe: CompiledRecipe, engine: Path) -> dict[str, str | None]:
    cache, serving, graphs = recipe.kv_cache, recipe.serving, recipe.cuda_graphs
    ids = serving.gpu_device_ids
    return {
        "max_batch_size": str(recipe.limits.max_batch_size),
        "max_queue_size": str(serving.max_queue_size),
        "dtype": TENSOR_TYPES[recipe.precision.dtype],
        "gpt_model_type": "inflight_fused_batching" if recipe.scheduling.in_flight_batching else "V1",
        "gpt_model_path": str(engine),
        "max_beam_width": str(recipe.limits.max_beam_width),
        "batch_scheduler_policy": recipe.scheduling.policy,
        "kv_cache_free_gpu_mem_fraction": str(cache.free_gpu_memory_fraction),
        "kv_cache_host_memory_bytes": str(cache.host_memory_bytes),
        "max_tokens_in_paged_kv_cache": None if cache.max_tokens is None else str(cache.max_tokens),
        "enable_kv_cache_reuse": _flag(cache.reuse),
        "enable_chunked_context": _flag(recipe.scheduling.chunked_context),
        "exclude_input_in_output": "true",
        "cancellation_check_period_ms": str(serving.cancellation_check_period_ms),
        "stats_check_period_ms": str(serving.stats_check_period_ms),
        "iter_stats_max_iterations": str(serving.iter_stats_max_iterations),
        "request_stats_max_iterations": "0",
        "cuda_graph_mode": _flag(graphs.enabled),
        "cuda_graph_cache_size": str(graphs.cache_size if graphs.enabled else 0),
        "normalize_log_probs": "true",
        "gpu_device_ids": None if ids is None else ",".join(map(str, ids)),
    }


def _speculation(recipe: CompiledRecipe) -> dict[str, str | None]:
    speculative = recipe.speculative
    lookahead = speculative if isinstance(speculative, Lookahead) else None
    modes: dict[type, str] = {Eagle: "eagle", Medusa: "medusa", Lookahead: "lookahead"}
    beams = "beam_search" if recipe.limits.max_beam_width > 1 else "top_k_top_p"
    return {
        "decoding_mode": modes.get(type(speculative), beams),
        "eagle_choices": _tree(speculative) if isinstance(speculative, Eagle) else None,
        "medusa_choices": _tree(speculative) if isinstance(speculative, Medusa) else None,
        "lookahead_window_size": str(lookahead.window) if lookahead else None,
        "lookahead_ngram_size": str(lookahead.ngram) if lookahead else None,
        "lookahead_verification_set_size": str(lookahead.verification_set) if lookahead else None,
    }


def _tree(speculative: Eagle | Medusa) -> str | None:
    """Returns the paths as the backend's csvStrToVecVecInt reads them: `{0}, {0, 1}`."""
    if speculative.choices is None:
        return None
    return ", ".join("{" + ", ".join(map(str, path)) + "}" for path in speculative.choices)


def _lora(lora: CompiledLora | None) -> dict[str, str | None]:
    names = ("optimal_adapter_size", "max_adapter_size", "gpu_memory_fraction", "host_memory_bytes")
    cache = {f"lora_cache_{name}": str(getattr(lora, f"cache_{name}")) if lora else None for name in names}
    return {**cache, "lora_prefetch_dir": lora.prefetch_dir if lora else None}


def _guide(recipe: CompiledRecipe, tokenizer: Path | None) -> dict[str, str | None]:
    """Sets all three, empty for off: without one the backend loads no model (contract.yaml: they are unguarded)."""
    info = recipe.serving.xgrammar_tokenizer_info_path or ""
    return {
        "guided_decoding_backend": "xgrammar" if info else "",
        "xgrammar_tokenizer_info_path": info,
        "tokenizer_dir": str(tokenizer) if tokenizer else "",
    }


def _flag(is_on: bool) -> str:
    return "true" if is_on else "false"
