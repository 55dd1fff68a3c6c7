"""The mean field beside the step-by-step replicas whose mean it is."""

import random
import statistics
from collections.abc import Sequence

import pytest

from engines.physics import EngineModel, Job, Mix, foresee
from engines.physics.forecast import HORIZON_S, find_answer_s, find_capacity, find_room, find_settled_s
from engines.simulation import Engine, NodeSpec, simulate

PLAIN = EngineModel(
    ((1, 4.8), (8, 4.8), (32, 5.2), (64, 6.5), (128, 7.3), (256, 8.4)), 0.035, 18.8, 0.8, 20.1, 8.0, 11.3
)
SPEC = EngineModel(((1, 6.2), (8, 6.5), (32, 8.8), (64, 11.6), (128, 18.6)), 0.035, 19.7, 0.8, 33.2, 9.6, 11.3, 2.5, 4)
DP = EngineModel(((1, 4.7), (16, 5.0), (48, 5.4), (160, 6.8)), 0.04, 19.3, 0.8, 24.4, 8.1, 11.3, replicas=2)
PROMPTS, ANSWERS = (40, 100, 200, 300, 420, 700), (20, 60, 130, 220, 350, 500)


class Alone:
    beat_s = 1e9

    def place(self, job: Job, engines: dict[str, Engine], now: float) -> str:
        return "it"

    def began(self, job: Job, engine: str, now: float) -> None: ...

    def ended(self, job: Job, engine: str, now: float) -> None: ...

    def beat(self, engines: dict[str, Engine], now: float) -> Sequence[tuple[Job, str]]:
        return ()


@pytest.mark.parametrize("engine", [PLAIN, SPEC, DP], ids=["plain", "speculating", "two replicas"])
@pytest.mark.parametrize("rate", [5.0, 20.0, 35.0])
def test_answers_take_as_long_as_step_by_step(engine: EngineModel, rate: float) -> None:
    draw, at, jobs = random.Random(1), 0.0, list[Job]()
    while at < 60:
        at += draw.expovariate(rate)
        jobs.append(Job(at, draw.choice(PROMPTS), draw.choice(ANSWERS)))
    simulate(jobs, NodeSpec({"it": engine}), Alone())  # type: ignore[arg-type]  # a router that knows only its one engine
    times = [(job.end_s or 0.0) - job.at for job in jobs if 20 < job.at < 55]
    mean_s = statistics.fmean(times)
    mix = Mix.of(PROMPTS, statistics.fmean(ANSWERS))
    outlook = foresee(engine, mix, rate, rate * mean_s)
    assert outlook.answer_s == pytest.approx(mean_s, rel=0.12)
    assert outlook.in_flight == pytest.approx(rate * mean_s, rel=0.12)


# A floor that short prompts stay below and two of them together do not: what a step takes is far from what it would
# with a mean prompt, and steps with prompts follow each other.
FLOOR = EngineModel(
    ((1, 3.39), (32, 3.7), (64, 3.96), (128, 5.62)), 0.0178, 12.5, 0.31, eager_ms=23.8, mixed_ms=6.6, request_ms=6.6
)  # fmt: skip


@pytest.mark.parametrize("rate", [15.0, 24.0, 28.0])
def test_prompts_on_both_sides_of_a_floor_settle_as_step_by_step(rate: float) -> None:
    prompts, answers = (190, 390, 400, 400, 950, 1100, 1600, 4000), (60, 100, 160, 320)
    draw, at, jobs = random.Random(1), 0.0, list[Job]()
    while at < 100:
        at += draw.expovariate(rate)
        jobs.append(Job(at, draw.choice(prompts), draw.choice(answers)))
    simulate(jobs, NodeSpec({"it": FLOOR}), Alone())  # type: ignore[arg-type]  # as above
    mean_s = statistics.fmean((job.end_s or 0.0) - job.at for job in jobs if 20 < job.at < 95)
    mix, in_flight = Mix.of(prompts, statistics.fmean(answers)), rate
    for _ in range(10):
        in_flight = foresee(FLOOR, mix, rate, in_flight).end
    assert in_flight == pytest.approx(rate * mean_s, rel=0.08)


def test_beyond_its_capacity_an_engine_has_a_queue_that_grows() -> None:
    engine, mix = EngineModel(PLAIN.steps_ms, prompt_ms=18.8, max_sequences=16), Mix.of(PROMPTS, 200)
    assert find_room(engine, mix) == 16
    most = find_capacity(engine, mix)
    assert 16 / find_answer_s(engine, mix, most, 16) == pytest.approx(most, rel=0.01)
    outlook = foresee(engine, mix, 2 * most, 16)
    assert outlook.end == pytest.approx(16 + HORIZON_S * most, rel=0.07)
    assert outlook.answer_s > 2 * find_answer_s(engine, mix, most, 16)


def test_kv_limits_how_many_run() -> None:
    engine = EngineModel(PLAIN.steps_ms, max_sequences=256, kv_tokens=40_000, replicas=2)
    assert find_room(engine, Mix.of(PROMPTS, 200, context=400)) == 200


def test_a_sample_is_drawn_as_quantiles() -> None:
    assert Mix.of(range(100), 10).prompts == (6, 18, 31, 43, 56, 68, 81, 93)
    assert Mix.of([5, 3], 10).prompts == (3, 5)
    assert Mix.of([], 0).answer_tokens == 1


@pytest.mark.parametrize("engine", [PLAIN, SPEC, DP, FLOOR], ids=["plain", "speculating", "two replicas", "floor"])
@pytest.mark.parametrize("in_flight", [8, 60, 250])
def test_in_a_closed_loop_as_many_come_as_finish(engine: EngineModel, in_flight: int) -> None:
    mix = Mix.of((190, 390, 400, 400, 950, 1100, 1600, 4000), 200)
    answer_s = find_settled_s(engine, mix, in_flight)
    assert find_answer_s(engine, mix, in_flight / answer_s, in_flight) == pytest.approx(answer_s, rel=0.05)
    assert in_flight / answer_s < 1.03 * find_capacity(engine, mix)
