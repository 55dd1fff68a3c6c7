"""Leases of a ledger alone, by a function that chooses, as a fleet takes them."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from gateway.core import Route, State
from gateway.routing.ledger import Lease, Ledger

Choose: TypeAlias = Callable[[Mapping[str, int], State], tuple[Route, State]]


def place(ledger: Ledger, choose: Choose, *, sequences: int = 1, steers: bool) -> Lease:
    with ledger.counting:
        return ledger.place(*choose(ledger.count(), ledger.state), sequences=sequences, steers=steers)


def move(ledger: Ledger, lease: Lease, choose: Choose) -> None:
    with ledger.counting:
        ledger.move(lease, *choose(ledger.count(lease), ledger.state))
