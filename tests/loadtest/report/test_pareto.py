"""The plot of time to first token against throughput: which percentile stands where, and that it is drawn."""

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from loadtest.report.pareto import choose_quantiles, describe_quantiles, draw_pareto
from loadtest.results.cell import Cell
from loadtest.results.percentiles import Percentiles
from tests.loadtest.samples import CELL

BACKENDS = ("triton", "vllm")


def make_cells(known: dict[int, tuple[Percentiles, Percentiles]]) -> list[Cell]:
    return [
        replace(CELL, backend=backend, level=level, throughput=level * rate, ttft_s=times)
        for level, both in known.items()
        for backend, rate, times in zip(BACKENDS, (100.0, 90.0), both, strict=True)
    ]


FEW, SOME, MANY = Percentiles(9, 0.02), Percentiles(90, 0.05, 0.08), Percentiles(900, 0.1, 0.2, 0.4)
MIXED = make_cells({1: (FEW, FEW), 8: (SOME, MANY), 64: (MANY, MANY), 128: (MANY, MANY)})


@pytest.mark.parametrize(
    ("cells", "chosen", "words"),
    [
        (MIXED, {1: "p50", 8: "p90", 64: "p99", 128: "p99"}, "p99 at 64, 128 in flight; p90 at 8 in flight; p50 at 1"),
        (make_cells({4: (SOME, MANY)}), {4: "p90"}, ""),
        (make_cells({4: (SOME, Percentiles(0))}), {}, ""),
        ([], {}, ""),
    ],
)
def test_both_backends_show_the_highest_percentile_that_both_have(
    cells: Sequence[Cell], chosen: dict[int, str], words: str
) -> None:
    assert choose_quantiles(cells) == chosen
    assert describe_quantiles(chosen).partition(" in flight: a")[0] == words


def test_every_level_is_a_labelled_point_and_a_line_joins_one_percentile_only() -> None:
    plot = ElementTree.fromstring(draw_pareto(MIXED, BACKENDS))
    labels = [element.text for element in plot.iter("text") if "-at" in (element.get("class") or "")]
    assert labels == ["1", "8", "64", "128"] * 2
    titles = [element.text for element in plot.iter("title")]
    assert "triton, 8 in flight: 800.0 tok/s, TTFT p90 80 ms" in titles
    assert "vllm, 128 in flight: 11,520 tok/s, TTFT p99 400 ms" in titles
    lines = [len((line.get("points") or "").split()) for line in plot.iter("polyline")]
    assert lines == [1, 1, 2] * 2
    assert plot.get("aria-label", "").startswith("Time to first token (p99, p90, p50) against throughput")


def test_higher_throughput_is_right_and_a_longer_time_is_up_and_all_points_lie_within_the_plot() -> None:
    plot = ElementTree.fromstring(draw_pareto(MIXED, BACKENDS))
    _, _, width, height = map(float, (plot.get("viewBox") or "").split())
    across, up = ([float(dot.get(name) or 0) for dot in plot.iter("circle")] for name in ("cx", "cy"))
    assert across == sorted(across)
    assert up[0] > up[2]
    assert all(0 < x < width for x in across)
    assert all(0 < y < height for y in up)


def test_nothing_known_is_nothing_drawn() -> None:
    assert draw_pareto([], BACKENDS) == ""
