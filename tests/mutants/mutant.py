"""One behaviour taken away from the code, and the tests that must notice. Plain data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old`, which is in the file `where` exactly once, becomes `new`: then one of `tests` fails, and not before.

    `fields`: what has lost its behaviour, by the names in the first columns of docs/api.md's tables. `tests`: pytest's
    node ids; a parametrized test without brackets is all of its cases.
    """

    fields: tuple[str, ...]
    where: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        old, new = (" ".join(text.split())[:60] for text in (self.old, self.new))
        return f"{', '.join(self.fields)}: {self.where}: {old} -> {new}"
