"""The LLM API's YAML: what recipes render into, what the schema refuses, and the schema against the release's facts."""

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from engines.recipes.load import list_recipes
from engines.recipes.recipe import TorchRecipe
from engines.trtllm.llm_args import LlmArgs, LlmArgsError, dump_llm_args, make_llm_args, parse_llm_args
from tests.contract.facts import Fact, Type, load_contract
from tests.engines.recipes.changed import torch

TORCH = [name for name in list_recipes() if "torch" in name]


def rendered(recipe: TorchRecipe) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(dump_llm_args(make_llm_args(recipe)))
    return document


@pytest.mark.parametrize("name", TORCH)
def test_shipped_recipe_renders_into_what_the_schema_takes(name: str) -> None:
    args = make_llm_args(torch(name))
    assert parse_llm_args(dump_llm_args(args)) == args


def test_what_defaults_would_leave_off_is_written_out() -> None:
    document = rendered(torch("llama-3.1-8b-torch-fp8-tp2"))
    assert document["enable_chunked_prefill"] is True
    assert document["cuda_graph_config"] == {"max_batch_size": 256, "enable_padding": True}
    assert document["disable_overlap_scheduler"] is False
    assert document["kv_cache_config"]["dtype"] == "fp8"
    assert document["scheduler_config"]["capacity_scheduler_policy"] == "GUARANTEED_NO_EVICT"
    assert (document["tensor_parallel_size"], document["max_seq_len"]) == (2, 8192)


def test_what_a_recipe_leaves_open_is_not_written() -> None:
    """A release that does not know a key yet refuses the file: max_gpu_total_bytes, for instance."""
    document = rendered(torch("llama-3.1-8b-torch-fp8-tp2"))
    assert not {"speculative_config", "lora_config", "guided_decoding_backend", "moe_config"} & set(document)
    cache = {"enable_block_reuse", "free_gpu_memory_fraction", "dtype", "tokens_per_block"}
    assert set(document["kv_cache_config"]) == cache
    sized = torch("llama-3.1-8b-torch-fp8-tp2", kv_cache={"max_tokens": 4096, "host_memory_bytes": 1024})
    assert set(rendered(sized)["kv_cache_config"]) == cache | {"max_tokens", "host_cache_size"}


def test_graphs_that_are_off_are_null_which_is_how_the_release_turns_them_off() -> None:
    document = rendered(torch("llama-3.1-8b-torch-fp8-tp2", cuda_graphs={"enabled": False}))
    assert document["cuda_graph_config"] is None


def test_graph_sizes_that_are_listed_are_those() -> None:
    document = rendered(torch("llama-3.1-8b-torch-fp8-tp2", cuda_graphs={"batch_sizes": [1, 2, 32], "padding": False}))
    assert document["cuda_graph_config"] == {"batch_sizes": [1, 2, 32], "enable_padding": False}


@pytest.mark.parametrize(
    ("speculative", "config"),
    [
        (
            {"kind": "ngram", "max_draft_len": 4, "max_matching_ngram_size": 3},
            {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3},
        ),
        (
            {"kind": "eagle3", "max_draft_len": 3, "draft_model": "/models/eagle3"},
            {
                "decoding_type": "Eagle",
                "max_draft_len": 3,
                "speculative_model_dir": "/models/eagle3",
                "allow_advanced_sampling": True,  # else 1.2 is greedy whatever the temperature
            },
        ),
    ],
)
def test_speculation_goes_by_the_releases_names(speculative: dict[str, Any], config: dict[str, Any]) -> None:
    document = rendered(torch("llama-3.1-8b-torch-fp8-tp2", speculative=speculative))
    assert document["speculative_config"] == config


