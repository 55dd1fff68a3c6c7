"""Take each behaviour away in turn and see its tests fail: `make mutants`, or `make mutants ARGS="--only top_p"`.

In: the table. Out: a line for each mutant, exit code 1 if one is not noticed. Works on copies of what git knows of this
tree, one for each process, so that a run that is broken off leaves nothing changed.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from shutil import copy2

import click

from deploy.stacks import ROOT
from tests.mutants.cases import MUTANTS
from tests.mutants.mutant import Mutant

PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--no-header")
# Plugins that these tests do without: the first two take longer to import than most of these tests to run.
WITHOUT = ("-p", "no:langsmith_plugin", "-p", "no:hypothesispytest", "-p", "no:cacheprovider")
PASSED, FAILED = 0, 1  # pytest's exit codes; another one is a test that could not be run, which shows nothing
TIMEOUT_S = 300


def copy_tree(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source := ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            copy2(source, target)


def run_tests(tree: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """pytest's exit code and its last lines."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: TID251 - a launcher
    try:
        ran = subprocess.run(
            [*PYTEST, *WITHOUT, *tests],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return FAILED, "did not end"
    return ran.returncode, ran.stdout[-1500:] + ran.stderr[-500:]


@contextmanager
def mutated(tree: Path, mutant: Mutant) -> Iterator[None]:
    path = tree / mutant.where
    text = path.read_text()
    path.write_text(text.replace(mutant.old, mutant.new, 1))
    try:
        yield
    finally:
        path.write_text(text)


class Runner:
    """As many copies of the tree as processes."""

    def __init__(self, trees: list[Path]) -> None:
        self._trees: SimpleQueue[Path] = SimpleQueue()
        for tree in trees:
            self._trees.put(tree)

    def passes(self, tests: tuple[str, ...]) -> str:
        """What is wrong with tests that must pass while nothing is changed; empty if they do."""
        tree = self._trees.get()
        try:
            code, tail = run_tests(tree, tests)
        finally:
            self._trees.put(tree)
        return "" if code == PASSED else tail

    def survives(self, mutant: Mutant) -> str:
        """What its tests said that did not notice it; empty if they did."""
        tree = self._trees.get()
        try:
            with mutated(tree, mutant):
                code, tail = run_tests(tree, mutant.tests)
        finally:
            self._trees.put(tree)
        return "" if code == FAILED else tail or "nothing"


@click.command()
@click.option("--only", metavar="NAME", help="Those of one field, or of one file of the gateway's.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=2, show_default=True)
def main(only: str | None, jobs: int) -> None:
    """Exit codes: 0 every mutant was noticed; 1 one was not, or its tests fail without it."""
    chosen = [mutant for mutant in MUTANTS if only in {None, mutant.where, *mutant.fields}]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        trees = [Path(folder) / str(number) for number in range(jobs)]
        for tree in trees:
            copy_tree(tree)
        runner = Runner(trees)
        modules = sorted({test.partition("::")[0] for mutant in chosen for test in mutant.tests})
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        broken = [
            tail
            for tail in pool.map(runner.passes, [tuple(t for t in tests if t.startswith(m)) for m in modules])
            if tail
        ]
        if broken:
            sys.exit("\n".join(["these tests fail without any mutant:", *broken]))
        click.echo(f"{len(tests)} tests of {len(modules)} modules pass; {len(chosen)} mutants")
        survivors = 0
        for mutant, said in zip(chosen, pool.map(runner.survives, chosen), strict=True):
            survivors += bool(said)
            click.echo(f"{'SURVIVED' if said else 'noticed'}  {mutant.name}" + (f"\n{said}" if said else ""))
    click.echo(f"{len(chosen) - survivors} of {len(chosen)} noticed")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
