"""Every field of docs/api.md has a mutant, and every mutant still fits the code; `make mutants` runs them."""

import re
from operator import attrgetter

import pytest

from deploy.stacks import ROOT
from tests.mutants.cases import MUTANTS
from tests.mutants.mutant import Mutant

PAGE = (ROOT / "docs/api.md").read_text()
SECTIONS = ("Honoured", "No effect", "Refused")


def documented() -> set[str]:
    """The fields in the first columns of the three tables of a body's own fields."""
    sections = [PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0] for section in SECTIONS]
    return {
        field for text in sections for field in re.findall(r"^\| `(\w+)` \| (?:both|chat|completions) \|", text, re.M)
    }


def test_every_field_has_a_mutant() -> None:
    assert documented() <= {field for mutant in MUTANTS for field in mutant.fields}


@pytest.mark.parametrize("mutant", MUTANTS, ids=attrgetter("name"))
def test_a_mutant_fits_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.where).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    for test in mutant.tests:
        module, _, function = test.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / module).read_text()
