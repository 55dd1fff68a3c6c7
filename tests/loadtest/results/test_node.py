import math
import statistics
from dataclasses import replace

import pytest

from loadtest.decide.soundness import USUAL
from loadtest.results.node import (
    MOST_INTERFERENCE,
    MOST_PREFILL,
    EngineModel,
    NodeModel,
    OpenCell,
    Prefill,
    check_open_loop,
    choose_rate,
    make_node,
    note_interference,
)
from loadtest.results.percentiles import Percentiles
from loadtest.results.plan import QUICK
from tests.loadtest.samples import CELL, SYSTEM, make_cells

PLAN = replace(QUICK, tokens=34)
PREFILLS = {"triton": Prefill(20, 0.05, 160, 0.07), "vllm": Prefill(20, 0.05, 160, 0.085)}


def beside(triton_s: float | None, vllm_s: float | None, level: int = 8) -> NodeModel:
    """The model of cells of 0.34 s an answer on either backend, and these times while the other one works."""
    both = {
        name: replace(CELL, backend=name, level=level, e2e_s=Percentiles(50, time_s))
        for name, time_s in (("triton", triton_s), ("vllm", vllm_s))
    }
    node = make_node(make_cells({2: 1.0, 8: 1.0}), both, PREFILLS, SYSTEM, PLAN)
    assert node is not None
    return node


def test_steps_are_the_medians_of_levels_by_tokens() -> None:
    node = make_node(make_cells({1: 2.0, 8: 1.0}, repeats=3), {}, PREFILLS, SYSTEM, PLAN)
    assert node is not None
    assert dict(node.low.steps_ms) == pytest.approx({1: 5, 8: 10}, rel=0.01)
    assert dict(node.high.steps_ms) == pytest.approx({1: 10, 8: 10}, rel=0.01)
    assert (node.prompt_tokens, node.answer_tokens) == (20, 34)


def test_first_tokens_are_the_medians_of_levels_and_none_where_too_few_came() -> None:
    cells = make_cells({1: 2.0, 8: 1.0}, repeats=3)
    node = make_node(cells, {}, PREFILLS, SYSTEM, PLAN)
    assert node is not None
    shown = {
        level: [1000 * (cell.ttft_s.p50 or 0) for cell in cells if (cell.backend, cell.level) == ("vllm", level)]
        for level in (1, 8)
    }
    assert dict(node.high.ttft_ms or ()) == {
        level: pytest.approx(statistics.median(times), rel=1e-3) for level, times in shown.items()
    }
    without = make_node([replace(cell, ttft_s=Percentiles(0)) for cell in cells], {}, PREFILLS, SYSTEM, PLAN)
    assert without is not None
    assert without.low.ttft_ms is None


@pytest.mark.parametrize(
    ("triton_s", "vllm_s", "interference"),
    [
        (0.34, 0.34, 0.0),
        (0.68, 0.68, 1.0),
        (0.68, 0.34, 0.5),
        (0.30, 0.34, 0.0),  # faster beside the other is noise
        (9.0, 9.0, MOST_INTERFERENCE),
        (None, 0.68, 1.0),  # a cell without answers
        (None, None, 0.0),
    ],
)
def test_interference_is_what_a_step_takes_longer_by_the_others_step(
    triton_s: float | None, vllm_s: float | None, interference: float
) -> None:
    assert beside(triton_s, vllm_s).interference == pytest.approx(interference, abs=0.01)


def test_a_level_that_was_not_measured_alone_gives_no_interference() -> None:
    assert beside(0.68, 0.68, level=4).interference == 0


def test_a_note_has_the_level_of_the_interference_and_the_times() -> None:
    cells = make_cells({2: 1.0, 8: 1.0})
    both = {
        name: replace(CELL, backend=name, level=8, e2e_s=Percentiles(50, time_s))
        for name, time_s in (("triton", 0.68), ("vllm", None))
    }
    node = make_node(cells, both, PREFILLS, SYSTEM, PLAN)
    assert node is not None
    check = note_interference(node, both, PLAN.tokens)
    assert (check.name, check.status) == ("interference", "note")
    assert check.message == "with 8 in flight on each, a token of triton takes 20 ms, 10 alone"
    assert note_interference(node, {}, PLAN.tokens).message == "no answer was measured while both engines worked"


def test_most_in_flight_is_what_an_engine_reports_or_the_highest_level() -> None:
    system = replace(SYSTEM, engines={"triton": {"max_batch_size": 64}, "vllm": {}})
    node = make_node(make_cells({2: 1.0, 8: 1.0}), {}, PREFILLS, system, PLAN)
    assert node is not None
    assert (node.low.max_in_flight, node.high.max_in_flight) == (64, 8)


def test_a_move_costs_what_a_first_token_takes_besides_its_prefill() -> None:
    assert beside(0.34, 0.34).move_s == pytest.approx((0.05 - 20 / 7000 + 0.05 - 20 / 4000) / 2, abs=1e-4)
    assert Prefill(1000, 0.01, 8000, 0.2).overhead_s == 0  # longer prompts show more than the usual one took


def test_prefill_is_what_a_token_more_takes() -> None:
    node = beside(0.34, 0.34)
    assert (node.low.prefill_tokens_per_s, node.high.prefill_tokens_per_s) == (7000, 4000)
    assert Prefill(20, 0.05, 160, 0.05).tokens_per_s == MOST_PREFILL
    assert Prefill(20, 0.05, 160, 0.04).tokens_per_s == MOST_PREFILL
    assert Prefill(20, 0.05, 160, math.nextafter(0.05, 1)).tokens_per_s == MOST_PREFILL


def test_a_backend_without_steps_gives_no_model() -> None:
    assert make_node([CELL], {}, PREFILLS, SYSTEM, PLAN) is None


ENGINE = EngineModel(((1, 10.0), (11, 20.0), (31, 60.0)), 1000.0, 64)


def test_a_step_between_two_levels_lies_on_a_line() -> None:
    steps = [ENGINE.find_step_ms(in_flight) for in_flight in (0.2, 1, 6, 11, 21, 31, 99)]
    assert steps == pytest.approx([10, 10, 15, 20, 40, 60, 60])


def test_an_open_loop_has_three_quarters_of_the_crossing_in_flight() -> None:
    """6 in flight take 15 ms a token: 100 tokens take 1.5 s, so 4 a second."""
    assert choose_rate(ENGINE, 100, 8.0) == pytest.approx(4.0)
    assert choose_rate(ENGINE, 100, 0.1) == pytest.approx(1.0)  # one in flight at the least


@pytest.mark.parametrize(
    ("cells", "status", "message"),
    [
        ([], "note", "no open loop was measured"),
        ([OpenCell("triton", 4.0, 6.0, 15.5), OpenCell("vllm", 4.0, 6.0, 14.0)], "passed", "vllm takes 14 ms, 15 by"),
        ([OpenCell("triton", 4.0, 11.0, 30.0), OpenCell("vllm", 4.0, 6.0, 14.0)], "warning", "at 4 requests a second"),
        ([OpenCell("vllm", 4.0, 21.0, 20.0)], "warning", "a token of vllm takes 20 ms, 40 by its closed-loop curve"),
    ],
)
def test_an_engine_that_chance_arrivals_slow_down_is_reported(cells: list[OpenCell], status: str, message: str) -> None:
    node = NodeModel(ENGINE, ENGINE, 1.0, 20, 100, 0.05)
    check = check_open_loop(node, cells, SYSTEM, USUAL)
    assert check.status == status
    assert message in check.message
