"""docs/architecture.md beside the code: its diagrams are the import graph's, its quotation is the source's.

`python -m tests.test_architecture` writes both into the page again.
"""

import ast
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
DIAGRAM = re.compile(r"(```mermaid\n%% imports of (\w+)\n).*?(?=```)", re.DOTALL)
QUOTATION = re.compile(r"(```python\n# (\S+): (\S+)\n).*?(?=```)", re.DOTALL)


def list_imports(package: str) -> dict[str, set[str]]:
    """For each room, which is a direct child of the package, the other rooms that it imports."""
    graph = grimp.build_graph(package, cache_dir=None)
    rooms = graph.find_children(package)
    for room in rooms:
        graph.squash_module(room)
    return {
        name_room(room): set(map(name_room, graph.find_modules_directly_imported_by(room) & (rooms - {room})))
        for room in rooms
    }


def name_room(module: str) -> str:
    return module.partition(".")[2]


def reduce_imports(imports: Mapping[str, AbstractSet[str]]) -> dict[str, set[str]]:
    """Without the imports of rooms that are reached through another room too. Raises CycleError."""
    reached: dict[str, set[str]] = {}
    kept: dict[str, set[str]] = {}
    for room in TopologicalSorter(imports).static_order():
        indirect = set[str]().union(*(reached[other] for other in imports[room]))
        reached[room] = indirect.union(imports[room])
        kept[room] = set(imports[room]) - indirect
    return kept


def draw(package: str) -> str:
    """Mermaid text: an arrow for each import that is left, and a line for each room without an arrow."""
    imports = reduce_imports(list_imports(package))
    arrows = sorted(f"    {room} --> {other}" for room, others in imports.items() for other in others)
    imported = set[str]().union(*imports.values())
    alone = sorted(f"    {room}" for room, others in imports.items() if not others and room not in imported)
    return "\n".join(["flowchart TD", *arrows, *alone]) + "\n"


def quote(path: str, name: str) -> str:
    """The source of `Class.method` in a file, indented as a function of a module is."""
    text = (ROOT / path).read_text()
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        node = next(child for child in ast.iter_child_nodes(node) if getattr(child, "name", None) == part)
    assert isinstance(node, ast.FunctionDef)
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines) + "\n"


def write_again(page: str) -> str:
    page = DIAGRAM.sub(lambda found: found[1] + draw(found[2]), page)
    return QUOTATION.sub(lambda found: found[1] + quote(found[2], found[3]), page)


def test_the_page_shows_the_import_graph_and_the_code() -> None:
    page = PAGE.read_text()
    assert {found[2] for found in DIAGRAM.finditer(page)} == {"gateway", "loadtest"}
    assert QUOTATION.search(page) is not None
    assert page == write_again(page), "python -m tests.test_architecture writes the page again"


def test_an_import_is_left_out_where_another_room_leads_there() -> None:
    imports = {"top": {"middle", "bottom", "side"}, "middle": {"bottom"}, "bottom": set[str](), "side": set[str]()}
    assert reduce_imports(imports) == {**imports, "top": {"middle", "side"}}


def test_rooms_that_import_one_another_have_no_diagram() -> None:
    with pytest.raises(CycleError):
        reduce_imports({"one": {"other"}, "other": {"one"}})


if __name__ == "__main__":
    PAGE.write_text(write_again(PAGE.read_text()))
