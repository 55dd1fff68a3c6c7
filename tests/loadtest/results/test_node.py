"""From cells to a node model, and what the report says of it. Pure."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from engines.physics import EngineModel
from loadtest.decide.closed_load import Load
from loadtest.decide.engine_fit import Measured
from loadtest.decide.interference import Round
from loadtest.decide.soundness import USUAL
from loadtest.lab.identification import ENGINES, forget, list_plan, measure
from loadtest.results.cell import Cell
from loadtest.results.node import (
    NodeFinding,
    NodeModel,
    OpenCell,
    check_fit,
    check_open_loop,
    choose_rate,
    describe_engine,
    find_node_cells,
    make_node,
    note_interference,
)
from loadtest.results.percentiles import Percentiles
from loadtest.results.plan import QUICK
from tests.loadtest.samples import CELL, SYSTEM, make_cells

PLAN = replace(QUICK, tokens=34)
ENGINE = EngineModel(((1, 10.0), (11, 20.0)), prompt_ms=20.0, request_ms=10.0)
NODE = NodeModel(ENGINE, ENGINE, 1.0, 0.02, 20, 100)
LOADS = [load for load in list_plan(replace(QUICK, tokens=34)) if load.prompt_tokens != 64]


def make_other_cells() -> Mapping[str, Sequence[Measured]]:
    cells = measure(ENGINE, (LOADS, (64, 1024, 4096)), random.Random(1), 0.0)
    return {"triton": cells, "vllm": cells}


def beside(before: float, together: float, after: float) -> Sequence[Cell]:
    return [replace(CELL, level=8, tpot_s=Percentiles(50, mean=token_s)) for token_s in (before, together, after)]


def test_a_node_has_both_engines_the_lengths_and_what_a_move_costs() -> None:
    cells = make_cells({1: 1.0, 8: 1.0})
    node_cells = find_node_cells(cells, make_other_cells(), PLAN)
    assert [cell.load for cell in node_cells["triton"][:2]] == [Load(20, 34, 1), Load(20, 34, 8)]
    turns = [{"triton": beside(0.010, 0.021, 0.011), "vllm": beside(0.02, 0.04, 0.02)}] * 2
    finding = make_node(cells, node_cells, turns, SYSTEM, PLAN)
    assert finding is not None
    node = finding.node
    assert (node.prompt_tokens, node.answer_tokens, node.interference) == (20, 34, 1.0)
    assert node.intervals["interference"] == (1.0, 1.0)
    assert node.low.prompt_ms == pytest.approx(20.0, rel=0.2)
    step_ms, engine = node.low.steps_ms[0][1], node.low
    assert 1000 * node.move_s == pytest.approx(max(step_ms, engine.mixed_ms) + engine.request_ms, rel=0.01)
    assert (set(node.intervals), node.low_error) == ({"low", "high", "interference"}, node.high_error)
    message = note_interference(finding, SYSTEM, 8).message
    assert message.startswith("with 8 in flight on each, a step of triton takes 21 ms, 10.5 alone and a step of vllm")


def test_without_a_cell_of_the_first_shape_or_prompts_alone_there_is_no_node() -> None:
    cells = make_cells({1: 1.0, 8: 1.0})
    alone = {name: [cell for cell in own if cell.answer_ms is None] for name, own in make_other_cells().items()}
    assert make_node(cells, find_node_cells([], alone, PLAN), [], SYSTEM, PLAN) is None
    assert make_node(cells, find_node_cells(cells, {"triton": [], "vllm": []}, PLAN), [], SYSTEM, PLAN) is None


def test_what_an_engine_reports_of_itself_counts_and_else_what_was_seen() -> None:
    cells = make_cells({1: 1.0, 600: 1.0})
    system = replace(SYSTEM, engines={"triton": {"max_batch_size": 64}})
    seen = describe_engine("vllm", [replace(cell, tokens_per_chunk=2.5) for cell in cells], system)
    assert (seen.tokens_per_step, seen.verified, seen.replicas, seen.max_sequences) == (2.5, 4, 1, 600)
    assert describe_engine("triton", cells, system).max_sequences == 64
    sizes = {"vllm": {"replicas": 2.0, "kv_tokens": 9000.0, "tokens_per_step": 1.8, "verified": 3.0}}
    known = describe_engine("vllm", cells, replace(system, sizes=sizes))
    assert (known.tokens_per_step, known.verified, known.replicas, known.kv_tokens) == (1.8, 3, 2, 9000)
    assert known.max_sequences == 300


def test_an_open_loop_has_three_quarters_of_the_crossing_in_flight() -> None:
    """6 in flight: a step takes 15 ms and some prefill, an answer of 100 tokens some 1.55 s."""
    assert choose_rate(NODE, ENGINE, 8.0) == pytest.approx(6 / 1.55, rel=0.05)
    assert choose_rate(NODE, ENGINE, 0.1) == pytest.approx(1 / 1.04, rel=0.05)  # one in flight at the least


@pytest.mark.parametrize(
    ("cells", "status", "message"),
    [
        ([], "note", "no open loop was measured"),
        ([OpenCell("triton", 4.0, 6.0, 1.55, 1.5), OpenCell("vllm", 4.0, 6.0, 1.4, 1.5)], "passed", "vllm takes 1.4 s"),
        ([OpenCell("triton", 4.0, 11.0, 3.0, 2.0)], "warning", "OPEN LOOP: at 4 requests a second an answer of triton"),
        ([OpenCell("vllm", 4.0, 21.0, 2.0, 4.0)], "warning", "takes 2 s, 4 by the node model"),
    ],
)
def test_an_engine_that_chance_arrivals_slow_down_is_reported(cells: list[OpenCell], status: str, message: str) -> None:
    check = check_open_loop(cells, USUAL)
    assert check.status == status
    assert message in check.message


@pytest.mark.parametrize(
    ("misfits", "status", "message"),
    [
        ({}, "note", "too few shapes"),
        ({(2048, 16): 0.1, (0, 0): 0.02}, "passed", "the worst of vllm by 11%, for 2,048 prompt tokens x 16"),
        (
            {(2048, 16): 0.1, (0, 0): 0.2},
            "warning",
            "MISFIT: the other cells predict answer times wrong of vllm by 22%",
        ),
        (
            {(0, 0): 0.5},
            "warning",
            "for prompts alone: the engine is not as the node model has it, which is not applied",
        ),
    ],
)
def test_a_shape_that_the_others_do_not_predict_is_reported(
    misfits: dict[tuple[int, int], float], status: str, message: str
) -> None:
    node = replace(NODE, high_error=max(misfits.values(), default=0.0))
    check = check_fit(NodeFinding(node, {"vllm": misfits}, [Round((1, 1), (1, 1), 2, 2)]), USUAL)
    assert (check.name, check.status) == ("node model", status)
    assert message in check.message


def test_a_node_shows_steps_prefill_interference_and_errors() -> None:
    shown = str(replace(NODE, low_error=math.log(1.04)))
    assert shown.startswith("a step takes 10 and 10 ms, 1,000 prompt tokens 20 and 20 ms, interference 1.00")
    assert shown.endswith("within 4% and 0%")
    assert forget(ENGINES["DP 2"]).replicas == 2
