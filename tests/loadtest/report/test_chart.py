import math
from xml.etree import ElementTree

import pytest

from loadtest.report import chart as charts


@pytest.mark.parametrize(
    ("values", "top"),
    [([950.0], 1000.0), ([1000.0], 1000.0), ([1001.0], 1500.0), ([0.08], 0.08), ([], 1.0), ([0.0], 1.0)],
)
def test_axis_begins_at_zero_and_ends_above_the_greatest_value(values: list[float], top: float) -> None:
    axis = charts.axis_from_zero(values, str)
    assert axis.low == 0.0
    assert axis.high == pytest.approx(top)


def test_ratio_axis_has_equal_steps_for_equal_factors() -> None:
    axis = charts.axis_of_ratios([math.log(1.2), math.log(0.6)], band=0.03)
    assert {label: value for value, label in axis.ticks}["1"] == 0.0
    assert axis.low < math.log(0.6)
    assert axis.high > math.log(1.2)
    assert axis.band == pytest.approx((-math.log(1.03), math.log(1.03)))


@pytest.mark.parametrize("ends", [(0.01, 0.03), (2.0, 5.0), (0.0005, 1200.0), (20.0, 30_000.0)])
def test_a_logarithmic_axis_has_round_ticks_within_its_ends(ends: tuple[float, float]) -> None:
    axis = charts.axis_of_powers(*ends, str)
    assert 1 <= len(axis.ticks) <= 12
    assert all(0 <= axis.share(tick) <= 1 for tick, _ in axis.ticks)


def test_a_chart_of_one_level_is_drawn_with_its_names_escaped_and_one_without_points_is_empty() -> None:
    y = charts.Axis(0, 2, [(1.0, "1")])
    points = [charts.Point(4, 1.0, "<b>", span=(0.5, 1.5), label="<4>")]
    chart = charts.Chart(
        "t", [charts.Line("low", points)], charts.axis_of_levels([4.0]), y, charts.Marks((3.0,), 2, 5)
    ).render()
    drawing = ElementTree.fromstring(chart)
    assert "<b>" in [element.text for element in drawing.iter("title")]
    assert "<4>" in [element.text for element in drawing.iter("text")]
    assert charts.Chart("t", [charts.Line("low", [])], charts.axis_of_levels([]), y).render() == ""
