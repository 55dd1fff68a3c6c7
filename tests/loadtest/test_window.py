import pytest

from loadtest.window import Window, first_lengths


@pytest.mark.parametrize(
    ("level", "tokens", "lengths"),
    [(1, 32, (32,)), (2, 32, (16, 32)), (4, 8, (2, 4, 6, 8)), (3, 8, (3, 6, 8)), (8, 4, (1, 1, 2, 2, 3, 3, 4, 4))],
)
def test_first_answers_are_spread_evenly_up_to_the_full_length(
    level: int, tokens: int, lengths: tuple[int, ...]
) -> None:
    assert first_lengths(level, tokens) == lengths


def close_window(window: Window, ends: list[float]) -> None:
    for index, end in enumerate(ends):
        assert window.pass_request(end) == (index == len(ends) - 1)


def test_window_opens_after_the_first_request_and_closes_after_enough_of_them() -> None:
    window = Window(settle_requests=0, min_requests=2, min_s=0.0)
    close_window(window, [1.0, 2.0, 3.0])
    assert (window.opened_at, window.closed_at) == (1.0, 3.0)


def test_window_stays_open_until_its_least_time_is_over() -> None:
    window = Window(settle_requests=0, min_requests=2, min_s=3.5)
    close_window(window, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (window.opened_at, window.closed_at) == (1.0, 5.0)


def test_window_stays_open_until_all_streams_together_have_answered_enough() -> None:
    window = Window(settle_requests=0, min_requests=1, min_s=0.0, min_answers=4)
    window.pass_answer(1.0)
    assert not window.pass_request(1.0)
    for end in (0.9, 1.5, 1.6):  # the first ended before the window opened, and was told late
        window.pass_answer(end)
    window.pass_answer(2.0)
    assert not window.pass_request(2.0)
    window.pass_answer(3.0)
    assert window.pass_request(3.0)


def test_settling_requests_come_before_the_window() -> None:
    window = Window(settle_requests=2, min_requests=1, min_s=0.0)
    close_window(window, [1.0, 2.0, 3.0, 4.0])
    assert (window.opened_at, window.closed_at) == (3.0, 4.0)
