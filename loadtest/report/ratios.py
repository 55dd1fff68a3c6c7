"""The ratio of the backends' throughputs at every level, how well it is known, and who wins there. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.curves import make_trials, mean_gains
from loadtest.decide.crossing import find_clear, find_tied
from loadtest.decide.estimate import Estimate, Level, estimate, quantile
from loadtest.report.words import show_ratio
from loadtest.result import Result

INTERVAL_ALPHA = 0.05
HEADINGS = ("in flight", "pairs", "ratio", "95 % interval", "who is better")


@dataclass(frozen=True, slots=True)
class Ratio:
    """`gain`: natural logarithm of low over high, `ends` of its 95 % interval; None where nothing tells chance."""

    level: int
    pairs: int
    gain: float
    ends: tuple[float, float] | None
    verdict: str

    @property
    def fields(self) -> tuple[str, ...]:
        """As text, under HEADINGS."""
        interval = " to ".join(map(show_ratio, self.ends)) if self.ends else "n/a"
        return str(self.level), str(self.pairs), show_ratio(self.gain), interval, self.verdict


def make_ratios(result: Result) -> list[Ratio]:
    """Rising levels. Intervals are Student's, of the level's mean with the effect of order taken out, one by one:
    the verdicts ask for more, because they hold for all levels together.
    """
    trials = make_trials(result.cells, result.subject.low)
    known = estimate(trials)
    if known is not None:
        clear, tied = find_clear(known), find_tied(known, result.plan.band)
        return [_make_ratio(known, level, _judge(level, clear, tied, result)) for level in known.levels]
    counts = [trial.level for trial in trials]
    return [Ratio(level, counts.count(level), gain, None, "not known") for level, gain in mean_gains(trials).items()]


def _make_ratio(known: Estimate, level: Level, verdict: str) -> Ratio:
    reach = quantile(INTERVAL_ALPHA, level.dof) * known.error(level)
    return Ratio(level.level, level.pairs, level.gain, (level.gain - reach, level.gain + reach), verdict)


def _judge(level: Level, clear: Sequence[Level], tied: Sequence[Level], result: Result) -> str:
    winner = result.subject.low if level.gain > 0 else result.subject.high
    within = f"within {result.plan.band:.0%}"
    if level in clear:
        return f"{winner} is better" + (f", {within}" if level in tied else "")
    return f"tied, {within}" if level in tied else "not known"
