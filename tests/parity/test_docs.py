"""docs/api.md repeats what differences.py lists."""

from operator import attrgetter

import pytest

from deploy.stacks import ROOT
from tests.parity.differences import DIFFERENCES, Difference

SECTION = (ROOT / "docs/api.md").read_text().partition("\n## Beside vLLM's own server\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("row", DIFFERENCES, ids=attrgetter("field"))
def test_a_listed_difference_is_documented(row: Difference) -> None:
    assert f"| {row.field} | {row.reason} |" in SECTION


def test_no_other_difference_is_documented() -> None:
    assert SECTION.count("\n| ") == len(DIFFERENCES) + 1  # the table's head
