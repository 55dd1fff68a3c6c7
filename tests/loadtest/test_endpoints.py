"""Several endpoints in turn: the order, what their figures say together, and the command against known paces."""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import pytest
from click.testing import CliRunner, Result

from loadtest.endpoints.cli import main
from loadtest.endpoints.report import write_report
from loadtest.endpoints.summary import compare
from loadtest.endpoints.tour import Visit, plan_tour
from loadtest.plan import Plan
from loadtest.stats import Percentiles
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed
from tests.loadtest.samples import CELL

SLOW = Speed(base_s=0.06, per_request_s=0.0)
FAST = Speed(base_s=0.03, per_request_s=0.0)
SHORT = ("--model", "toy", "--levels", "4", "--rounds", "2", "--tokens", "8", "--prompt-words", "5", "--window", "0.5")


def test_every_endpoint_has_every_level_once_a_round_and_no_cell_number_twice() -> None:
    stops = list(plan_tour(3, (1, 8), 4))
    assert len({stop.number for stop in stops}) == len(stops) == 3 * 2 * 4
    assert len({(stop.endpoint, stop.level, stop.round) for stop in stops}) == len(stops)


def test_nobody_is_always_first_and_nobody_always_follows_the_same() -> None:
    stops = list(plan_tour(3, (8,), 6))
    turns = [tuple(stop.endpoint for stop in stops if stop.round == at) for at in range(6)]
    assert {turn[0] for turn in turns} == {0, 1, 2}
    assert {turn[-1] for turn in turns} == {0, 1, 2}
    assert {(turn.index(0) - turn.index(1)) % 3 for turn in turns} == {1, 2}


def visit(endpoint: str, at: int, throughput: float, ttft_s: float | None = 0.02) -> Visit:
    ttft = Percentiles(50, ttft_s, None)
    return Visit(endpoint, 8, at, replace(CELL, throughput=throughput, level=8, in_flight=8.0, ttft_s=ttft))


def test_what_a_round_does_to_all_cancels_in_their_ratio() -> None:
    visits = [visit("a", at, 100.0 * 2**at) for at in range(3)] + [visit("b", at, 150.0 * 2**at) for at in range(3)]
    first, second = compare(visits, ["a", "b"])
    assert (first.endpoint, first.throughput.mean) == ("a", 1.0)
    assert second.throughput.mean == pytest.approx(1.5)
    assert second.throughput.low == pytest.approx(1.5)
    assert second.throughput.high == pytest.approx(1.5)
    assert second.figures["tok/s"] == pytest.approx(150 * 7 / 3)


def test_an_interval_is_students_of_the_logarithms() -> None:
    visits = [visit("a", at, 100.0) for at in range(3)]
    visits += [visit("b", at, 100.0 * math.exp(gain)) for at, gain in enumerate((0.1, 0.2, 0.3))]
    ratio = compare(visits, ["a", "b"])[1].throughput
    half_width = 4.303 * 0.1 / math.sqrt(3)  # t(0.975; 2) = 4.303, of any table
    assert math.log(ratio.mean) == pytest.approx(0.2)
    assert math.log(ratio.low) == pytest.approx(0.2 - half_width, abs=1e-4)
    assert math.log(ratio.high) == pytest.approx(0.2 + half_width, abs=1e-4)


def test_one_round_has_ratios_without_intervals_and_unknown_figures_none() -> None:
    rows = compare([visit("a", 0, 100.0), visit("b", 0, 50.0, None)], ["a", "b"])
    assert rows[1].throughput.high == math.inf
    report = write_report(rows, Plan(), [])
    assert "| 8 | b | 50.0 | n/a | n/a | 10 ms | 0.500 | n/a | 5% |" in report


def test_a_round_that_one_of_them_lacks_is_left_out_of_their_ratio() -> None:
    rows = compare([visit("a", 0, 100.0), visit("b", 0, 50.0), visit("a", 1, 900.0)], ["a", "b"])
    assert rows[1].throughput.mean == pytest.approx(0.5)


def test_a_window_that_paused_is_told_by_its_endpoints_name() -> None:
    held = Visit("gateway", 8, 0, replace(CELL, backend="", level=8, in_flight=6.0))
    assert held.flaw == "NOT STEADY: gateway c=8 held only 6.0 in flight."


# The command


def find_run(out: Path) -> Path:
    (folder,) = out.iterdir()
    return folder


async def run(*arguments: str) -> Result:
    return await anyio.to_thread.run_sync(lambda: CliRunner().invoke(main, arguments))


