from dataclasses import replace

import pytest

from loadtest.results.plan import FULL, QUICK, Plan


def test_every_level_is_measured_once_per_repeat() -> None:
    pairs = Plan(levels=(1, 2, 4), repeats=3, null_pairs=0).schedule()
    assert sorted(pair.level for pair in pairs) == [1, 1, 1, 2, 2, 2, 4, 4, 4]


def test_neighbouring_levels_are_measured_in_opposite_order() -> None:
    assert [pair.low_first for pair in QUICK.schedule()] == [True, False] * 5


def test_a_level_is_measured_the_other_way_round_in_the_next_repeat() -> None:
    pairs = FULL.schedule()
    for level in FULL.levels:
        order = [pair.low_first for pair in pairs if pair.level == level and not pair.is_null]
        assert order in ([True, False, True], [False, True, False])


def test_levels_are_shuffled_differently_in_each_repeat_and_alike_for_the_same_seed() -> None:
    plan = replace(FULL, null_pairs=0)
    levels = [pair.level for pair in plan.schedule()]
    repeats = [tuple(levels[start : start + 8]) for start in (0, 8, 16)]
    assert len(set(repeats)) == 3
    assert levels == [pair.level for pair in plan.schedule()]
    assert levels != [pair.level for pair in replace(plan, seed=1).schedule()]


def test_each_backend_is_measured_against_itself_before_the_sweep() -> None:
    first, second, *sweep = FULL.schedule()
    assert (first.is_null, second.is_null) == (True, True)
    assert (first.low_first, second.low_first) == (True, False)
    assert first.level == second.level == 16
    assert not any(pair.is_null for pair in sweep)


@pytest.mark.parametrize(
    "changes", [{"levels": ()}, {"levels": (0, 1)}, {"levels": (2, 2)}, {"tokens": 1}, {"repeats": 1}]
)
def test_a_plan_that_cannot_be_measured_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"levels|tokens|repeats"):
        replace(FULL, **changes)  # type: ignore[arg-type]  # deliberately any field


def test_quick_sweep_of_a_pair_with_requests_of_half_a_second_fits_its_budget() -> None:
    assert QUICK.budget_s is not None
    assert QUICK.sweep_s(0.5) < QUICK.budget_s


def test_a_cell_takes_whole_requests_and_at_least_its_window() -> None:
    plan = Plan(settle_requests=1, window_requests=2, window_s=3.0)
    assert plan.cell_s(2.0) == pytest.approx(2 * (1 + 1 + 2))
    assert plan.cell_s(0.5) == pytest.approx(0.5 * (1 + 1 + 6))
