"""How well calibrations know engines: simulated ones of engines whose numbers are known, fitted, and asked for the mean
answer time of traces.

In: traces' files, or none for synthetic mixes. Out: a table. `python -m loadtest.lab.identification`
"""

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from engines.physics import EngineModel
from loadtest.decide.closed_load import Load, simulate
from loadtest.decide.engine_fit import Measured, find_misfits, fit_engine
from loadtest.decide.node_cells import LONGEST, list_loads, list_prompts
from loadtest.decide.open_load import Arrival, serve
from loadtest.rehearsal.trace_file import read_trace
from loadtest.results.plan import FULL, QUICK, Plan

Trace: TypeAlias = Sequence[Arrival]
Design: TypeAlias = tuple[Sequence[Load], Sequence[int]]  # closed loops, and prompts alone

# Fitted to measurements on H200 (docs/results/identification.md). What a truth of the study differs from.
ENGINES: Mapping[str, EngineModel] = {
    "TP 2": EngineModel(
        ((1, 3.32), (8, 3.85), (32, 4.94), (64, 5.3), (96, 6.09), (160, 7.67), (320, 10.2)),
        0.0157, 13.2, 0.35, 22.5, 9.7, 11.3,
    ),
    "DP 2": EngineModel(
        ((1, 4.7), (4, 4.79), (16, 5.03), (32, 5.19), (48, 5.4), (80, 5.8), (160, 6.8)),
        0.0397, 19.3, 0.81, 24.4, 8.1, 11.3, replicas=2,
    ),
    "speculation": EngineModel(
        ((1, 6.22), (8, 6.48), (32, 8.76), (64, 11.65), (128, 18.6), (256, 32.8)),
        0.035, 19.7, 0.8, 33.2, 9.6, 11.3, tokens_per_step=2.5, verified=4,
    ),
    "plain": EngineModel(
        ((1, 4.78), (8, 4.78), (32, 5.24), (64, 6.47), (128, 7.26), (256, 8.39)),
        0.035, 18.8, 0.8, 20.1, 8.0, 11.3,
    ),
}  # fmt: skip
NUMBERS = {"decode": 0.15, "context_ms": 0.25, "prompt_ms": 0.2, "attention_ms": 0.2, "eager_ms": 0.2, "mixed_ms": 0.3}
REQUEST_SD = 0.2
NOISE = 0.03  # of a cell's times
MIXES = {"chat": (290, 213, 20.0), "long chat": (1134, 212, 11.0), "long prompts": (1431, 140, 9.0)}  # tokens, a second
OVERLOADED_S = 8.0  # a truth that answers more slowly is no engine for the trace
SPREAD = 1.0  # of the logarithm of lengths


def list_designs() -> dict[str, Design]:
    old, prompts = [Load(152, 128, level) for level in (1, 8, 32, 64, 96, 160)], list_prompts(LONGEST)
    return {
        "one shape (152 x 128)": (old, (152, 1216)),
        "quick": (list_plan(QUICK), prompts),
        "full": (list_plan(FULL), prompts),
    }


def list_plan(plan: Plan) -> list[Load]:
    """Lists a plan's closed loops, whose first shape has 64 tokens."""
    first = [Load(64, plan.tokens, level) for level in plan.levels]
    return [*first, *list_loads(plan.tokens, LONGEST, max(plan.levels))]


def measure(engine: EngineModel, design: Design, draw: random.Random, noise: float = NOISE) -> list[Measured]:
    """Simulates a calibration: cells whose answers come and go by chance, and scatter."""
    loads, prompts = design
    cells = []
    for load in loads:
        first_ms, token_ms = _find_times(engine, load, draw)
        first_ms, token_ms = (ms * draw.lognormvariate(0, noise) for ms in (first_ms, token_ms))
        cells.append(Measured(load, first_ms, first_ms + (load.answer_tokens - 1) * token_ms))
    for prompt in prompts:
        load = Load(prompt, 2, 1)
        cells.append(Measured(load, _find_times(engine, load, None)[0] * draw.lognormvariate(0, noise)))
    return cells


