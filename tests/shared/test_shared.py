"""The map and its parts: places, views, the lock, the roster."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from gateway.shared import WORD, Memory, NodeLock, Roster, as_floats
from gateway.shared.memory import CACHE_LINE
from tests.fakes.seats import make_seats

HOLD = """
import sys
from gateway.shared import NodeLock
with NodeLock(int(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[Memory]:
    memory = Memory.create(4096)
    yield memory
    assert memory.fd is not None
    os.close(memory.fd)


def test_views_do_not_overlap_and_words_begin_a_cache_line() -> None:
    taken = Memory()
    spans = []
    for take, count in ((taken.ints, 3), (taken.raw, 5), (taken.floats, 1), (taken.raw, 0), (taken.ints, 9)):
        view = take(count)
        spans.append((taken.size - view.nbytes, taken.size))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert [spans[place][0] % CACHE_LINE for place in (0, 2, 4)] == [0, 0, 0]
    assert taken.size == 2 * CACHE_LINE + 9 * WORD


def test_a_map_is_zeros_until_written_and_shows_everyone_the_same(memory: Memory) -> None:
    assert memory.fd is not None
    words, others = memory.ints(512), Memory.attach(memory.fd).ints(512)
    assert list(others) == [0] * 512
    words[0], as_floats(words)[1] = -(2**62), 1.5
    assert (others[0], as_floats(others)[1]) == (-(2**62), 1.5)
    assert Memory().ints(1)[0] == 0


def test_a_lock_is_held_against_other_processes_until_its_holder_is_killed(memory: Memory) -> None:
    assert memory.fd is not None
    command = [sys.executable, "-c", HOLD, str(memory.fd)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, pass_fds=[memory.fd], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not is_free(memory.fd)
        holder.kill()
        holder.wait()
        with NodeLock(memory.fd):
            assert not is_free(memory.fd)
        assert is_free(memory.fd)


def is_free(fd: int) -> bool:
    """Whether another process could take the lock now; so could one of ours, with an open file of its own."""
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(own)
    return True


def test_the_roster_names_who_is_there() -> None:
    rosters = [Roster(seat) for seat in make_seats(3)]
    for index in (0, 2):
        rosters[index].enter()
    assert [(member.index, member.pid) for member in rosters[1].read()] == [(0, os.getpid()), (2, os.getpid())]
    rosters[0].clear(2)
    assert [member.index for member in rosters[1].read()] == [0]
