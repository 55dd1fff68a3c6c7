"""shapes.html and shapes.md: the sentences on several shapes, and a row for each."""

import re
from collections.abc import Mapping

import pytest

from loadtest.report.shape_report import describe_shapes, render_shapes_html, render_shapes_markdown
from loadtest.results.shapes import compare_shapes
from tests.loadtest.report.pages import Page
from tests.loadtest.results.test_shapes import EARLY, LONG, SHORT, shaped
from tests.loadtest.samples import CROSSING


@pytest.mark.parametrize(
    ("first", "other", "move", "cost"),
    [
        (
            CROSSING,
            EARLY,
            r"The crossing moves with the shape: 12x32 at 39\.9, 500x16 at [34]\.\d\. No overlap .* 12x32 and 500x16",
            r".*\(up 47, down 33\) 500x16 loses 20% at 32 in flight \(it goes to triton\)\.",
        ),
        (
            CROSSING,
            CROSSING,
            r"The crossing may be the same for all shapes: 12x32 at 39\.9, 500x16 at 39\.9",
            r".*no shape surely loses anything at any level measured\.",
        ),
        (
            {1: 1.2, 8: 1.3},
            CROSSING,
            "Fewer than two shapes have one crossing",
            "12x32, the first shape, has no",
        ),
    ],
    ids=["moves", "may be the same", "nothing to compare"],
)
def test_two_sentences_say_whether_the_crossing_moves_and_what_one_threshold_costs(
    first: Mapping[int, float], other: Mapping[int, float], move: str, cost: str
) -> None:
    found = describe_shapes(compare_shapes([shaped(SHORT, dict(first)), shaped(LONG, dict(other))]))
    assert all(re.match(pattern, sentence) for pattern, sentence in zip((move, cost), found, strict=True))


def test_the_reports_show_every_shape_and_lead_to_its_own_report() -> None:
    comparison = compare_shapes([shaped(SHORT, CROSSING), shaped(LONG, EARLY)])
    folders = {SHORT: "r-12x32", LONG: "r-500x16"}
    page = Page(render_shapes_html("r", comparison, folders))
    assert page.fetched == ["r-12x32/report.html", "r-500x16/report.html"]
    assert "The crossing moves with the shape" in page.text
    assert page.text.count("500x16") >= 3
    text = render_shapes_markdown("r", comparison, folders)
    assert "| [500x16](r-500x16/report.md) |" in text
    assert "20.0% at 32" in text
