"""What a whole run shows about its own soundness: cells in, one Check for each of its claims out. Pure.

A check that failed takes the threshold away; a warning leaves it standing and says what to doubt.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.cell import Cell
from loadtest.curves import THROUGHPUT, make_trials, null_gains, series
from loadtest.decide.estimate import Estimate, estimate, quantile
from loadtest.hardware import Declared
from loadtest.judge import Judge
from loadtest.limits import USUAL, Limits
from loadtest.stats import P90_SAMPLES, P99_SAMPLES

SPREAD_LEVEL = 8  # below this, few streams are bunched by chance, and fifths of a window hold few tokens
CHANCE = 0.001  # at which streams that are spread out look as if they were in lockstep
BUSY_GPU = 0.5  # of the time: one that idles lowers its clock by itself
LAG_FLOOR_S = 0.01  # of the client's event loop: less is nothing on any machine that has other things to do
ORDER_ALPHA = 0.05
MANY = 32  # in flight, where a GPU's step has become longer than that of one request


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. `status`: passed, note, warning (the threshold stands), or failed (there is none)."""

    name: str
    status: str
    message: str


def review(
    cells: Sequence[Cell], judge: Judge, low: str, limits: Limits = USUAL, hardware: Declared | None = None
) -> list[Check]:
    """What the whole run shows; `low` names the backend that ratios have above the line."""
    known = estimate(make_trials(cells, low))
    return [
        _claim("equal work", judge, "exactly as many tokens as asked"),
        _claim("routing", judge, "by the backend it was pinned to"),
        _check_chunking(cells, limits),
        _check_client(cells, limits),
        _check_steady(cells, limits),
        _check_lockstep(cells, limits),
        _check_cache(cells, limits),
        *_check_physics(cells, hardware or {}, limits),
        _check_plateau(cells, limits),
        _check_repeats(known, limits),
        *_check_pairs(known, null_gains(cells), limits),
        _check_busy(cells, limits),
        *_check_gpus(cells, limits),
        Check("percentiles", "note", f"p90 needs {P90_SAMPLES} samples, p99 {P99_SAMPLES}; n/a where there are fewer"),
    ]


def find_failure(checks: Sequence[Check]) -> str | None:
    """What the run is refused for, if it is."""
    return " ".join(check.message for check in checks if check.status == "failed") or None


def _claim(name: str, judge: Judge, claim: str) -> Check:
    """What holds of every answer that the judge let pass; of none, nothing is claimed."""
    if not judge.answers:
        return Check(name, "note", "there were no answers to judge")
    return Check(name, "passed", f"{judge.answers} answers, every one {claim}")


def _first(messages: Sequence[str]) -> str:
    return messages[0] + (f" And in {len(messages) - 1} more." if len(messages) > 1 else "")


# One cell at a time.


def find_flaw(cell: Cell, limits: Limits = USUAL) -> str | None:
    """Why a cell's window was not our load alone and steady, if so."""
    if (cell.foreign or 0.0) > limits.foreign:
        return f"FOREIGN LOAD: {cell.foreign:.1%} of the requests at {cell.backend} c={cell.level} were others'."
    return _find_pause(cell, limits)


def _find_pause(cell: Cell, limits: Limits) -> str | None:
    """A pause somewhere, in a backend or in this very process."""
    name = f"NOT STEADY: {cell.backend} c={cell.level}"
    if cell.in_flight < limits.in_flight * cell.level:
        return f"{name} held only {cell.in_flight:.1f} in flight."
    if cell.level >= SPREAD_LEVEL and cell.evenness < limits.evenness:
        return f"{name} generated only {cell.evenness:.0%} of the usual in one fifth of its window: it paused."
    if cell.fill is not None and cell.fill < 1 - limits.fill_gap:
        return f"{name} generated {1 - cell.fill:.0%} less than its request times allow: it paused."
    if cell.fill is not None and cell.fill > 1 + limits.fill_gap:
        return f"{name} generated {cell.fill - 1:.0%} more than its request times allow: it made up for a pause before."
    if cell.loop_lag_max_s > limits.client_pause * cell.window_s:
        return f"{name}: this client itself was held up for {cell.loop_lag_max_s:.2f} s."
    return None


