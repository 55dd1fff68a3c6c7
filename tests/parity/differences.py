"""Where the gateway's answers are not those of vLLM's own server, and why. docs/api.md repeats the table.

Plain data; `explain` says which row covers a difference. Measured against vLLM 0.32.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tests.parity.compare import ABSENT, Found

Allows: TypeAlias = Callable[[object, object], bool]


def _any(ours: object, theirs: object) -> bool:
    return True


def _left_out(ours: object, theirs: object) -> bool:
    return ours is ABSENT


def _null_left_out(ours: object, theirs: object) -> bool:
    return ours is ABSENT and theirs is None


def _both_text(ours: object, theirs: object) -> bool:
    return isinstance(ours, str) and isinstance(theirs, str)


@dataclass(frozen=True, slots=True)
class Difference:
    """`field`: as docs/api.md names it; `paths`: where it lies. `allows`: which values it is about.

    `seen_in`: a case whose answer shows it. `in_fields`: it is about which fields a stream's chunks have.
    """

    field: str
    paths: str
    reason: str
    seen_in: str
    allows: Allows = _any
    in_fields: bool = False

    def covers(self, found: Found) -> bool:
        return re.fullmatch(self.paths, found.path) is not None and self.allows(found.ours, found.theirs)


DIFFERENCES: tuple[Difference, ...] = (Difference("`id`, `created`", "id|created", "Each server's own.", "capital"),)


def explain(found: Found, *, in_fields: bool) -> Difference | None:
    """The row that covers it."""
    return next((row for row in DIFFERENCES if row.in_fields == in_fields and row.covers(found)), None)
