"""The worker's lines and faults, and that none of its processes is left. A script stands in for its Python."""

import re
from pathlib import Path

import pytest

from engines.fabric.curve import Sample
from engines.fabric.measure import FabricError, Group, WrongSum, describe_machine, measure
from tests.processes import comes_true, is_running

SAMPLE = '{"repeat": 0, "way": "graph", "bytes": 1024, "loops": 1, "seconds": 0.5}'
RANK = 'sleep 600 & echo $! > "$(dirname "$0")/pid"'


def make_python(folder: Path, *lines: str) -> str:
    script = folder / "python"
    script.write_text("\n".join(("#!/bin/sh", RANK, *lines, "")))
    script.chmod(0o755)
    return str(script)


def make_group(python: str, repeats: int = 1, silence_s: float = 60.0) -> Group:
    return Group(
        python=python,
        backend="nccl",
        devices=[0, 1],
        sizes=[1024],
        ways=["graph"],
        repeats=repeats,
        silence_s=silence_s,
    )


def has_ended(folder: Path) -> bool:
    """Soon: a signal takes a process down a moment after it was sent."""
    return comes_true(lambda: not is_running(int((folder / "pid").read_text())))


def test_samples_are_read_between_the_lines_that_nccl_writes(tmp_path: Path) -> None:
    python = make_python(tmp_path, f"echo NCCL INFO hello; echo '{{\"checked\": 1024}}'; echo '{SAMPLE}'; kill $!")
    assert list(measure(make_group(python))) == [Sample("graph", 1024, 0.5)]
    assert has_ended(tmp_path)


@pytest.mark.parametrize(
    ("lines", "kind", "message"),
    [
        (
            ['echo "rank 1: RuntimeError: no such device" >&2; echo bye >&2', "kill $!; exit 7"],
            FabricError,
            "nccl with 2 ranks: ended with exit code 7: rank 1: RuntimeError: no such device",
        ),
        (["echo rank 1: a wrong sum >&2", "kill $!; exit 3"], WrongSum, "a wrong sum"),
        (["kill $!"], FabricError, "ended before it was done"),
        (["wait"], FabricError, "wrote nothing for 0.5 s"),
    ],
    ids=["failed", "wrong sum", "too early", "hung"],
)
def test_a_worker_that_ends_without_all_samples_is_quoted_and_leaves_no_process(
    tmp_path: Path, lines: list[str], kind: type[FabricError], message: str
) -> None:
    group = make_group(make_python(tmp_path, f"echo '{SAMPLE}'", *lines), repeats=2, silence_s=0.5)
    with pytest.raises(kind, match=re.escape(message)) as raised:
        list(measure(group))
    assert type(raised.value) is kind
    assert has_ended(tmp_path)


def test_no_process_is_left_when_the_reader_leaves(tmp_path: Path) -> None:
    samples = measure(make_group(make_python(tmp_path, f"echo '{SAMPLE}'", "wait"), repeats=2))
    assert next(samples).size == 1024
    samples.close()  # type: ignore[attr-defined]  # a generator is what an iterator here is
    assert has_ended(tmp_path)


def test_a_python_without_torch_is_named(tmp_path: Path) -> None:
    python = make_python(tmp_path, "kill $!; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1")
    with pytest.raises(FabricError, match="does not run torch: ModuleNotFoundError"):
        describe_machine(python)
    with pytest.raises(FabricError, match="cannot be started: No such file"):
        describe_machine("/nowhere/python")
