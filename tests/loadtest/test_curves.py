import math
from dataclasses import replace

import pytest

from loadtest.curves import OBJECTIVES, THROUGHPUT, pair_gains, points, repeat_sd, series
from loadtest.stats import Percentiles
from tests.loadtest.samples import CELL, make_pair


def test_gain_is_positive_where_the_low_load_backend_is_better_by_any_objective() -> None:
    cells = make_pair(8, ratio=1.25, number=0)
    for objective in (objective for objective in OBJECTIVES if objective.name != "ttft_p50"):
        assert pair_gains(cells, "triton", objective) == {8: [pytest.approx(math.log(1.25))]}


def test_a_level_has_the_median_of_its_pairs() -> None:
    cells = [cell for number, ratio in enumerate((1.1, 1.2, 0.5)) for cell in make_pair(4, ratio, number)]
    (point,) = points(cells, "triton")
    assert (point.level, point.pairs) == (4, 3)
    assert point.gain == pytest.approx(math.log(1.1))


def test_half_a_pair_counts_for_nothing() -> None:
    assert points(make_pair(4, 1.1, 0)[:1], "triton") == []


def test_a_level_without_a_value_is_left_out() -> None:
    low, high = make_pair(4, 1.1, 0)
    unknown = replace(low, ttft_s=Percentiles(0))
    ttft = next(objective for objective in OBJECTIVES if objective.name == "ttft_p50")
    assert pair_gains([unknown, high], "triton", ttft) == {}
    assert series([unknown, high], "triton", ttft.read) == []


def test_series_are_medians_in_rising_order() -> None:
    cells = [replace(CELL, level=level, throughput=rate) for level, rate in ((4, 9.0), (2, 5.0), (4, 7.0), (4, 8.0))]
    assert series(cells, "triton", THROUGHPUT.read) == [(2, 5.0), (4, 8.0)]


def test_repeat_sd_is_pooled_over_levels_measured_twice() -> None:
    pairs = ((4, 1.0), (4, math.exp(0.02)), (8, 1.0), (8, math.exp(0.04)), (16, 2.0))
    cells = [cell for number, (level, ratio) in enumerate(pairs) for cell in make_pair(level, ratio, number)]
    assert repeat_sd(cells, "triton") == pytest.approx(math.sqrt((0.02**2 / 2 + 0.04**2 / 2) / 2))


def test_repeat_sd_is_unknown_without_repeats() -> None:
    assert repeat_sd(make_pair(4, 1.1, 0), "triton") is None
