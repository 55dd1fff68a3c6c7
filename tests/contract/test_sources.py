"""The file of facts: where each was read, which are unproven, and that the documentation lists those."""

import re
from pathlib import Path

import pytest

from tests.contract.facts import CONTRACT, load_contract, parse_contract

PAGE = (Path(__file__).parents[2] / "docs/engines.md").read_text()
SECTION = re.compile(r"^## Seen in one version only$(.*?)^## ", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| `([\w.]+)` \|", re.MULTILINE)


def test_documentation_lists_what_is_unproven() -> None:
    section = SECTION.search(PAGE)
    assert section is not None
    assert ROW.findall(section.group(1)) == list(load_contract().unproven())


def test_fact_that_one_commit_has_is_unproven_however_many_files_of_it_name_the_fact() -> None:
    sources = "sources: {a-1: 'a/a x.py@0000001', b-1: 'a/a y.md@0000001', a-2: 'a/a x.py@0000002'}\n"
    sections = dict.fromkeys(name for name, _ in load_contract().sections())
    sections["build"] = "{old: {type: flag, seen: [a-1, b-1]}, kept: {type: flag, seen: [a-1, a-2]}}"
    text = sources + "".join(f"{name}: {facts or '{}'}\n" for name, facts in sections.items())
    assert parse_contract(text).unproven() == (("build", "old"),)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("seen: &quantize [quantize-059c97c", "seen: &quantize [quantize-059c97d", "quantize-059c97d missing"),
        ("guarded: false", "guarded: no one", "guarded"),
        ("dims: [-1]", "dim: [-1]", "dim"),
        ("@c1e1963", "@main", "String should match pattern"),
        ("\nhf_ptq:", "\nhfptq:", "hfptq"),
    ],
)
def test_file_with_a_slip_is_refused(old: str, new: str, problem: str) -> None:
    text = CONTRACT.read_text()
    assert old in text
    with pytest.raises(ValueError, match=problem):
        parse_contract(text.replace(old, new, 1))


def test_every_place_is_one_where_something_was_seen() -> None:
    contract = load_contract()
    seen = {place for _, facts in contract.sections() for fact in facts.values() for place in fact.seen}
    assert contract.sources.keys() == seen
