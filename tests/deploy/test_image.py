"""The gateway's Dockerfile and the shell scripts: linters' word. No Docker engine has built the image."""

import re

import pytest

from tests.deploy.shipped import DEPLOY, ROOT, find_tool, run_tool

DOCKERFILE = DEPLOY / "image/Dockerfile"


def test_hadolint_has_nothing_against_the_dockerfile() -> None:
    assert run_tool(find_tool("hadolint"), DOCKERFILE).stdout == ""


def test_everything_that_is_copied_exists_and_is_let_into_the_build() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    let_in = {
        line[1:] for line in (DEPLOY / "image/Dockerfile.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert names == let_in
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_image_runs_without_rights_and_pins_its_base() -> None:
    text = DOCKERFILE.read_text()
    stages = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert stages == ["python:${PYTHON_TAG}${PYTHON_DIGEST:+@${PYTHON_DIGEST}}"] * 2
    last = text[text.rindex("FROM python") :]
    assert "\nUSER 10001:10001\n" in last
    assert "gcc" not in last


SCRIPTS = [path for path in sorted(DEPLOY.rglob("*.sh")) if not path.is_symlink()]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_has_nothing_against_a_script(path: str) -> None:
    done = run_tool(find_tool("shellcheck"), "-x", path)
    assert done.stdout == ""
    assert done.returncode == 0
