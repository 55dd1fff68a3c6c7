"""docs/engines.md and the recipes: every key and every shipped recipe has its row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from engines.recipes.load import list_recipes
from engines.recipes.recipe import CompiledRecipe, Section, TorchRecipe

PAGE = (Path(__file__).parents[3] / "docs/engines.md").read_text()


def find_sections(hint: Any) -> Iterator[type[Section]]:
    """The sections among the values that a field may hold."""
    if isinstance(hint, type) and issubclass(hint, Section):
        yield hint
    for part in get_args(hint):
        yield from find_sections(part)


def list_keys(kind: type[Section], prefix: str = "") -> Iterator[str]:
    """Every key that holds a value, with its sections: `limits.max_batch_size`."""
    for name, field in kind.model_fields.items():
        sections = list(find_sections(field.annotation))
        for section in sections:
            yield from list_keys(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}"


KEYS = {*list_keys(CompiledRecipe), *list_keys(TorchRecipe)}


def is_documented(key: str) -> bool:
    section, _, name = key.rpartition(".")
    has_own_table = section in {"precision.calibration", "speculative", "lora"}
    return f"`{key}`" in PAGE or (has_own_table and f"`{name}`" in PAGE)


def test_every_key_is_documented() -> None:
    assert {"flow", "limits.max_num_tokens", "precision.calibration.samples", "speculative.layers"} <= KEYS
    assert [key for key in sorted(KEYS) if not is_documented(key)] == []


def test_every_shipped_recipe_is_documented() -> None:
    assert [name for name in list_recipes() if f"| `{name}` |" not in PAGE] == []
