"""Options that deploy/ gives to vLLM and Triton, as the real programs of `make stacks` take them; no GPU is needed."""

import json
import re
import subprocess
from collections.abc import Mapping

import pytest

from deploy.cpu import STACKS
from engines.pytriton import Environment
from tests.deploy.shipped import (
    COMPOSE,
    DEPLOY,
    UNITS,
    Unit,
    find_node,
    list_containers,
    read_compose,
    read_variables,
    render_overlay,
)

pytestmark = [pytest.mark.stack, pytest.mark.slow]
# vLLM's own parser on each command line of stdin; it ends with status 2 at the first that it does not take.
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for command in json.load(sys.stdin):
    print(json.dumps(parser.parse_args(command).enable_scale_out))
"""


def fill_in(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Each variable with its value, else its default, else some number."""
    variable = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
    return [variable.sub(lambda match: variables.get(match[1], match[2] or "7"), word) for word in words]


def list_vllm_commands() -> list[list[str]]:
    node = read_variables(UNITS / "shared/node.env")
    under_systemd = Unit(UNITS / "crossover-vllm.service")["Service"]["ExecStart"].split()
    return [
        *(fill_in(read_command(name), {}) for name in ("compose.yaml", "shared.yaml")),
        *(list_containers(find_node(render_overlay(name)))["vllm"]["args"] for name in ("two-plus-two", "shared")),
        fill_in([*under_systemd[2:-1], *node["VLLM_MEMORY"].split()], node),
    ]


def read_command(name: str) -> list[str]:
    command = read_compose(COMPOSE / name)["services"]["vllm"]["command"]
    words: list[str] = getattr(command, "value", command)
    return words


@pytest.mark.timeout(400)
def test_vllm_takes_every_option_of_every_form() -> None:
    done = subprocess.run(
        [STACKS / "vllm/bin/python", "-c", PARSE],
        input=json.dumps(list_vllm_commands()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["true"] * 5


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
