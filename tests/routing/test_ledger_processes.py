"""One ledger under several processes: exact while all place at once, and whole after one was killed anywhere."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.core import State
from gateway.routing.ledger import Ledger
from gateway.shared import Seat
from tests.fakes.seats import SIZE
from tests.routing import doomed
from tests.routing.choices import place
from tests.routing.hammer import BACKENDS, Ground
from tests.routing.test_ledger import stand_on, to

FIRST = State("triton", 1.0, 1)
TEXT = b"the policy in force"


@contextmanager
def founded(workers: int) -> Iterator[tuple[Ground, Seat, Ledger]]:
    """A ledger in a map for several processes; this one has the first seat."""
    seat = Seat.found(SIZE, workers)
    ground = Ground(seat)
    ground.ledger.adopt(FIRST, TEXT)
    yield ground, seat, ground.ledger
    assert seat.memory.fd is not None
    os.close(seat.memory.fd)


def start(seat: Seat, module: str, *arguments: object) -> "subprocess.Popen[str]":
    fd = seat.memory.fd
    assert fd is not None
    command = [sys.executable, "-m", module, str(fd), *map(str, arguments)]
    return subprocess.Popen(command, pass_fds=[fd], stderr=subprocess.PIPE, text=True)


def test_every_choice_of_many_processes_sees_the_exact_count_and_none_overshoots() -> None:
    workers, times = 4, 3000
    with founded(workers) as (ground, seat, ledger):
        hammers = [start(seat, "tests.routing.hammer", workers, index, times) for index in range(workers)]
        assert [(hammer.communicate()[1], hammer.returncode) for hammer in hammers] == [("", 0)] * workers
        placed, released = sum(ground.placed), sum(ground.released)
        assert placed == released > workers * times
        after = ledger.read()
        assert repr(ledger) == "<Ledger triton=0 vllm=0>"
        assert (sum(after.steering.values()), after.workers) == (0, (0,) * workers)
        assert after.switches > 0  # else no threshold was ever crossed


@pytest.mark.parametrize("deed", doomed.DEEDS)
def test_a_worker_killed_anywhere_leaves_nothing_behind(deed: str) -> None:
    with founded(doomed.WORKERS) as (_, seat, ledger):
        mine = place(ledger, to("triton"), steers=True)
        process = start(seat, "tests.routing.doomed", deed)
        assert (process.communicate()[1], process.returncode) == ("", -signal.SIGKILL)
        place(ledger, to("triton"), steers=True).close()  # the dead do not hold the lock
        ledger.clear(1)
        after = ledger.read()
        assert (after.in_flight, after.steering) == ({"triton": 1, "vllm": 0}, {"triton": 1, "vllm": 0})
        assert (after.state, after.text, after.switches, after.doubted) == (FIRST, TEXT, 0, frozenset())
        place(ledger, stand_on("vllm"), steers=True)
        ledger.replace(lambda old, text: (State(old.side, 2.0, 2), text + b" and the next"))
        after = ledger.read()
        assert (after.state, after.text, after.switches) == (State("vllm", 2.0, 2), TEXT + b" and the next", 1)
        mine.close()
        assert repr(ledger) == "<Ledger triton=0 vllm=1>"


def test_what_one_worker_writes_the_other_reads() -> None:
    with founded(2) as (_, seat, first):
        assert seat.memory.fd is not None
        second = Ledger(BACKENDS, Seat.take(2, 1, seat.memory.fd))
        slots = [place(ledger, to("vllm"), steers=ledger is first) for ledger in (first, second, second)]
        second.replace(lambda old, _: (State("vllm", 5.0, 2, (1.5, -1e9)), b"new"))
        second.report("vllm", is_ready=False)
        seen = first.read()
        assert (seen.in_flight, seen.steering, seen.workers) == (
            {"triton": 0, "vllm": 3},
            {"triton": 0, "vllm": 1},
            (1, 2),
        )
        assert (seen.state, seen.text, seen.doubted) == (
            State("vllm", 5.0, 2, (1.5, -1e9)),
            b"new",
            frozenset({"vllm"}),
        )
        assert second.read().doubted == set()  # one knows one's own doubts
        second.drain("triton", is_draining=True)
        assert first.glance() == (State("vllm", 5.0, 2, (1.5, -1e9)), frozenset({"triton"}))
        place(first, stand_on("vllm"), steers=False).close()  # a change of state keeps what drains
        assert second.read().draining == {"triton"}
        first.drain("triton", is_draining=False)
        assert second.read().draining == set()
        second.hear("triton", 10.0)
        assert [ledger.find_silence("triton", 12.5) for ledger in (first, second)] == [2.5, 12.5]
        assert first.find_silence("vllm", 12.5) == 12.5
        for slot in slots:
            slot.close()
        assert repr(first) == repr(second) == "<Ledger triton=0 vllm=0>"
