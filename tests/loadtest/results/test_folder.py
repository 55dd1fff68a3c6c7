from pathlib import Path

import orjson
import pytest

from loadtest.client.errors import Unreachable
from loadtest.results.folder import RunFolder
from tests.loadtest.samples import CROSSING, make_result


def test_each_cell_is_a_line_on_disk_at_once_and_an_incomplete_line_is_cut_off(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs")
    cells = make_result(CROSSING).cells[:3]
    for cell in cells:
        folder.append(cell)
    file = folder.path / "cells.jsonl"
    lines = file.read_bytes()
    assert [orjson.loads(line)["level"] for line in lines.splitlines()] == [1, 1, 8]
    file.write_bytes(lines + b'{"backend":"trit')
    assert folder.recover() == cells
    assert file.read_bytes() == lines
    file.write_bytes(b"{}\n" + lines)
    with pytest.raises(Unreachable, match="holds a line that is no cell"):
        folder.recover()


@pytest.mark.parametrize(("status", "is_final"), [("complete", True), ("unresolved", True), ("interrupted", False)])
def test_a_run_is_resumed_unless_its_result_is_final(tmp_path: Path, status: str, is_final: bool) -> None:
    folder = RunFolder.create(tmp_path)
    assert not folder.is_final
    result = make_result(CROSSING).to_json() | {"status": status}
    (folder.path / "result.json").write_bytes(orjson.dumps(result))
    assert folder.is_final is is_final
