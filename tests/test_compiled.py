"""Which form of the hot path the tests run on: the sources here, compiled modules in `make test-compiled`."""

import inspect
import os
import tomllib
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
IS_COMPILED = "CROSSOVER_IS_COMPILED" in os.environ  # noqa: TID251 - `make test-compiled` says what it is


def listed() -> list[str]:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    return [
        path.removesuffix(".py").replace("/", ".") for path in build["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    ]


def classes(module: ModuleType) -> list[type]:
    return [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]


@pytest.mark.parametrize("name", listed())
def test_it_is_the_form_that_is_meant(name: str) -> None:
    """One that was compiled beside its source would be tested instead of it, however the source has changed since."""
    path = Path(import_module(name).__file__ or "")
    assert path.suffix == (".so" if IS_COMPILED else ".py")
    assert path.is_relative_to(ROOT / (".compiled" if IS_COMPILED else "gateway"))


def test_no_compiled_instance_can_be_referred_to_weakly() -> None:
    """mypyc 2.4 does not clear weak references to a class with a base that is not compiled: one would outlive it."""
    # Members of an Enum live as long as their module.
    kinds = [
        kind for name in listed() for kind in classes(import_module(name)) if not issubclass(kind, (Exception, Enum))
    ]
    concrete = [kind for kind in kinds if not getattr(kind, "_is_protocol", False)]
    assert len(concrete) > 20
    assert any(kind.__weakrefoffset__ for kind in concrete) != IS_COMPILED
