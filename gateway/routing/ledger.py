"""One model's leases, counted exactly per backend over all workers of the node, and the policy state beside them.

In: a function that chooses. Out: a lease that counts until it is closed. Knows no policy and no history.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

from gateway.core import Demand, Route, State
from gateway.routing.demand import DemandCounts
from gateway.routing.quarantine import Quarantine
from gateway.routing.state_words import STATE_WORDS, read_state, write_state
from gateway.routing.waiting import WaitingRoom
from gateway.shared import Counts, Ints, NodeLock, Seat, as_floats

Replace: TypeAlias = Callable[[State, bytes], tuple[State, bytes]]

TEXT_BYTES = 512 * 1024  # for the history of policies, of which one takes at most 64 kB; unwritten pages cost nothing
CHOICES_S = 60.0  # after which a choice counts a third
LEAST_CHOICES = 0.5  # in the mean; fewer are none
UNKNOWN, NOT_READY, READY = 0, 1, 2  # a backend as one worker finds it; unknown until its first probe

# Words of a record, behind those of the state. Floats stand among integers; both views cover the same span.
SWITCHES, TEXT, LENGTH, DRAINING = range(STATE_WORDS, STATE_WORDS + 4)
RECORD_WORDS = STATE_WORDS + 4
NOTED_AT, HAS_CHOICES = -2, -1  # the last words of `_usual`


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The ledger at one instant.

    `in_flight` counts the sequences of every lease, `steering` only those that the policy decides by, `workers` those
    of every lease by worker. `doubted`: the backends that another worker finds not ready. `draining`: those that an
    operator wants empty.
    """

    in_flight: Mapping[str, int]
    steering: Mapping[str, int]
    workers: tuple[int, ...]
    doubted: frozenset[str]
    draining: frozenset[str]
    state: State
    switches: int
    text: bytes


class _Cell:
    """One backend's counts: a word for each worker, which only that worker writes, and this worker's own among them.

    Of what is in flight there is one word more, for what generations of workers before this one still hold. `choices`:
    how much of what steers are choices beyond a request's first. `heard`: when a token came last, in milliseconds.
    `place`: where the first two are in the map.
    """

    __slots__ = (
        "choices", "heard", "in_flight", "index", "own_choices", "own_in_flight", "own_steering", "place", "ready",
        "steering",
    )  # fmt: skip

    def __init__(self, index: int, seat: Seat) -> None:
        memory, workers = seat.memory, seat.workers
        self.index = index
        counts = memory.ints(2 * (workers + 1))
        self.in_flight, self.steering = counts[: workers + 1], counts[workers + 1 :]
        start = memory.size - counts.nbytes
        self.place = Counts(start, start + self.in_flight.nbytes, workers)
        self.choices, self.ready, self.heard = (memory.ints(workers) for _ in range(3))
        self.own_in_flight = self.in_flight[seat.index : seat.index + 1]
        self.own_steering = self.steering[seat.index : seat.index + 1]
        self.own_choices = self.choices[seat.index : seat.index + 1]

    def clear(self, worker: int) -> None:
        for words in (self.in_flight, self.steering, self.choices, self.ready, self.heard):
            words[worker] = 0


class Lease:
    """One request's place on a backend, in flight until the `with` block is left or `close` is called.

    It counts as many as the request has sequences. Any further `close` has no effect. `route`: where it counts now.
    """

    __slots__ = ("_cell", "_sequences", "_steers", "route")

    def __init__(self, route: Route, cell: _Cell, sequences: int, steers: bool) -> None:
        self.route = route
        self._cell: _Cell | None = cell
        self._sequences = sequences
        self._steers = steers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        # Without the lock: one store to a word that only this worker writes. While another holds the lock no count
        # rises, so whatever sum it reads meanwhile was the true one at some instant.
        if (cell := self._cell) is not None:
            self._cell = None
            if self._steers:
                cell.own_steering[0] -= self._sequences
                if self._sequences > 1:
                    cell.own_choices[0] -= self._sequences - 1
            cell.own_in_flight[0] -= self._sequences

    def steers_at(self, backend: str) -> int:
        """Returns how much of what steers at this backend is this lease's own."""
        return self._sequences if self._steers and self.route.backend == backend else 0

    def recount(self, route: Route, cell: _Cell) -> None:
        """Counts it elsewhere from now on, with the lock held, so that no reader finds it twice or nowhere."""
        self.close()
        self.route, self._cell = route, cell
        cell.own_in_flight[0] += self._sequences
        if self._steers:
            cell.own_steering[0] += self._sequences
            cell.own_choices[0] += self._sequences - 1


