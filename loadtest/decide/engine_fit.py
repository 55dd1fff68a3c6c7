"""The numbers of an engine's model, from what cells of several shapes measured, and how well each is known. Pure.

In: cells, and what is known of the engine besides. Out: a Fit. Gauss-Newton on logarithms, with weak priors whose
middle the cells themselves give: what no cell shows stays there, with a wide interval.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from engines.physics import EngineModel
from loadtest.decide.closed_load import Array, Load, Schedule, simulate

Interval: TypeAlias = tuple[float, float]
Shape: TypeAlias = tuple[int, int]  # tokens of the prompt, tokens of the answer; 0: prompts alone

# The scatter of a cell's mean times (of their logarithms): of whole answers, and of first tokens. Short answers come in
# waves, which move time from their first token to the others: 30 % from one run to the next in simulations.
ANSWER_SD, FIRST_SD, WAVES_SD = 0.03, 0.05, 0.3
# Engines that schedule ahead read a prompt up to a step later than `Replica` does: in that many steps a first token may
# be off while others decode.
JOIN_STEPS = 1.0
# How far each number may lie from where its prior has it: standard deviations of its logarithm.
PRIORS = {"context_ms": 1.0, "prompt_ms": 0.5, "attention_ms": 1.0, "eager_ms": 0.7, "mixed_ms": 0.7, "request_ms": 0.7}
EAGER = tuple(PRIORS).index("eager_ms")
# The host launches eager steps, and is not always as fast: one engine on H200 took 31.7 ms (median) in one cell, and
# 18.8 in traffic. Each cell has a floor of its own, whose logarithm scatters so about the engine's.
FLOOR_SD = 0.4
STEP_PRIOR = 1.0
FALL_SD, BEND_SD = 0.02, 0.3  # steps do not get shorter with more sequences, and bend little from knot to knot
KNOT_RATIO = 1.4  # at least, between the knots of steps_ms
EAGER_STARTS = (1.0, 0.4, 2.5)  # times the prior's middle: from a wrong side of the floor no fit finds back
BEGIN_ROUNDS, ROUNDS, STEPS = 4, 6, 12  # simulations of all cells, and steps of Gauss-Newton in each
SHARES = (1.0, 0.5, 0.25)  # of the way to the least by the schedules of before
REACH = 2.5  # of a logarithm from its prior
CLOSE = 0.02  # of the objective: then a fit has ended
SURE = 1.96  # standard deviations of an interval


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell's mean milliseconds to the first token and of a whole answer. `answer_ms` None: its prompts were alone,
    and only their first tokens count.
    """

    load: Load
    first_ms: float
    answer_ms: float | None = None

    @property
    def shape(self) -> Shape:
        return (self.load.prompt_tokens, self.load.answer_tokens) if self.answer_ms is not None else (0, 0)

    @property
    def token_ms(self) -> float:
        return ((self.answer_ms or 0.0) - self.first_ms) / (self.load.answer_tokens - 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """`intervals`: of the engine's numbers (95 %); of its steps, one by one, under `steps_ms` and their sequences."""

    engine: EngineModel
    intervals: Mapping[str, Interval]


def fit_engine(cells: Sequence[Measured], known: EngineModel) -> Fit:
    """Fits the numbers; those of `known` that no cell measures stay (replicas, tokens_per_step, kv_tokens, ...).

    `cells` have one of one in flight, and prompts of two lengths alone.
    """
    prior = guess(cells, known)
    solver = _Solver(cells, prior)
    starts = [replace(prior, eager_ms=max(prior.eager_ms * factor, prior.mixed_ms)) for factor in EAGER_STARTS]
    begun = [solver.solve(start, BEGIN_ROUNDS) for start in starts]
    best = solver.solve(min(begun, key=lambda fit: fit.objective).engine, ROUNDS)
    return Fit(best.engine, best.find_intervals())


def find_misfits(cells: Sequence[Measured], fit: Fit) -> dict[Shape, float]:
    """Leaves out each shape in turn. Returns the largest logarithm by which the others predict its answers' times
    wrong, beyond what they leave open (95 %).

    Of the first shape every second level stays, and the last: nothing else shows how long steps of so many take.
    """
    prior = guess(cells, fit.engine)
    shapes = list(dict.fromkeys(cell.shape for cell in cells))
    found = {}
    for shape in shapes:
        own = [cell for cell in cells if cell.shape == shape]
        levels = sorted({cell.load.in_flight for cell in own})
        kept = {*levels[::2], levels[-1]} if shape == shapes[0] else set[int]()
        left_out = [cell for cell in own if cell.load.in_flight not in kept]
        others = [cell for cell in cells if cell not in left_out]
        if left_out and len({other.shape for other in others}) > 1:
            solution = _Solver(others, prior).solve(fit.engine, BEGIN_ROUNDS)
            found[shape] = round(max(_find_misfit(cell, solution) for cell in left_out), 4)
    return found


def guess(cells: Sequence[Measured], known: EngineModel) -> EngineModel:
    """Returns the priors' middle: steps from times per token, prefill from prompts alone, the rest in proportion."""
    alone = sorted((cell for cell in cells if cell.answer_ms is None), key=lambda cell: cell.load.prompt_tokens)
    short, before, long = alone[0], alone[-2], alone[-1]
    more = max(long.load.prompt_tokens - before.load.prompt_tokens, 1)
    squared = (long.load.prompt_tokens + before.load.prompt_tokens) / 1e3
    # For the models of today attention within a prompt takes some 3 % of the rest at 1,000 tokens.
    prompt_ms = max(long.first_ms - before.first_ms, 0.02 * long.first_ms) / more * 1e3 / (1 + 0.03 * squared)
    shape = next(cell.shape for cell in cells if cell.answer_ms is not None)
    steps = _guess_steps([cell for cell in cells if cell.shape == shape], known, prompt_ms)
    first_ms = steps[0][1]
    mixed_ms = min(2 * first_ms, 0.7 * short.first_ms)
    return replace(
        known,
        steps_ms=steps,
        context_ms=0.006 * first_ms,
        prompt_ms=prompt_ms,
        attention_ms=0.03 * prompt_ms,
        eager_ms=2 * mixed_ms,
        mixed_ms=mixed_ms,
        request_ms=max(short.first_ms - mixed_ms, 0.3 * short.first_ms),
    )


def _guess_steps(cells: Sequence[Measured], known: EngineModel, prompt_ms: float) -> tuple[tuple[int, float], ...]:
    """Returns steps at some of the levels of one shape: the time per token, less what prompts take of it."""
    times: dict[int, float] = {}
    for cell in sorted(cells, key=lambda each: each.load.in_flight):
        sequences = max(round(cell.load.in_flight / known.replicas), 1)
        step_ms = cell.token_ms * known.tokens_per_step
        prompts = sequences * known.tokens_per_step / cell.load.answer_tokens
        read_ms = prompts * prompt_ms * cell.load.prompt_tokens / 1e3
        least = max(times.values(), default=0.0)
        if not times or sequences >= KNOT_RATIO * max(times):
            times[sequences] = max(step_ms - read_ms, least, 0.3 * step_ms)
    return tuple(times.items())


def list_times(engine: EngineModel) -> list[float]:
    """Lists the milliseconds of the steps, and then those of PRIORS."""
    numbers = (engine.context_ms, engine.prompt_ms, engine.attention_ms, engine.eager_ms, engine.mixed_ms)
    return [*(ms for _, ms in engine.steps_ms), *numbers, engine.request_ms]


def set_times(engine: EngineModel, times: Sequence[float]) -> EngineModel:
    """Returns the engine with times as `list_times` lists them."""
    count = len(engine.steps_ms)
    context_ms, prompt_ms, attention_ms, eager_ms, mixed_ms, request_ms = times[count:]
    return replace(
        engine,
        steps_ms=tuple((sequences, ms) for (sequences, _), ms in zip(engine.steps_ms, times, strict=False)),
        context_ms=context_ms,
        prompt_ms=prompt_ms,
        attention_ms=attention_ms,
        eager_ms=eager_ms,
        mixed_ms=mixed_ms,
        request_ms=request_ms,
    )


def _find_misfit(cell: Measured, solution: "_Solution") -> float:
    """Returns by how much a whole answer's time, or a first token's of prompts alone, is off."""
    schedule = simulate(solution.engine, cell.load)
    (off, slopes), *_ = _compare(cell, schedule, solution.numbers, solution.engine)
    sd = FIRST_SD if cell.answer_ms is None else ANSWER_SD
    floor = FLOOR_SD * slopes[len(solution.engine.steps_ms) + EAGER]
    open_sd = math.sqrt(slopes @ solution.covariance @ slopes + floor**2)
    return max(sd * (abs(off) - SURE * open_sd), 0.0)


# Gauss-Newton.


def _pack(engine: EngineModel) -> Array:
    """Returns the logarithms of the steps and then of the numbers of PRIORS."""
    return np.log(np.maximum(list_times(engine), 1e-6))


def _unpack(point: Array, engine: EngineModel) -> EngineModel:
    return set_times(engine, np.exp(point).tolist())


def _find_steps(point: Array, schedule: Schedule, engine: EngineModel) -> tuple[Array, Array]:
    """Returns each step's milliseconds, and its slopes by the logarithms of the numbers: a row a step."""
    values = np.exp(point)
    knots = np.array([sequences for sequences, _ in engine.steps_ms], float)
    count, size = len(knots), len(schedule.sequences)
    slopes = np.zeros((size, len(point)))
    rows = np.arange(size)
    if count == 1:
        slopes[:, 0] = values[0]
    else:
        above = np.clip(np.searchsorted(knots, schedule.sequences, side="right"), 1, count - 1)
        share = np.maximum((schedule.sequences - knots[above - 1]) / (knots[above] - knots[above - 1]), 0.0)
        slopes[rows, above - 1] = (1 - share) * values[above - 1]
        slopes[rows, above] += share * values[above]
    slopes[:, count] = values[count] * schedule.context / 1e3
    slopes[:, count + 1] = values[count + 1] * schedule.prompts / 1e3
    slopes[:, count + 2] = values[count + 2] * schedule.squared / 1e6
    needed = slopes.sum(1)
    is_eager = schedule.prompts + schedule.sequences * engine.verified > engine.graph_tokens
    eager_ms, mixed_ms = values[count + 3], values[count + 4]
    floors = np.where(is_eager, eager_ms, np.where(schedule.prompts > 0, mixed_ms, 0.0))
    is_floor = floors > needed
    slopes[is_floor] = 0.0
    slopes[is_floor & is_eager, count + 3] = eager_ms
    slopes[is_floor & ~is_eager, count + 4] = mixed_ms
    return np.where(is_floor, floors, needed), slopes


def _compare(cell: Measured, schedule: Schedule, point: Array, engine: EngineModel) -> list[tuple[float, Array]]:
    """Returns what is off of a cell's times, in standard deviations, and its slopes: of whole answers comes first."""
    request_ms = math.exp(point[-1])
    step_ms, slopes = _find_steps(point, schedule, engine)
    first_ms, token_ms = schedule.find_times(step_ms, request_ms)
    first_slopes = schedule.to_first @ slopes
    first_slopes[-1] += request_ms
    if cell.answer_ms is None:
        return [_scale(first_ms, first_slopes, cell.first_ms, FIRST_SD)]
    after = cell.load.answer_tokens - 1
    answer_ms, answer_slopes = first_ms + after * token_ms, first_slopes + after * (schedule.per_token @ slopes)
    first_sd = FIRST_SD
    if cell.load.in_flight > 1:
        join = JOIN_STEPS * cell.token_ms * engine.tokens_per_step / cell.first_ms
        first_sd = math.hypot(FIRST_SD + WAVES_SD * cell.first_ms / cell.answer_ms, join)
    return [
        _scale(answer_ms, answer_slopes, cell.answer_ms, ANSWER_SD),
        _scale(first_ms, first_slopes, cell.first_ms, first_sd),
    ]


def _scale(found: float, slopes: Array, measured: float, sd: float) -> tuple[float, Array]:
    return math.log(found / measured) / sd, slopes / (found * sd)


@dataclass(frozen=True, slots=True)
class _Solution:
    """`objective`: half of it is the negative logarithm of the posterior. `matrix`: JtJ there, priors included.

    `point`: logarithms of the engine's numbers, and after them of each cell's eager floor over the engine's.
    """

    engine: EngineModel
    point: Array
    objective: float
    matrix: Array
    scatter: float

    @property
    def covariance(self) -> Array:
        """Returns that of the engine's numbers in the posterior, with scatter beyond what is usual in it."""
        count = len(self.engine.steps_ms) + len(PRIORS)
        return np.asarray(np.linalg.pinv(self.matrix)[:count, :count] * self.scatter, np.float64)

    @property
    def numbers(self) -> Array:
        return self.point[: len(self.engine.steps_ms) + len(PRIORS)]

    def find_intervals(self) -> dict[str, Interval]:
        deviations = SURE * np.sqrt(np.diag(self.covariance))
        names = [f"steps_ms {sequences}" for sequences, _ in self.engine.steps_ms] + list(PRIORS)
        middles, factors = np.exp(self.numbers), np.exp(np.minimum(deviations, 5.0))
        return {
            name: (round(float(middle / factor), 5), round(float(middle * factor), 5))
            for name, middle, factor in zip(names, middles, factors, strict=True)
        }


class _Solver:
    def __init__(self, cells: Sequence[Measured], prior: EngineModel) -> None:
        self._cells, self._prior = cells, prior
        self._knots, own = len(prior.steps_ms), [FLOOR_SD] * len(cells)
        self._count = self._knots + len(PRIORS)
        self._middle = np.concatenate([_pack(prior), np.zeros(len(cells))])
        self._prior_sd = np.array([STEP_PRIOR] * self._knots + list(PRIORS.values()) + own)

    def solve(self, start: EngineModel, rounds: int) -> _Solution:
        """Simulates, solves for the schedules found, and again, until that changes nothing. Returns the best of all.

        What schedules of before promise may not come true with new ones: then it goes part of the way.
        """
        best, _ = now = self._simulate(np.concatenate([_pack(start), np.zeros(len(self._cells))]))
        for _ in range(rounds):
            solution, schedules = now
            way = self._descend(solution.point, schedules) - solution.point
            tried = []
            for share in SHARES:
                tried.append(self._simulate(solution.point + share * way))
                if tried[-1][0].objective < solution.objective:
                    break
            now = min(tried, key=lambda each: each[0].objective)
            best = min(best, now[0], key=lambda each: each.objective)
            if abs(solution.objective - now[0].objective) < CLOSE * best.objective:
                break
        return best

    def _simulate(self, point: Array) -> tuple[_Solution, Sequence[Schedule]]:
        schedules = [
            simulate(_unpack(self._pick(point, number), self._prior), cell.load)
            for number, cell in enumerate(self._cells)
        ]
        return self._describe(point, schedules), schedules

    def _pick(self, point: Array, number: int) -> Array:
        """Returns the engine's numbers in one cell."""
        numbers = point[: self._count].copy()
        numbers[self._knots + EAGER] += point[self._count + number]
        return numbers

    def _describe(self, point: Array, schedules: Sequence[Schedule]) -> _Solution:
        residuals, slopes = self._find_residuals(point, schedules)
        measured = 2 * len(self._cells) - sum(cell.answer_ms is None for cell in self._cells)
        off, count = residuals[:measured], self._count
        floors = point[count:] / FLOOR_SD
        scatter = max(float(off @ off + floors @ floors) / max(measured - count, measured / 4), 1.0)
        engine = _unpack(point[:count], self._prior)
        return _Solution(engine, point, float(residuals @ residuals), slopes.T @ slopes, scatter)

    def _descend(self, point: Array, schedules: Sequence[Schedule]) -> Array:
        """Levenberg and Marquardt, with the schedules as they are."""
        residuals, slopes = self._find_residuals(point, schedules)
        damping = 1e-2
        for _ in range(STEPS):
            matrix = slopes.T @ slopes
            step = np.linalg.solve(matrix + damping * np.diag(np.diag(matrix)), slopes.T @ residuals)
            moved = point - np.clip(step, -0.5, 0.5)
            moved = np.clip(moved, self._middle - REACH, self._middle + REACH)
            new_residuals, new_slopes = self._find_residuals(moved, schedules)
            gain = residuals @ residuals - new_residuals @ new_residuals
            if gain <= 0:
                damping *= 5
                continue
            point, residuals, slopes, damping = moved, new_residuals, new_slopes, damping / 3
            if gain < CLOSE:
                break
        return point

    def _find_residuals(self, point: Array, schedules: Sequence[Schedule]) -> tuple[Array, Array]:
        """Returns what is off, in standard deviations, and its slopes: of the cells, of the priors, of the steps."""
        rows: list[tuple[float, Array]] = []
        for number, (cell, schedule) in enumerate(zip(self._cells, schedules, strict=True)):
            own = np.zeros(len(self._cells))
            for value, slope in _compare(cell, schedule, self._pick(point, number), self._prior):
                own[number] = slope[self._knots + EAGER]
                rows.append((value, np.concatenate([slope, own])))
        values, slopes = np.array([value for value, _ in rows]), np.array([slope for _, slope in rows])
        identity = np.eye(len(point))
        rises, bends = np.diff(point[: self._knots]), np.diff(point[: self._knots], 2)
        falling = np.diff(identity[: self._knots], axis=0) * (rises < 0)[:, None]
        return (
            np.concatenate([
                values,
                (point - self._middle) / self._prior_sd,
                np.minimum(rises, 0) / FALL_SD,
                bends / BEND_SD,
            ]),
            np.vstack([
                slopes,
                identity / self._prior_sd[:, None],
                falling / FALL_SD,
                np.diff(identity[: self._knots], 2, axis=0) / BEND_SD,
            ]),
        )
