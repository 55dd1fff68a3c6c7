"""The plans that the options of `crossover calibrate` ask for. Pure.

In: the values of options by the names of their parameters; None where one was not given. Out: one Plan for each shape.
Raises ValueError for options that do not go together.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from loadtest.decide.cost import Cost
from loadtest.results.plan import FULL, QUICK, Plan
from loadtest.results.shapes import Shape

Options = Mapping[str, Any]  # Any: each option has its own type
OF_PLAN = (
    "levels",
    "tokens",
    "window_s",
    "budget_s",
    "repeats",
    "rehearsals",
    "trace",
    "turns",
    "slo",
    "hardware",
)


def make_plans(options: Options) -> tuple[Plan, ...]:
    """Makes a plan for each shape. A run that is resumed does not use them: it has its own."""
    plan = _make_plan(options)
    shapes = options["shapes"] or (Shape.of(plan),)
    return tuple(replace(plan, prompt_words=shape.prompt_words, tokens=shape.tokens) for shape in shapes)


def _make_plan(options: Options) -> Plan:
    plan = QUICK if options["is_quick"] else FULL
    changes, max_in_flight = _list_changes(options), options["max_in_flight"]
    is_changed = changes or options["shapes"] or options["is_quick"] or options["limits"] or max_in_flight is not None
    if options["resume"] and is_changed:
        raise ValueError("a run that is resumed keeps its plan: --resume goes with no option that changes it")
    if options["shapes"] and options["tokens"] is not None:
        raise ValueError("--shape sets the length of answers: it goes without --tokens")
    if max_in_flight is not None:
        changes["levels"] = tuple(level for level in options["levels"] or plan.levels if level <= max_in_flight)
    # A new seed each time: an engine's prefix cache may hold prompts of an earlier run.
    plan = replace(plan, seed=secrets.randbits(32), limits=plan.limits.changed(options["limits"]), **changes)
    plan.known_cost.check()
    return plan


def _list_changes(options: Options) -> dict[str, Any]:  # Any: as in Options
    """Returns the fields of the plan that differ from the mode's, by name."""
    changes = {name: options[name] for name in OF_PLAN if options[name] is not None}
    if options["gpu_price"] is not None or options["gpu_count"] is not None:
        changes["cost"] = Cost(gpus=options["gpu_count"] or {}, price=options["gpu_price"])
    return changes | ({"widest": None} if options["accept_wide"] else {})