class Ledger:
    """Every lease of one model, counted by its sequences. Repr: `<Ledger triton=3 vllm=0>`. `seats`: for workers.

    What is placed or moved is chosen with `counting` held, by what `count` returns: not a single await is between them,
    or a burst would be placed by counts already old and overshoot the threshold (dynamo PR 6314).

    A worker may be killed at any instant. Its counts are in words of its own, which the supervisor clears. State and
    text are written where nobody reads, and one store to the generation puts them in force: all of it, or nothing.
    """

    def __init__(self, backends: Collection[str], seat: Seat) -> None:
        memory = seat.memory
        self._cells = {name: _Cell(index, seat) for index, name in enumerate(backends)}
        self._backends = tuple(backends)
        # What another process has to wait for. Of several workers each placement, so that all counts are those of one
        # instant; of one alone only a change of the state, which the supervisor changes too.
        self._lock = seat.lock
        is_alone, free = seat.workers == 1, NodeLock(None)
        self.counting, self._changing = (free, seat.lock) if is_alone else (seat.lock, free)
        self._generations = memory.ints(1)
        self._records = [memory.ints(RECORD_WORDS) for _ in range(2)]
        self._floats = [as_floats(record) for record in self._records]
        self._texts = [memory.raw(TEXT_BYTES) for _ in range(2)]
        self._generation = 0  # of what this process has read
        self.state = State("", 0.0, 0)  # of the policy, as of what has been read
        self.draining: frozenset[str] = frozenset()  # likewise
        self._seat, self.seats = seat.index, seat.workers
        self.is_first = seat.index == 0  # of the node's workers
        # The cells' means of choices in the last minute, when these were taken, and whether there were any.
        self._usual = memory.floats(len(self._backends) + 2)
        self._none_brief = dict.fromkeys(backends, 0)
        self.brief: Mapping[str, int] = self._none_brief  # of core.Load, as of the last `count`
        self.demand = DemandCounts(backends, seat)
        self.waiting: WaitingRoom = WaitingRoom(seat)
        self.quarantine = Quarantine(seat)

    def __str__(self) -> str:
        return " ".join(f"{name}={sum(cell.in_flight)}" for name, cell in self._cells.items())

    def __repr__(self) -> str:
        return f"<Ledger {self}>"

    def count(self, lease: Lease | None = None) -> Mapping[str, int]:
        """Returns what steers, by backend, without this lease. `state` and `brief` are of the same instant."""
        if self._generations[0] != self._generation:
            with self._changing:
                self._read_state()
        self.brief = self._find_brief(lease) if self._usual[HAS_CHOICES] else self._none_brief
        if lease is None:
            return {name: sum(cell.steering) for name, cell in self._cells.items()}
        return {name: sum(cell.steering) - lease.steers_at(name) for name, cell in self._cells.items()}

    def place(self, route: Route, state: State, *, sequences: int = 1, steers: bool) -> Lease:
        """Counts a request where it goes, all sequences at once, and puts the state in force.

        One that does not steer is counted in flight, but no policy sees it.
        """
        cell = self._cells[route.backend]
        cell.own_in_flight[0] += sequences
        if steers:
            cell.own_steering[0] += sequences
            if sequences > 1:
                cell.own_choices[0] += sequences - 1
                self._usual[HAS_CHOICES] = 1.0
        if state is not self.state:
            self._follow_choice(state)
        return Lease(route, cell, sequences, steers)

    def move(self, lease: Lease, route: Route, state: State) -> None:
        """Counts a lease elsewhere, and puts the state in force."""
        lease.recount(route, self._cells[route.backend])
        if state is not self.state:
            self._follow_choice(state)

    def _follow_choice(self, state: State) -> None:
        with self._changing:
            if self._generations[0] == self._generation:  # else what the supervisor has just changed stands
                self._commit(state, self._record[SWITCHES] + (state.side != self.state.side))

    def _find_brief(self, lease: Lease | None) -> Mapping[str, int]:
        """Returns core.Load's `brief`, without the choices of this lease."""
        brief = {}
        for name, cell in self._cells.items():
            own = lease.steers_at(name) if lease is not None else 0
            brief[name] = sum(cell.choices) - max(own - 1, 0) - round(self._usual[cell.index])
        return brief

    def note_choices(self, now: float) -> None:
        """Takes the means of choices anew, once a beat."""
        usual = self._usual
        if not usual[HAS_CHOICES]:
            return
        with self._lock:
            part = 1 - math.exp(-max(now - usual[NOTED_AT], 0.0) / CHOICES_S) if usual[NOTED_AT] else 0.0
            is_any = False
            for cell in self._cells.values():
                choices = sum(cell.choices)
                usual[cell.index] += (choices - usual[cell.index]) * part
                is_any |= choices > 0 or usual[cell.index] > LEAST_CHOICES
            usual[NOTED_AT], usual[HAS_CHOICES] = (now, 1.0) if is_any else (0.0, 0.0)

    def plan(self, change: Callable[[Demand, State], State], now: float) -> None:
        """Puts the state in force that `change` returns for the node's demand; does nothing twice in one beat."""
        with self._lock:
            in_flight = {name: sum(cell.steering) for name, cell in self._cells.items()}
            foreign = {name: sum(cell.in_flight) - in_flight[name] for name, cell in self._cells.items()}
            if (demand := self.demand.sample(in_flight, foreign, now)) is None:
                return
            self._read_state()
            before = self.state
            state = change(demand, before)
            if state != before:
                self._commit(state, self._record[SWITCHES] + (state.side != before.side))

    def replace(self, change: Replace) -> None:
        """Puts another state and text in force at once; counts stay the same. If `change` raises, nothing changes."""
        with self._lock:
            self._read_state()
            state, text = change(self.state, self.text())
            self._commit(state, self._record[SWITCHES], text)

    def adopt(self, state: State, text: bytes) -> None:
        """Puts a state and text in force that come from elsewhere, the first ones too."""
        self.replace(lambda _state, _text: (state, text))

    def drain(self, backend: str, is_draining: bool) -> None:
        """Notes for all workers whether an operator wants this backend empty."""
        with self._lock:
            self._read_state()
            change = self.draining.union if is_draining else self.draining.difference
            self.draining = change({backend})
            self._commit(self.state, self._record[SWITCHES])

    def glance(self) -> tuple[State, frozenset[str]]:
        """Returns the policy's state, and the backends that drain."""
        with self._lock:
            self._read_state()
            return self.state, self.draining

    def read(self) -> Snapshot:
        with self._lock:
            self._read_state()
            cells = self._cells.items()
            # Each word is read once: places are given back without the lock, and all sums have to be of the same words.
            in_flight = {name: tuple(cell.in_flight) for name, cell in cells}
            return Snapshot(
                in_flight={name: sum(words) for name, words in in_flight.items()},
                steering={name: sum(cell.steering) for name, cell in cells},
                workers=tuple(map(sum, zip(*in_flight.values(), strict=True)))[:-1],
                doubted=frozenset(name for name, cell in cells if self._is_doubted(cell)),
                draining=self.draining,
                state=self.state,
                switches=self._record[SWITCHES],
                text=self.text(),
            )

    def text(self) -> bytes:
        """Returns the text in force. Call it after `count`, with `counting` held, or during `replace`: it stays so."""
        record = self._record
        return bytes(self._texts[record[TEXT]][: record[LENGTH]])

    def report(self, backend: str, is_ready: bool) -> None:
        """Lets the other workers read whether this one finds a backend ready."""
        self._cells[backend].ready[self._seat] = READY if is_ready else NOT_READY

    def hear(self, backend: str, now: float) -> None:
        """Lets the other workers read that tokens have just come from a backend, or that nobody can tell."""
        self._cells[backend].heard[self._seat] = int(1e3 * now)

    def find_silence(self, backend: str, now: float) -> float:
        """Returns for how many seconds no other worker has heard a backend."""
        heard = [at for worker, at in enumerate(self._cells[backend].heard) if worker != self._seat]
        return now - max(heard, default=0) / 1e3

    @property
    def places(self) -> Mapping[str, Counts]:
        """Where what is in flight is counted, for the generation of workers after this one."""
        return {name: cell.place for name, cell in self._cells.items()}

    def inherit(self, backend: str, in_flight: int, steering: int) -> None:
        """Counts what generations of workers before this one hold at a backend now. One process of the node does."""
        cell = self._cells[backend]
        cell.in_flight[-1], cell.steering[-1] = in_flight, steering

    def clear(self, worker: int) -> None:
        """Gives back all that a dead worker held."""
        with self._lock:
            for cell in self._cells.values():
                cell.clear(worker)
            self.demand.clear(worker)
            self.waiting.clear(worker)
            self.quarantine.clear(worker)

    @property
    def _record(self) -> Ints:
        return self._records[self._generation % 2]

    def _is_doubted(self, cell: _Cell) -> bool:
        return any(ready == NOT_READY for worker, ready in enumerate(cell.ready) if worker != self._seat)

    def _read_state(self) -> None:
        if self._generation == self._generations[0]:
            return
        self._generation = self._generations[0]
        record = self._record
        self.state = read_state(record, self._floats[self._generation % 2], self._backends)
        self.draining = frozenset(name for index, name in enumerate(self._backends) if record[DRAINING] & 1 << index)

    def _commit(self, state: State, switches: int, text: bytes | None = None) -> None:
        old, generation = self._record, self._generation + 1
        record = self._records[generation % 2]
        write_state(record, self._floats[generation % 2], state, self._backends)
        record[SWITCHES] = switches
        record[TEXT], record[LENGTH] = old[TEXT], old[LENGTH]
        record[DRAINING] = sum(1 << index for index, name in enumerate(self._backends) if name in self.draining)
        if text is not None:
            record[TEXT], record[LENGTH] = 1 - old[TEXT], len(text)
            self._texts[record[TEXT]][: len(text)] = text
        self._generations[0] = generation
        self._generation, self.state = generation, state
