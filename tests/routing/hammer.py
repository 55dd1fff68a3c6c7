"""One of several processes that place and release in one ledger as fast as they can, and check what they see.

Every third request has several sequences, which must come and go as one. Started by test_ledger_processes.py with the
map's descriptor. Exits with 0 if all was as it must be.
"""

import random
import sys
import time
from collections.abc import Mapping
from dataclasses import replace

from gateway.core import GenerateRequest, Load, Prompt, Route, SamplingParams, State
from gateway.routing.ledger import Lease, Ledger
from gateway.routing.policies import Threshold
from gateway.shared import Seat
from tests.routing.choices import move, place

BACKENDS = ("triton", "vllm")
POLICY = Threshold(low="triton", high="vllm", up=12, down=6, dwell_s=0)
REQUEST = GenerateRequest("id", "llama", Prompt((1,)), SamplingParams(max_tokens=1), (0,))
REQUESTS = (REQUEST, REQUEST, replace(REQUEST, sequences=4))


class Ground:
    """What a hammering shares: a ledger, and beside it what each process says it has done."""

    def __init__(self, seat: Seat) -> None:
        self.ledger = Ledger(BACKENDS, seat)
        self.arrived, self.placed, self.releasing, self.released = (seat.memory.ints(seat.workers) for _ in range(4))


class Hammer:
    """One process. What a choice sees lies between what all books allow: nobody places while another chooses, and a
    release is one step somewhere between being begun and being done."""

    def __init__(self, seat: Seat, ground: Ground) -> None:
        self._index = seat.index
        self._ledger = ground.ledger
        self._placed, self._releasing, self._released = ground.placed, ground.releasing, ground.released
        self._policy = POLICY
        self._slots: list[tuple[Lease, int]] = []
        self.faults: list[str] = []

    def place(self, request: GenerateRequest) -> None:
        released = sum(self._released)

        def choose(counts: Mapping[str, int], state: State) -> tuple[Route, State]:
            placed, seen = sum(self._placed), sum(counts.values())
            if not placed - sum(self._releasing) <= seen <= placed - released:
                self.faults.append(f"saw {seen} of {placed} placed, {released} released")
            if counts["triton"] >= POLICY.up + 3:  # choices beyond a request's first do not count at once
                self.faults.append(f"{counts['triton']} on the low side")
            loads = {name: Load(count, is_ready=True) for name, count in counts.items()}
            choice = self._policy.choose(request, loads, state, 2.0)
            self._placed[self._index] += request.sequences  # under the ledger's lock, as the count that follows
            return choice

        slot = place(self._ledger, choose, sequences=request.sequences, steers=True)
        self._slots.append((slot, request.sequences))

    def release(self, slot: Lease, sequences: int) -> None:
        self._releasing[self._index] += sequences
        slot.close()
        self._released[self._index] += sequences

    def move(self, slot: Lease, sequences: int) -> None:
        released = sum(self._released)

        def choose(counts: Mapping[str, int], state: State) -> tuple[Route, State]:
            others, seen = sum(self._placed) - sequences, sum(counts.values())
            if not others - sum(self._releasing) <= seen <= others - released:
                self.faults.append(f"saw {seen} beside its own of {others} placed, {released} released")
            has_room = slot.route.backend == "vllm" and counts["triton"] + sequences < POLICY.up
            return Route("triton" if has_room else "vllm", "move"), state

        move(self._ledger, slot, choose)

    def run(self, times: int) -> None:
        chance = random.Random(self._index)
        for _ in range(times):
            self.place(chance.choice(REQUESTS))
            while self._slots and chance.random() < 0.5 + 0.08 * (len(self._slots) - 2):
                if chance.random() < 0.2:
                    self.move(*chance.choice(self._slots))
                self.release(*self._slots.pop(chance.randrange(len(self._slots))))
        for slot in self._slots:
            self.release(*slot)


def main(fd: int, workers: int, index: int, times: int) -> None:
    seat = Seat.take(workers, index, fd)
    ground = Ground(seat)
    hammer = Hammer(seat, ground)
    ground.arrived[index] = 1
    while sum(ground.arrived) < workers:  # or the first would be done before the last has been started
        time.sleep(0.001)
    hammer.run(times)
    sys.exit("; ".join(hammer.faults[:5]) or 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
