"""docs/reliability.md against the tests: its faults are those of table.py, and every test that it names exists."""

import re
from pathlib import Path

import pytest

from tests.faults.table import BOTH, ROWS
from tests.faults.test_soak import MORE_DESCRIPTORS, MORE_MB, MORE_SOCKETS, MORE_TASKS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text()
NAMED = re.findall(r"`(\w+/\w+\.py): (\w+)`", TEXT)


def find_rows(heading: str) -> list[str]:
    section = TEXT.partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def test_the_table_of_the_way_to_an_engine_is_the_tests_own() -> None:
    shown = [tuple(line.split(" | ")[:2]) for line in find_rows("On the way to an engine")]
    wires = {row.name: {each.wire for each in ROWS if each.name == row.name} for row in ROWS}
    assert shown == [(f"| {name}", "both" if found == set(BOTH) else "".join(found)) for name, found in wires.items()]


@pytest.mark.parametrize("heading", ["In an engine", "In the gateway and its machine"])
def test_every_other_row_names_its_test(heading: str) -> None:
    rows = find_rows(heading)
    assert rows
    assert [row for row in rows if not re.search(r"\| `\w+/\w+\.py: \w+` \|$", row)] == []


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)


def test_the_bounds_of_the_soak_are_the_tests_own() -> None:
    bounds = f"{MORE_MB:g} MB, {MORE_DESCRIPTORS} descriptors, {MORE_SOCKETS} sockets and {MORE_TASKS} tasks"
    assert bounds in TEXT
