"""Two runs compared: which figures differ by more than chance, and what was measured otherwise."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from loadtest.decide.cost import Cost, Price
from loadtest.decide.slo import Slo
from loadtest.results.cell import Cell
from loadtest.results.comparison import Difference, Row, compare_runs
from loadtest.results.percentiles import Percentiles
from loadtest.results.result import Result
from tests.loadtest.samples import CELL, CROSSING, make_result

PRICED = Cost(gpus={"triton": 2, "vllm": 1}, price=Price(3.6, "EUR"))


def make_run(ratios: Mapping[int, float], name: str = "b", scatter: float = 0.001) -> Result:
    result = make_result(ratios, scatter=scatter)
    engines = {"triton": {"version": "2.51"}, "vllm": {"version": "0.24.0"}}
    return replace(result, run=name, system=replace(result.system, engines=engines))


def upgrade(result: Result, **changes: str | int) -> Result:
    engines = {**result.system.engines, "vllm": {**result.system.engines["vllm"], **changes}}
    return replace(result, system=replace(result.system, engines=engines))


def rows_of(a: Result, b: Result, metric: str, backend: str) -> dict[int | None, Row]:
    return {row.level: row for row in compare_runs(a, b).rows if (row.metric, row.backend) == (metric, backend)}


# Figures


def test_equal_runs_differ_by_chance_alone() -> None:
    comparison = compare_runs(make_run(CROSSING, "a"), make_run(CROSSING))
    assert comparison.differences == []
    assert [row.ratio for row in comparison.rows] == pytest.approx([1.0] * len(comparison.rows))
    assert {row.differs for row in comparison.rows} == {False}
    assert {row.metric for row in comparison.rows} == {
        "throughput_tok_s", "ttft_p50_s", "tpot_p50_s", "throughput_low_over_high"
    }  # fmt: skip


def test_a_backend_that_became_slower_differs_and_the_other_does_not() -> None:
    a, b = make_run(CROSSING, "a"), make_run({level: ratio * 0.9 for level, ratio in CROSSING.items()})
    slower, same = rows_of(a, b, "throughput_tok_s", "triton"), rows_of(a, b, "throughput_tok_s", "vllm")
    assert {row.differs for row in slower.values()} == {True}
    assert [row.ratio for row in slower.values()] == pytest.approx([0.9] * 6)
    assert {row.differs for row in same.values()} == {False}
    assert {row.differs for row in rows_of(a, b, "throughput_low_over_high", "triton/vllm").values()} == {True}


# Of vLLM in two runs of a demo: levels scatter from a hundred-thousandth to a twelfth, and 45 was measured once a run.
TIMES = (
    {1: (0.047739, 0.047690), 8: (0.049297, 0.049296), 32: (0.053289, 0.053287), 64: (0.058993, 0.058970),
     128: (0.066676, 0.072270), 45: (0.056111,)},
    {1: (0.047651, 0.047814), 8: (0.049308, 0.049308), 32: (0.053289, 0.053295), 64: (0.058978, 0.059027),
     128: (0.071513, 0.073999), 45: (0.056063,)},
)  # fmt: skip


def test_an_interval_of_next_to_no_degrees_of_freedom_is_a_number() -> None:
    runs = []
    for name, by_level in zip("ab", TIMES, strict=True):
        drawn = [(level, time_s) for level, times in by_level.items() for time_s in times]
        cells = [
            replace(CELL, backend="vllm", level=level, pair=pair, tpot_s=Percentiles(50, time_s))
            for pair, (level, time_s) in enumerate(drawn)
        ]
        runs.append(replace(make_run(CROSSING, name), cells=cells))
    low, high = rows_of(runs[0], runs[1], "tpot_p50_s", "vllm")[None].ends or (0, 0)
    assert 0 < low < 1e-40
    assert 1e40 < high < math.inf


def make_noisy_run(chance: random.Random, repeats: int) -> Result:
    """Engines that are always the same; every cell has its own noise."""

    def draw(backend: str, level: int, pair: int) -> Cell:
        times = Percentiles(50, 0.02 * math.exp(chance.gauss(0, 0.09)))
        tpot = Percentiles(50, 0.01 * math.exp(chance.gauss(0, 0.01)))
        rate = 100.0 * level * math.exp(chance.gauss(0, 0.02))
        return replace(CELL, backend=backend, level=level, pair=pair, throughput=rate, ttft_s=times, tpot_s=tpot)

    places = enumerate((level, repeat) for repeat in range(repeats) for level in (1, 2, 4, 8, 16, 32, 64, 128))
    drawn = ((("triton", "vllm")[:: (-1) ** (pair + repeat)], level, pair) for pair, (level, repeat) in places)
    return replace(make_result({}), cells=[draw(name, level, pair) for order, level, pair in drawn for name in order])


@pytest.mark.parametrize("repeats", [2, 3])
def test_of_comparisons_of_equal_runs_no_more_err_than_promised(repeats: int) -> None:
    """200 of 63 figures each: 5 in a hundred, with three standard errors."""
    chance = random.Random(0)
    found = [compare_runs(make_noisy_run(chance, repeats), make_noisy_run(chance, repeats)) for _ in range(200)]
    wrong = sum(any(row.differs for row in comparison.rows) for comparison in found)
    assert {len(comparison.rows) for comparison in found} == {63}
    assert wrong / len(found) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(found))


# What was measured


def test_another_engine_is_named() -> None:
    a = make_run(CROSSING, "a")
    assert compare_runs(a, upgrade(a, version="0.25.0", tp=2)).differences == [
        Difference("engines.vllm.version", "0.24.0", "0.25.0"),
        Difference("engines.vllm.tp", None, 2),
    ]


def test_seed_and_chance_in_prompts_are_no_difference_and_the_plan_is() -> None:
    a = make_run(CROSSING, "a")
    b = replace(a, plan=replace(a.plan, seed=9, slo=Slo(ttft_s=0.5), window_s=3.0))
    b = replace(b, cells=[replace(cell, prompt_tokens=20.1) for cell in b.cells])
    assert {each.name for each in compare_runs(a, b).differences} == {"plan.window_s", "plan.slo.ttft_s"}
    b = replace(a, cells=[replace(cell, prompt_tokens=40.0) for cell in b.cells])
    assert [each.name for each in compare_runs(a, b).differences] == ["shape.prompt_tokens"]


def test_answers_of_another_length_are_unequal_work() -> None:
    a = make_run(CROSSING, "a")
    notes = compare_runs(a, replace(a, run="b", plan=replace(a.plan, tokens=64))).notes
    assert any(note.startswith("UNEQUAL WORK: answers of 128 tokens in A, of 64 in B") for note in notes)


def test_backends_of_other_names_are_named_and_not_compared() -> None:
    a = make_run(CROSSING, "a")
    cells = [replace(cell, backend={"triton": "sglang"}.get(cell.backend, cell.backend)) for cell in a.cells]
    b = replace(a, run="b", cells=cells, system=replace(a.system, low="sglang"))
    comparison = compare_runs(a, b)
    assert {row.backend for row in comparison.rows} == {"vllm"}
    assert {"Only A measured triton.", "Only B measured sglang."} <= set(comparison.notes)


# Costs


def test_costs_are_compared_with_the_intervals_of_the_throughputs() -> None:
    a = make_run(CROSSING, "a")
    a = replace(a, plan=replace(a.plan, cost=PRICED))
    b = replace(a, run="b", plan=replace(a.plan, cost=replace(PRICED, gpus={"triton": 4, "vllm": 1})))
    rows = {(row.metric, row.backend, row.level): row for row in compare_runs(a, b).rows}
    speed = rows["throughput_tok_s", "triton", 8]
    tokens, money = rows["tokens_per_gpu_hour", "triton", 8], rows["cost_per_million_tokens", "triton", 8]
    assert [speed.ratio, tokens.ratio, money.ratio] == pytest.approx([1.0, 0.5, 2.0])
    low, high = speed.ends or (0, 0)
    assert tokens.ends == pytest.approx((low / 2, high / 2))
    assert money.ends == pytest.approx((2 / high, 2 / low))
    assert money.differs


def test_money_in_two_currencies_is_not_compared() -> None:
    a, b = (
        replace(run, plan=replace(run.plan, cost=replace(PRICED, price=Price(3.6, currency))))
        for run, currency in ((make_run(CROSSING, "a"), "EUR"), (make_run(CROSSING), "USD"))
    )
    metrics = {row.metric for row in compare_runs(a, b).rows}
    assert "tokens_per_gpu_hour" in metrics
    assert "cost_per_million_tokens" not in metrics
