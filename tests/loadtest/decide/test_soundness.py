"""The limits of checks: one table in the code, the same in the documentation, and what users may change."""

from pathlib import Path

import pytest

from loadtest.decide.soundness import LOOSE, USUAL, Limits

PAGE = Path(__file__).parents[3] / "docs" / "calibration.md"


def test_the_documentation_has_every_limit_with_its_figures_and_reason() -> None:
    rows = [
        f"| `{name}` | {usual:g} | {getattr(LOOSE, name):g} | {reason} |"
        for name, (usual, reason) in Limits.reasons().items()
    ]
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 5]
    assert [line for line in lines if line.split("`")[1] in Limits.names()] == rows


def test_a_limit_is_changed_by_name() -> None:
    changed = USUAL.changed(["client_cpu=0.9", "unsteady = 1"])
    assert (changed.client_cpu, changed.unsteady, changed.evenness) == (0.9, 1.0, USUAL.evenness)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("client_cpu", "client_cpu: no such limit; NAME=VALUE with one of in_flight, fill_gap"),
        ("cpu=1", "cpu=1: no such limit"),
        ("client_cpu=much", "client_cpu=much: no number"),
        ("client_cpu=-1", "client_cpu=-1: a limit is 0 or more"),
        ("client_cpu=nan", "client_cpu=nan: a limit is 0 or more"),
        ("client_cpu=inf", "client_cpu=inf: a limit is 0 or more"),
    ],
)
def test_what_is_no_limit_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        USUAL.changed([setting])
