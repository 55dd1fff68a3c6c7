"""report.html and report.md."""

import re
from dataclasses import replace

import pytest

from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.report.ratios import make_ratios
from loadtest.results.result import Result
from tests.loadtest.report.pages import Page, read_plots, styled
from tests.loadtest.samples import CROSSING, make_result


def broken_off() -> Result:
    message = "UNEQUAL WORK: <b>triton</b> & co."
    return replace(make_result({}), status="untrusted", failure=message, findings={}, threshold=None)


def test_page_shows_the_answer_and_how_to_repeat_it_and_fetches_nothing() -> None:
    result = make_result(CROSSING)
    html = render_html(replace(result, system=replace(result.system, engines={"vllm": {"version": "0.24.0"}})))
    page = Page(html)
    assert page.fetched == []
    assert "prefers-color-scheme: dark" in html
    for words in ("triton is better below", "up 47, down 33", "equal work", "version=0.24.0"):
        assert words in page.text
    assert "crossover calibrate --quick --model toy" in page.text
    assert "--key" not in page.text


def test_plots_mark_crossing_and_threshold_and_name_every_point() -> None:
    plots = read_plots(make_result(CROSSING))
    assert len(plots) == 6
    texts = [element.text or "" for element in plots[0].iter("text")]
    assert {"down 33", "up 47"} <= set(texts)
    assert any(text.startswith("crossing 39.9") for text in texts)
    assert len(list(plots[0].iter("polyline"))) == 2
    titles = [element.text for element in plots[0].iter("title")]
    assert {"triton, 64 in flight: 5,760", "vllm, 64 in flight: 6,400"} <= set(titles)


def test_every_part_of_every_set_is_a_band_in_the_throughput_plot() -> None:
    result = make_result(CROSSING)
    (band,), (point,) = (styled(read_plots(result)[0], style) for style in ("set", "crossing"))
    left, width = float(band.get("x") or 0), float(band.get("width") or 0)
    assert left <= float(point.get("x1") or 0) <= left + width
    several = read_plots(make_result({1: 1.2, 2: 0.8, 4: 1.2}))[0]
    assert len(styled(several, "set")) == len(styled(several, "crossing")) == 2
    (change,) = result.findings["throughput"].changes
    parts = replace(result.findings["throughput"], changes=(replace(change, set=((20.0, 30.0), (35.0, 50.0))),))
    plot = read_plots(replace(result, findings={"throughput": parts}))[0]
    assert [band[0].text for band in styled(plot, "set")] == ["95 % set: 20 to 30", "95 % set: 35 to 50"]


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
        (0.05, 32, ("32", "2", "1.050", "0.906 to 1.217", "not known")),
    ],
)
def test_ratios_have_an_interval_and_a_winner(scatter: float, level: int, row: tuple[str, ...]) -> None:
    """By hand: squares about the levels' means 10 scatter^2, less 0.4 scatter^2 of order, over 10 - 5 - 1 degrees of
    freedom, and of that four parts to one with the level's own; its error is the root of half of it, and Student's t
    with 4 is 2.776.
    """
    ratios = {ratio.level: ratio.fields for ratio in make_ratios(make_result(CROSSING, scatter))}
    assert ratios[level] == row
    assert f"| {' | '.join(row)} |" in render_markdown(make_result(CROSSING, scatter))


def test_a_tie_and_a_difference_within_the_band_are_named() -> None:
    verdicts = [ratio.verdict for ratio in make_ratios(make_result({1: 1.0, 8: 1.01, 32: 0.99, 64: 1.2}))]
    assert verdicts[:2] == ["tied, within 3%", "triton is better, within 3%"]
    assert verdicts[2:] == ["vllm is better, within 3%", "triton is better"]


def test_levels_measured_once_have_ratios_without_intervals() -> None:
    result = make_result({1: 1.2, 2: 1.1})
    ratios = make_ratios(replace(result, cells=result.cells[:4]))
    assert [" ".join(ratio.fields) for ratio in ratios] == ["1 1 1.200 n/a not known", "2 1 1.100 n/a not known"]


def test_a_run_broken_off_has_a_page_and_text_too() -> None:
    page = render_html(broken_off())
    assert "<b>triton</b>" not in page
    assert "UNEQUAL WORK: &lt;b&gt;triton&lt;/b&gt; &amp; co." in page
    assert "<svg" not in page
    assert "UNEQUAL WORK" in render_markdown(broken_off())


def test_the_table_has_a_row_per_cell_and_the_percentiles_that_a_cell_has() -> None:
    markdown = render_markdown(make_result(CROSSING))
    rows = [line for line in markdown.splitlines() if "| triton |" in line or "| vllm |" in line]
    assert len(rows) == 4 * len(CROSSING)
    assert rows[0].endswith("| 1.200 |")
    assert ("TTFT p90" in markdown, "TTFT p99" in markdown) == (True, False)
