"""Checks on a run: cells in, one Check for each claim about the run's soundness out. Pure.

A check that failed takes the threshold away; a warning leaves it standing and reports what to doubt.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from loadtest.decide.estimate import Estimate, estimate, quantile
from loadtest.decide.soundness import USUAL, Check, Limits
from loadtest.results.cell import Cell
from loadtest.results.curves import THROUGHPUT, find_null_gains, group, make_curve, make_trials
from loadtest.results.hardware import Declared
from loadtest.results.percentiles import P90_SAMPLES, P99_SAMPLES

SPREAD_LEVEL = 8  # below this, few streams are bunched by chance, and fifths of a window hold few tokens
CHANCE = 0.001  # probability that streams which are spread out look as if they were in lockstep
BUSY_GPU = 0.5  # of the time: a GPU with less work lowers its clock by itself
LAG_FLOOR_S = 0.01  # of the client's event loop: any machine with other work to do is as late as this
ORDER_ALPHA = 0.05
MANY = 32  # in flight, where a GPU's step takes longer than with one request


def review(
    cells: Sequence[Cell], answers: int, low: str, limits: Limits = USUAL, hardware: Declared | None = None
) -> list[Check]:
    """Checks the whole run. `answers`: how many passed the gate; `low`: the backend in the numerator of ratios."""
    known = estimate(make_trials(cells, low))
    return [
        _claim("equal work", answers, "exactly as many tokens as asked"),
        _claim("routing", answers, "by the backend it was pinned to"),
        _check_chunking(cells, limits),
        _check_client(cells, limits),
        _check_steady(cells, limits),
        _check_lockstep(cells, limits),
        _check_cache(cells, limits),
        *_check_physics(cells, hardware or {}, limits),
        _check_plateau(cells, limits),
        _check_repeats(known, limits),
        *_check_pairs(known, find_null_gains(cells), limits),
        _check_busy(cells, limits),
        *_check_gpus(cells, limits),
        Check("percentiles", "note", f"p90 needs {P90_SAMPLES} samples, p99 {P99_SAMPLES}; n/a where there are fewer"),
    ]


def find_failure(checks: Sequence[Check]) -> str | None:
    """Returns why the run is refused; None if it is not."""
    return " ".join(check.message for check in checks if check.status == "failed") or None


def _claim(name: str, answers: int, claim: str) -> Check:
    """Makes the check of a claim that holds of every answer that passed the gate."""
    if not answers:
        return Check(name, "note", "there were no answers to check")
    return Check(name, "passed", f"{answers} answers, every one {claim}")


def _check(name: str, messages: Sequence[str], status: str, passed: str) -> Check:
    """Makes a check: passed without a message, else the first message with this status."""
    if not messages:
        return Check(name, "passed", passed)
    return Check(name, status, messages[0] + (f" And in {len(messages) - 1} more." if len(messages) > 1 else ""))


def _weigh(flawed: int, cells: int, max_share: float) -> str:
    return "failed" if flawed > max_share * cells else "warning"


# One cell at a time.


def find_flaw(cell: Cell, limits: Limits = USUAL) -> str | None:
    """Returns why a cell's window was not this run's load alone, or not steady; None if it was both."""
    if (cell.foreign or 0.0) > limits.foreign:
        return f"FOREIGN LOAD: {cell.foreign:.1%} of the requests at {cell.backend} c={cell.level} were others'."
    return _find_pause(cell, limits)


def _find_pause(cell: Cell, limits: Limits) -> str | None:
    """Describes a pause of the backend or of this process; None if there was none."""
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
    """Checks for cells that stayed unsteady when measured again: many mean that the run had no one steady load."""
    flaws = [flaw for cell in cells if (flaw := find_flaw(cell, limits))]
    status = _weigh(len(flaws), len(cells), limits.unsteady)
    return _check("steady load", flaws, status, "every window held its level without a pause")


def _check_client(cells: Sequence[Cell], limits: Limits) -> Check:
    """Checks this client: too little CPU limits the rate that backends seem to have; lateness blurs single cells."""
    capped = [
        f"{_name_reading(cell)} took {cell.client_cpu:.0%} of one core; the backend may be faster than this."
        for cell in cells
        if cell.client_cpu > limits.client_cpu
    ]
    late = [
        f"{_name_reading(cell)}, this client was {cell.loop_lag_p99_s * 1000:.0f} ms late (p99), a token takes "
        f"{tpot_s * 1000:.1f} ms."
        for cell, tpot_s in ((cell, cell.tpot_s.p50 or 0.0) for cell in cells)
        if cell.loop_lag_p99_s > max(LAG_FLOOR_S, limits.client_lag * tpot_s)
    ]
    status = "failed" if capped else _weigh(len(late), len(cells), limits.unsteady)
    return _check("client headroom", [*capped, *late], status, "event loop and CPU had room in every cell")


def _name_reading(cell: Cell) -> str:
    return f"CLIENT-BOUND at c={cell.level}: reading {cell.throughput:.0f} tok/s from {cell.backend}"


def _check_gpus(cells: Sequence[Cell], limits: Limits) -> Iterator[Check]:
    """Checks the GPUs' clocks; yields no check where no exporter reported anything."""
    if not any(cell.gpus for cell in cells):
        return
    slow = list(_find_slowed(cells, limits))
    silent = sum(1 for cell in cells if not cell.gpus)
    if slow:
        yield Check("gpu clocks", _weigh(len({id(cell) for cell, _ in slow}), len(cells), limits.unsteady), slow[0][1])
    elif silent:
        yield Check("gpu clocks", "warning", f"the exporter reported nothing in {silent} of {len(cells)} cells")
    else:
        yield Check("gpu clocks", "passed", "every busy GPU kept its usual clock")


