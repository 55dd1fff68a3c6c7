"""docs/engines.md and the recipes: every key and every shipped recipe has its row."""

import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from engines.recipes import CompiledRecipe, TorchRecipe, list_recipes

PAGE = (Path(__file__).parents[3] / "docs/engines.md").read_text()


def sections_in(hint: Any) -> Iterator[type]:
    """The dataclasses among what a field may hold."""
    if get_origin(hint) is Annotated:
        yield from sections_in(get_args(hint)[0])
    elif get_origin(hint) in {Union, types.UnionType}:
        for part in get_args(hint):
            yield from sections_in(part)
    elif is_dataclass(hint) and isinstance(hint, type):
        yield hint


def keys_of(kind: type, prefix: str = "") -> Iterator[str]:
    """Every key that holds a value, with its sections: `limits.max_batch_size`."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        sections = list(sections_in(hints[field.name]))
        for section in sections:
            yield from keys_of(section, f"{prefix}{field.name}.")
        if not sections:
            yield f"{prefix}{field.name}"


KEYS = sorted({*keys_of(CompiledRecipe), *keys_of(TorchRecipe)})


def test_keys_are_found_in_every_depth() -> None:
    assert {"flow", "limits.max_num_tokens", "precision.calibration.samples", "speculative.layers"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_key_is_documented(key: str) -> None:
    section, _, name = key.rpartition(".")
    if section in {"precision.calibration", "speculative", "lora"}:
        assert f"`{name}`" in PAGE or f"`{key}`" in PAGE
    else:
        assert f"`{key}`" in PAGE


@pytest.mark.parametrize("name", list_recipes())
def test_shipped_recipe_is_documented(name: str) -> None:
    assert f"| `{name}` |" in PAGE
