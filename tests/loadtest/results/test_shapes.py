"""Several sizes of request: how they are named, and how the crossing moves with them."""

import re
from dataclasses import replace

import pytest

from loadtest.results.result import Result
from loadtest.results.shapes import Shape, compare_shapes
from tests.loadtest.samples import CROSSING, make_result

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
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}: a "):
        Shape.parse(text)


def test_a_crossing_that_moves_is_found_with_what_one_threshold_costs_then() -> None:
    comparison = compare_shapes([shaped(SHORT, CROSSING), shaped(LONG, EARLY)])
    assert comparison.moved == ((SHORT, LONG),)
    first, other = comparison.rows
    assert first.losses == ()  # up 47, down 33: right at every level that was measured
    assert [(loss.level, loss.backend) for loss in other.losses] == [(8, "triton"), (32, "triton")]
    assert [loss.share for loss in other.losses] == pytest.approx([0.1, 0.2], abs=1e-3)


def test_a_threshold_that_is_too_low_sends_too_much_to_the_high_backend() -> None:
    losses = compare_shapes([shaped(LONG, EARLY), shaped(SHORT, CROSSING)]).rows[1].losses
    assert [(loss.level, loss.backend) for loss in losses] == [(8, "vllm"), (32, "vllm")]
    assert losses[0].share == pytest.approx(1 - 1 / 1.1, abs=1e-3)
