"""What workers share of requests whose engine was lost: as tables, without a loop."""

import pytest

from gateway.errors import RequestQuarantined
from gateway.routing.quarantine import MOST_REFUSED, REFUSED_S, Quarantine
from tests.fakes.seats import make_seats


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_pair(clock: Clock) -> tuple[Quarantine, Quarantine]:
    """That of two workers."""
    first, second = make_seats(2)
    return Quarantine(first, clock), Quarantine(second, clock)


def is_refused(quarantine: Quarantine, digest: int) -> bool:
    try:
        quarantine.check(lambda: digest)
    except RequestQuarantined:
        return True
    return False


def test_of_all_workers_one_request_goes_on_alone() -> None:
    first, second = make_pair(Clock())
    assert first.enter(alone=True)
    assert not first.enter(alone=True)
    assert not second.enter(alone=True)
    assert second.enter(alone=False)  # it had tokens
    first.leave()
    assert not first.enter(alone=True)
    second.leave()
    assert second.enter(alone=True)


def test_what_a_dead_worker_had_holds_up_nobody() -> None:
    first, second = make_pair(Clock())
    first.enter(alone=True)
    second.clear(0)
    assert second.enter(alone=True)


def test_all_workers_refuse_a_request_for_ten_minutes() -> None:
    clock = Clock()
    first, second = make_pair(clock)
    assert not is_refused(first, -7)
    first.refuse(-7)
    assert (is_refused(first, -7), is_refused(second, -7), is_refused(second, 7)) == (True, True, False)
    clock.now += REFUSED_S - 1
    first.refuse(8)
    assert is_refused(second, -7)
    clock.now += 2
    assert (is_refused(second, -7), is_refused(second, 8)) == (False, True)


def test_the_oldest_of_many_makes_room() -> None:
    first, _ = make_pair(Clock())
    for digest in range(MOST_REFUSED + 1):
        first.refuse(digest)
    assert (is_refused(first, 0), is_refused(first, 1), is_refused(first, MOST_REFUSED)) == (False, True, True)


def test_while_nothing_is_refused_nobodys_digest_is_made() -> None:
    clock = Clock()
    first, _ = make_pair(clock)
    first.check(lambda: pytest.fail("made"))
    first.refuse(1)
    clock.now += REFUSED_S + 1
    first.check(lambda: pytest.fail("made"))


def test_all_workers_count_together_what_has_lost_two_engines() -> None:
    first, second = make_pair(Clock())
    first.doubt(1)
    second.doubt(1)
    assert (first.doubtful, second.doubtful) == (2, 2)
    second.doubt(-1)
    second.clear(0)
    assert second.doubtful == 0


def test_it_is_known_when_something_was_refused_last() -> None:
    clock = Clock()
    first, second = make_pair(clock)
    assert second.refused_at < 0
    first.refuse(1)
    assert second.refused_at == clock.now
