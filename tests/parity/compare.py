"""Where two JSON documents differ, field by field. Knows no field in particular."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

# Of log-probabilities: one engine's, but computed beside others at one time and alone at another; as far as two
# implementations in float32 have to agree.
CLOSE = 1e-3


class Missing(Enum):
    """Not there, which is not null."""

    ABSENT = "absent"


ABSENT = Missing.ABSENT


@dataclass(frozen=True, slots=True)
class Found:
    """`path`: `choices.*.message.content`, a star for every place in a list."""

    path: str
    ours: object
    theirs: object


def find_differences(ours: object, theirs: object, path: str = "") -> Iterator[Found]:
    match ours, theirs:
        case dict(), dict():
            for name in {**ours, **theirs}:
                yield from find_differences(ours.get(name, ABSENT), theirs.get(name, ABSENT), _join(path, name))
        case list(), list() if len(ours) == len(theirs):
            for left, right in zip(ours, theirs, strict=True):
                yield from find_differences(left, right, _join(path, "*"))
        case float(), float() if math.isclose(ours, theirs, abs_tol=CLOSE):
            pass
        case _ if ours != theirs or type(ours) is not type(theirs):
            yield Found(path, ours, theirs)


def find_paths(value: object, path: str = "") -> Iterator[str]:
    """Of every field within."""
    match value:
        case dict():
            for name, inner in value.items():
                yield _join(path, name)
                yield from find_paths(inner, _join(path, name))
        case list():
            for inner in value:
                yield from find_paths(inner, _join(path, "*"))
        case _:
            pass


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
