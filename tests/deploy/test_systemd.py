"""The systemd units: systemd's own check where it is installed, and the order that their drain depends on."""

import shutil
from pathlib import Path

import pytest

from tests.deploy.shipped import UNITS, Unit, need_tool, read_variables, run_tool

PROGRAMS = ("usr/bin/docker", "usr/bin/curl", "opt/crossover/gateway/bin/crossover", "opt/crossover/vllm/bin/vllm")
# What every system has and ours refer to.
SYSTEM = ("sysinit.target", "basic.target", "shutdown.target", "network-online.target", "multi-user.target")
NAMES = ("crossover-triton", "crossover-vllm", "crossover-gateway", "crossover-compose")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system on which ours are installed, with programs that do nothing."""
    system, ours = tmp_path / "usr/lib/systemd/system", tmp_path / "etc/systemd/system"
    for folder in (system, ours):
        folder.mkdir(parents=True)
    for name in SYSTEM:
        (system / name).write_text(f"[Unit]\nDescription={name}\n")
    (system / "docker.service").write_text("[Unit]\nDescription=Docker\n[Service]\nExecStart=/usr/bin/docker\n")
    for program in PROGRAMS:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    for path in (*UNITS.glob("*.service"), *UNITS.glob("*.target")):
        shutil.copy(path, ours)
    return tmp_path


def verify(root: Path) -> str:
    analyze = need_tool("systemd-analyze", "systemd")
    units = ("crossover.target", *(f"{name}.service" for name in NAMES))
    done = run_tool(analyze, "verify", "--man=no", f"--root={root}", *units)
    return done.stdout + done.stderr


@pytest.mark.parametrize("layout", ["two-plus-two", "shared"])
def test_systemd_has_nothing_against_the_units(root: Path, layout: str) -> None:
    if layout == "shared":
        shutil.copytree(UNITS / "shared", root / "etc/systemd/system", dirs_exist_ok=True)
    assert verify(root) == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_unit_is_one_and_is_wanted_by_something(name: str) -> None:
    unit = Unit(UNITS / f"{name}.service")
    assert set(unit.sections()) == {"Unit", "Service", "Install"}
    assert unit["Install"]["WantedBy"] in {"crossover.target", "multi-user.target"}


def test_the_gateway_is_stopped_before_both_engines() -> None:
    """systemd stops in the reverse of After."""
    after = Unit(UNITS / "crossover-gateway.service")["Unit"]["After"].split()
    assert {"crossover-triton.service", "crossover-vllm.service"} <= set(after)


def test_an_engine_that_fails_takes_nobody_along() -> None:
    gateway = Unit(UNITS / "crossover-gateway.service")["Unit"]
    assert "Requires" not in gateway
    assert "BindsTo" not in gateway


def test_engines_that_share_gpus_start_one_after_the_other() -> None:
    """Triton counts as started once it is ready, and vLLM comes after it."""
    triton = Unit(UNITS / "shared/crossover-triton.service.d/shared.conf")["Service"]
    vllm = Unit(UNITS / "shared/crossover-vllm.service.d/shared.conf")["Unit"]
    assert "/v2/health/ready" in triton["ExecStartPost"]
    assert vllm["After"] == vllm["Requires"] == "crossover-triton.service"


@pytest.mark.parametrize("path", [UNITS / "node.env", UNITS / "shared/node.env"], ids=["two-plus-two", "shared"])
def test_every_variable_of_the_units_is_set_and_gpus_are_enough_for_the_ranks(path: Path) -> None:
    variables = read_variables(path)
    for name in ("crossover-triton", "crossover-vllm"):
        command = Unit(UNITS / f"{name}.service")["Service"]["ExecStart"]
        for word in command.replace("${", "$").split("$")[1:]:
            assert word.partition("}")[0].partition(" ")[0] in variables
    assert len(variables["TRITON_GPUS"].split(",")) == int(variables["TRITON_RANKS"])
    assert len(variables["CUDA_VISIBLE_DEVICES"].split(",")) == int(variables["VLLM_TENSOR_PARALLEL"])
    shared = set(variables["TRITON_GPUS"].split(",")) & set(variables["CUDA_VISIBLE_DEVICES"].split(","))
    assert bool(shared) == ("--kv-cache-memory-bytes" in variables["VLLM_MEMORY"])
