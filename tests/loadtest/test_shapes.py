"""Several sizes of request: how they are named, and what their results say together."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.errors import Unreachable
from loadtest.plan import QUICK
from loadtest.report.shapes import describe_contrast, render_shapes_html, render_shapes_markdown
from loadtest.result import Result
from loadtest.series import Series
from loadtest.shapes import Shape, contrast_shapes
from tests.loadtest.samples import make_result
from tests.loadtest.test_report import CROSSING, Page

EARLY = {1: 1.2, 8: 0.9, 32: 0.8, 64: 0.7, 128: 0.6}  # crosses near 4
SHORT, LONG = Shape(12, 32), Shape(500, 16)


def shaped(shape: Shape, ratios: dict[int, float]) -> Result:
    result = make_result(ratios)
    return replace(result, plan=replace(result.plan, prompt_words=shape.prompt_words, tokens=shape.tokens))


@pytest.mark.parametrize(("text", "shape"), [("48x256", Shape(48, 256)), ("1x2", Shape(1, 2))])
def test_a_shape_is_words_of_a_prompt_and_tokens_of_an_answer(text: str, shape: Shape) -> None:
    assert Shape.parse(text) == shape
    assert str(shape) == text


@pytest.mark.parametrize("text", ["", "48", "x", "48x", "48X256", "4x8x1", "-1x8", "1.5x8", "0x8", "8x1", "1234567x8"])
def test_anything_else_is_refused_by_what_it_is(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}: a "):
        Shape.parse(text)


def test_a_crossing_that_moves_is_told_and_what_one_threshold_costs_then() -> None:
    contrast = contrast_shapes([shaped(SHORT, CROSSING), shaped(LONG, EARLY)])
    assert contrast.moved == ((SHORT, LONG),)
    first, other = contrast.rows
    assert first.losses == ()  # up 47, down 33: right at every level that was measured
    assert [(loss.level, loss.backend) for loss in other.losses] == [(8, "triton"), (32, "triton")]
    assert [loss.share for loss in other.losses] == pytest.approx([0.1, 0.2], abs=1e-3)
    move, cost = describe_contrast(contrast)
    assert re.match(
        r"The crossing moves with the shape: 12x32 at 39\.9, 500x16 at [34]\.\d\. No overlap .* 12x32 and", move
    )
    assert cost.endswith("(up 47, down 33) 500x16 loses 20% at 32 in flight (it goes to triton).")


def test_a_threshold_that_is_too_low_sends_too_much_to_the_high_backend() -> None:
    contrast = contrast_shapes([shaped(LONG, EARLY), shaped(SHORT, CROSSING)])
    losses = contrast.rows[1].losses
    assert {loss.backend for loss in losses} == {"vllm"}
    assert [loss.level for loss in losses] == [8, 32]
    assert losses[0].share == pytest.approx(1 - 1 / 1.1, abs=1e-3)


def test_crossings_that_may_be_the_same_are_not_called_different() -> None:
    move, cost = describe_contrast(contrast_shapes([shaped(SHORT, CROSSING), shaped(LONG, CROSSING)]))
    assert move.startswith("The crossing may be the same for all shapes: 12x32 at 39.9, 500x16 at 39.9")
    assert cost.endswith("no shape surely loses anything at any level measured.")


def test_shapes_without_a_crossing_or_a_threshold_are_told_as_such() -> None:
    move, cost = describe_contrast(contrast_shapes([shaped(SHORT, {1: 1.2, 8: 1.3}), shaped(LONG, CROSSING)]))
    assert move.startswith("Fewer than two shapes have one crossing each")
    assert cost.startswith("12x32, the first shape, has no threshold")


def test_the_reports_show_every_shape_and_lead_to_its_own_report() -> None:
    contrast = contrast_shapes([shaped(SHORT, CROSSING), shaped(LONG, EARLY)])
    folders = {SHORT: "r-12x32", LONG: "r-500x16"}
    page = Page(render_shapes_html("r", contrast, folders))
    assert page.fetched == ["r-12x32/report.html", "r-500x16/report.html"]
    assert "The crossing moves with the shape" in page.text
    assert page.text.count("500x16") >= 3
    text = render_shapes_markdown("r", contrast, folders)
    assert "| [500x16](r-500x16/report.md) |" in text
    assert "20.0% at 32" in text


def test_plans_are_read_back_from_the_folder(tmp_path: Path) -> None:
    plans = [replace(QUICK, prompt_words=shape.prompt_words, tokens=shape.tokens) for shape in (SHORT, LONG)]
    series = Series.create(tmp_path, plans)
    assert Series.read(series.path) == series
    assert [series.folder(plan).run for plan in plans] == [f"{series.path.name}-12x32", f"{series.path.name}-500x16"]
    assert Series.read(tmp_path) is None
    (series.path / "shapes.json").write_text("[]x")
    with pytest.raises(Unreachable, match="not the folder of a run that can be resumed"):
        Series.read(series.path)
