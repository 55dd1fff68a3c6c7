"""docs/doctor.md against the code: its table of findings and cures is the code's, and nothing in it is idle."""

import re
from pathlib import Path

import pytest

from gateway.doctor import FEATURES, Fault

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "doctor.md").read_text()


def test_the_table_is_the_codes() -> None:
    table = TEXT.partition("## Findings and cures")[2]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{fault.code}` | {fault.severity} | {fault.meaning} | {fault.cure} |" for fault in Fault]


def test_every_feature_has_a_row_that_says_how_it_is_proved() -> None:
    proofs = TEXT.partition("## What is proved, and by what")[2].partition("## What is checked")[0]
    named = {name for row in re.findall(r"(?m)^\| (`.*?`) \|", proofs) for name in re.findall(r"`(\w+)`", row)}
    assert named == set(FEATURES)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.code)
def test_every_row_is_found_by_some_rule_and_shown_by_some_test(fault: Fault) -> None:
    rooms = (ROOT / "gateway" / name for name in ("doctor", "engine_kinds"))
    rules = (path for room in rooms for path in room.rglob("*.py") if path.stem != "faults")
    tests = (path for path in Path(__file__).parent.glob("test_*.py"))
    for sources in (rules, tests):
        assert any(re.search(rf"\bFault\.{fault.name}\b", path.read_text()) for path in sources)


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.code)
def test_a_cure_is_one_imperative_sentence(fault: Fault) -> None:
    assert re.fullmatch(r"[A-Z][a-z]+ [^.]*(\.[^ .][^.]*)*\.", fault.cure)
    assert "|" not in fault.meaning + fault.cure
