"""The command `crossover`: finds its subcommands by entry point and imports only the one that runs.

In: the arguments. Out: the subcommand's exit code. Knows no subcommand, so a broken one cannot break the others.
"""

import ast
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points, version
from importlib.util import find_spec
from pathlib import Path

import click

GROUP = "crossover.commands"


class EntryPointGroup(click.Group):
    """A click group whose commands are the entry points of GROUP."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(entry_points(group=GROUP).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = entry_points(group=GROUP, name=cmd_name)
        return _load(found[cmd_name]) if found else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(point.name, _read_summary(point)) for point in sorted(entry_points(group=GROUP))])


def _load(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except (ImportError, AttributeError) as exc:
        raise click.ClickException(f"crossover {point.name} is not available here: {exc}") from exc
    if not isinstance(command, click.Command):
        raise click.ClickException(f"crossover {point.name} is not available here: {point.value} is not a command")
    return command


def _read_summary(point: EntryPoint) -> str:
    """Reads the first line of the command's docstring from its source: importing all commands takes seconds."""
    docstrings = (ast.get_docstring(function) or "" for function in _find_functions(point))
    first_line = next(docstrings, "").partition("\n")[0]
    return first_line or "(not available here)"


def _find_functions(point: EntryPoint) -> Iterator[ast.FunctionDef]:
    try:
        spec = find_spec(point.module)
    except ImportError:
        return
    if spec is None or spec.origin is None:
        return
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == point.attr:
            yield node


@click.group(cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("crossover"), prog_name="crossover")
def main() -> None:
    """Crossover: one OpenAI-compatible endpoint over two engines, routed by what is in flight.

    Exit codes of every command: 0 done; 1 it ran and the answer is no; 2 it could not be tried (bad arguments, nothing
    reachable). Commands that have more say so in their own --help.
    """
