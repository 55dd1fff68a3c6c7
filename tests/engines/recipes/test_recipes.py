"""Recipes: those that are shipped, and what is refused in one (refused.yaml has the table)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.recipes.load import RecipeError, find_recipe, list_recipes, load_recipe, parse_recipe
from engines.recipes.recipe import CompiledRecipe, Lookahead, TorchRecipe
from tests.engines.recipes.changed import change

Document = dict[str, Any]  # Any: YAML
REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())


def read_changed(name: str, changes: Document) -> Document:
    document: Document = yaml.safe_load(find_recipe(f"llama-3.1-8b-{name}").read_text())
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


def find_problems(document: object) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(document)
    return caught.value.problems


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipe_is_sound_and_survives_being_written_out(name: str) -> None:
    assert change(name) == load_recipe(find_recipe(name))


def test_both_flows_and_every_precision_are_shipped() -> None:
    recipes = [load_recipe(find_recipe(name)) for name in list_recipes()]
    assert {type(recipe) for recipe in recipes} == {CompiledRecipe, TorchRecipe}
    precisions = {recipe.precision.weights for recipe in recipes}
    assert precisions == {"bfloat16", "fp8", "int4_awq", "int8_sq", "nvfp4"}
    assert {recipe.parallel.tp for recipe in recipes} == {1, 2}


@pytest.mark.parametrize(("name", "changes", "problem"), REFUSED["fields"])
def test_wrong_field_is_named_with_what_is_wrong(name: str, changes: Document, problem: str) -> None:
    assert find_problems(read_changed(name, changes)) == [problem]


@pytest.mark.parametrize(("name", "changes", "problem"), REFUSED["rules"])
def test_contradiction_is_refused_with_the_field(name: str, changes: Document, problem: str) -> None:
    (found,) = find_problems(read_changed(name, changes))
    assert found.startswith(problem)


def test_all_contradictions_are_reported_at_once() -> None:
    changes = {"gpus.architecture": "ampere", "plugins.gemm_plugin": "auto", "cuda_graphs.cache_size": 0}
    fields = [problem.partition(":")[0] for problem in find_problems(read_changed("fp8-tp1", changes))]
    assert {"precision.weights", "plugins.gemm_plugin", "cuda_graphs.cache_size"} <= set(fields)


@pytest.mark.parametrize(("shape", "length"), [((7, 7, 7), 83), ((2, 2, 1), 2), ((1, 1, 0), 0)])
def test_lookahead_drafts_as_long_as_the_engine_wants_them(shape: tuple[int, int, int], length: int) -> None:
    """The first is the example of TensorRT-LLM's examples/lookahead/README.md."""
    window, ngram, verification_set = shape
    lookahead = Lookahead(kind="lookahead", window=window, ngram=ngram, verification_set=verification_set)
    assert lookahead.max_draft_len == length


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


def test_recipe_that_is_missing_is_named_beside_those_that_are_shipped() -> None:
    with pytest.raises(RecipeError, match=r"no recipe is called 'llama'; there are llama-3\.1-8b-bf16-tp1, "):
        find_recipe("llama")
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(find_recipe("nowhere/mine.yaml"))
