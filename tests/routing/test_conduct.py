"""When a backend is sick, and how it comes back: by the ends of its requests, at times that the test sets."""

from gateway.routing.conduct import FIRST_PAUSE_S, MOST_PAUSE_S, REMEMBERED, TRIAL_S, TRIALS, WINDOW_S, Conduct, Stage


def make(ends: str, now: float = 0.0) -> Conduct:
    """`ends`: a dot for each request that went well, an x for each fault."""
    conduct = Conduct()
    for end in ends:
        (conduct.fail if end == "x" else conduct.succeed)(now)
    return conduct


def test_it_is_sick_when_most_fail_and_enough_to_tell() -> None:
    sick = {ends: make(ends).is_sick(0.0) for ends in ("", "x", "xx", "xxx", "xxx...", "xxx..", "." * 9 + "x" * 10)}
    assert [ends for ends, is_sick in sick.items() if is_sick] == ["xxx", "xxx..", "." * 9 + "x" * 10]


def test_what_is_long_ago_or_many_requests_ago_counts_no_more() -> None:
    conduct = make("xxx")
    assert conduct.is_sick(WINDOW_S - 1)
    assert not conduct.is_sick(WINDOW_S)
    assert make("." * 1000 + "x" * (REMEMBERED // 2 + 1)).is_sick(0.0)


def test_a_fault_is_taken_back_where_the_request_failed_elsewhere_too() -> None:
    conduct = make("xx.x.")
    assert conduct.is_sick(0.0)
    conduct.retract(0.0)
    assert not conduct.is_sick(0.0)
    for _ in range(9):
        conduct.retract(0.0)
    assert repr(conduct) == "<Conduct in faults=0/2>"


def test_an_ejection_for_faults_that_are_taken_back_ends() -> None:
    conduct = make("xxx")
    conduct.eject(0.0)
    conduct.retract(0.0)
    assert conduct.stage is Stage.IN
    silent = make("..x")
    silent.eject(0.0)  # for another reason
    silent.retract(0.0)
    assert silent.stage is Stage.OUT


def test_it_comes_back_by_a_token_and_then_by_single_requests() -> None:
    conduct = make("xxx")
    conduct.eject(0.0)
    assert not conduct.may_take(FIRST_PAUSE_S)
    assert not conduct.wants_token(FIRST_PAUSE_S / 2)
    assert conduct.wants_token(FIRST_PAUSE_S)
    conduct.try_requests(now := FIRST_PAUSE_S)
    for _ in range(TRIALS):
        assert conduct.may_take(now)
        conduct.took(now)
        assert not conduct.may_take(now)
        now += TRIAL_S
        conduct.succeed(now)
    assert conduct.stage is Stage.IN
    assert not conduct.is_sick(now)


def test_a_trial_that_fails_makes_the_next_pause_longer_up_to_a_bound() -> None:
    conduct, now, pauses = make("xxx"), 0.0, []
    conduct.eject(now)
    for _ in range(5):
        start = now
        while not conduct.wants_token(now):
            now += 0.5
        pauses.append(now - start)
        conduct.try_requests(now)
        conduct.fail(now)
    assert pauses == [1.0, 2.0, 4.0, 4.0, 4.0]
    assert pauses[-1] == MOST_PAUSE_S
    conduct.forget()
    assert conduct.may_take(now)
    conduct.eject(now)
    assert conduct.wants_token(now + FIRST_PAUSE_S)