def _check_steady(cells: Sequence[Cell], limits: Limits) -> Check:
    """Cells that were not are measured again; those that stayed so are few, or nothing here is one load."""
    flaws = [flaw for cell in cells if (flaw := find_flaw(cell, limits))]
    if not flaws:
        return Check("steady load", "passed", "every window held its level without a pause")
    return Check("steady load", _weigh(len(flaws), len(cells), limits.unsteady), _first(flaws))


def _weigh(flawed: int, cells: int, most: float) -> str:
    return "failed" if flawed > most * cells else "warning"


def _check_client(cells: Sequence[Cell], limits: Limits) -> Check:
    """Too little CPU caps what a backend may seem to do; lateness blurs single cells, and is weighed as pauses are."""
    capped, late = list(_capped(cells, limits)), list(_late(cells, limits))
    if not capped and not late:
        return Check("client headroom", "passed", "event loop and CPU had room in every cell")
    status = "failed" if capped else _weigh(len(late), len(cells), limits.unsteady)
    return Check("client headroom", status, _first([*capped, *late]))


def _capped(cells: Sequence[Cell], limits: Limits) -> Iterator[str]:
    for cell in cells:
        if cell.client_cpu > limits.client_cpu:
            yield (
                f"{_name_reading(cell)} took {cell.client_cpu:.0%} of one core; the backend may be faster than this."
            )


def _late(cells: Sequence[Cell], limits: Limits) -> Iterator[str]:
    for cell in cells:
        tpot_s = cell.tpot_s.p50 or 0.0
        if cell.loop_lag_p99_s > max(LAG_FLOOR_S, limits.client_lag * tpot_s):
            lag, tpot = cell.loop_lag_p99_s * 1000, tpot_s * 1000
            yield f"{_name_reading(cell)}, this client was {lag:.0f} ms late (p99), a token takes {tpot:.1f} ms."


def _name_reading(cell: Cell) -> str:
    return f"CLIENT-BOUND at c={cell.level}: reading {cell.throughput:.0f} tok/s from {cell.backend}"


def _check_gpus(cells: Sequence[Cell], limits: Limits) -> Iterator[Check]:
    """Nothing where no exporter told anything."""
    if not any(cell.gpus for cell in cells):
        return
    slow = list(_slowed(cells, limits))
    silent = sum(1 for cell in cells if not cell.gpus)
    if slow:
        yield Check("gpu clocks", _weigh(len({id(cell) for cell, _ in slow}), len(cells), limits.unsteady), slow[0][1])
    elif silent:
        yield Check("gpu clocks", "warning", f"nothing was told of the GPUs in {silent} of {len(cells)} cells")
    else:
        yield Check("gpu clocks", "passed", "every busy GPU kept its usual clock")


def _slowed(cells: Sequence[Cell], limits: Limits) -> Iterator[tuple[Cell, str]]:
    """Cells in which a busy GPU was slower than it usually is on that backend. One that idles clocks down by itself."""
    clocks: dict[tuple[str, str], list[tuple[Cell, float]]] = {}
    for cell in cells:
        for gpu in cell.gpus:
            if gpu.sm_clock_mhz is not None and (gpu.busy is None or gpu.busy >= BUSY_GPU):
                clocks.setdefault((cell.backend, gpu.gpu), []).append((cell, gpu.sm_clock_mhz))
    for (backend, number), known in clocks.items():
        usual = statistics.median(clock for _, clock in known)
        for cell, clock in known:
            if clock < (1 - limits.gpu_clock) * usual:
                ran = f"GPU {number} ran at {clock:.0f} MHz under {backend}, usually at {usual:.0f}"
                cure = "heat or a power limit, look at nvidia-smi -q -d PERFORMANCE."
                yield cell, f"GPU SLOWED at c={cell.level}: {ran}; {cure}"


