"""A policy that is tried beside the one in force: it chooses for every request and places none.

In: what the policy in force gets to see. Out: counts, over all workers, of where each request went and would have gone.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import product

from gateway.core import Demand, Load, Placeable, Policy, State
from gateway.routing.state_words import STATE_WORDS, read_state, write_state
from gateway.routing.states import DryState
from gateway.shared import Seat, as_floats

SWITCHES = STATE_WORDS  # the word behind the state's
VERSION = 1  # it lasts as long as the gateway


class DryRun:
    """One policy on trial. `choose` and `plan` are called with the node's lock, inside the ledger's own steps."""

    def __init__(self, policy: Policy, backends: Collection[str], seat: Seat) -> None:
        self.policy = policy
        self._backends = tuple(backends)
        self._seat = seat
        self._generation = seat.memory.ints(1)
        self._ints = [seat.memory.ints(STATE_WORDS + 1) for _ in range(2)]
        self._floats = [as_floats(words) for words in self._ints]
        # For each pair of backends one word for each worker, which only that worker writes.
        self._choices = {pair: seat.memory.ints(seat.workers) for pair in product(backends, backends)}

    def begin(self, now: float) -> None:
        """Writes the first state; called once, before there is a worker."""
        self._write(self.policy.start(VERSION, now), 0)

    def choose(self, request: Placeable, loads: Mapping[str, Load], taken: str, now: float) -> None:
        """Counts where it would have sent a request that goes to `taken`."""
        before = self._read()
        route, state = self.policy.choose(request, loads, before, now)
        self._choices[taken, route.backend][self._seat.index] += 1
        self._keep(before, state)

    def plan(self, demand: Demand, now: float) -> None:
        before = self._read()
        self._keep(before, self.policy.plan(demand, before, now))

    def read(self, clock: Callable[[], float]) -> DryState:
        with self._seat.lock:
            state, switches = self._read(), self._ints[self._generation[0] % 2][SWITCHES]
        choices = {pair: sum(words) for pair, words in self._choices.items()}
        return DryState(self.policy, state.side, clock() - state.since, switches, choices)

    def _keep(self, before: State, state: State) -> None:
        if state != before:
            self._write(state, self._ints[self._generation[0] % 2][SWITCHES] + (state.side != before.side))

    def _read(self) -> State:
        index = self._generation[0] % 2
        return read_state(self._ints[index], self._floats[index], self._backends)

    def _write(self, state: State, switches: int) -> None:
        """Writes where nobody reads; one store puts it in force, so that a worker that is killed leaves no half."""
        index = (self._generation[0] + 1) % 2
        write_state(self._ints[index], self._floats[index], state, self._backends)
        self._ints[index][SWITCHES] = switches
        self._generation[0] += 1
