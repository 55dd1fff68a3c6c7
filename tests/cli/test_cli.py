"""The command `crossover` itself: it finds commands, stays fast, and names what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway import __version__
from gateway.cli import main

METADATA = "Metadata-Version: 2.1\nName: addon\nVersion: 1.0\n"
ENTRY_POINTS = """[crossover.commands]
greet = addon:greet
halved = addon_halved:run
gone = addon_gone:run
number = addon:NUMBER
"""
ADDON = '''
import click

NUMBER = 3

@click.command()
def greet() -> None:
    """Say hello.

    And nothing else.
    """
    click.echo("hello")
'''


@pytest.fixture
def addon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on the path with a sound command, one that cannot be imported, one missing, one that is none."""
    info = tmp_path / "addon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "addon.py").write_text(ADDON)
    (tmp_path / "addon_halved.py").write_text('import engine_not_installed\n\ndef run():\n    """Run it."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("addon", "addon_halved"):  # an earlier test's
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_version_is_the_distributions() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"crossover, version {__version__}\n")


@pytest.mark.usefixtures("addon")
def test_every_entry_point_is_a_command() -> None:
    result = CliRunner().invoke(main, ["greet"])
    assert (result.exit_code, result.output) == (0, "hello\n")


@pytest.mark.usefixtures("addon")
def test_help_lists_every_command_with_its_summary_without_importing_any() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    lines = {
        line.strip().partition(" ")[0]: line.strip().partition(" ")[2].strip() for line in result.output.splitlines()
    }
    assert lines["greet"] == "Say hello."
    assert lines["halved"] == "Run it."
    assert lines["gone"] == "(not available here)"
    assert lines["policy"] == "Show or change how a running gateway routes requests."
    assert not {"addon", "addon_halved"} & set(sys.modules)


@pytest.mark.usefixtures("addon")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("halved", "No module named 'engine_not_installed'"),
        ("gone", "No module named 'addon_gone'"),
        ("number", "addon:NUMBER is not a command"),
    ],
)
def test_a_command_that_cannot_be_loaded_says_why_in_one_line(name: str, why: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert (result.exit_code, result.output) == (1, f"Error: crossover {name} is not available here: {why}\n")


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["polici"])
    assert result.exit_code == 2
    assert "No such command 'polici'" in result.output


def test_help_imports_no_framework() -> None:
    heavy = ["fastapi", "httpx", "numpy", "grpc", "transformers", "rich", "pydantic"]
    script = f"""
import sys
from click.testing import CliRunner
from gateway.cli import main
assert CliRunner().invoke(main, ["--help"]).exit_code == 0
print([name for name in {heavy} if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
