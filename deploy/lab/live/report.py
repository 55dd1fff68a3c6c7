"""What came of a pair's rehearsal, beside what the simulation of the same requests predicts. Pure.

In: the JSON of a rehearsal's outcomes, of its servings and of simulations. Out: rows of a table, and a verdict.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]  # Any: read key by key

ROUTED = "curve"
# Of each arm of a rehearsal: its name in a simulation.
ARMS: Mapping[str, str] = {"triton alone": "low alone", "vllm alone": "high alone", ROUTED: ROUTED}
MOST_MEAN, MOST = 1.02, 1.05  # of routed over the better engine alone: in the mean of traces, and of any
HELD = 0.03  # an engine alone that is further from its prediction did not have its pace
HEADINGS = (
    "trace", "arm", "rounds", "mean s", "p95 s", "over best", "predicted", "predicted/measured", "sent late",
    "changes", "moves",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One arm on one trace. `predicted_s`, `predicted_over_best`: by the simulation. `interval`: of `over_best`, where
    there were two rounds.
    """

    trace: str
    arm: str
    rounds: int
    mean_s: float
    p95_s: float
    over_best: float
    interval: tuple[float, float] | None
    predicted_s: float
    predicted_over_best: float
    late: float
    changes: float
    moves: float

    def show(self) -> tuple[str, ...]:
        sure = f" ({self.interval[0]:.3f}-{self.interval[1]:.3f})" if self.interval else ""
        return (
            self.trace, self.arm, str(self.rounds), f"{self.mean_s:.3f}", f"{self.p95_s:.2f}",
            f"{self.over_best:.3f}{sure}", f"{self.predicted_over_best:.3f}", f"{self.predicted_s / self.mean_s:.3f}",
            f"{self.late:.2%}", f"{self.changes:.1f}", f"{self.moves:.0f}",
        )  # fmt: skip


def make_rows(
    names: Mapping[str, str],
    outcomes: Iterable[Json],
    servings: Sequence[Json],
    simulated: Mapping[str, Sequence[Json]],
) -> Iterator[Row]:
    """Yields a row for each outcome. `names`: of traces, by what --trace was; `simulated`: outcomes by the same."""
    for outcome in outcomes:
        trace, arm, regret = outcome["trace"], outcome["arm"], outcome["regret"]
        times = sorted(
            seconds for each in servings if (each["trace"], each["arm"]) == (trace, arm) for seconds in each["e2e_s"]
        )
        predicted = next(each for each in simulated[trace] if each["policy"] == ARMS[arm])
        over_best = regret["over_best"]
        yield Row(
            trace=names[trace],
            arm=ARMS[arm],
            rounds=outcome["repeats"],
            mean_s=fmean(times),
            p95_s=times[int(0.95 * len(times))],
            over_best=over_best["value"],
            interval=None if over_best["low"] is None else (over_best["low"], over_best["high"]),
            predicted_s=predicted["mean_s"],
            predicted_over_best=predicted["over_best"],
            late=outcome["lag_share"],
            changes=outcome["switches"],
            moves=outcome["moves"],
        )


def find_doubts(rows: Iterable[Row]) -> Iterator[str]:
    """Yields a sentence for each engine alone that was not as fast as it is paced."""
    for row in rows:
        off = row.mean_s / row.predicted_s - 1
        if row.arm != ROUTED and abs(off) > HELD:
            yield f"{row.trace}, {row.arm}: mean {off:+.1%} off its prediction; the machine did not hold the pace"


def judge(rows: Iterable[Row]) -> tuple[str, bool]:
    """Returns how much longer answers take routed than with the better engine alone, and whether that is too much."""
    routed = {row.trace: row.over_best for row in rows if row.arm == ROUTED}
    worst = max(routed, key=routed.__getitem__)
    mean = fmean(routed.values())
    is_worse = mean > MOST_MEAN or routed[worst] > MOST
    found = f"routed over the better engine alone: {mean:.3f} in the mean, {routed[worst]:.3f} at most ({worst})"
    return f"{found}; {'more than' if is_worse else 'within'} {MOST_MEAN} and {MOST}", is_worse
