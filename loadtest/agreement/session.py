"""A whole comparison: rounds in which every tester loads the engine once, until the means are known well enough.

In: testers and an endpoint. Out: one Run for each, on disk as soon as it is there. Knows no tester's options.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from loadtest.agreement.compare import Run, Tally
from loadtest.agreement.reading import read_e2e_s
from loadtest.agreement.testers import Crossover, LoadTester, Task
from loadtest.agreement.workload import Workload
from loadtest.bench.errors import BenchError
from loadtest.bench.processes import Child

START_LIMIT_S = 300.0  # imports alone take a minute where several programs want two cores
MIN_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Whom all testers load. `late_s`: how late its tokens left since last asked, where it tells."""

    url: str
    model: str
    tokenizer: Path
    late_s: Callable[[], float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    endpoint: Endpoint
    testers: Sequence[LoadTester]
    workload: Workload
    folder: Path
    target: float
    max_rounds: int
    say: Callable[[str], None]

    def run(self) -> Tally:
        """Raises BenchError if a tester fails, or does other work than it was given."""
        e2e_s = self._sound()
        tally = Tally(self.target)
        for number in range(1, self.max_rounds + 1):
            for tester in rotate(self.testers, number - 1):
                tally = tally.and_(self._measure(tester, number, e2e_s))
            if number >= MIN_ROUNDS and tally.is_settled:
                break
        return tally

    def _sound(self) -> float:
        """About how long a request takes under this load, from which follows when a tester hangs. The engine is warm
        after it.
        """
        ours = next(tester for tester in self.testers if isinstance(tester, Crossover))
        short = replace(self.workload, requests=2 * self.workload.concurrency)
        task = self._task(ours, 0, short)
        run_program(ours, task, START_LIMIT_S)
        return read_e2e_s(task.log.read_bytes())

    def _measure(self, tester: LoadTester, number: int, e2e_s: float) -> Run:
        task = self._task(tester, number, self.workload)
        if self.endpoint.late_s:
            self.endpoint.late_s()
        run_program(tester, task, START_LIMIT_S + 3 * (self.workload.waves + 1) * e2e_s)
        late_s = self.endpoint.late_s() if self.endpoint.late_s else None
        run = Run(tester.name, number, tester.read(task), late_s)
        with (self.folder / "runs.jsonl").open("ab") as file:
            file.write(orjson.dumps(asdict(run), option=orjson.OPT_APPEND_NEWLINE))
        self.say(f"round {number}  {tester.name:<17} {run.describe()}")
        return run

    def _task(self, tester: LoadTester, number: int, workload: Workload) -> Task:
        folder = self.folder / f"round-{number}" / tester.name.replace(" ", "-").lower()
        folder.mkdir(parents=True)
        return Task(
            url=self.endpoint.url,
            model=self.endpoint.model,
            tokenizer=self.endpoint.tokenizer,
            workload=workload,
            seed=secrets.randbits(31),
            folder=folder,
        )


def rotate(testers: Sequence[LoadTester], by: int) -> Iterator[LoadTester]:
    """Each is first, second and last equally often, so that a machine that slows down favours none."""
    for place in range(len(testers)):
        yield testers[(place + by) % len(testers)]


def run_program(tester: LoadTester, task: Task, limit_s: float) -> None:
    """To its end. Raises BenchError if it fails or takes longer."""
    give_up_at = time.monotonic() + limit_s
    with Child(tester.launch(task), task.log) as child:
        while child.exit_code is None:
            if time.monotonic() > give_up_at:
                raise BenchError(f"{tester.name} did not end within {limit_s:.0f} s: {child.last_words()}")
            time.sleep(0.05)
        if child.exit_code:
            raise BenchError(f"{tester.name} ended with exit code {child.exit_code}: {child.last_words()}")
