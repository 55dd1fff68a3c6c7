"""Live routing on embedded pairs: what is served, how it is judged, and the command itself."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.embedded import Pace
from deploy.lab.live.__main__ import SLOW_MOTION
from deploy.lab.live.report import Row, find_doubts, judge, make_rows
from deploy.lab.live.scenario import ANSWER_TOKENS, PAIRS, PROMPT_TOKENS, name_traces
from deploy.ports import find_free
from engines.reference.pairs import RECITED_CONTEXT
from loadtest.rehearsal.find_trace import find_trace
from loadtest.rehearsal.traces import Pair

TEMPLATE_TOKENS = 100


def make_row(trace: str, over_best: float, arm: str = "curve", predicted_s: float = 1.0) -> Row:
    return Row(trace, arm, 2, 1.0, 2.0, over_best, (0.9, 1.1), predicted_s, 1.0, 0.0, 0, 0)


@pytest.mark.parametrize("pair", PAIRS)
def test_traces_are_as_long_as_asked_and_their_requests_fit(pair: str) -> None:
    known = Pair.of(Pace(1, ANSWER_TOKENS, pair).describe_node(is_shared=True), PROMPT_TOKENS, ANSWER_TOKENS)
    traces = [find_trace(text, known, 1) for text in name_traces(pair, 40.0).values()]
    assert [trace[-1].at for trace in traces] == pytest.approx([40.0] * 4, rel=0.05)
    longest = max(each.prompt_tokens + each.tokens for trace in traces for each in trace)
    assert longest <= RECITED_CONTEXT - TEMPLATE_TOKENS


def test_a_process_in_slow_motion_has_slow_clocks_and_long_pauses() -> None:
    script = """
import asyncio, time
began = time.monotonic(), time.perf_counter(), time.time()
asyncio.run(asyncio.sleep(0.1))
print(time.monotonic() - began[0], time.perf_counter() - began[1], time.time() - began[2])
"""
    environment = {"PYTHONPATH": str(SLOW_MOTION), "SLOW_MOTION": "5"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    monotonic_s, counted_s, real_s = map(float, done.stdout.split())
    assert real_s == pytest.approx(5 * monotonic_s, rel=0.05)
    assert real_s == pytest.approx(5 * counted_s, rel=0.05)
    assert real_s >= 0.5


@pytest.mark.parametrize(
    ("over_best", "is_worse"), [((1.0, 1.04), False), ((1.0, 1.06), True), ((1.03, 1.03), True), ((0.9, 0.95), False)]
)
def test_routing_may_cost_two_percent_in_the_mean_and_five_on_a_trace(
    over_best: tuple[float, float], is_worse: bool
) -> None:
    rows = [make_row(f"trace {value}", value) for value in over_best] + [make_row("chat", 3.0, "low alone")]
    assert judge(rows)[1] == is_worse


def test_an_engine_alone_that_is_not_as_fast_as_predicted_is_named() -> None:
    rows = [
        make_row("chat", 1.0, arm, predicted_s)
        for arm, predicted_s in (("low alone", 0.99), ("high alone", 0.8), ("curve", 0.5))
    ]
    (doubt,) = find_doubts(rows)
    assert doubt == "chat, high alone: mean +25.0% off its prediction; the machine did not hold the pace"


def test_a_row_has_what_was_served_beside_the_simulation() -> None:
    ratio = {"value": 1.01, "low": 0.99, "high": 1.03}
    outcome = {"trace": "bursts length=9", "arm": "vllm alone", "repeats": 2, "regret": {"over_best": ratio}}
    outcome |= {"lag_share": 0.001, "switches": 0.0, "moves": 0.0}
    servings: list[Mapping[str, Any]] = [
        {"trace": "bursts length=9", "arm": arm, "e2e_s": times}
        for arm, times in (("vllm alone", [1.0] * 10), ("vllm alone", [2.0] * 10), ("curve", [1.0] * 10))
    ]
    simulated = [{"policy": "low alone", "mean_s": 1.0, "over_best": 1.0}]
    simulated += [{"policy": "high alone", "mean_s": 1.65, "over_best": 1.02}]
    (row,) = make_rows({"bursts length=9": "bursts"}, [outcome], servings, {"bursts length=9": simulated})
    assert (row.trace, row.arm, row.mean_s, row.p95_s, row.predicted_s) == ("bursts", "high alone", 1.5, 2.0, 1.65)
    assert row.show()[5:8] == ("1.010 (0.990-1.030)", "1.020", "1.100")


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_pair_is_served_in_each_way_and_a_second_call_serves_nothing_again(tmp_path: Path) -> None:
    (port,) = find_free(1)
    options = ("spec-plain", "--trace", "chat", "--seconds", "2", "--time-scale", "2", "--rounds", "1")
    command = (sys.executable, "-m", "deploy.lab.live", *options, "--port", str(port), "--out", str(tmp_path))
    once, again = (subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2))
    assert once.returncode in {0, 1}, once.stderr
    assert "routed over the better engine alone: " in once.stdout
    assert once.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]
    served = {file: json.loads(file.read_text()) for file in (tmp_path / "rehearsal").glob("azure*.json")}
    assert {each["arm"] for each in served.values()} == {"triton alone", "vllm alone", "curve"}
