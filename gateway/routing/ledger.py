"""The exact count of one model's leases per backend, and the policy state that belongs to those counts.

In: a function that chooses. Out: a slot that counts until it is released. Counts one process; a ledger in shared memory
over several workers can stand behind the same four methods, because choosing and counting is one call.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from gateway.core import Route, State

Choose: TypeAlias = Callable[[Mapping[str, int], State], tuple[Route, State]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The ledger at one instant. `in_flight` counts every lease, `steering` only those the policy goes by."""

    in_flight: Mapping[str, int]
    steering: Mapping[str, int]
    state: State
    switches: int


class Slot:
    """One counted request. Release it as often as you like, it is given back once."""

    __slots__ = ("_give_back", "route")

    def __init__(self, route: Route, give_back: Callable[[], None]) -> None:
        self.route = route
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        if (give_back := self._give_back) is not None:
            self._give_back = None
            give_back()


class Ledger:
    """Every lease of one model. Repr: `<Ledger triton=3 vllm=0>`."""

    def __init__(self, backends: Iterable[str], state: State) -> None:
        self._in_flight = dict.fromkeys(backends, 0)
        self._steering = dict.fromkeys(self._in_flight, 0)
        self._state = state
        self._switches = 0

    def __str__(self) -> str:
        return " ".join(f"{name}={count}" for name, count in self._in_flight.items())

    def __repr__(self) -> str:
        return f"<Ledger {self}>"

    def place(self, choose: Choose, *, steers: bool) -> Slot:
        """Choose and count in one step; what `choose` raises passes through and nothing is counted.

        `choose` gets the steering counts. A request that does not steer is counted in flight, but no policy sees it.
        """
        # Synchronous from reading the counts to writing them: with an await in between, a burst would be placed by
        # counts already old and overshoot the threshold (dynamo PR 6314). Across workers a lock goes round this.
        route, state = choose(self._steering, self._state)
        counts = (self._in_flight, self._steering) if steers else (self._in_flight,)
        for count in counts:
            count[route.backend] += 1
        self._switches += state.side != self._state.side
        self._state = state
        return Slot(route, lambda: _subtract(counts, route.backend))

    def restart(self, start: Callable[[State], State]) -> State:
        """Replace the policy state by one made from the old; counts stay as they are."""
        self._state = start(self._state)
        return self._state

    def read(self) -> Snapshot:
        return Snapshot(dict(self._in_flight), dict(self._steering), self._state, self._switches)


def _subtract(counts: tuple[dict[str, int], ...], backend: str) -> None:
    for count in counts:
        count[backend] -= 1
