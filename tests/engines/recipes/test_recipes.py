"""Recipes: those that are shipped, the words for what is wrong with one, and the rules between fields, as tables."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.recipes import (
    CompiledRecipe,
    RecipeError,
    TorchRecipe,
    find_recipe,
    list_recipes,
    load_recipe,
    parse_recipe,
)
from engines.recipes.load import dump_recipe
from engines.recipes.recipe import Lookahead

Document = dict[str, Any]  # Any: YAML


def document_of(name: str, changes: Document) -> Document:
    """A shipped recipe with changes; a key with dots reaches into a section, None takes it away."""
    document: Document = yaml.safe_load(find_recipe(name).read_text())
    for path, value in changes.items():
        *sections, key = path.split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        if value is None:
            del place[key]
        else:
            place[key] = value
    return document


def problems_of(document: object) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(document)
    return caught.value.problems


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipe_is_sound_and_survives_being_written_out(name: str) -> None:
    recipe = load_recipe(find_recipe(name))
    assert parse_recipe(dump_recipe(recipe)) == recipe


def test_both_flows_and_every_precision_are_shipped() -> None:
    recipes = [load_recipe(find_recipe(name)) for name in list_recipes()]
    assert {type(recipe) for recipe in recipes} == {CompiledRecipe, TorchRecipe}
    precisions = {recipe.precision.weights for recipe in recipes}
    assert precisions == {"bfloat16", "fp8", "int4_awq", "int8_sq", "nvfp4"}
    assert {recipe.parallel.tp for recipe in recipes} == {1, 2}


FP8, BF16, TORCH = "llama-3.1-8b-fp8-tp1", "llama-3.1-8b-bf16-tp1", "llama-3.1-8b-torch-fp8-tp2"
FP8_TP2, AWQ, NVFP4 = "llama-3.1-8b-fp8-tp2", "llama-3.1-8b-int4-awq-tp1", "llama-3.1-8b-torch-nvfp4-tp1"
EAGLE = {"kind": "eagle", "draft_model": "/models/eagle"}
UNPAGED = {
    "plugins.use_paged_context_fmha": "disable",
    "scheduling": {"chunked_context": False},
    "kv_cache": {"reuse": False},
}
MEDUSA = {"kind": "medusa", "draft_model": "/models/medusa"}


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        (FP8, {"limits.max_batchsize": 8}, "limits.max_batchsize: unknown key"),
        (FP8, {"limits.max_batch_size": "8"}, "limits.max_batch_size: must be a whole number"),
        (FP8, {"limits.max_batch_size": 0}, "limits.max_batch_size: must be greater than or equal to 1"),
        (FP8, {"limits": 8}, "limits: must be a mapping"),
        (FP8, {"kv_cache.reuse": "yes"}, "kv_cache.reuse: must be true or false"),
        (FP8, {"precision": None}, "precision: required"),
        (FP8, {"flow": "tensorrt"}, "flow: 'tensorrt' is not one of 'compiled', 'pytorch'"),
        (FP8, {"flow": None}, "flow: required"),
        (FP8, {"release": "1.1.0"}, "release: must be '1.2.1'"),
        (FP8, {"cuda_graphs.padding": True}, "cuda_graphs.padding: unknown key"),
        (
            FP8,
            {"speculative": {"kind": "ngram", "max_draft_len": 4}},
            "speculative.kind: 'ngram' is not one of 'eagle', 'medusa', 'lookahead', 'draft_tokens_external'",
        ),
        (FP8, {"speculative": {"kind": "eagle"}}, "speculative.draft_model: required"),
        (TORCH, {"plugins": {"gemm_plugin": "auto"}}, "plugins: unknown key"),
        (
            TORCH,
            {"speculative": {"kind": "medusa", "draft_model": "/m"}},
            "speculative.kind: 'medusa' is not one of 'ngram', 'eagle3'",
        ),
    ],
)
def test_wrong_field_is_named_with_what_is_wrong(name: str, changes: Document, problem: str) -> None:
    assert problems_of(document_of(name, changes)) == [problem]


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        (
            NVFP4,
            {"gpus.architecture": "hopper"},
            "precision.weights: nvfp4 needs blackwell, gpus.architecture is hopper",
        ),
        (
            AWQ,
            {"gpus.architecture": "ampere", "precision.kv_cache": "fp8", **UNPAGED},
            "precision.kv_cache: fp8 needs ada or blackwell or hopper, gpus.architecture is ampere",
        ),
        (BF16, {"precision.dtype": "float16"}, "precision.dtype: must be bfloat16 too"),
        (FP8_TP2, {"gpus.count": 1}, "parallel: tp 2 times pp 1 needs 2 GPUs, gpus.count is 1"),
        (FP8_TP2, {"parallel.pp": 2}, "parallel: tp 2 times pp 2 needs 4 GPUs, gpus.count is 2"),
        (BF16, {"limits.max_num_tokens": 128}, "limits.max_num_tokens: 128 is below max_batch_size 256"),
        (
            BF16,
            {"scheduling.chunked_context": False, "limits.max_num_tokens": 4096},
            "limits.max_num_tokens: 4096 cannot hold a prompt of 8191 tokens",
        ),
        (
            TORCH,
            {"scheduling.chunked_prefill": False, "limits.max_seq_len": 16384},
            "limits.max_num_tokens: 8192 cannot hold a prompt of 16383 tokens",
        ),
        (FP8, {"precision.calibration": None}, "precision.calibration: required, quantize.py finds the scales of fp8"),
        (BF16, {"precision.calibration": {}}, "precision.calibration: nothing is quantized with bfloat16"),
        (FP8, {"plugins.gemm_plugin": "auto"}, "plugins.gemm_plugin: must be disable with fp8 weights"),
        (BF16, {"plugins.gemm_swiglu_plugin": "fp8"}, "plugins.gemm_swiglu_plugin: fp8 needs precision.weights fp8"),
        (
            FP8,
            {"plugins.low_latency_gemm_swiglu_plugin": "fp8"},
            "plugins.low_latency_gemm_swiglu_plugin: gemm_swiglu_plugin fuses the same",
        ),
        (FP8, {"gpus.architecture": "ada"}, "plugins.gemm_swiglu_plugin: runs on hopper only"),
        (
            FP8,
            {
                "gpus.architecture": "blackwell",
                "plugins.gemm_swiglu_plugin": None,
                "plugins.low_latency_gemm_plugin": "fp8",
            },
            "plugins.low_latency_gemm_plugin: the release refuses it on blackwell",
        ),
        (
            BF16,
            {"plugins.use_paged_context_fmha": "disable", "kv_cache.reuse": False},
            "scheduling.chunked_context: needs plugins.use_paged_context_fmha enable",
        ),
        (
            BF16,
            {"plugins.use_paged_context_fmha": "disable", "scheduling.chunked_context": False},
            "kv_cache.reuse: needs plugins.use_paged_context_fmha enable",
        ),
        (
            AWQ,
            {"plugins.use_fp8_context_fmha": "enable", **UNPAGED},
            "plugins.use_fp8_context_fmha: needs precision.weights fp8 or nvfp4, not int4_awq",
        ),
        (
            FP8,
            {"precision.kv_cache": "auto"},
            "plugins.use_fp8_context_fmha: beside paged context FMHA it needs precision.kv_cache fp8, not auto",
        ),
        (
            AWQ,
            {"precision.kv_cache": "fp8"},
            "plugins.use_paged_context_fmha: over an fp8 KV cache it needs precision.weights fp8 or nvfp4",
        ),
        (
            FP8,
            {"plugins.use_fp8_context_fmha": "disable"},
            "plugins.use_fp8_context_fmha: must be enable for paged context FMHA over an fp8 KV cache",
        ),
        (
            AWQ,
            {"precision.kv_cache": "int8"},
            "plugins.use_paged_context_fmha: does not work with an int8 KV cache",
        ),
        (
            AWQ,
            {"gpus.architecture": "blackwell"},
            "precision.weights: the release builds no int4_awq engine for blackwell",
        ),
        (
            BF16,
            {"gpus.architecture": "blackwell", "precision.kv_cache": "int8", "precision.calibration": {}, **UNPAGED},
            "precision.kv_cache: the release builds no engine with an int8 KV cache for blackwell",
        ),
        (
            BF16,
            {"limits": {"max_batch_size": 1, "max_seq_len": 4096, "max_num_tokens": 8192}},
            "limits.max_num_tokens: max_batch_size times max_seq_len is 4096, more never come together",
        ),
        (
            BF16,
            {"limits": {"max_batch_size": 1, "max_num_tokens": 16}},
            "limits.max_num_tokens: is below kv_cache.tokens_per_block 32",
        ),
        (
            BF16,
            {"speculative": MEDUSA},
            "limits.max_num_tokens: max_batch_size requests with 63 drafts each need 16384",
        ),
        (
            BF16,
            {"speculative": EAGLE, "limits": {"max_batch_size": 513, "max_num_tokens": 65536}},
            "limits.max_batch_size: eagle takes up to 512",
        ),
        (
            BF16,
            {"kv_cache.paged": False, "kv_cache.reuse": False, "scheduling.chunked_context": False},
            "scheduling.in_flight_batching: needs kv_cache.paged",
        ),
        (BF16, {"scheduling.in_flight_batching": False}, "scheduling.chunked_context: needs in_flight_batching"),
        (BF16, {"plugins.reduce_fusion": "enable"}, "plugins.reduce_fusion: fuses what follows an all-reduce"),
        (
            BF16,
            {
                "speculative": EAGLE,
                "limits.max_batch_size": 32,
                "plugins.reduce_fusion": "enable",
                "parallel.tp": 2,
                "gpus.count": 2,
            },
            "plugins.reduce_fusion: the release turns it off in engines with eagle",
        ),
        (FP8_TP2, {"plugins.reduce_fusion": "disable"}, "plugins.user_buffer: needs plugins.reduce_fusion enable"),
        (FP8_TP2, {"model.family": "qwen"}, "plugins.user_buffer: is for FP8 models of the Llama family"),
        (BF16, {"plugins.opt_num_tokens": 256}, "plugins.opt_num_tokens: multiple_profiles has optima of its own"),
        (
            BF16,
            {"plugins.opt_num_tokens": 9000, "plugins.multiple_profiles": "disable"},
            "plugins.opt_num_tokens: is above limits.max_num_tokens 8192",
        ),
        (BF16, {"cuda_graphs.cache_size": 0}, "cuda_graphs.cache_size: with 0 no graph is kept"),
        (
            BF16,
            {"speculative": EAGLE, "limits.max_batch_size": 32, "limits.max_beam_width": 2},
            "speculative: eagle has no beams",
        ),
        (
            FP8,
            {"speculative": EAGLE, "limits.max_batch_size": 32},
            "speculative: eagle's converter quantizes nothing, precision is fp8/fp8",
        ),
        (
            BF16,
            {"speculative": MEDUSA, "limits.max_batch_size": 32, "parallel.pp": 2, "gpus.count": 2},
            "speculative: medusa runs without pipeline parallelism",
        ),
        (
            BF16,
            {"limits.max_batch_size": 32, "speculative": {**EAGLE, "choices": [[0], [0, 0]], "layers": 1}},
            "speculative.choices: the deepest path has 2 steps, speculative.layers is 1",
        ),
        (
            BF16,
            {"speculative": {**MEDUSA, "choices": [[0], [1]], "max_draft_len": 1}},
            "speculative.choices: has 2 paths, speculative.max_draft_len is 1",
        ),
        (
            BF16,
            {"limits.max_batch_size": 32, "speculative": {**EAGLE, "choices": [[0], [1, 0]]}},
            "speculative.choices: [1, 0] hangs in the air",
        ),
        (
            BF16,
            {"speculative": {"kind": "lookahead", "window": 1, "ngram": 1, "verification_set": 0}},
            "speculative.ngram: with 1 nothing is drafted",
        ),
        (BF16, {"lora": {}}, "lora.target_modules: required where lora.directories names no adapter"),
        (
            BF16,
            {"lora": {"target_modules": ["attn_q"], "max_rank": 128}},
            "lora.cache_max_adapter_size: 64 is below lora.max_rank 128",
        ),
        (TORCH, {"precision.kv_cache": "int8"}, "precision.kv_cache: the pytorch flow has auto and fp8"),
        (TORCH, {"precision.weights": "int8_sq"}, "precision.weights: int8_sq is of the compiled flow"),
        (
            TORCH,
            {"precision.calibration.dataset": "/data/articles"},
            "precision.calibration.dataset: the pytorch flow takes c4 or cnn_dailymail or ",
        ),
        (
            TORCH,
            {"precision.calibration.max_seq_length": 2048},
            "precision.calibration.max_seq_length: is 512 in the pytorch flow",
        ),
        (TORCH, {"kv_cache.paged": False}, "kv_cache.paged: the pytorch flow has no other cache"),
        (
            TORCH,
            {"kv_cache.host_memory_bytes": 1, "kv_cache.reuse": False},
            "kv_cache.host_memory_bytes: holds blocks for reuse",
        ),
        (TORCH, {"cuda_graphs.enabled": False}, "cuda_graphs: is not enabled, and yet names batch sizes"),
        (TORCH, {"cuda_graphs.max_batch_size": 512}, "cuda_graphs: a graph for 512 requests never runs"),
        (TORCH, {"cuda_graphs.batch_sizes": [1, 2]}, "cuda_graphs.max_batch_size: must be the largest of batch_sizes"),
        (
            TORCH,
            {"speculative": {"kind": "ngram", "max_draft_len": 4}, "limits.max_beam_width": 2},
            "speculative: ngram has no beams",
        ),
    ],
)
def test_contradiction_is_refused_with_the_field(name: str, changes: Document, problem: str) -> None:
    (found,) = problems_of(document_of(name, changes))
    assert found.startswith(problem)


def test_all_contradictions_are_told_at_once() -> None:
    document = document_of(
        FP8, {"gpus.architecture": "ampere", "plugins.gemm_plugin": "auto", "cuda_graphs.cache_size": 0}
    )
    fields = [problem.partition(":")[0] for problem in problems_of(document)]
    assert {"precision.weights", "plugins.gemm_plugin", "cuda_graphs.cache_size"} <= set(fields)


@pytest.mark.parametrize(("window", "ngram", "verification_set", "length"), [(7, 7, 7, 83), (2, 2, 1, 2), (1, 1, 0, 0)])
def test_lookahead_drafts_as_long_as_the_engine_wants_them(
    window: int, ngram: int, verification_set: int, length: int
) -> None:
    """The first is the example of TensorRT-LLM's examples/lookahead/README.md."""
    shape = Lookahead(kind="lookahead", window=window, ngram=ngram, verification_set=verification_set)
    assert shape.max_draft_len == length


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("flow: compiled\nflow: pytorch\n", "key 'flow' stands twice"),
        ("flow: [", "not YAML"),
        ("[]", "a recipe must be a mapping"),
        ("flow: compiled\nmade: 2026-01-01\n1: 2\n", "a recipe holds texts, numbers, lists and mappings only"),
    ],
)
def test_file_that_is_no_recipe_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=problem):
        load_recipe(path)


def test_recipe_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(RecipeError, match=r"no recipe is called 'llama'; there are llama-3\.1-8b-bf16-tp1, "):
        find_recipe("llama")
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(find_recipe("nowhere/mine.yaml"))