def _find_slowed(cells: Sequence[Cell], limits: Limits) -> Iterator[tuple[Cell, str]]:
    """Yields cells in which a busy GPU had a lower clock than it usually has under that backend, with a message."""
    clocks = group(
        ((cell.backend, gpu.gpu), (cell, gpu.sm_clock_mhz))
        for cell in cells
        for gpu in cell.gpus
        if gpu.sm_clock_mhz is not None and (gpu.busy is None or gpu.busy >= BUSY_GPU)
    )
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
    return _check("quiet machine", busy, "warning", "this client's machine was not overloaded")


def _check_lockstep(cells: Sequence[Cell], limits: Limits) -> Check:
    bunched = [
        f"LOCKSTEP R={cell.phase_order:.2f} at {cell.backend} c={cell.level}: starts are synchronised, TTFT measures "
        "burst admission."
        for cell in cells
        if cell.level >= SPREAD_LEVEL and (cell.phase_order or 0) > _max_order(cell.level, limits)
    ]
    status = _weigh(len(bunched), len(cells), limits.bunched)
    return _check("no lockstep", bunched, status, "starts were spread over the request time")


def _max_order(streams: int, limits: Limits) -> float:
    """Returns an order that starts spread by chance exceed at most once in a thousand times (Rayleigh's test)."""
    return max(limits.lockstep, math.sqrt(-math.log(CHANCE) / streams))


# Backend by backend.


def _by_backend(cells: Sequence[Cell], read: Callable[[Cell], float | None]) -> dict[str, list[float]]:
    """Reads values by backend, without the cells that have none."""
    return group((cell.backend, value) for cell in cells if (value := read(cell)) is not None)


def _check_chunking(cells: Sequence[Cell], limits: Limits) -> Check:
    by_backend = _by_backend(cells, lambda cell: cell.tokens_per_chunk)
    means = {backend: statistics.fmean(values) for backend, values in by_backend.items()}
    if not means or max(means.values()) <= (1 + limits.chunking) * min(means.values()):
        return Check("chunking", "passed", "both backends send as many tokens per chunk")
    shown = " vs ".join(f"{backend} {mean:.2f}" for backend, mean in means.items())
    message = f"CHUNKING DIFFERS: {shown} tokens/chunk; time between chunks is not comparable, TPOT is."
    return Check("chunking", "warning", message)


def _check_cache(cells: Sequence[Cell], limits: Limits) -> Check:
    """Checks the share of cached prompt tokens that answers report. A prompt shorter than a cache's block has none."""
    known = {backend: max(values) for backend, values in _by_backend(cells, lambda cell: cell.cached).items()}
    for backend, share in known.items():
        if share > limits.cached:
            return Check("cold cache", "failed", f"PREFIX CACHE: {share:.0%} of prompt tokens cached on {backend}.")
    silent = sorted({cell.backend for cell in cells} - known.keys())
    if silent:
        unknown = f"answers of {' and '.join(silent)} do not report cached prompt tokens; no prompt was used twice"
        return Check("cold cache", "note", unknown)
    return Check("cold cache", "passed", f"at most {max(known.values(), default=0.0):.1%} of prompt tokens were cached")


