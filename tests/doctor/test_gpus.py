"""nvidia-smi's answers, from a program of that name that prints them as the driver's does."""

from pathlib import Path

import pytest

from gateway.doctor.gpus import Gpu, read_gpus

GPUS = """0, GPU-aa, NVIDIA H100 80GB HBM3, 580.95.05
1, GPU-bb, NVIDIA H100 80GB HBM3, 580.95.05
"""
APPS = """GPU-bb, 4711
GPU-aa, 12
GPU-bb, 13
GPU-bb, [N/A]
"""


def put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


async def test_gpus_and_the_processes_on_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gpus").write_text(GPUS)
    (tmp_path / "apps").write_text(APPS)
    put_on_path(
        monkeypatch, tmp_path, f'case "$1" in --query-gpu*) cat {tmp_path}/gpus;; *) cat {tmp_path}/apps;; esac'
    )
    name, driver = "NVIDIA H100 80GB HBM3", "580.95.05"
    assert await read_gpus() == (
        Gpu("0", name, driver, frozenset({12})),
        Gpu("1", name, driver, frozenset({4711, 13})),
    )


@pytest.mark.parametrize(
    "body",
    [
        "echo 'No devices were found'",
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9",
        "kill -9 $$",
    ],
)
async def test_a_driver_that_does_not_answer_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str
) -> None:
    put_on_path(monkeypatch, tmp_path, body)
    assert await read_gpus() == ()


async def test_a_machine_without_the_program_has_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await read_gpus() == ()
