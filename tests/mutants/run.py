"""Takes each behaviour away in turn and sees its tests fail: `make mutants`, `make mutants ARGS="--only retry"`.

In: the table. Out: a line for each mutant; exit code 1 if the tests of one do not notice. Each mutant is installed in a
fork of this process, which has imported the gateway and its libraries: that takes longer than most tests.
"""

import os
import pkgutil
import re
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest

import gateway
from gateway.language import ModelLanguage
from tests.mutants.cases import MUTANTS
from tests.mutants.mutant import ROOT, Mutant, make_patches

LIBRARIES = ("anyio.pytest_plugin", "httpx", "hypothesis", "openai", "uvloop")
TOKENIZER = ROOT / "engines/reference/weights"
# Plugins that these tests do without.
WITHOUT = ("langsmith_plugin", "hypothesispytest", "cacheprovider")
# Its other plugins are here already, too late for their own assertions to be explained.
ALREADY = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
OPTIONS = ("-q", "-x", "-n", "0", "--no-header", *ALREADY, *(part for name in WITHOUT for part in ("-p", f"no:{name}")))
PASSED, FAILED = 0, 1  # pytest's exit codes; another one is a test that could not be run, which shows nothing
TEST_LIMIT_S = 10  # of a test that waits for what a mutant has taken away
LIMIT_S, BASELINE_LIMIT_S = 60.0, 300.0  # of all tests of one mutant, or of one module
POLL_S = 0.02
SHOWN_CHARACTERS = 3000  # of what pytest wrote, from the end
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) \S+?::(\w+)", re.MULTILINE)
# The mutant's own code does not fit what it stands in for: as pytest shows it, or in the traceback of a log.
MISFIT = re.compile(
    r"^tests/mutants/\S+:\d+: (?:Attribute|Name|Type)Error"
    r"|/tests/mutants/[^\n]*, line \d+, in [^\n]*\n(?: +[^\n]*\n)+?(?:Attribute|Name|Type)Error",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Job:
    """Tests to run, with `mutant` installed or without any."""

    tests: tuple[str, ...]
    mutant: Mutant | None = None

    @property
    def limit_s(self) -> float:
        return BASELINE_LIMIT_S if self.mutant is None else LIMIT_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """pytest's exit code, None if it was ended for taking too long, and what it wrote."""

    job: Job
    code: int | None
    output: str

    @property
    def is_noticed(self) -> bool:
        return self.code in {FAILED, None} and MISFIT.search(self.output) is None

    @property
    def noticed_by(self) -> str:
        found = FIRST_FAILURE.search(self.output)
        return found[1] if found else f"nothing else in {LIMIT_S:g} s"


@dataclass(frozen=True, slots=True)
class Child:
    """A job under way in a process of its own, which leads its group; pytest writes to the file `output`."""

    job: Job
    pid: int
    output: Path
    deadline: float

    def poll(self) -> Outcome | None:
        """None while the process runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        code: int | None = os.waitstatus_to_exitcode(status)
        if not pid:
            if time.monotonic() < self.deadline:
                return None
            os.killpg(self.pid, 9)
            os.waitpid(self.pid, 0)
            code = None
        return Outcome(self.job, code, self.output.read_text(errors="replace"))


def start(job: Job, output: Path) -> Child:
    pid = os.fork()
    if not pid:
        run_in_child(job, output)
    return Child(job, pid, output, time.monotonic() + job.limit_s)


def run_in_child(job: Job, output: Path) -> None:
    """Never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        with output.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        limit: tuple[str, ...] = ()
        if job.mutant is not None:
            for patch in tuple(make_patches(job.mutant)):
                setattr(patch.owner, patch.name, patch.value)
            limit = (f"--timeout={TEST_LIMIT_S}",)
        code = int(pytest.main([*OPTIONS, *limit, *job.tests]))
    except BaseException:  # noqa: BLE001 - a fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(jobs: Iterable[Job], processes: int) -> Iterator[Outcome]:
    """So many side by side; outcomes as they come."""
    waiting = iter(jobs)
    running: list[Child] = []
    with TemporaryDirectory() as folder:
        free = [Path(folder) / str(number) for number in range(processes)]
        while True:
            while free and (job := next(waiting, None)) is not None:
                running.append(start(job, free.pop()))
            if not running:
                return
            for child in running[:]:
                if (outcome := child.poll()) is not None:
                    running.remove(child)
                    free.append(child.output)
                    yield outcome
            time.sleep(POLL_S)


def preload() -> None:
    """Imports all of the gateway, so that a mutant finds every module that a target was imported into."""
    for found in pkgutil.walk_packages(gateway.__path__, "gateway."):
        import_module(found.name)
    for name in LIBRARIES:
        import_module(name)
    ModelLanguage.load(TOKENIZER)  # imports what it takes to load any


def check_baseline(mutants: Iterable[Mutant], processes: int) -> None:
    """Exits where a test fails without any mutant."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    files = sorted({test.partition("::")[0] for test in tests})
    jobs = [Job(tuple(test for test in tests if test.partition("::")[0] == file)) for file in files]
    if broken := [outcome.output[-SHOWN_CHARACTERS:] for outcome in run(jobs, processes) if outcome.code != PASSED]:
        sys.exit("\n".join(["these tests fail without any mutant:", *broken]))
    click.echo(f"the tests of {len(files)} files pass without mutants")


def report(outcome: Outcome) -> None:
    behaviour = outcome.job.mutant.behaviour if outcome.job.mutant else ""
    if outcome.is_noticed:
        click.echo(f"noticed   {behaviour}  ({outcome.noticed_by})")
    else:
        click.echo(f"SURVIVED  {behaviour}\n{outcome.output[-SHOWN_CHARACTERS:]}")


@click.command()
@click.option("--only", metavar="WORD", default="", help="The mutants whose behaviour contains WORD.")
@click.option("-j", "--processes", type=click.IntRange(1), default=2, show_default=True, help="How many side by side.")
def main(only: str, processes: int) -> None:
    """Exit codes: 0 every mutant was noticed; 1 one was not, or its tests fail without it."""
    chosen = [mutant for mutant in MUTANTS if only.lower() in mutant.behaviour.lower()]
    os.chdir(ROOT)
    preload()
    check_baseline(chosen, processes)
    survivors = 0
    for outcome in run((Job(mutant.tests, mutant) for mutant in chosen), processes):
        report(outcome)
        survivors += not outcome.is_noticed
    click.echo(f"{len(chosen) - survivors} of {len(chosen)} mutants noticed")
    sys.exit(survivors > 0)


if __name__ == "__main__":
    main()
