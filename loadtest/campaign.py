"""Which pair comes next: first the plan's schedule, then whatever narrows the answer. Pure.

In: the plan, how many pairs are done, and every trial so far in the order measured. Out: a Pair, or None when the
answer is narrow enough or the plan's pairs are used up. It looks at nothing else, so a run that was broken off goes on
as if it had not been.
"""

from collections import Counter
from collections.abc import Sequence

from loadtest.decide.crossing import find_crossing
from loadtest.decide.estimate import estimate
from loadtest.decide.refine import next_level
from loadtest.decide.trial import Trial
from loadtest.plan import Pair, Plan


def next_pair(plan: Plan, done: int, trials: Sequence[Trial]) -> Pair | None:
    schedule = plan.schedule()
    if done < len(schedule):
        return schedule[done]
    if done >= len(schedule) + plan.refine_pairs:
        return None
    known = estimate(trials)
    level = next_level(known, find_crossing(known, plan.band), plan.aim) if known else _rarest(trials)
    return Pair(level, low_first=_turn(level, trials)) if level is not None else None


def _rarest(trials: Sequence[Trial]) -> int | None:
    """Where too few pairs were measured for anything to be known: the level that has fewest."""
    counts = Counter(trial.level for trial in trials)
    return min(counts, key=lambda level: (counts[level], level), default=None)


def _turn(level: int, trials: Sequence[Trial]) -> bool:
    """The other way round than last time there; at a new level, than in the last pair of all."""
    before = [trial for trial in trials if trial.level == level] or trials
    return not before[-1].low_first
