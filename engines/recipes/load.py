"""Reads a recipe's YAML into a Recipe, or reports all its problems, one `field: problem` line each."""

from collections.abc import Hashable
from pathlib import Path

import orjson
import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from engines.recipes.recipe import Recipe
from engines.recipes.rules import find_contradictions

SHIPPED = Path(__file__).parent
_ADAPTER: TypeAdapter[Recipe] = TypeAdapter(Recipe)
_WORDS = {
    "extra_forbidden": "unknown key",
    "missing": "required",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
}
# pydantic names the member of a union in an error's place; these are not keys.
_TAGS = frozenset({"compiled", "pytorch", "eagle", "medusa", "lookahead", "draft_tokens_external", "ngram", "eagle3"})


class RecipeError(Exception):
    """The recipe cannot be used; `problems` holds one `field: problem` line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def list_recipes() -> list[str]:
    """The names of the recipes that come with the project."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """A recipe's file by its path, or a shipped one by its name without folder and ending."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        return path
    shipped = SHIPPED / f"{name}.yaml"
    if not shipped.is_file():
        raise RecipeError([f"no recipe is called {name!r}; there are {', '.join(list_recipes())}, or name a file"])
    return shipped


def load_recipe(path: Path) -> Recipe:
    """The recipe in a YAML file. Raises RecipeError."""
    try:
        document = yaml.load(path.read_bytes(), Loader=UniqueKeyLoader)  # a subclass of SafeLoader
    except OSError as exc:
        raise RecipeError([f"{path}: {exc.strerror}"]) from exc
    except yaml.YAMLError as exc:
        raise RecipeError([f"{path}: not YAML: {' '.join(str(exc).split())}"]) from exc
    return parse_recipe(document)


def parse_recipe(document: object) -> Recipe:
    """The recipe that a parsed YAML document holds. Raises RecipeError."""
    if not isinstance(document, dict):
        raise RecipeError(["a recipe must be a mapping with at least flow, release, model and precision"])
    try:
        # Through JSON: there pydantic's strict mode takes lists for tuples.
        recipe = _ADAPTER.validate_json(orjson.dumps(document))
    except TypeError as exc:
        raise RecipeError([f"a recipe holds texts, numbers, lists and mappings only: {exc}"]) from exc
    except ValidationError as exc:
        raise RecipeError([_describe(error) for error in exc.errors()]) from exc
    if problems := list(find_contradictions(recipe)):
        raise RecipeError(problems)
    return recipe


def _describe(error: ErrorDetails) -> str:
    place = ".".join(str(part) for index, part in enumerate(error["loc"]) if not _is_tag(error, index))
    if error["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return f"{'.'.join(filter(None, (place, error['ctx']['discriminator'][1:-1])))}: {_describe_tag(error)}"
    return f"{place}: {_WORDS.get(error['type']) or _soften(error['msg'])}"


def _describe_tag(error: ErrorDetails) -> str:
    if error["type"] == "union_tag_not_found":
        return "required"
    return f"{error['ctx']['tag']!r} is not one of {error['ctx']['expected_tags']}"


def _is_tag(error: ErrorDetails, index: int) -> bool:
    """The first part of a place is the flow; the part after `speculative` is its kind."""
    part = error["loc"][index]
    return part in _TAGS and (index == 0 or error["loc"][index - 1] == "speculative")


def _soften(message: str) -> str:
    return message.replace("Input should", "must", 1)


class UniqueKeyLoader(yaml.SafeLoader):
    """Refuses equal keys: PyYAML keeps the last of two without an error, which would hide a lost limit."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
        return super().construct_mapping(node, deep)
