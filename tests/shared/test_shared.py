"""The map and its parts: places, views, the lock, the roster."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gateway.shared import Memory, NodeLock, Plan, Roster, Seat, Span
from gateway.shared.plan import CACHE_LINE

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


def test_spans_do_not_overlap_and_words_begin_a_cache_line() -> None:
    plan = Plan()
    spans = [plan.words(3), plan.raw(5), plan.words(1), plan.raw(0), plan.words(9)]
    ends = [span.offset + span.size for span in spans]
    assert all(end <= following.offset for end, following in zip(ends, spans[1:], strict=False))
    assert [span.offset % CACHE_LINE for span in (spans[0], spans[2], spans[4])] == [0, 0, 0]
    assert plan.size == ends[-1]


def test_a_map_is_zeros_until_written_and_shows_everyone_the_same(memory: Memory) -> None:
    assert memory.fd is not None
    other = Memory.attach(memory.fd, 4096)
    assert list(other.ints(Span(0, 4096))) == [0] * 512
    memory.ints(Span(0, 16))[0] = -(2**62)
    memory.floats(Span(0, 16))[1] = 1.5
    assert (other.ints(Span(0, 8))[0], other.floats(Span(8, 8))[0]) == (-(2**62), 1.5)
    assert Memory.private(4096).ints(Span(0, 8))[0] == 0


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


def test_the_roster_names_who_is_there(memory: Memory) -> None:
    plan = Plan()
    span = Roster.plan(plan, workers=3)
    rosters = [Roster(span, Seat(memory, NodeLock(None), index, workers=3)) for index in range(3)]
    for index in (0, 2):
        rosters[index].enter()
    assert [(member.index, member.pid) for member in rosters[1].read()] == [(0, os.getpid()), (2, os.getpid())]
    rosters[0].clear(2)
    assert [member.index for member in rosters[1].read()] == [0]
