"""A whole calibration in this process: what it measures again, and when it stops."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.results.plan import QUICK, Plan
from loadtest.results.result import Result
from tests.loadtest.calibration.runs import HIGH, LOW, run_campaign
from tests.loadtest.fake_gateway import FakeGateway, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)
SLOWER = Speed(base_s=0.03, per_request_s=0.0)
PLAN = replace(QUICK, levels=(2,), tokens=8, window_s=0.1, window_requests=6, refine_pairs=0)
BRIEF = replace(PLAN, window_requests=2, retries=0)
IN_THE_WINDOW = 2 * 8 + 8 + 20  # steps: two probes, the warm-up, then well inside


async def run_with_a_pause(plan: Plan, out: Path) -> tuple[Result, list[dict[str, Any]], str, list[str]]:  # Any: JSON
    """What a campaign found, and the prompts of the backend that paused."""
    async with FakeGateway(STEADY, SLOWER) as gateway:
        gateway.backends["triton"].pause_at, gateway.backends["triton"].pause_s = IN_THE_WINDOW, 1.0
        return *await run_campaign(gateway, plan, out), gateway.prompts["triton"]


async def test_a_pair_with_a_pause_is_measured_again_with_other_prompts(tmp_path: Path) -> None:
    result, lines, shown, prompts = await run_with_a_pause(PLAN, tmp_path)
    assert "measuring again: NOT STEADY: triton c=2" in shown
    assert "NOT STEADY: triton c=2" in str(lines[0]["void"])
    assert [line["void"] for line in lines[1:]] == [None] * 4
    assert [(cell.pair, cell.backend) for cell in result.cells] == [
        (line["pair"], line["backend"]) for line in lines[1:]
    ]
    assert {cell.pair for cell in result.cells} == {1, 2}
    assert len(set(prompts)) == len(prompts)


async def test_without_retries_a_cell_with_a_pause_is_kept(tmp_path: Path) -> None:
    _, lines, _, _ = await run_with_a_pause(replace(PLAN, retries=0), tmp_path)
    assert [line["void"] for line in lines] == [None] * 4


async def test_further_pairs_lie_at_the_crossing_and_count(tmp_path: Path) -> None:
    plan = replace(BRIEF, levels=(2, 16), repeats=3, window_requests=4, refine_pairs=3)
    async with FakeGateway(LOW, HIGH) as gateway:
        result, lines, _ = await run_campaign(gateway, plan, tmp_path)
    levels = [cell.level for cell in result.cells]
    assert levels[:12] == [2, 2, 16, 16] * 3
    assert levels[12:14] == [6, 6]  # the geometric mean
    assert all(2 <= level <= 10 for level in levels[14:])
    assert len(lines) == len(levels)


async def test_no_pair_is_added_beyond_the_budget(tmp_path: Path) -> None:
    plan = replace(BRIEF, levels=(2, 16), repeats=3, refine_pairs=9, budget_s=0.5)
    async with FakeGateway(LOW, HIGH) as gateway:
        result, _, _ = await run_campaign(gateway, plan, tmp_path)
    assert len(result.cells) == 12


async def test_each_backend_is_measured_against_itself_with_other_prompts(tmp_path: Path) -> None:
    plan = replace(BRIEF, repeats=3, null_pairs=2)
    async with FakeGateway(STEADY, SLOWER) as gateway:
        result, lines, _ = await run_campaign(gateway, plan, tmp_path)
        prompts = gateway.prompts
    assert [(line["backend"], line["is_null"]) for line in lines[:4]] == [("triton", True)] * 2 + [("vllm", True)] * 2
    assert all(len(set(sent)) == len(sent) for sent in prompts.values())
    assert "(+-" in next(check for check in result.checks if check.name == "null").message


@pytest.mark.parametrize(("style", "counted_by"), [("counted", "usage"), ("ignored", "chunks"), ("refused", "chunks")])
async def test_the_servers_count_of_every_event_is_used_where_it_is_offered(
    tmp_path: Path, style: str, counted_by: str
) -> None:
    async with FakeGateway(STEADY, SLOWER, continuous_usage=style) as gateway:
        result, _, _ = await run_campaign(gateway, BRIEF, tmp_path)
    assert {cell.counted_by for cell in result.cells} == {counted_by}
    assert result.cells[0].throughput == pytest.approx(2 / STEADY.base_s, rel=0.2)


async def test_two_backends_on_the_same_gpus_interfere(tmp_path: Path) -> None:
    nodes = {}
    for is_shared in (False, True):
        async with FakeGateway(STEADY, SLOWER) as gateway:
            low, high = gateway.backends.values()
            low.neighbour, high.neighbour = (high, low) if is_shared else (None, None)
            result, lines, _ = await run_campaign(gateway, replace(BRIEF, window_requests=6), tmp_path / str(is_shared))
        assert result.node is not None
        assert len(lines) == len(result.cells)  # no cell of the crossing is one of both
        nodes[is_shared] = result.node
    alone, shared = nodes[False], nodes[True]
    assert [level for level, _ in alone.low.steps_ms] == [2]
    assert alone.high.steps_ms[0][1] / alone.low.steps_ms[0][1] == pytest.approx(1.5, rel=0.15)
    assert (alone.low.max_in_flight, alone.high.max_in_flight) == (64, 2)  # only triton reports its own
    assert [alone.interference, shared.interference] == pytest.approx([0, 1], abs=0.15)
