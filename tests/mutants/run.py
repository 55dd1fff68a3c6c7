"""Take each behaviour away in turn and see its tests fail: `make mutants`, or `make mutants ARGS="--only top_p"`.

In: the table. Out: a line for each mutant, exit code 1 if one is not noticed. Works on copies of what git knows of this
tree, one for each process, so that a run that is broken off leaves nothing changed.
"""

import importlib
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2

import click
import pytest

from deploy.stacks import ROOT
from tests.mutants.cases import MUTANTS
from tests.mutants.mutant import Mutant

# Plugins that these tests do without.
WITHOUT = ("langsmith_plugin", "hypothesispytest", "cacheprovider")
# Its other plugins are here already, too late for their own assertions to be explained.
ALREADY = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
OPTIONS = ("-q", "-x", "-n", "0", "--no-header", *ALREADY, *(part for name in WITHOUT for part in ("-p", f"no:{name}")))
PASSED, FAILED = 0, 1  # pytest's exit codes; another one is a test that could not be run, which shows nothing
OURS = ("tests", "deploy", "engines", "gateway", "loadtest")
LIMIT_S = 300.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Job:
    """Tests to run, with `mutant` in the code or without any."""

    tests: tuple[str, ...]
    mutant: Mutant | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """pytest's exit code, None if it did not end, and its last lines."""

    job: Job
    code: int | None
    said: str


@dataclass(slots=True)
class Child:
    """A job that is running in a copy of the tree; what it says is in `output`."""

    job: Job
    tree: Path
    output: Path
    pid: int
    deadline: float

    def poll(self) -> Ran | None:
        """Its outcome once it has one, with the tree as it was before."""
        code: int | None = None
        if time.monotonic() < self.deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                return None
            code = os.waitstatus_to_exitcode(status)
        else:
            os.killpg(self.pid, 9)
            os.waitpid(self.pid, 0)
        if mutant := self.job.mutant:
            copy2(ROOT / mutant.where, self.tree / mutant.where)
        return Ran(self.job, code, self.output.read_text(errors="replace")[-2000:])


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


def start(job: Job, tree: Path, output: Path) -> Child:
    """In a fork, which has what this process has imported: libraries take longer to import than most tests to run."""
    if mutant := job.mutant:
        path = tree / mutant.where
        path.write_text(path.read_text().replace(mutant.old, mutant.new, 1))
    pid = os.fork()
    if not pid:
        run_in_child(tree, output, [*OPTIONS, *job.tests])
    return Child(job, tree, output, pid, time.monotonic() + LIMIT_S)


def run_in_child(tree: Path, output: Path, arguments: list[str]) -> None:
    """Never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        said = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(tree)
        os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}  # noqa: TID251 - a launcher
        sys.dont_write_bytecode = True
        sys.path[:] = [str(tree), *(entry for entry in sys.path if entry not in {"", str(ROOT)})]
        for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
            del sys.modules[name]
        importlib.invalidate_caches()
        code = int(pytest.main(arguments))
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(jobs: Iterable[Job], trees: Sequence[Path]) -> Iterator[Ran]:
    """As many at a time as there are trees; outcomes as they come."""
    waiting = iter(jobs)
    free = list(trees)
    running: list[Child] = []
    while True:
        while free and (job := next(waiting, None)) is not None:
            tree = free.pop()
            running.append(start(job, tree, tree.with_suffix(".out")))
        if not running:
            return
        for child in running[:]:
            if (ran := child.poll()) is not None:
                running.remove(child)
                free.append(child.tree)
                yield ran
        time.sleep(POLL_S)


def load_libraries(modules: Iterable[str], folder: Path) -> None:
    """Import what these test modules import, but for what is ours."""
    script = (
        "import sys, pytest; code = pytest.main(sys.argv[2:]); "
        "open(sys.argv[1], 'w').write('\\n'.join(sys.modules)); sys.exit(code)"
    )
    names = folder / "modules"
    subprocess.run(
        [sys.executable, "-c", script, str(names), *OPTIONS, "--collect-only", *modules],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    for name in names.read_text().split():
        if name.partition(".")[0] not in {*OURS, "__main__"}:
            with suppress(Exception):  # some are made at run time, and some import nothing twice
                importlib.import_module(name)


@contextmanager
def copies(count: int) -> Iterator[tuple[Path, list[Path]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = [folder / str(number) for number in range(count)]
        for tree in trees:
            copy_tree(tree)
        yield folder, trees


@click.command()
@click.option("--only", metavar="NAME", help="Those of one field, or of one file of the gateway's.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=2, show_default=True)
def main(only: str | None, jobs: int) -> None:
    """Exit codes: 0 every mutant was noticed; 1 one was not, or its tests fail without it."""
    chosen = [mutant for mutant in MUTANTS if only in {None, mutant.where, *mutant.fields}]
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    modules = sorted({test.partition("::")[0] for test in tests})
    with copies(jobs) as (folder, trees):
        load_libraries(modules, folder)
        by_module = (Job(tuple(test for test in tests if test.startswith(f"{module}::"))) for module in modules)
        broken = [ran.said for ran in run(by_module, trees) if ran.code != PASSED]
        if broken:
            sys.exit("\n".join(["these tests fail without any mutant:", *broken]))
        click.echo(f"{len(tests)} tests of {len(modules)} modules pass; {len(chosen)} mutants")
        noticed = 0
        for ran in run((Job(mutant.tests, mutant) for mutant in chosen), trees):
            noticed += report(ran)
    click.echo(f"{noticed} of {len(chosen)} noticed")
    sys.exit(noticed != len(chosen))


def report(ran: Ran) -> bool:
    """One that never ends is noticed, too."""
    is_noticed = ran.code in {FAILED, None}
    name = ran.job.mutant.name if ran.job.mutant else ""
    click.echo(f"noticed   {name}" if is_noticed else f"SURVIVED  {name}\n{ran.said}")
    return is_noticed


if __name__ == "__main__":
    main()