def test_adapters_are_listed_with_their_rank() -> None:
    lora = {"directories": ["/loras/a"], "target_modules": ["attn_q"], "max_rank": 16, "max_loras": 2}
    document = rendered(torch("llama-3.1-8b-torch-fp8-tp2", lora=lora))
    assert document["lora_config"] == {
        "lora_dir": ["/loras/a"],
        "max_lora_rank": 16,
        "lora_target_modules": ["attn_q"],
        "max_loras": 2,
        "max_cpu_loras": 16,
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        # What releases up to 0.20 took, and what they ignored in silence (TensorRT-LLM PRs #4603, #4890, #4600).
        ("pytorch_backend_config: {use_cuda_graph: true}", "pytorch_backend_config: no recipe sets it"),
        ("use_cuda_graph: true", "use_cuda_graph: no recipe sets it"),
        ("kv_cache_config: {free_gpu_mem_fraction: 0.9}", "kv_cache_config.free_gpu_mem_fraction: no recipe sets it"),
        ("kv_cache_config: {free_gpu_memory_fraction: 1.5}", "kv_cache_config.free_gpu_memory_fraction: "),
        ("cuda_graph_config: {batch_sizes: [1, 2], max_batch_size: 4}", "cuda_graph_config: "),
        ("speculative_config: {decoding_type: Medusa}", "speculative_config: "),
        ("tensor_parallel_size: two", "tensor_parallel_size: "),
        ("max_batch_size: [", "not YAML"),
    ],
)
def test_file_that_the_release_would_refuse_is_refused(text: str, problem: str) -> None:
    with pytest.raises(LlmArgsError) as caught:
        parse_llm_args(text)
    assert str(caught.value).startswith(problem)


# ---- the schema against contract.yaml --------------------------------------------------------------------------------

FACTS = load_contract().llm_args
TYPES: Mapping[object, Type] = {str: "text", int: "integer", float: "number", bool: "boolean"}
SEVERAL: Mapping[object, Type] = {str: "texts", int: "integers"}
# Where the schema differs from the facts, and why.
DIFFERENCES = {
    # Any text there; here only what a recipe can ask for.
    "dtype.values": {"auto", "float16", "bfloat16"},
    "kv_cache_config.dtype.values": {"auto", "fp8"},
    # 0 at first, which was refused, and 2 later: a recipe always writes it.
    "speculative_config.max_matching_ngram_size.default": 2,
}


def variants(annotation: Any) -> Iterator[Any]:
    """The types that an annotation allows, without None and without the bounds that Annotated adds."""
    if hasattr(annotation, "__metadata__"):
        yield from variants(annotation.__origin__)
    elif get_origin(annotation) in {Union, UnionType}:
        for variant in get_args(annotation):
            yield from variants(variant)
    elif annotation is not type(None):
        yield annotation


def type_of(annotation: Any) -> Type:
    """As contract.yaml names it."""
    if get_origin(annotation) is Literal:
        return TYPES[type(get_args(annotation)[0])]
    if get_origin(annotation) is list:
        (item,) = variants(get_args(annotation)[0])
        return SEVERAL[item]
    return "mapping" if issubclass(annotation, BaseModel) else TYPES[annotation]


def statements(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, object]]:
    """(dotted name, statement, value) of every key, those of sections too."""
    for name, field in schema.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        for annotation in variants(field.annotation):
            yield prefix + name, "type", type_of(annotation)
            if get_origin(annotation) is Literal:
                yield prefix + name, "values", set(get_args(annotation))
            if type_of(annotation) == "mapping":
                yield from statements(annotation, f"{prefix}{name}.")
            else:
                yield prefix + name, "default", default or (None if default == [] else default)


def agrees(fact: Fact, what: str, value: object) -> bool:
    if isinstance(value, set):
        return value <= set(fact.values)
    return bool(getattr(fact, what) == value)


def test_schema_is_the_releases_but_for_what_is_explained() -> None:
    differing = {
        f"{name}.{what}": value for name, what, value in statements(LlmArgs) if not agrees(FACTS[name], what, value)
    }
    assert differing == DIFFERENCES
