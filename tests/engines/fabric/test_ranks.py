"""Ranks that are processes: their lines, their faults, and that none is left. A script stands in for their Python."""

import os
import time
from pathlib import Path

import pytest

from engines.fabric.curve import Sample
from engines.fabric.ranks import FabricError, Group, WrongSum, describe_machine, measure

SAMPLE = '{"repeat": 0, "way": "graph", "bytes": 1024, "loops": 1, "seconds": 0.5}'
# Which rank it is stands in the job, the third argument.
AS_RANK = 'case "$3" in *\'"rank": 0,\'*) rank=0;; *) rank=1;; esac'


def make_python(folder: Path, *lines: str) -> str:
    script = folder / "python"
    script.write_text("\n".join(("#!/bin/sh", AS_RANK, f'echo $$ >> "{folder}/pids"', *lines, "")))
    script.chmod(0o755)
    return str(script)


def make_group(python: str, silence_s: float = 60.0) -> Group:
    return Group(
        python=python,
        backend="nccl",
        devices=[0, 1],
        sizes=[1024],
        ways=["graph"],
        repeats=1,
        silence_s=silence_s,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def find_living(folder: Path) -> list[int]:
    return [pid for pid in map(int, (folder / "pids").read_text().split()) if is_alive(pid)]


def test_samples_are_read_between_the_lines_that_nccl_writes(tmp_path: Path) -> None:
    lines = [f"[ $rank = 1 ] || {{ echo NCCL INFO hello; echo '{SAMPLE}'; echo '{{\"done\": true}}'; }}"]
    assert list(measure(make_group(make_python(tmp_path, *lines)))) == [Sample("graph", 1024, 0.5)]
    assert find_living(tmp_path) == []


def test_a_rank_that_fails_ends_the_others_and_is_quoted(tmp_path: Path) -> None:
    lines = ["[ $rank = 0 ] && exec sleep 600", 'echo "RuntimeError: no such device" >&2; echo bye >&2', "exit 7"]
    with pytest.raises(
        FabricError, match="nccl with 2 ranks: rank 1 ended with exit code 7: RuntimeError: no such device"
    ):
        list(measure(make_group(make_python(tmp_path, *lines))))
    assert find_living(tmp_path) == []


def test_a_wrong_sum_is_told_apart_from_what_could_not_be_tried(tmp_path: Path) -> None:
    lines = ["[ $rank = 0 ] && exec sleep 600", "echo rank 1: a wrong sum >&2", "exit 3"]
    with pytest.raises(WrongSum, match="a wrong sum"):
        list(measure(make_group(make_python(tmp_path, *lines))))


def test_a_rank_that_ends_too_early_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match="rank 0 ended before it was done"):
        list(measure(make_group(make_python(tmp_path, f"echo '{SAMPLE}'"))))


def test_ranks_that_say_nothing_are_given_up(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=r"said nothing for 0\.5 s"):
        list(measure(make_group(make_python(tmp_path, "exec sleep 600"), silence_s=0.5)))
    assert find_living(tmp_path) == []


def test_no_rank_is_left_when_its_reader_leaves(tmp_path: Path) -> None:
    samples = measure(make_group(make_python(tmp_path, f"echo '{SAMPLE}'", "exec sleep 600")))
    assert next(samples).size == 1024
    while (tmp_path / "pids").read_text().count("\n") < 2:
        time.sleep(0.01)
    samples.close()  # type: ignore[attr-defined]  # a generator is what an iterator here is
    assert find_living(tmp_path) == []


def test_a_python_without_torch_is_told(tmp_path: Path) -> None:
    python = make_python(
        tmp_path, "echo Traceback >&2; echo \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1"
    )
    with pytest.raises(FabricError, match="does not run torch: ModuleNotFoundError"):
        describe_machine(python)


def test_a_python_that_is_not_there_is_told() -> None:
    with pytest.raises(FabricError, match="cannot be started: No such file"):
        describe_machine("/nowhere/python")
