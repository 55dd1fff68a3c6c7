"""Keeper: where finished answers are kept for later requests, if anywhere."""

from typing import NamedTuple, Protocol


class Kept(NamedTuple):
    """A response, and the items of its conversation before it, each as JSON."""

    response: bytes
    items: bytes


class Keeper(Protocol):
    def keep(self, response_id: str, kept: Kept) -> None: ...

    def find(self, response_id: str) -> Kept:
        """Raises ResponseNotFound."""
        ...
