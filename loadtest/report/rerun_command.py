"""The command that repeats a run. Pure.

The plan knows neither the gateway's address nor its key: they are not part of the command. Declared hardware came from
a file, which is named HARDWARE_FILE here.
"""

import shlex
from collections.abc import Iterator

from loadtest.decide.cost import show_gpus
from loadtest.decide.soundness import Limits
from loadtest.results.plan import FULL, QUICK, Plan
from loadtest.results.result import Result

HARDWARE_FILE = "hardware.yaml"


def describe_command(result: Result) -> str:
    """Returns the command with every option by which the plan differs from its mode's defaults, quoted for a shell."""
    return shlex.join(["crossover", "calibrate", *_options(result.plan), "--model", result.system.model])


def _options(plan: Plan) -> Iterator[str]:
    usual = QUICK if plan.mode == QUICK.mode else FULL
    if usual is QUICK:
        yield "--quick"
    if plan.levels != usual.levels:
        yield from ("--levels", ",".join(map(str, plan.levels)))
    if plan.prompt_words != usual.prompt_words:
        yield from ("--shape", f"{plan.prompt_words}x{plan.tokens}")
    elif plan.tokens != usual.tokens:
        yield from ("--tokens", str(plan.tokens))
    for option, value, default in (
        ("--window", plan.window_s, usual.window_s),
        ("--budget", plan.budget_s, usual.budget_s),
        ("--repeats", plan.repeats, usual.repeats),
        ("--rehearsals", plan.rehearsals, usual.rehearsals),
        ("--turns", plan.turns, usual.turns),
    ):
        if value is not None and value != default:
            yield from (option, _show(value))
    if plan.trace is not None:
        yield from ("--trace", plan.trace)
    yield from _conditions(plan, usual)


def _conditions(plan: Plan, usual: Plan) -> Iterator[str]:
    """Yields the options that do not change which cells are measured."""
    if plan.slo:
        limits = ((name, limit) for name, limit in plan.slo.limits.items() if limit is not None)
        yield from ("--slo", ",".join(f"{name}={_show(limit)}" for name, limit in limits))
    if plan.widest is None:
        yield "--accept-wide"
    for name in Limits.names():
        limit = getattr(plan.limits, name)
        if limit != getattr(usual.limits, name):
            yield from ("--limit", f"{name}={_show(limit)}")
    if plan.cost and plan.cost.price:
        yield from ("--gpu-price", str(plan.cost.price))
    if plan.cost and plan.cost.gpus:
        yield from ("--gpu-count", show_gpus(plan.cost.gpus))
    if plan.hardware is not None:
        yield from ("--hardware", HARDWARE_FILE)


def _show(value: float) -> str:
    """Returns the shortest text of the same number."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)
