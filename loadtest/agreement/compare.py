"""What the runs say together: each tester's mean with its interval, each pair's difference with a verdict. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from loadtest.agreement.interval import Interval, difference
from loadtest.agreement.reading import Reading

# As attributes of Reading; the order is that of tables.
METRICS = {"throughput": "output tok/s", "ttft_s": "TTFT p50, ms", "tpot_s": "TPOT p50, ms"}


def scale(metric: str) -> float:
    """From a Reading's unit to that of the table."""
    return 1000.0 if metric.endswith("_s") else 1.0


@dataclass(frozen=True, slots=True)
class Run:
    """One tester's in one round. `late_s`: how late the engine's tokens left meanwhile, on average."""

    tester: str
    round: int
    reading: Reading
    late_s: float | None = None

    def describe(self) -> str:
        read = self.reading
        figures = f"{read.throughput:9.1f} tok/s   TTFT {read.ttft_s * 1e3:8.2f} ms   TPOT {read.tpot_s * 1e3:7.3f} ms"
        return figures if self.late_s is None else f"{figures}   engine late by {self.late_s * 1e6:.0f} us"


@dataclass(frozen=True, slots=True)
class Tally:
    """All runs so far. `target`: how well a mean is to be known, and how far apart testers may be that agree."""

    target: float
    runs: tuple[Run, ...] = ()

    def and_(self, run: Run) -> "Tally":
        return Tally(self.target, (*self.runs, run))

    @property
    def testers(self) -> tuple[str, ...]:
        return tuple(sorted({run.tester for run in self.runs}, key=lambda name: (name != "crossover bench", name)))

    @property
    def rounds(self) -> int:
        return max((run.round for run in self.runs), default=0)

    def samples(self, tester: str, metric: str) -> Sequence[float]:
        """By rounds."""
        runs = sorted((run for run in self.runs if run.tester == tester), key=lambda run: run.round)
        return [getattr(run.reading, metric) for run in runs]

    def interval(self, tester: str, metric: str) -> Interval:
        return Interval.of(self.samples(tester, metric))

    def differences(self) -> Iterator[tuple[str, str, str, Interval]]:
        """Metric, two testers, and how much more the second reads than the first."""
        for metric in METRICS:
            for first, second in combinations(self.testers, 2):
                yield metric, first, second, difference(self.samples(first, metric), self.samples(second, metric))

    @property
    def is_precise(self) -> bool:
        shares = (self.interval(tester, metric).share for tester in self.testers for metric in METRICS)
        return all(share <= self.target for share in shares)

    @property
    def is_settled(self) -> bool:
        """Nothing is left that further rounds could tell."""
        verdicts = (found.verdict(self.target) for *_, found in self.differences())
        return self.is_precise and "undecided" not in verdicts

    @property
    def is_agreed(self) -> bool:
        return self.is_precise and all(found.verdict(self.target) == "agree" for *_, found in self.differences())

    def mean_late_s(self, tester: str) -> float | None:
        known = [run.late_s for run in self.runs if run.tester == tester and run.late_s is not None]
        return sum(known) / len(known) if known else None
