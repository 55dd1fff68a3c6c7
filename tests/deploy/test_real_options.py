"""Options that deploy/ gives to Triton, as the real program of `make stacks` takes them; tests/contract has vLLM's."""

import re
import subprocess

import pytest

from deploy.cpu import STACKS
from engines.pytriton import Environment
from tests.deploy.shipped import DEPLOY

pytestmark = [pytest.mark.stack, pytest.mark.slow]


def test_triton_takes_every_option_of_its_launcher() -> None:
    environment = Environment.at(STACKS / "triton")
    done = subprocess.run(
        [environment.triton / "bin/tritonserver", "--help"],
        env={"LD_LIBRARY_PATH": environment.libraries},
        capture_output=True,
        text=True,
        check=False,
    )
    known = set(re.findall(r"--[a-z0-9-]+", done.stdout + done.stderr))
    used = set(re.findall(r"--[a-z0-9-]+", (DEPLOY / "triton.sh").read_text()))
    used -= {"--allow-run-as-root", "--bind-to"}  # mpirun's
    assert len(used) >= 10
    assert used - known == set()
