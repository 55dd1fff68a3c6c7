import pytest

from loadtest.client.window import Window, WindowRule, first_lengths


@pytest.mark.parametrize(
    ("level", "tokens", "lengths"),
    [(1, 32, (32,)), (2, 32, (16, 32)), (4, 8, (2, 4, 6, 8)), (3, 8, (3, 6, 8)), (8, 4, (1, 1, 2, 2, 3, 3, 4, 4))],
)
def test_first_answers_are_spread_evenly_up_to_the_full_length(
    level: int, tokens: int, lengths: tuple[int, ...]
) -> None:
    assert first_lengths(level, tokens) == lengths


@pytest.mark.parametrize(
    ("rule", "ends", "opened_at"),
    [
        (WindowRule(settle_requests=0, min_requests=2, min_s=0.0), [1.0, 2.0, 3.0], 1.0),
        (WindowRule(settle_requests=0, min_requests=2, min_s=3.5), [1.0, 2.0, 3.0, 4.0, 5.0], 1.0),
        (WindowRule(settle_requests=2, min_requests=1, min_s=0.0), [1.0, 2.0, 3.0, 4.0], 3.0),
    ],
    ids=["enough requests", "least time", "settling"],
)
def test_window_opens_and_closes_where_the_leader_finishes_a_request(
    rule: WindowRule, ends: list[float], opened_at: float
) -> None:
    window = Window(rule)
    for index, end in enumerate(ends):
        assert window.count_leader_request(end) == (index == len(ends) - 1)
    assert (window.opened_at, window.closed_at) == (opened_at, ends[-1])


def test_window_stays_open_until_all_streams_together_have_answered_enough() -> None:
    window = Window(WindowRule(settle_requests=0, min_requests=1, min_s=0.0, min_answers=4))
    window.count_answer(1.0)
    assert not window.count_leader_request(1.0)
    for end in (0.9, 1.5, 1.6, 2.0):  # the first ended before the window opened, and was reported late
        window.count_answer(end)
    assert not window.count_leader_request(2.0)
    window.count_answer(3.0)
    assert window.count_leader_request(3.0)
