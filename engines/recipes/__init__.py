"""Recipes: how one model is built and run by TensorRT-LLM; the YAML files beside this module are those we ship.

In: a YAML document. Out: a frozen Recipe whose fields agree with one another, or every problem with the field it is in.
"""

from engines.recipes.load import RecipeError, find_recipe, list_recipes, load_recipe, parse_recipe
from engines.recipes.recipe import CompiledRecipe, Recipe, TorchRecipe

__all__ = [
    "CompiledRecipe",
    "Recipe",
    "RecipeError",
    "TorchRecipe",
    "find_recipe",
    "list_recipes",
    "load_recipe",
    "parse_recipe",
]