def _check_physics(cells: Sequence[Cell], hardware: Declared, limits: Limits) -> Iterator[Check]:
    physical = {backend: declared for backend, declared in hardware.items() if declared.weights_gb is not None}
    if not physical:
        yield Check("physics", "note", "no memory bandwidth was declared (--hardware) to compare times per token with")
    for backend, declared in physical.items():
        curve = dict(make_curve(cells, backend, lambda cell: cell.tpot_s.p50))
        share = declared.find_bandwidth_share(curve[1]) if 1 in curve else None
        if share is None:
            yield Check("physics", "note", f"{backend}: one request alone (--levels 1,...) was not measured")
            continue
        yield _check_roofline(backend, share, limits)
        yield from _check_growth(backend, curve, limits)


def _check_roofline(backend: str, share: float, limits: Limits) -> Check:
    """Checks the time per token of one request alone. `share`: its share of the memory's bandwidth."""
    if share > limits.roofline_most:
        reads = f"{backend} c1 decode reads {share:.0%} of what its memory can deliver"
        return Check("physics", "failed", f"IMPOSSIBLE: {reads}; tokens are not its own.")
    decode = f"{backend} c1 decode is {share:.0%} of bandwidth roofline"
    if share >= limits.roofline_usual:
        return Check("physics", "passed", decode)
    status = "warning" if share >= limits.roofline_least else "failed"
    return Check("physics", status, f"LAUNCH-BOUND? {decode}; check CUDA graphs in the live engine config.")


def _check_growth(backend: str, curve: Mapping[int, float], limits: Limits) -> Iterator[Check]:
    if MANY in curve and curve[MANY] < limits.flat_tpot * curve[1]:
        growth = f"{backend} takes {curve[MANY] / curve[1]:.2f} x as long per token at c={MANY} as at c=1"
        yield Check("physics", "warning", f"LAUNCH-BOUND? {growth}: its host is the limit.")


def _check_plateau(cells: Sequence[Cell], limits: Limits) -> Check:
    """Warns where the throughput of both backends stops at one rate: something that both share may be the limit."""
    rates = {backend: _find_plateau(cells, backend, limits) for backend in sorted({cell.backend for cell in cells})}
    flat = [rate for rate in rates.values() if rate is not None]
    if len(flat) < 2 or max(flat) > (1 + limits.plateau) * min(flat):
        return Check("gateway headroom", "passed", "the backends do not end at one rate")
    plateau = f"both backends plateau within {limits.plateau:.0%} at {max(flat):.0f} tok/s"
    return Check("gateway headroom", "warning", f"GATEWAY-BOUND: {plateau}; try more workers.")


def _find_plateau(cells: Sequence[Cell], backend: str, limits: Limits) -> float | None:
    """Returns the backend's rate at its highest level, where it is no higher than at the level before; else None."""
    curve = make_curve([cell for cell in cells if not cell.is_null], backend, THROUGHPUT.read)
    if len(curve) < 2:
        return None
    (_, before), (_, last) = curve[-2:]
    return last if last <= (1 + limits.plateau) * before else None


# Pair by pair.


def _check_repeats(known: Estimate | None, limits: Limits) -> Check:
    if known is None:
        return Check("repeatable", "warning", "no level was measured twice: differences may be chance.")
    status = "passed" if known.pair_sd <= limits.repeat_sd else "warning"
    return Check("repeatable", status, f"one throughput ratio repeats to {known.pair_sd:.1%} (standard deviation)")


def _check_pairs(known: Estimate | None, nulls: Sequence[float], limits: Limits) -> Iterator[Check]:
    if known is not None:
        yield _check_order(known)
        yield _check_nulls(known, nulls, limits)


def _check_order(known: Estimate) -> Check:
    """Checks the effect of order: were the other backend first in every pair, ratios would change by twice that."""
    reach = quantile(ORDER_ALPHA, known.dof) * math.sqrt(known.order_variance)
    shown = f"being measured first is worth {known.order_effect:+.1%} (+-{reach:.1%})"
    if abs(known.order_effect) <= reach:
        return Check("order", "passed", shown)
    return Check("order", "note", f"{shown}; pairs in both orders cancel it.")


def _check_nulls(known: Estimate, nulls: Sequence[float], limits: Limits) -> Check:
    """Checks null pairs: a difference between a backend and itself is no difference between backends."""
    if not nulls:
        return Check("null", "note", "no backend was measured against itself; full runs do.")
    mean = statistics.fmean(nulls)
    reach = quantile(limits.null_alpha, known.dof) * known.pair_sd / math.sqrt(len(nulls))
    shown = f"a backend against itself differs by {mean:+.1%} (+-{reach:.1%}, {len(nulls)} pairs)"
    if abs(mean) <= reach:
        return Check("null", "passed", shown)
    return Check("null", "failed", f"NOT NULL: {shown}: the second of two equal measurements differs from the first.")