@pytest.mark.alone  # paces are kept only where there is a core for them
async def test_known_paces_are_told_apart(tmp_path: Path) -> None:
    async with FakeGateway(SLOW, SLOW) as slow, FakeGateway(FAST, FAST) as fast:
        ends = ("--endpoint", f"slow={slow.url}", "--endpoint", f"fast={fast.url}")
        done = await run(*ends, *SHORT, "--title", "Two paces.", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    folder = find_run(tmp_path)
    cells = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    assert [(row["endpoint"], row["round"]) for row in cells] == [("slow", 0), ("fast", 0), ("slow", 1), ("fast", 1)]
    rate = {name: [row["cell"]["throughput"] for row in cells if row["endpoint"] == name] for name in ("slow", "fast")}
    assert rate["slow"] == pytest.approx([4 / 0.06] * 2, rel=0.15)
    assert rate["fast"] == pytest.approx([4 / 0.03] * 2, rel=0.15)
    report = (folder / "report.md").read_text()
    assert report.startswith("Two paces.\n\nAnswers of 8 tokens")
    assert report in done.output


async def test_a_batch_counts_everything_from_the_first_request_to_the_last_token(tmp_path: Path) -> None:
    batch = (*SHORT[:-2], "--batch", "3")
    async with FakeGateway(SLOW, SLOW) as slow, FakeGateway(FAST, FAST) as fast:
        ends = ("--endpoint", f"slow={slow.url}", "--endpoint", f"fast={fast.url}")
        done = await run(*ends, *batch, "--processes", "2", "--out", str(tmp_path))
        assert done.exit_code == 0, done.output
        asked = [len(each.bodies) - 2 for each in (slow, fast)]  # but for the probe, which asks twice
        assert fast.backends["triton"].most_running + fast.backends["vllm"].most_running == 4
    assert asked == [2 * 4 * 3] * 2
    folder = find_run(tmp_path)
    rows = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    for row in rows:
        assert (row["batch"], row["cell"]["requests"]) == (3, 12)
        assert row["cell"]["throughput"] * row["cell"]["window_s"] == pytest.approx(4 * 3 * 8)
    assert "all streams begin together and ask 3 times; means of 2 rounds" in (folder / "report.md").read_text()
    assert "not steady" not in done.output


async def test_no_prompt_is_sent_twice_to_whatever_is_behind_the_endpoints(tmp_path: Path) -> None:
    async with FakeGateway(FAST, FAST) as engine:
        ends = ("--endpoint", f"a={engine.url}", "--endpoint", f"b={engine.url}")
        assert (await run(*ends, *SHORT, "--out", str(tmp_path))).exit_code == 0
        prompts = [str(body["messages"]) for body in engine.bodies]
    # But each probe's, which is refused usage with every event and asks again without.
    assert len(prompts) - len(set(prompts)) == 2
    assert len(prompts) > 2 * 2 * 4


async def test_an_answer_that_is_not_the_work_asked_for_ends_the_tour(tmp_path: Path) -> None:
    async with FakeGateway(FAST, FAST) as good, FakeGateway(FAST, FAST, Faults(short_answer=5)) as bad:
        ends = ("--endpoint", f"good={good.url}", "--endpoint", f"bad={bad.url}")
        done = await run(*ends, *SHORT, "--out", str(tmp_path))
    assert done.exit_code == 3
    assert "Error: bad: UNEQUAL WORK" in done.output


async def test_a_tour_that_cannot_begin_names_the_endpoint_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with FakeGateway(FAST, FAST) as good, FakeGateway(FAST, FAST, Faults(error_answer=2)) as bad:
        ends = ("--endpoint", f"good={good.url}", "--endpoint", f"bad={bad.url}")
        done = await run(*ends, *SHORT, "--out", str(tmp_path))
    assert done.exit_code == 3
    assert "Error: bad: REQUEST FAILED" in done.output
    assert await asyncio.to_thread(lambda: list(tmp_path.iterdir())) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--endpoint", "a=http://x"), "two or more"),
        (("--endpoint", "a=http://x", "--endpoint", "a=http://y"), "each of a name of its own"),
        (("--endpoint", "a", "--endpoint", "b=http://y"), "a: expected NAME=URL"),
        (("--endpoint", "a=ftp://x", "--endpoint", "b=http://y"), "not an http or https URL"),
        (("--endpoint", "a=http://x", "--endpoint", "b=http://y", "--levels", "1,x"), "whole numbers"),
        (("--endpoint", "a=http://x", "--endpoint", "b=http://y", "--batch", "2", "--window", "3"), "no window"),
    ],
)
def test_bad_arguments_are_named(options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(main, ["--model", "toy", *options])
    assert done.exit_code == 2
    assert message in done.output