def _check_busy(cells: Sequence[Cell], limits: Limits) -> Check:
    busy = [
        f"BUSY MACHINE at {cell.backend} c={cell.level}: {cell.machine_load:.1f} processes wanted each core of this "
        "client's machine; engines that share it were slowed by chance."
        for cell in cells
        if cell.machine_load > limits.machine_load
    ]
    if not busy:
        return Check("quiet machine", "passed", "this client's machine was not overloaded")
    return Check("quiet machine", "warning", _first(busy))


def _check_lockstep(cells: Sequence[Cell], limits: Limits) -> Check:
    bunched = [
        f"LOCKSTEP R={cell.phase_order:.2f} at {cell.backend} c={cell.level}: starts are synchronised, TTFT measures "
        "burst admission."
        for cell in cells
        if cell.level >= SPREAD_LEVEL and (cell.phase_order or 0) > _most_order(cell.level, limits)
    ]
    if not bunched:
        return Check("no lockstep", "passed", "starts were spread over the request time")
    return Check("no lockstep", _weigh(len(bunched), len(cells), limits.bunched), _first(bunched))


def _most_order(streams: int, limits: Limits) -> float:
    """So many starts that are spread by chance exceed this once in a thousand times (Rayleigh's test)."""
    return max(limits.lockstep, math.sqrt(-math.log(CHANCE) / streams))


# Backend by backend.


def _by_backend(cells: Sequence[Cell], read: Callable[[Cell], float | None]) -> dict[str, list[float]]:
    """Cells that do not know are left out."""
    values: dict[str, list[float]] = {}
    for cell in cells:
        if (value := read(cell)) is not None:
            values.setdefault(cell.backend, []).append(value)
    return values


def _check_chunking(cells: Sequence[Cell], limits: Limits) -> Check:
    by_backend = _by_backend(cells, lambda cell: cell.tokens_per_chunk)
    means = {backend: statistics.fmean(values) for backend, values in by_backend.items()}
    if not means or max(means.values()) <= (1 + limits.chunking) * min(means.values()):
        return Check("chunking", "passed", "both backends send as many tokens per chunk")
    shown = " vs ".join(f"{backend} {mean:.2f}" for backend, mean in means.items())
    told = f"CHUNKING DIFFERS: {shown} tokens/chunk; time between chunks is not comparable, TPOT is."
    return Check("chunking", "warning", told)


def _check_cache(cells: Sequence[Cell], limits: Limits) -> Check:
    """By what answers say of their prompts; prompts shorter than a cache's block never hit it."""
    told = {backend: max(values) for backend, values in _by_backend(cells, lambda cell: cell.cached).items()}
    for backend, share in told.items():
        if share > limits.cached:
            return Check("cold cache", "failed", f"PREFIX CACHE: {share:.0%} of prompt tokens cached on {backend}.")
    silent = sorted({cell.backend for cell in cells} - told.keys())
    if silent:
        unknown = (
            f"answers of {' and '.join(silent)} do not tell how much of a prompt was cached; no prompt was used twice"
        )
        return Check("cold cache", "note", unknown)
    return Check("cold cache", "passed", f"at most {max(told.values(), default=0.0):.1%} of prompt tokens were cached")


def _check_physics(cells: Sequence[Cell], hardware: Declared, limits: Limits) -> Iterator[Check]:
    physical = {backend: declared for backend, declared in hardware.items() if declared.weights_gb is not None}
    if not physical:
        yield Check("physics", "note", "no memory bandwidth was declared (--hardware) to hold times per token against")
    for backend, declared in physical.items():
        curve = dict(series(cells, backend, lambda cell: cell.tpot_s.p50))
        used = declared.used(curve[1]) if 1 in curve else None
        if used is None:
            yield Check("physics", "note", f"{backend}: one request alone (--levels 1,...) was not measured")
            continue
        yield _check_roofline(backend, used, limits)
        yield from _check_growth(backend, curve, limits)


