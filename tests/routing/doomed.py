"""The second of two workers on a ledger, which kills itself where it is told to.

Started by test_ledger_processes.py with the map's descriptor and the name of the deed.
"""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Never, cast

from gateway.core import Route, State
from gateway.routing.ledger import Ledger
from gateway.shared import Seat
from tests.routing.choices import place
from tests.routing.hammer import BACKENDS

WORKERS = 2


def die() -> Never:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Deadly:
    """A policy state whose writer does not survive it: by then the side is in the record, and the time is not."""

    side = "vllm"
    version = 2
    words = ()

    @property
    def since(self) -> float:
        die()


DEADLY = cast("State", Deadly())


def to_vllm(_: Mapping[str, int], state: State) -> tuple[Route, State]:
    return Route("vllm", "test"), state


def hold(ledger: Ledger) -> None:
    for sequences, steers in ((1, True), (3, True), (2, False)):
        place(ledger, to_vllm, sequences=sequences, steers=steers)
    ledger.report("vllm", is_ready=False)
    die()


def choose(ledger: Ledger) -> None:
    place(ledger, to_vllm, steers=True)
    place(ledger, lambda _counts, _state: die(), steers=True)


def switch(ledger: Ledger) -> None:
    place(ledger, lambda _counts, _state: (Route("vllm", "test"), DEADLY), steers=True)


def replace(ledger: Ledger) -> None:
    ledger.replace(lambda _state, _text: (DEADLY, b"half a policy"))


DEEDS: Mapping[str, Callable[[Ledger], None]] = {deed.__name__: deed for deed in (hold, choose, switch, replace)}

if __name__ == "__main__":
    DEEDS[sys.argv[2]](Ledger(BACKENDS, Seat.take(WORKERS, 1, int(sys.argv[1]))))
