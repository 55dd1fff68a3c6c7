"""Every field of docs/api.md has a mutant, and every mutant fits the code and its tests; `make mutants` runs them."""

import inspect
import re
from operator import attrgetter

import pytest

from tests.mutants.cases import MUTANTS
from tests.mutants.mutant import ROOT, Mutant, make_patches, read_target
from tests.mutants.table.fields import SECTIONS, list_fields

each = pytest.mark.parametrize("mutant", MUTANTS, ids=attrgetter("behaviour"))


def test_every_field_has_a_mutant() -> None:
    documented = {field for section in SECTIONS for field, _ in list_fields(section)}
    assert len(documented) > 60
    assert documented <= {field for mutant in MUTANTS for field in re.findall(r"^`(\w+)`", mutant.behaviour)}


def test_each_behaviour_is_taken_away_once() -> None:
    behaviours = [mutant.behaviour for mutant in MUTANTS]
    assert sorted(set(behaviours)) == sorted(behaviours)


@each
def test_a_mutant_can_be_installed(mutant: Mutant) -> None:
    patches = list(make_patches(mutant))
    assert patches
    assert all(patch.value is not read_target(mutant.target) for patch in patches)


@each
def test_a_mutant_takes_what_the_original_takes(mutant: Mutant) -> None:
    """Or the tests would notice nothing but a call that fails."""
    original = read_target(mutant.target)
    mutated = mutant.replacement(original)
    assert callable(mutated) == callable(original)
    if not inspect.isfunction(original):
        return
    parameters = inspect.signature(original).parameters.values()
    places = [each for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    required = [each for each in places if each.default is inspect.Parameter.empty]
    named = [each for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
    required_names = {each.name for each in named if each.default is inspect.Parameter.empty}
    all_names = {each.name for each in (*places[len(required) :], *named)}  # callers name what may be left out
    bind = inspect.signature(mutated).bind
    bind(*required, **dict.fromkeys(required_names))
    bind(*required, **dict.fromkeys(all_names))
    bind(*places, **dict.fromkeys(required_names))


@each
def test_a_mutants_tests_exist(mutant: Mutant) -> None:
    for test in mutant.tests:
        file, _, function = test.partition("::")
        text = (ROOT / file).read_text()
        assert not function or f"def {function.partition('[')[0]}(" in text