def _check_roofline(backend: str, used: float, limits: Limits) -> Check:
    if used > limits.roofline_most:
        told = (
            f"IMPOSSIBLE: {backend} c1 decode reads {used:.0%} of what its memory can deliver; tokens are not its own."
        )
        return Check("physics", "failed", told)
    told = f"{backend} c1 decode is {used:.0%} of bandwidth roofline"
    if used >= limits.roofline_usual:
        return Check("physics", "passed", told)
    status = "warning" if used >= limits.roofline_least else "failed"
    return Check("physics", status, f"LAUNCH-BOUND? {told}; check CUDA graphs in the live engine config.")


def _check_growth(backend: str, curve: Mapping[int, float], limits: Limits) -> Iterator[Check]:
    if MANY in curve and curve[MANY] < limits.flat_tpot * curve[1]:
        growth = curve[MANY] / curve[1]
        told = f"{backend} takes {growth:.2f} x as long per token at c={MANY} as at c=1: its host is the limit"
        yield Check("physics", "warning", f"LAUNCH-BOUND? {told}.")


def _check_plateau(cells: Sequence[Cell], limits: Limits) -> Check:
    """Two engines whose throughput ends at the same rate: what both have in common may end it."""
    rates = {backend: _plateau(cells, backend, limits) for backend in sorted({cell.backend for cell in cells})}
    flat = [rate for rate in rates.values() if rate is not None]
    if len(flat) < 2 or max(flat) > (1 + limits.plateau) * min(flat):
        return Check("gateway headroom", "passed", "the backends do not end at one rate")
    told = (
        f"GATEWAY-BOUND: both backends plateau within {limits.plateau:.0%} at {max(flat):.0f} tok/s; try more workers."
    )
    return Check("gateway headroom", "warning", told)


def _plateau(cells: Sequence[Cell], backend: str, limits: Limits) -> float | None:
    """Its rate at the two highest levels, where it is the same at both."""
    curve = series([cell for cell in cells if not cell.is_null], backend, THROUGHPUT.read)
    if len(curve) < 2:
        return None
    (_, before), (_, last) = curve[-2:]
    return last if last <= (1 + limits.plateau) * before else None


# Pair by pair.


def _check_repeats(known: Estimate | None, limits: Limits) -> Check:
    if known is None:
        return Check("repeatable", "warning", "no level was measured twice: nothing tells a difference from chance.")
    status = "passed" if known.pair_sd <= limits.repeat_sd else "warning"
    return Check("repeatable", status, f"one throughput ratio repeats to {known.pair_sd:.1%} (standard deviation)")


def _check_pairs(known: Estimate | None, nulls: Sequence[float], limits: Limits) -> Iterator[Check]:
    if known is not None:
        yield _check_order(known)
        yield _check_nulls(known, nulls, limits)


def _check_order(known: Estimate) -> Check:
    """Twice the effect is what the ratio would change by if the other backend came first in every pair."""
    reach = quantile(ORDER_ALPHA, known.dof) * math.sqrt(known.order_variance)
    shown = f"being measured first is worth {known.order_effect:+.1%} (+-{reach:.1%})"
    if abs(known.order_effect) <= reach:
        return Check("order", "passed", shown)
    return Check("order", "note", f"{shown}; pairs in both orders cancel it.")


def _check_nulls(known: Estimate, nulls: Sequence[float], limits: Limits) -> Check:
    """A backend against itself: what is seen there is no difference between backends."""
    if not nulls:
        return Check("null", "note", "no backend was measured against itself; full runs do.")
    mean = statistics.fmean(nulls)
    reach = quantile(limits.null_alpha, known.dof) * known.pair_sd / math.sqrt(len(nulls))
    shown = f"a backend against itself differs by {mean:+.1%} (+-{reach:.1%}, {len(nulls)} pairs)"
    if abs(mean) <= reach:
        return Check("null", "passed", shown)
    return Check("null", "failed", f"NOT NULL: {shown}: the second of two measurements is not the first one's equal.")
