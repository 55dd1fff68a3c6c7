import math
from dataclasses import replace

import pytest

from loadtest.results.curves import OBJECTIVES, THROUGHPUT, find_null_gains, make_curve, make_trials, mean_gains
from loadtest.results.percentiles import Percentiles
from tests.loadtest.samples import CELL, make_cells, make_pair

BY_NAME = {objective.name: objective for objective in OBJECTIVES}


def test_gain_is_positive_where_the_low_load_backend_is_better_by_any_objective() -> None:
    cells = make_pair(8, ratio=1.25, number=0)
    for name in ("throughput", "tpot_p50", "e2e_p50"):
        (trial,) = make_trials(cells, "triton", BY_NAME[name])
        assert (trial.level, trial.low_first) == (8, True)
        assert trial.gain == pytest.approx(math.log(1.25))


def test_trials_come_in_the_order_measured_and_know_who_was_first() -> None:
    cells = [*make_pair(8, 1.25, 0), *make_pair(2, 1.1, 1, low_first=False)]
    assert [(trial.level, trial.low_first) for trial in make_trials(cells, "triton")] == [(8, True), (2, False)]


def test_a_level_shows_the_mean_of_its_pairs() -> None:
    cells = make_cells({4: 1.1, 2: 1.2}, scatter=0.01)
    gains = mean_gains(make_trials(cells, "triton"))
    assert list(gains) == [2, 4]
    assert list(gains.values()) == pytest.approx([math.log(1.2), math.log(1.1)])


def test_a_backend_against_itself_is_no_trial() -> None:
    one, _ = make_pair(4, 1.1, 0)
    nulls = [replace(one, is_null=True), replace(one, is_null=True, throughput=one.throughput * 1.02)]
    assert make_trials(nulls, "triton") == []
    assert find_null_gains(nulls) == [pytest.approx(math.log(1.02))]
    assert find_null_gains(make_pair(4, 1.1, 0)) == []


def test_half_a_pair_and_a_figure_without_a_value_count_for_nothing() -> None:
    low, high = make_pair(4, 1.1, 0)
    assert make_trials([low], "triton") == []
    assert make_trials([low, high], "triton", BY_NAME["goodput"]) == []
    unknown = [replace(low, ttft_s=Percentiles(0)), high]
    assert make_trials(unknown, "triton", BY_NAME["ttft_p50"]) == []
    assert make_curve(unknown, "triton", BY_NAME["ttft_p50"].read) == []


def test_curves_are_medians_in_rising_order() -> None:
    cells = [replace(CELL, level=level, throughput=rate) for level, rate in ((4, 9.0), (2, 5.0), (4, 7.0), (4, 8.0))]
    assert make_curve(cells, "triton", THROUGHPUT.read) == [(2, 5.0), (4, 8.0)]


def test_a_backend_that_keeps_no_limit_loses_by_goodput() -> None:
    low, high = make_pair(8, 1.0, 0)
    (trial,) = make_trials([replace(low, goodput=4.0), replace(high, goodput=0.0)], "triton", BY_NAME["goodput"])
    assert trial.gain > 3
