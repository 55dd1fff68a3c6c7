"""A whole calibration in this process: what it measures again, and when it stops."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.physics import EngineModel
from loadtest.results.plan import QUICK, Plan
from loadtest.results.result import Result
from tests.loadtest.calibration.runs import HIGH, LOW, run_campaign
from tests.loadtest.fake_gateway import FakeGateway, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)
SLOWER = Speed(base_s=0.03, per_request_s=0.0)
PLAN = replace(QUICK, levels=(2,), tokens=8, window_s=0.1, window_requests=6, refine_pairs=0, turns=0)
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


@pytest.mark.parametrize("context", [985, 990, 995])
async def test_no_prompt_is_longer_than_a_context_that_the_first_one_fills(tmp_path: Path, context: int) -> None:
    fast = EngineModel(((1, 1.0), (8, 1.0)), prompt_ms=1.0)
    async with FakeGateway(fast, fast) as gateway:
        gateway.longest = context
        result, _, _ = await run_campaign(gateway, replace(BRIEF, tokens=4, turns=1), tmp_path)
    assert result.node is not None


async def test_the_numbers_of_both_engines_are_found(tmp_path: Path) -> None:
    """Two replicas with GPUs of their own, as the gateway reports them, and prompts that are too long for a context."""
    low = EngineModel(((1, 12.0), (8, 16.0)), prompt_ms=40.0, mixed_ms=15.0)
    high = EngineModel(((1, 20.0), (8, 22.0)), prompt_ms=60.0, replicas=2)
    plan = replace(BRIEF, levels=(1, 8), tokens=16, window_s=0.5, prompt_words=30, turns=1)
    async with FakeGateway(low, high) as gateway:
        gateway.sizes["vllm"] = {"replicas": 2, "kv_tokens": 50_000}
        gateway.longest = 1100
        result, lines, shown = await run_campaign(gateway, plan, tmp_path)
    assert result.node is not None
    assert len(lines) == len(result.cells)  # no cell of the crossing is one of another shape
    assert "prompts of other shapes are at most 729 tokens long" in shown
    found_low, found_high = result.node.low, result.node.high
    assert (found_low.replicas, found_low.max_sequences, found_low.kv_tokens) == (1, 64, None)
    assert (found_high.replicas, found_high.max_sequences, found_high.kv_tokens) == (2, 256, 50_000)
    assert found_low.decode_ms(1, 0) == pytest.approx(12.0, rel=0.15)
    assert found_high.decode_ms(1, 0) == pytest.approx(20.0, rel=0.15)
    assert found_low.prompt_ms == pytest.approx(40.0, rel=0.3)
    assert found_high.prompt_ms == pytest.approx(60.0, rel=0.3)
    assert result.node.interference == pytest.approx(0.0, abs=0.15)
