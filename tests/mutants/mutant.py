"""A mutant: one promised behaviour taken away from the running code, and the tests that must notice it.

The target's module must be imported, and what is patched stays patched: for a process that ends afterwards.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

ROOT = Path(__file__).parents[2]

Replacement: TypeAlias = Callable[[Any], Any]  # Any: targets are functions, methods, properties and constants


@dataclass(frozen=True, slots=True)
class Mutant:
    """`replacement` gets the target and returns what takes its place; then one of `tests` fails, and none without it.

    `behaviour`: the promise, as a sentence. `target`: "gateway.module:function" or "gateway.module:Class.method".
    `tests`: files or node ids of pytest, whose tests run the target in their own process.
    """

    behaviour: str
    target: str
    replacement: Replacement
    tests: tuple[str, ...]


class Patch(NamedTuple):
    """`name` of `owner`, a module or a class, is to become `value`."""

    owner: object
    name: str
    value: object


def find_target(target: str) -> tuple[object, str]:
    """The module or class that has the target, and the target's name there. Raises ImportError, AttributeError."""
    module, _, path = target.partition(":")
    *outer, name = path.split(".")
    owner: object = import_module(module)
    for part in outer:
        owner = getattr(owner, part)
    return owner, name


def read_target(target: str) -> object:
    """As it stands in its owner: a property as the property."""
    original: object = inspect.getattr_static(*find_target(target))
    return original


def make_patches(mutant: Mutant) -> Iterator[Patch]:
    """A class has its attribute once; a module's function is also in every module that has imported it by name."""
    owner, name = find_target(mutant.target)
    original = read_target(mutant.target)
    value = mutant.replacement(original)
    if inspect.isclass(owner):
        yield Patch(owner, name, value)
        return
    for module_name, module in tuple(sys.modules.items()):
        if module_name.partition(".")[0] == "gateway" and vars(module).get(name) is original:
            yield Patch(module, name, value)


# Replacements that many mutants have in common.


def returns(value: object) -> Replacement:
    """A function that does nothing but return this."""
    return lambda _was: lambda *_args, **_kwargs: value


def becomes(value: object) -> Replacement:
    """A constant, or a class's attribute."""
    return lambda _was: value


def reads(value: object) -> Replacement:
    """A property that always has this value."""
    return lambda _was: property(lambda _self: value)


def changes(change: Callable[[Any], object]) -> Replacement:
    """The same function, and then this done to its result."""
    return lambda was: lambda *args, **kwargs: change(was(*args, **kwargs))
