"""The files of deploy/, as tests read them: files with their tags, overlays rendered, tools that CI has.

Knows no server: nothing here is started.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from configparser import RawConfigParser
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.configuration import load_settings
from gateway.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
KUBERNETES = DEPLOY / "kubernetes"
UNITS = DEPLOY / "systemd"
OVERLAYS = tuple(sorted(path.parent.name for path in (KUBERNETES / "overlays").glob("*/kustomization.yaml")))

# Its bash is that of a Linux host; macOS has one without associative arrays.
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="deploy/node.sh is for Linux hosts")

Document = dict[str, Any]  # Any: parsed YAML, of whatever its schema allows


class Override:
    """A value under Compose's `!override`: it replaces what the file below has, and is not merged with it."""

    def __init__(self, value: Any) -> None:  # Any: see Document
        self.value = value


class _ComposeLoader(yaml.SafeLoader):
    pass


def _construct_override(loader: yaml.SafeLoader, node: yaml.Node) -> Override:
    if isinstance(node, yaml.SequenceNode):
        return Override(loader.construct_sequence(node, deep=True))
    assert isinstance(node, yaml.MappingNode)
    return Override(loader.construct_mapping(node, deep=True))


_ComposeLoader.add_constructor("!override", _construct_override)


def read_compose(path: Path) -> Document:
    loaded: Document = yaml.load(path.read_text(), _ComposeLoader)
    return loaded


def merge(below: Any, above: Any) -> Any:  # Any: see Document
    """Two Compose files as one, by the rules that ours need: mappings merge, `!override` replaces, lists are joined.

    https://docs.docker.com/reference/compose-file/merge/
    """
    if isinstance(above, Override):
        return above.value
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        both = {name: merge(below.get(name), value) for name, value in above.items()}
        return {**below, **both}
    if isinstance(below, list) and isinstance(above, list):
        return [*below, *above]
    return above


def find_tool(name: str) -> str:
    """A tool of the development environment, which is there wherever these tests are."""
    return str(Path(sys.executable).with_name(name))


def need_tool(name: str, package: str) -> str:
    """A tool of the machine; the test is skipped where it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin")  # not on a user's PATH
    if found is None:
        pytest.skip(f"{name} is not installed (Debian and Ubuntu: {package})")
    return found


def run_tool(*command: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def check_schema(path: Path, *schema: str) -> str:
    """The violations that check-jsonschema finds in the file, as text; empty if there is none."""
    done = run_tool(find_tool("check-jsonschema"), *schema, path)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def render(folder: Path) -> list[Document]:
    """A Kustomize folder as `kubectl apply -k` would send it."""
    done = run_tool(find_tool("kubectl"), "kustomize", folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@cache
def render_overlay(name: str) -> tuple[Document, ...]:
    return tuple(render(KUBERNETES / "overlays" / name))


def find_kinds(documents: Sequence[Document], kind: str) -> Iterator[Document]:
    return (document for document in documents if document["kind"] == kind)


def find_node(documents: Sequence[Document]) -> Document:
    """The pod template of a GPU node."""
    [node] = [entry for entry in find_kinds(documents, "Deployment") if entry["metadata"]["name"] == "crossover-node"]
    template: Document = node["spec"]["template"]
    return template


def list_containers(template: Document) -> dict[str, Document]:
    spec = template["spec"]
    return {container["name"]: container for container in (*spec.get("initContainers", ()), *spec["containers"])}


def read_env(container: Document) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"]}


def find_option(command: Sequence[str], name: str) -> str:
    [value] = [word.partition("=")[2] for word in command if word.startswith(f"{name}=")]
    return value


def load_shipped(path: Path, folder: Path) -> Settings:
    """A crossover.yaml as the gateway reads it, with `folder` for the checkpoint that is not here."""
    here = folder / "crossover.yaml"
    here.write_text(path.read_text().replace("/srv/crossover/checkpoint", str(folder)))
    return load_settings(here, environ={})


class Unit(RawConfigParser):
    """A unit file, or a drop-in: keys as they are written; one that stands twice keeps its last value."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.optionxform = str  # type: ignore[assignment,method-assign]  # as the module's documentation recommends
        self.read_string(path.read_text().replace("\\\n", " "))


def read_variables(path: Path) -> dict[str, str]:
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
