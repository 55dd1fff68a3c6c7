"""Engines whose numbers are known are calibrated in simulations, and their numbers found again."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from engines.physics import EngineModel
from loadtest.decide.closed_load import Load, simulate
from loadtest.decide.engine_fit import PRIORS, Measured, find_misfits, fit_engine, list_times, set_times
from loadtest.decide.node_cells import LONGEST, list_loads, list_prompts
from loadtest.decide.open_load import Arrival, serve
from loadtest.lab.identification import ENGINES, forget, list_designs, measure
from loadtest.results.plan import FULL, QUICK, Plan

DESIGN = list_designs()["quick"]
# docs/results/h200-steps.md: tokens of prompts and answers, in flight, milliseconds to first tokens and of answers.
TP_2_ON_H200 = (
    (64, 256, 1, 13.2, 856.4),
    (64, 256, 8, 14.2, 907.1),
    (64, 256, 32, 16.3, 1098.3),
    (64, 256, 96, 21.9, 1516.3),
    (64, 256, 160, 28.0, 1918.3),
    (2048, 256, 16, 40.9, 1468.0),
    (2048, 256, 48, 61.1, 2689.5),
    (2048, 16, 2, 39.2, 115.9),
    (2048, 16, 16, 113.4, 514.7),
    (256, 16, 4, 16.6, 76.0),
    (256, 16, 32, 76.3, 462.0),
    (64, 2, 1, 13.2, None),
    (256, 2, 1, 18.8, None),
    (4096, 2, 1, 70.0, None),
)


@pytest.mark.parametrize("name", ["DP 2", "plain"])
def test_numbers_are_found_within_their_intervals(name: str) -> None:
    true = ENGINES[name]
    fit = fit_engine(measure(true, DESIGN, random.Random(2)), forget(true))
    numbers = dict(zip(PRIORS, list_times(true)[len(true.steps_ms) :], strict=True))
    inside = [low <= numbers[number] <= high for number in PRIORS for low, high in [fit.intervals[number]]]
    assert sum(inside) >= len(PRIORS) - 1  # each holds it with 95 %
    assert fit.engine.decode_ms(32, 0) == pytest.approx(true.decode_ms(32, 0), rel=0.1)
    assert fit.engine.prompt_ms == pytest.approx(true.prompt_ms, rel=0.2)
    low, high = fit.intervals["attention_ms"]
    assert high / low > 4  # prompts of these lengths show little of it


def test_a_shape_left_out_is_predicted_by_the_others_where_the_engine_is_of_the_models_form() -> None:
    true = ENGINES["plain"]
    cells = measure(true, DESIGN, random.Random(2))
    misfits = find_misfits(cells, fit_engine(cells, forget(true)))
    assert set(misfits) == {(64, 128), (2048, 384), (2048, 128), (2048, 8), (640, 128), (0, 0)}
    assert max(misfits.values()) < 0.15


def test_an_engine_of_another_form_is_noticed() -> None:
    """Answers to long prompts take half as long again as they should: nothing in the model is like that."""
    true = ENGINES["plain"]
    cells = [
        replace(cell, answer_ms=1.5 * cell.answer_ms) if cell.answer_ms and cell.shape == (2048, 128) else cell
        for cell in measure(true, DESIGN, random.Random(2))
    ]
    assert max(find_misfits(cells, fit_engine(cells, forget(true))).values()) > 0.15


def test_eager_steps_that_were_slow_in_one_cell_do_not_set_the_floor_of_all_traffic() -> None:
    """They took 31.7 ms (median) in the cell of 256 tokens, 18.8 in traffic, and 24 to 29 over all steps logged."""
    cells = [Measured(Load(*load), first_ms, answer_ms) for *load, first_ms, answer_ms in TP_2_ON_H200]
    fit = fit_engine(cells, EngineModel(((1, 1.0),), max_sequences=512))
    low, high = fit.intervals["eager_ms"]
    assert low < 18.8
    assert high > 31.7
    assert fit.engine.eager_ms < 30


def test_what_no_cell_shows_stays_at_its_prior_with_a_wide_interval() -> None:
    true = replace(ENGINES["plain"], eager_ms=0.0, mixed_ms=0.0)
    loads = [Load(64, 64, 1), Load(64, 64, 8)]
    fit = fit_engine(measure(true, (loads, (64, 128)), random.Random(2)), forget(true))
    low, high = fit.intervals["context_ms"]
    assert high / low > 20
    low, high = fit.intervals["eager_ms"]
    assert high / low > 8


def test_times_are_set_as_they_are_listed() -> None:
    engine = ENGINES["TP 2"]
    assert set_times(engine, list_times(engine)) == engine


def test_a_loop_of_one_takes_its_prefill_its_steps_and_its_way() -> None:
    engine = EngineModel(((1, 5.0),), prompt_ms=10.0, request_ms=4.0, mixed_ms=7.0)
    schedule = simulate(engine, Load(1000, 11, 1))
    steps = [
        engine.step_ms(float(a), float(b), float(c), float(d))
        for a, b, c, d in zip(schedule.sequences, schedule.context, schedule.prompts, schedule.squared, strict=True)
    ]
    first_ms, token_ms = schedule.find_times(np.array(steps), engine.request_ms)
    assert (first_ms, token_ms) == pytest.approx((15.0 + 4.0, 5.0))
    assert serve(engine, [Arrival(1.0, 1000, 11)]) == pytest.approx([(15 + 10 * 5 + 4) / 1000])


def test_replicas_share_arrivals() -> None:
    engine = EngineModel(((1, 5.0), (2, 10.0)), request_ms=4.0)
    both = [Arrival(0.0, 10, 11), Arrival(0.0, 10, 11)]
    one, two = (serve(replace(engine, replicas=replicas), both) for replicas in (1, 2))
    assert two == pytest.approx([0.059, 0.059])
    assert min(one) > 0.1


@pytest.mark.parametrize(
    ("tokens", "longest", "most", "shown"),
    [
        (256, LONGEST, 128, "2048x768@24 2048x256@48 2048x8@16 640x256@8 640x256@48"),
        (128, LONGEST, 16, "2048x384@16 2048x128@16 2048x8@16 640x128@8 640x128@16"),
        (256, 512, 128, "256x256@24 256x256@48 256x8@16 320x256@8 320x256@48"),
        (8, LONGEST, 1, "2048x24@1 2048x8@1 640x8@1"),
    ],
)
def test_shapes_are_shortened_to_a_context_and_to_what_may_be_in_flight(
    tokens: int, longest: int, most: int, shown: str
) -> None:
    loads = list_loads(tokens, longest, most)
    assert " ".join(f"{each.prompt_tokens}x{each.answer_tokens}@{each.in_flight}" for each in loads) == shown
    assert list_prompts(512) == [8, 128, 320, 512]


@pytest.mark.parametrize(("plan", "most_s"), [(QUICK, 180.0), (FULL, 600.0)], ids=["quick", "full"])
@pytest.mark.parametrize("pair", [("TP 2", "DP 2"), ("speculation", "plain")])
def test_a_run_on_gpus_takes_as_long_as_is_promised(plan: Plan, most_s: float, pair: tuple[str, str]) -> None:
    """Without the rehearsal: the sweep, or refinement up to its budget; other shapes; turns; open loops; fits."""
    sweep_s = others_s = 0.0
    for engine in (ENGINES[name] for name in pair):
        at_level = {level: find_s(engine, Load(64, plan.tokens, level), plan.window_s, 2) for level in plan.levels}
        sweep_s += sum(at_level[cell.level] for cell in plan.schedule())
        shapes = list_loads(plan.tokens, LONGEST, max(plan.levels))
        others_s += sum(find_s(engine, load, plan.window_s, 1) for load in shapes)
        others_s += plan.turns * 3 * find_s(engine, Load(64, plan.tokens // 4, 64), plan.window_s / 4, 1)
        alone = measure(engine, ([], list_prompts(LONGEST)), random.Random(1), 0.0)
        others_s += 5 * sum(0.1 + cell.first_ms / 1000 for cell in alone)
        others_s += 5 * (at_level[64] / 3) + 5.0  # an open loop, and a fit
    assert max(sweep_s, plan.budget_s or 0.0) + others_s < most_s


def find_s(engine: EngineModel, load: Load, window_s: float, requests: int) -> float:
    """Returns the seconds of a cell: what lies between two, the ramp, the window."""
    answer_s = (measure(engine, ([load], ()), random.Random(1), 0.0)[0].answer_ms or 0.0) / 1000
    return 0.3 + answer_s * (1 + max(requests, math.ceil(window_s / answer_s)))


def test_a_cell_without_answers_beyond_the_first_token_is_of_prompts_alone() -> None:
    assert Measured(Load(64, 2, 1), 20.0).shape == (0, 0)
    assert Measured(Load(64, 11, 1), 20.0, 120.0).token_ms == pytest.approx(10.0)
