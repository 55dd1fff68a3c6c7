import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest

from loadtest.curves import THROUGHPUT
from loadtest.folder import RunFolder
from loadtest.report.chart import Axis, Chart, Line, Marks, axis_from_zero, axis_of_ratios
from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.report.ratios import make_ratios
from loadtest.report.words import describe, describe_threshold, show_ms, show_rate
from loadtest.result import Result
from tests.loadtest.samples import make_result

CROSSING = {1: 1.2, 8: 1.1, 32: 1.05, 64: 0.9, 128: 0.6}


class Page(HTMLParser):
    """What a browser would have to fetch, and the text it would show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]
        self.fetched += [tag] * (tag in {"script", "link", "iframe", "object", "embed", "img"})

    def handle_data(self, data: str) -> None:
        self.text += data


def broken_off() -> Result:
    message = "UNEQUAL WORK: <b>triton</b> & co."
    return replace(make_result({}), status="untrusted", failure=message, findings={}, threshold=None)


def test_page_shows_the_answer_and_fetches_nothing() -> None:
    page = Page(render_html(make_result(CROSSING)))
    assert page.fetched == []
    assert "triton is better below" in page.text
    assert "up 47, down 33" in page.text
    assert "equal work" in page.text


def test_page_follows_light_and_dark_schemes() -> None:
    assert "prefers-color-scheme: dark" in render_html(make_result(CROSSING))


def test_plots_are_well_formed_and_mark_crossing_and_threshold() -> None:
    page = render_html(make_result(CROSSING))
    plots = [ElementTree.fromstring(f"<svg{rest.partition('</svg>')[0]}</svg>") for rest in page.split("<svg")[1:]]
    assert len(plots) == 6
    texts = [element.text or "" for element in plots[0].iter("text")]
    assert {"down 33", "up 47"} <= set(texts)
    assert any(text.startswith("crossing 39.9") for text in texts)
    assert len(list(plots[0].iter("polyline"))) == 2


def read_plots(result: Result) -> list[ElementTree.Element]:
    page = render_html(result)
    return [ElementTree.fromstring(f"<svg{rest.partition('</svg>')[0]}</svg>") for rest in page.split("<svg")[1:]]


def styled(plot: ElementTree.Element, style: str) -> list[ElementTree.Element]:
    return [element for element in plot.iter() if element.get("class") == style]


def test_every_part_of_every_set_is_a_band_in_the_throughput_plot() -> None:
    (band,) = styled(read_plots(make_result(CROSSING))[0], "set")
    (point,) = styled(read_plots(make_result(CROSSING))[0], "crossing")
    left, width = float(band.get("x") or 0), float(band.get("width") or 0)
    assert left <= float(point.get("x1") or 0) <= left + width
    several = make_result({1: 1.2, 2: 0.8, 4: 1.2})
    assert len(styled(read_plots(several)[0], "set")) == len(styled(read_plots(several)[0], "crossing")) == 2
    finding = make_result(CROSSING).findings["throughput"]
    (change,) = finding.changes
    parts = replace(finding, changes=(replace(change, set=((20.0, 30.0), (35.0, 50.0))),))
    result = replace(make_result(CROSSING), findings={"throughput": parts})
    assert [band[0].text for band in styled(read_plots(result)[0], "set")] == [
        "95 % set: 20 to 30",
        "95 % set: 35 to 50",
    ]


def test_the_ratio_has_an_interval_at_every_level_that_grows_with_the_scatter() -> None:
    def lengths(scatter: float) -> list[float]:
        spans = styled(read_plots(make_result(CROSSING, scatter))[1], "span")
        ends = [re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", span.get("d") or "")[0] for span in spans]
        return [float(bottom) - float(top) for bottom, top in ends]

    assert len(lengths(0.01)) == len(CROSSING)
    assert min(lengths(0.02)) > 1.3 * max(lengths(0.01)) > 0


@pytest.mark.parametrize(
    ("scatter", "level", "row"),
    [
        (0.0002, 1, ("1", "2", "1.200", "1.199 to 1.201", "triton is better")),
        (0.0002, 64, ("64", "2", "0.900", "0.899 to 0.901", "vllm is better")),
        (0.05, 32, ("32", "2", "1.050", "0.902 to 1.222", "not known")),
    ],
)
def test_ratios_are_told_with_interval_and_winner(scatter: float, level: int, row: tuple[str, ...]) -> None:
    """By hand: squares about the levels' means 10 scatter^2, less 0.4 scatter^2 of order, over 10 - 5 - 1 degrees of
    freedom; a level's error is the root of half of that, and Student's t with 4 is 2.776.
    """
    ratios = {ratio.level: ratio.fields for ratio in make_ratios(make_result(CROSSING, scatter))}
    assert ratios[level] == row
    assert f"| {' | '.join(row)} |" in render_markdown(make_result(CROSSING, scatter))


def test_a_tie_and_a_difference_within_the_band_are_told() -> None:
    assert [ratio.verdict for ratio in make_ratios(make_result({1: 1.0, 8: 1.01, 32: 0.99, 64: 1.2}))] == [
        "tied, within 3%",
        "triton is better, within 3%",
        "vllm is better, within 3%",
        "triton is better",
    ]


def test_levels_measured_once_have_ratios_without_intervals() -> None:
    result = make_result({1: 1.2, 2: 1.1})
    ratios = make_ratios(replace(result, cells=result.cells[:4]))
    assert [ratio.fields[1:] for ratio in ratios] == [
        ("1", "1.200", "n/a", "not known"),
        ("1", "1.100", "n/a", "not known"),
    ]


def test_the_page_tells_the_command_and_the_engines_and_no_key() -> None:
    result = make_result(CROSSING)
    result = replace(result, subject=replace(result.subject, engines={"vllm": {"version": "0.24.0"}}))
    page = Page(render_html(result))
    assert "crossover calibrate --quick --model toy" in page.text
    assert "version=0.24.0" in page.text
    assert "--key" not in page.text


def test_every_point_of_a_plot_says_what_it_is() -> None:
    page = render_html(make_result(CROSSING))
    assert "<title>triton, 64 in flight: 5,760</title>" in page
    assert "<title>vllm, 64 in flight: 6,400</title>" in page


def test_a_run_broken_off_has_a_page_and_text_too() -> None:
    page = render_html(broken_off())
    assert "<b>triton</b>" not in page
    assert "UNEQUAL WORK: &lt;b&gt;triton&lt;/b&gt; &amp; co." in page
    assert "<svg" not in page
    assert "UNEQUAL WORK" in render_markdown(broken_off())


def test_markdown_has_a_row_per_cell() -> None:
    lines = render_markdown(make_result(CROSSING)).splitlines()
    rows = [line for line in lines if "| triton |" in line or "| vllm |" in line]
    assert len(rows) == 4 * len(CROSSING)
    assert rows[0].endswith("| 1.200 |")


def test_percentiles_that_no_cell_has_are_left_out_of_the_table() -> None:
    markdown = render_markdown(make_result(CROSSING))
    assert "TTFT p90" in markdown
    assert "TTFT p99" not in markdown


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (CROSSING, "up 47, down 33 (outside the 95 % set, and 15% or more from the crossing), not applied"),
        ({1: 1.2, 2: 1.1}, "for triton alone, set up above any load"),
        ({1: 0.9, 2: 0.8}, "for vllm alone"),
        ({1: 1.0, 2: 1.01}, "either backend serves as well"),
        ({1: 0.8, 2: 1.2}, "swap its low (triton) and high (vllm)"),
        ({1: 1.2, 2: 0.8, 4: 1.2}, "no single threshold is right"),
    ],
)
def test_what_becomes_of_the_threshold_is_said(ratios: dict[int, float], words: str) -> None:
    assert words in describe_threshold(make_result(ratios))


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        (CROSSING, "triton is better below 39.9 in flight, vllm above (95 % sure: 39.7 to 40)"),
        ({1: 0.8, 2: 1.2}, "vllm is better below 1.5 in flight, triton above"),
        ({1: 1.2, 2: 1.01}, "triton is at least as good at every level up to 2"),
        ({1: 0.9, 4: 0.8}, "vllm is at least as good at every level up to 4"),
        ({1: 1.0, 2: 1.01}, "no difference beyond the tie band at any level up to 2"),
        ({1: 1.2, 2: 0.8, 4: 1.2}, "the backends change places more than once: near 1.4 and 2.9 in flight"),
    ],
)
def test_the_verdict_is_said_in_a_sentence(ratios: dict[int, float], words: str) -> None:
    assert describe(THROUGHPUT, make_result(ratios)).startswith(words)


def test_an_applied_threshold_names_the_policy_version() -> None:
    assert "applied as policy version 7" in describe_threshold(replace(make_result(CROSSING), applied={"version": 7}))


def test_result_json_has_the_documented_keys(tmp_path: Path) -> None:
    RunFolder(tmp_path).write(make_result(CROSSING))
    result = json.loads((tmp_path / "result.json").read_bytes())
    assert result["schema"] == "crossover.calibration/1"
    assert result["threshold"] == {"objective": "throughput", "up": 47, "down": 33}
    assert result["crossover"]["throughput"]["verdict"] == "crossing"
    (low, high), point = result["crossover"]["throughput"]["set"][0], result["crossover"]["throughput"]["point"]
    assert low < point < high
    assert result["crossover"]["throughput"]["set_is"] == "95 % confidence"
    assert result["crossover"]["ttft_p99"]["verdict"] == "undecided"  # no cell had samples enough
    objectives = {"throughput", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50"}
    assert set(result["crossover"]) == objectives
    assert len(result["cells"]) == 4 * len(CROSSING)
    assert {"low", "high", "model", "gateway", "engines", "client", "policy"} <= set(result["fingerprint"])


def test_each_cell_is_a_line_on_disk_at_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs")
    for cell in make_result(CROSSING).cells[:3]:
        folder.append(cell)
    lines = (folder.path / "cells.jsonl").read_bytes().splitlines()
    assert [orjson.loads(line)["level"] for line in lines] == [1, 1, 8]


def test_two_runs_have_two_folders(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path).run != RunFolder.create(tmp_path).run


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "n/a"), (0.0146, "14.6 ms"), (0.00021, "0.21 ms"), (0.1234, "123 ms"), (2.5, "2.50 s"), (0.9999, "1.00 s")],
)
def test_times_are_shown_with_three_digits(seconds: float | None, shown: str) -> None:
    assert show_ms(seconds) == shown


@pytest.mark.parametrize(("rate", "shown"), [(12.34, "12.3"), (999.94, "999.9"), (12345.6, "12,346")])
def test_rates_are_shown_without_noise(rate: float, shown: str) -> None:
    assert show_rate(rate) == shown


@pytest.mark.parametrize(
    ("values", "top"),
    [([950.0], 1000.0), ([1000.0], 1000.0), ([1001.0], 1500.0), ([0.08], 0.08), ([], 1.0), ([0.0], 1.0)],
)
def test_axis_begins_at_zero_and_ends_above_the_greatest_value(values: list[float], top: float) -> None:
    axis = axis_from_zero(values, str)
    assert axis.low == 0.0
    assert axis.high == pytest.approx(top)


def test_ratio_axis_has_equal_steps_for_equal_factors() -> None:
    axis = axis_of_ratios([math.log(1.2), math.log(0.6)], band=0.03)
    assert {label: value for value, label in axis.ticks}["1"] == 0.0
    assert axis.low < math.log(0.6)
    assert axis.high > math.log(1.2)
    assert axis.band == pytest.approx((-math.log(1.03), math.log(1.03)))


def test_a_chart_of_one_level_is_drawn() -> None:
    chart = Chart("t", [Line("a", "low", [(4, 1.0)])], Axis(0, 2, [(1.0, "1")]), str, Marks((3.0,), 2, 5)).render()
    ElementTree.fromstring(chart)


def test_a_chart_without_points_is_empty() -> None:
    assert Chart("t", [Line("a", "low", [])], Axis(0, 1, []), str).render() == ""
