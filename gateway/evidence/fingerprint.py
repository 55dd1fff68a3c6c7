"""Finds out whether engines are still those that a policy was measured on. Pure.

In: identities as recorded and as they are now. Out: the fields that differ.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from gateway.evidence.values import Identity

Fingerprint: TypeAlias = Mapping[str, Identity]  # by backend


class Change(NamedTuple):
    """One field of a backend's identity that has changed."""

    backend: str
    field: str
    old: str | int
    new: str | int

    def __str__(self) -> str:
        return f"{self.backend} {self.field} was {self.old}, is {self.new}"


def find_changes(recorded: Fingerprint, live: Fingerprint) -> tuple[Change, ...]:
    """Returns changes in the recorded order. A field that only one side has is no change: unknown is not different."""
    return tuple(
        change for backend in recorded for change in _compare(backend, recorded[backend], live.get(backend, {}))
    )


def _compare(backend: str, recorded: Identity, live: Identity) -> Iterator[Change]:
    for field, old in recorded.items():
        if field in live and live[field] != old:
            yield Change(backend, field, old, live[field])
