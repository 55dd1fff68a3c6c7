"""Shipped recipes with other sections."""

from typing import Any

from engines.recipes.load import find_recipe, load_recipe, parse_recipe
from engines.recipes.recipe import CompiledRecipe, Recipe, TorchRecipe


def change(name: str, **sections: Any) -> Recipe:
    return parse_recipe(load_recipe(find_recipe(name)).model_dump(mode="json") | sections)


def compiled(name: str, **sections: Any) -> CompiledRecipe:
    """With drafts, for few requests."""
    if "speculative" in sections:
        sections["limits"] = {"max_batch_size": 32}
    recipe = change(name, **sections)
    assert isinstance(recipe, CompiledRecipe)
    return recipe


def torch(name: str, **sections: Any) -> TorchRecipe:
    recipe = change(name, **sections)
    assert isinstance(recipe, TorchRecipe)
    return recipe
