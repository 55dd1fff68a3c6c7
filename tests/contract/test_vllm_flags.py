"""Every command line for vLLM in this repository, by the parser of the deployed release and of the newest one."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy.cpu import vllm
from tests.contract.vllm_releases import DEPLOYED, NEWEST, Release
from tests.deploy.shipped import (
    COMPOSE,
    DEPLOY,
    OVERLAYS,
    ROOT,
    UNITS,
    Unit,
    find_node,
    list_containers,
    merge,
    read_compose,
    read_variables,
    render_overlay,
)

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(400)]
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
IN_DOCS = re.compile(r"^[ >$]*(?:\w+=\S+ )*vllm serve (.+)$", re.MULTILINE)


def fill_in(words: list[str], variables: Mapping[str, str]) -> list[str]:
    """Each variable with its value, else its default, else some number."""
    return [VARIABLE.sub(lambda match: variables.get(match[1], match[2] or "7"), word) for word in words]


def list_commands() -> dict[str, list[str]]:
    """By where each stands: the words after `vllm serve`."""
    return {**list_compose(), **list_kubernetes(), **list_systemd(), **list_documented(), "deploy/cpu.py": list_cpu()}


def list_compose() -> dict[str, list[str]]:
    """With the defaults, and with every variable that deploy/node.sh writes, for an FP8 engine."""
    below = read_compose(COMPOSE / "compose.yaml")
    both = merge(below, read_compose(COMPOSE / "shared.yaml"))
    written = set(re.findall(r"^(VLLM_\w+)=", (DEPLOY / "node.sh").read_text(), re.MULTILINE))
    assert written >= {"VLLM_QUANTIZATION", "VLLM_KV_CACHE_DTYPE", "VLLM_TENSOR_PARALLEL"}
    by_script = dict.fromkeys(written, "4") | {"VLLM_QUANTIZATION": "fp8", "VLLM_KV_CACHE_DTYPE": "fp8"}
    return {
        f"{layout} {origin}": fill_in(document["services"]["vllm"]["command"], variables)
        for layout, document in {"compose.yaml": below, "shared.yaml": both}.items()
        for origin, variables in {"by default": {}, "by node.sh": by_script}.items()
    }


def list_kubernetes() -> dict[str, list[str]]:
    nodes = {name: find_node(render_overlay(name)) for name in OVERLAYS}
    return {f"overlays/{name}": list_containers(node)["vllm"]["args"] for name, node in nodes.items()}


def list_systemd() -> dict[str, list[str]]:
    words = Unit(UNITS / "crossover-vllm.service")["Service"]["ExecStart"].split()
    assert (words[1], words[-1]) == ("serve", "$VLLM_MEMORY")  # the variable that is several words
    found = {}
    for path in (UNITS / "node.env", UNITS / "shared/node.env"):
        node = read_variables(path)
        found[str(path.relative_to(DEPLOY))] = fill_in([*words[2:-1], *node["VLLM_MEMORY"].split()], node)
    return found


def list_documented() -> dict[str, list[str]]:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    commands = [(page, match[1]) for page in pages for match in IN_DOCS.finditer(page.read_text())]
    assert commands
    return {
        f"{page.name} {number}": shlex.split(command, comments=True) for number, (page, command) in enumerate(commands)
    }


def list_cpu() -> list[str]:
    command = vllm(Path("environment"), 8010).command
    return list(command[command.index("--model") :])


def misspell(words: list[str]) -> list[list[str]]:
    """The command once for each of its flags, whose name lacks its last letter."""
    found = []
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            found.append([*words[:place], name[:-1] + equals + value, *words[place + 1 :]])
    return found


COMMANDS = list_commands()


@pytest.mark.parametrize("release", [DEPLOYED, NEWEST], ids=str)
def test_vllm_takes_every_flag(release: Release) -> None:
    complaints = dict(zip(COMMANDS, release.check(list(COMMANDS.values())), strict=True))
    assert {where: found for where, found in complaints.items() if found} == {}


def test_a_flag_that_is_misspelt_is_refused() -> None:
    commands = [misspelt for words in COMMANDS.values() for misspelt in misspell(words)]
    assert len(commands) > 100
    complaints = NEWEST.check(commands)
    assert [words for words, found in zip(commands, complaints, strict=True) if not found] == []
