"""result.json: its documented keys, and the same result read back from it."""

from collections.abc import Mapping
from dataclasses import replace

import orjson
import pytest

from engines.physics import EngineModel
from loadtest.decide.closed_load import Load
from loadtest.decide.crossing import Finding, Verdict
from loadtest.decide.engine_fit import Interval, Measured
from loadtest.decide.paired import Ratio
from loadtest.decide.regret import Regret
from loadtest.decide.slo import Slo
from loadtest.results.comparison import compare_runs
from loadtest.results.hardware import Hardware
from loadtest.results.node import NodeModel, OpenCell
from loadtest.results.plan import FULL
from loadtest.results.result import Result, find_change, parse_result
from tests.loadtest.samples import CROSSING, make_result

ENGINE = EngineModel(((1, 10.0), (8, 12.0)), prompt_ms=10.0)
INTERVALS: Mapping[str, Mapping[str, Interval] | Interval] = {
    "low": {"prompt_ms": (9.0, 11.0), "context_ms": (0.01, 0.1)},
    "interference": (0.8, 1.0),
}
GPU = Hardware(weights_gb=8.0, bandwidth_gb_s=3350.0)


def encode(result: Result, **changes: object) -> bytes:
    return orjson.dumps(result.to_json() | changes)


@pytest.mark.parametrize("ratios", [CROSSING, {1: 1.2, 2: 0.8, 4: 1.2}, {1: 1.2, 2: 1.1}, {}])
def test_what_was_written_is_read(ratios: Mapping[int, float]) -> None:
    written = encode(make_result(ratios))
    assert encode(parse_result(written)) == written


def test_a_run_with_everything_that_may_be_set_is_read() -> None:
    result = make_result(CROSSING)
    result = replace(
        result,
        status="failed",
        failure="the gateway went away",
        applied={"version": 7, "up": 47},
        plan=replace(FULL, slo=Slo(ttft_s=0.5), budget_s=99.0, widest=None, hardware={"vllm": GPU}),
        rehearsed={"live": Regret(Ratio(1.1), Ratio(1.02, 1.01, 1.03), 0.5, 0.9)},
        system=replace(result.system, engines={"vllm": {"engine": "vllm", "tp": 2}}),
    )
    read = parse_result(encode(result))
    assert (read.plan, read.system, read.cells) == (result.plan, result.system, list(result.cells))
    assert (read.status, read.failure, read.applied) == (result.status, result.failure, result.applied)
    assert read.rehearsed == result.rehearsed


def test_a_node_is_measured_at_the_crossing_of_whole_answers_where_throughput_has_none() -> None:
    findings, unknown = make_result(CROSSING).findings, Finding(Verdict.UNDECIDED)
    assert find_change(findings) == findings["throughput"].change is not None
    assert find_change({**findings, "throughput": unknown}) == findings["e2e_p50"].change is not None
    rest = {**findings, "throughput": unknown, "e2e_p50": unknown}
    assert find_change(rest) == findings["tpot_p50"].change is not None
    assert find_change({**rest, "tpot_p50": unknown}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "it is no result of a calibration"),
        (b"[]", "it is no result of a calibration"),
        (b'{"run": "a"}', "it is no result of a calibration"),
        (encode(make_result({}), schema="crossover.calibration/9"), "its schema is crossover.calibration/9, this"),
        (encode(make_result({}), cells=[{"backend": "triton"}]), "cells, 0, level: Field required"),
        (encode(make_result({}), duration_s="long"), "duration_s: Input should be a valid number"),
    ],
)
def test_what_is_no_result_is_refused_with_its_reason(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_result(text)


def test_a_node_model_and_its_cells_are_read() -> None:
    node = NodeModel(
        ENGINE, ENGINE, 0.9, 0.02, 80, 128, 0.1, 0.2, {"low": {"prompt_ms": (9.0, 11.0)}, "interference": (0.8, 1.0)}
    )
    cells = {"triton": (Measured(Load(64, 128, 8), 20.0, 800.0), Measured(Load(64, 2, 1), 20.0))}
    result = replace(
        make_result(CROSSING), node=node, node_cells=cells, open_loop=(OpenCell("vllm", 1.0, 2.0, 2.0, 2.1),)
    )
    read = parse_result(encode(result))
    assert (read.node, read.open_loop) == (node, list(result.open_loop))
    assert {name: tuple(own) for name, own in read.node_cells.items()} == cells


def test_a_node_model_of_an_earlier_version_is_noted_and_left_out() -> None:
    engine = {"steps_ms": [[1, 3.5]], "prefill_tokens_per_s": 65000.0, "max_in_flight": 160}
    node = {"low": engine, "high": engine, "interference": 1.0, "prompt_tokens": 9, "answer_tokens": 9, "move_s": 0.1}
    document = orjson.loads(encode(make_result(CROSSING))) | {"node": node, "open_loop": [{"step_ms": 3.0}]}
    read = parse_result(orjson.dumps(document))
    assert (read.node, read.open_loop) == (None, [])
    assert "earlier version" in read.checks[-1].message


def test_numbers_of_two_node_models_that_surely_differ_are_noted() -> None:
    a = replace(make_result(CROSSING), node=NodeModel(ENGINE, ENGINE, 0.9, 0.02, 80, 128, intervals=INTERVALS))
    moved: Mapping[str, Mapping[str, Interval] | Interval] = {
        "low": {"prompt_ms": (12.0, 14.0), "context_ms": (0.01, 0.1)},
        "interference": (0.8, 1.0),
    }
    b = replace(a, node=NodeModel(ENGINE, ENGINE, 0.9, 0.02, 80, 128, intervals=moved))
    notes = [note for note in compare_runs(a, b).notes if note.startswith("node model")]
    assert notes == ["node model: triton prompt_ms is 9 to 11 in A, 12 to 14 in B (95 %, each by itself)"]
    assert not [note for note in compare_runs(a, replace(b, node=None)).notes if note.startswith("node model")]


def test_result_json_has_the_documented_keys() -> None:
    result = orjson.loads(encode(make_result(CROSSING)))
    assert result["schema"] == "crossover.calibration/1"
    assert result["threshold"] == {"objective": "throughput", "up": 47, "down": 33}
    found = result["crossover"]["throughput"]
    (low, high), point = found["set"][0], found["point"]
    assert low < point < high
    assert (found["verdict"], found["set_is"]) == ("crossing", "95 % confidence")
    assert result["crossover"]["ttft_p99"]["verdict"] == "undecided"  # no cell had samples enough
    assert set(result["crossover"]) == {"throughput", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50"}
    assert len(result["cells"]) == 4 * len(CROSSING)
    assert {"low", "high", "model", "gateway", "engines", "client", "policy"} <= set(result["fingerprint"])
