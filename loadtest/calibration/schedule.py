"""Which pair is measured next: first those of the plan's sweep, then those that narrow the answer. Pure.

In: the plan, how many pairs are done, and every trial so far in the order measured. Out: a Pair, or None when the
answer is narrow enough or the plan's pairs are used up. Depends on nothing else, so that a run which was broken off
continues as if it had not been.
"""

from collections import Counter
from collections.abc import Sequence

from loadtest.decide.crossing import find_crossing
from loadtest.decide.estimate import Trial, estimate
from loadtest.decide.refine import next_level
from loadtest.results.cell import Pair
from loadtest.results.plan import Plan


def next_pair(plan: Plan, done: int, trials: Sequence[Trial]) -> Pair | None:
    schedule = plan.schedule()
    if done < len(schedule):
        return schedule[done]
    if done >= len(schedule) + plan.refine_pairs:
        return None
    known = estimate(trials)
    level = next_level(known, find_crossing(known, plan.band), plan.aim) if known else _find_rarest(trials)
    return Pair(level, low_first=_choose_order(level, trials)) if level is not None else None


def _find_rarest(trials: Sequence[Trial]) -> int | None:
    """Returns the level with the fewest pairs; used where too few were measured for an estimate."""
    counts = Counter(trial.level for trial in trials)
    return min(counts, key=lambda level: (counts[level], level), default=None)


def _choose_order(level: int, trials: Sequence[Trial]) -> bool:
    """Returns the opposite of the order of the last pair at this level or, at a new level, of the last pair of all."""
    before = [trial for trial in trials if trial.level == level] or trials
    return not before[-1].low_first
