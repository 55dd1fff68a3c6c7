"""The ratio of the backends' throughputs at every level, with its interval and the better backend. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.decide.crossing import find_clear, find_tied
from loadtest.decide.estimate import Level, estimate, quantile
from loadtest.report.text import show_ratio
from loadtest.results.curves import make_trials, mean_gains
from loadtest.results.result import Result

INTERVAL_ALPHA = 0.05
HEADINGS = ("in flight", "pairs", "ratio", "95 % interval", "who is better")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One level. `gain`: the log of low over high. `ends`: its 95 % interval; None if no level was measured twice."""

    level: int
    pairs: int
    gain: float
    ends: tuple[float, float] | None
    verdict: str

    @property
    def fields(self) -> tuple[str, ...]:
        """The ratio as text, under HEADINGS."""
        interval = " to ".join(map(show_ratio, self.ends)) if self.ends else "n/a"
        return str(self.level), str(self.pairs), show_ratio(self.gain), interval, self.verdict


def make_ratios(result: Result) -> list[Ratio]:
    """Returns ratios by rising level. Intervals are Student's, of the level's mean without the effect of order, for one
    level alone. The verdicts ask for more, because they hold for all levels together.
    """
    trials = make_trials(result.cells, result.system.low)
    known = estimate(trials)
    if known is None:
        counts = [trial.level for trial in trials]
        return [
            Ratio(level, counts.count(level), gain, None, "not known") for level, gain in mean_gains(trials).items()
        ]
    clear, tied = find_clear(known), find_tied(known, result.plan.band)
    ratios = []
    for level in known.levels:
        reach = quantile(INTERVAL_ALPHA, level.dof) * known.error(level)
        ends = (level.gain - reach, level.gain + reach)
        ratios.append(Ratio(level.level, level.pairs, level.gain, ends, _describe(level, clear, tied, result)))
    return ratios


def _describe(level: Level, clear: Sequence[Level], tied: Sequence[Level], result: Result) -> str:
    winner = result.system.low if level.gain > 0 else result.system.high
    within = f"within {result.plan.band:.0%}"
    if level in clear:
        return f"{winner} is better" + (f", {within}" if level in tied else "")
    return f"tied, {within}" if level in tied else "not known"
