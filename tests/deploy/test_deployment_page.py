"""docs/deployment.md against what it describes."""

import re

import yaml

from tests.deploy.shipped import DEPLOY, KUBERNETES, OVERLAYS, ROOT, on_linux, run_tool

PAGE = (ROOT / "docs/deployment.md").read_text()


def list_first_cells(heading: str) -> list[str]:
    """Of the first table under a heading, as they stand between backticks."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


@on_linux
def test_every_step_of_the_script_is_listed_in_its_order() -> None:
    steps = [line.split()[0] for line in run_tool(DEPLOY / "node.sh", "--list").stdout.splitlines()]
    assert list_first_cells("One command") == steps


def test_every_overlay_and_component_is_listed() -> None:
    components = sorted(f"components/{path.parent.name}" for path in KUBERNETES.glob("components/*/kustomization.yaml"))
    assert sorted(list_first_cells("Kubernetes")) == sorted([*OVERLAYS, *components])


def test_the_number_of_alerts_is_right() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())["groups"]
    written = set(re.findall(r"(\d+) alerts", PAGE))
    assert written == {str(sum(len(group["rules"]) for group in groups))}


def test_every_path_in_it_exists() -> None:
    paths = {path for path in re.findall(r"`((?:deploy|tests)/[\w./-]+)`", PAGE) if "*" not in path}
    assert len(paths) >= 10
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