def _find_times(engine: EngineModel, load: Load, draw: random.Random | None) -> tuple[float, float]:
    schedule = simulate(engine, load, lambda _: 1.0 if draw is None else draw.lognormvariate(-0.02, 0.2))
    rows = zip(schedule.sequences, schedule.context, schedule.prompts, schedule.squared, strict=True)
    return schedule.find_times(np.array([engine.step_ms(*map(float, row)) for row in rows]), engine.request_ms)


def vary(engine: EngineModel, draw: random.Random) -> EngineModel:
    """Makes a truth: an engine like this one, whose numbers are others."""
    factors = {name: draw.lognormvariate(0, sd) for name, sd in NUMBERS.items()}
    own = replace(engine, steps_ms=tuple((count, ms * factors["decode"]) for count, ms in engine.steps_ms))
    numbers = {name: getattr(engine, name) * factor for name, factor in factors.items() if name != "decode"}
    return replace(own, request_ms=engine.request_ms * draw.lognormvariate(0, REQUEST_SD), **numbers)


def forget(engine: EngineModel) -> EngineModel:
    """Returns what is known of an engine before its cells are measured."""
    kept = {name: getattr(engine, name) for name in ("tokens_per_step", "verified", "replicas", "max_sequences")}
    return EngineModel(((1, 1.0),), **kept)


def make_mix(name: str, seconds: float = 50.0) -> Trace:
    """Makes arrivals by chance at twice the usual rate in the middle third, with lengths of heavy tails."""
    prompt, tokens, rate = MIXES[name]
    draw, at, trace = random.Random(name), 0.0, list[Arrival]()
    while (at := at + draw.expovariate(2 * rate)) < seconds:
        if seconds / 3 <= at < 2 * seconds / 3 or draw.random() < 0.5:
            lengths = (mean * draw.lognormvariate(-(SPREAD**2) / 2, SPREAD) for mean in (prompt, tokens))
            trace.append(Arrival(at, *(min(max(int(length), 2), 8000) for length in lengths)))
    return trace


def study(traces: Sequence[Trace], designs: Mapping[str, Design], trials: int) -> Iterator[tuple[str, str, str]]:
    """Yields, for each engine and design, how far the predicted mean answer times are off."""
    for name, usual in ENGINES.items():
        errors: dict[str, list[float]] = {design: [] for design in designs}
        misfits: dict[str, list[float]] = {design: [] for design in designs}
        draw, took = random.Random(name), list[float]()
        for _ in range(trials):
            true = vary(usual, draw)
            real = [statistics.fmean(serve(true, trace)) for trace in traces]
            for design, cells in designs.items():
                measured, began = measure(true, cells, draw), time.process_time()
                fit = fit_engine(measured, forget(true))
                misfits[design].append(max(find_misfits(measured, fit).values(), default=0.0))
                took.append(time.process_time() - began)
                errors[design] += [
                    abs(float(np.log(statistics.fmean(serve(fit.engine, trace)) / mean_s)))
                    for trace, mean_s in zip(traces, real, strict=True)
                    if mean_s < OVERLOADED_S
                ]
        for design, found in errors.items():
            median, most = np.quantile(found, (0.5, 0.9))
            doubtful = np.quantile(misfits[design], (0.5, 0.9))
            yield (
                name, design,
                f"{median:.3f} | {most:.3f} | {doubtful[0]:.3f} | {doubtful[1]:.3f} | {statistics.fmean(took):.1f}",
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, help="Files of a trace each.  [default: synthetic mixes]")
    parser.add_argument("--trials", type=int, default=8)
    given = parser.parse_args()
    files = [[Arrival(each.at, each.prompt_tokens, each.tokens) for each in read_trace(path)] for path in given.traces]
    print(  # noqa: T201 - a table on stdout
        "| engine | cells | median | 90 % | left out: median | 90 % | CPU s |\n| --- | --- |" + " ---: |" * 5
    )
    for row in study(files or [make_mix(name) for name in MIXES], list_designs(), given.trials):
        print(f"| {' | '.join(row)} |", flush=True)  # noqa: T201 - as above


if __name__ == "__main__":
    main()
