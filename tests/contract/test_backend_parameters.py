"""config.pbtxt as TensorRT-LLM's C++ backend reads it: what it needs to load a model stands in every rendered file."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engines.recipes.load import find_recipe, list_recipes, load_recipe
from engines.recipes.recipe import CacheDType, CompiledRecipe, Gpus, Parallel, Precision, TritonServing, Weights
from engines.trtllm.triton_config import render_config
from gateway.engine_kinds.triton.model_config import BOOLEANS
from tests.contract.facts import Fact, load_contract

RECIPES = {
    name: recipe for name in list_recipes() if isinstance(recipe := load_recipe(find_recipe(name)), CompiledRecipe)
}
WEIGHTS: tuple[Weights, ...] = get_args(Weights)
CACHES: tuple[CacheDType, ...] = get_args(CacheDType)
FACTS = load_contract().backend_parameters
UNGUARDED = {name for name, fact in FACTS.items() if fact.guarded is False}
LOOKAHEAD = {"lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"}
GUIDED = TritonServing(xgrammar_tokenizer_info_path="/engines/xgrammar.json")


def rendered(recipe: CompiledRecipe, tokenizer: Path | None = None) -> Mapping[str, str]:
    """The parameters of the file, by name."""
    text = render_config(recipe, Path("/engines/llama"), tokenizer)
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    return {name: parameter.string_value for name, parameter in config.parameters.items()}


def is_readable(fact: Fact, value: str) -> bool:
    """As the backend converts the text: std::stoi, std::stof, GetParameter<bool>."""
    if fact.values:
        return value in fact.values
    readers = {"integer": int, "number": float}
    try:
        readers.get(fact.type, str)(value)
    except ValueError:
        return False
    return fact.type != "boolean" or value in BOOLEANS


def test_backend_reads_four_parameters_unguarded() -> None:
    """One more upstream is one more that every file needs."""
    guides = {"tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend"}
    assert {"gpt_model_type", *guides} == UNGUARDED


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_every_rendered_file_has_what_the_backend_reads_unguarded(name: str, tp: int, weights: Weights) -> None:
    recipe = RECIPES[name].model_copy(update={"parallel": Parallel(tp=tp), "gpus": Gpus(count=tp)})
    needed = UNGUARDED | (LOOKAHEAD if recipe.speculative and recipe.speculative.kind == "lookahead" else set())
    for cache in CACHES:
        precise = recipe.model_copy(update={"precision": Precision(weights=weights, kv_cache=cache)})
        for served in (precise, precise.model_copy(update={"serving": GUIDED})):
            assert needed <= rendered(served).keys()


@pytest.mark.parametrize("serving", [TritonServing(), GUIDED], ids=["without guides", "with guides"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_parameter_is_the_backends_with_a_value_that_it_reads(name: str, serving: TritonServing) -> None:
    """It takes a slip in either for its default, and goes on."""
    parameters = rendered(RECIPES[name].model_copy(update={"serving": serving}), Path("/models/llama"))
    assert parameters.keys() - FACTS.keys() == set()
    unreadable = {name: value for name, value in parameters.items() if not is_readable(FACTS[name], value)}
    assert unreadable == {}
