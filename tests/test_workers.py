"""How tests in several workers wait for one that is alone."""

import fcntl
import threading
from pathlib import Path

from tests.workers import locked


def test_who_is_alone_waits_for_others_and_lets_nobody_overtake(tmp_path: Path) -> None:
    room, door, order = tmp_path / "room", tmp_path / "door", list[str]()
    is_in, may_leave = threading.Event(), threading.Event()

    def enter(name: str, *, is_alone: bool) -> None:
        with locked(room, is_alone, behind=door):
            order.append(f"{name} comes")
            is_in.set()
            may_leave.wait(10)
            order.append(f"{name} goes")

    first = threading.Thread(target=enter, args=("first",), kwargs={"is_alone": False})
    alone = threading.Thread(target=enter, args=("alone",), kwargs={"is_alone": True})
    late = threading.Thread(target=enter, args=("late",), kwargs={"is_alone": False})
    first.start()
    assert is_in.wait(10)
    alone.start()
    while not is_held(door):
        pass
    late.start()
    may_leave.set()
    for thread in (first, alone, late):
        thread.join(10)
    assert order == [f"{name} {verb}" for name in ("first", "alone", "late") for verb in ("comes", "goes")]


def test_others_are_together(tmp_path: Path) -> None:
    room, door = tmp_path / "room", tmp_path / "door"
    with locked(room, is_alone=False, behind=door), locked(room, is_alone=False, behind=door):
        assert not is_held(door)


def is_held(door: Path) -> bool:
    with door.open("w") as mine:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
