"""Published sweeps: crossings as computed elsewhere, and the faults of the sweeps."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadtest.report.published import METRICS, compare, render
from loadtest.report.published_sweeps import find_faults, parse

DATA = Path(__file__).parent / "data"
SWEEPS = parse((DATA / "published.json").read_bytes())
EXPECTED: list[dict[str, Any]] = json.loads((DATA / "published_crossings.json").read_bytes())  # Any: JSON
FP8 = ("trtllm_llama31_fp8", "vllm_llama31_fp8")


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda each: f"{each['low']}-{each['metric']}")
def test_ratios_and_crossings_are_those_computed_elsewhere(expected: dict[str, Any]) -> None:
    found = compare(SWEEPS[expected["low"]], SWEEPS[expected["high"]])
    comparison = next(each for each in found if each.metric.name == expected["metric"])
    # What was published is rounded, and what is derived from it there was rounded again.
    assert comparison.ratios == pytest.approx({int(c): ratio for c, ratio in expected["ratios"].items()}, abs=0.003)
    crossings = [(crossing.between, crossing.low_first) for crossing in comparison.crossings]
    assert crossings == [(tuple(between), low_first) for _, between, low_first in expected["crossings"]]
    places = [crossing.at for crossing in comparison.crossings]
    assert places == pytest.approx([at for at, _, _ in expected["crossings"]], abs=0.1)


def test_every_metric_is_compared_with_what_was_computed_elsewhere() -> None:
    assert {each["metric"] for each in EXPECTED} == {metric.name for metric in METRICS}
    assert len({(each["low"], each["high"]) for each in EXPECTED}) == 7


@pytest.mark.parametrize(
    ("low", "high", "metric", "credible"),
    [
        (*FP8, "throughput_tok_s", [True]),
        (*FP8, "itl_p50_ms", [True]),
        ("trtllm_llama31", "vllm_llama31", "throughput_tok_s", [False]),
        ("trtllm_llama31", "vllm_llama31", "itl_p99_ms", [False, False]),
        ("trtllm_triton_bf16", "vllm_llama31", "ttft_p50_s", [False, True]),
        ("trtllm_qwen25_32b", "vllm_qwen25_32b", "throughput_tok_s", [False]),
    ],
)
def test_crossings_that_single_runs_may_have_made_are_doubted(
    low: str, high: str, metric: str, credible: list[bool]
) -> None:
    comparison = next(each for each in compare(SWEEPS[low], SWEEPS[high]) if each.metric.name == metric)
    assert [crossing.doubt is None for crossing in comparison.crossings] == credible


@pytest.mark.parametrize(
    ("tag", "colds"), [("vllm_llama31_fp8", 1), ("vllm_llama31", 1), ("vllm_qwen25_32b", 1), ("trtllm_llama31_fp8", 0)]
)
def test_a_cold_first_request_is_found(tag: str, colds: int) -> None:
    faults = [fault for fault in find_faults(SWEEPS[tag]) if "a cold first request" in fault]
    assert [fault.startswith(f"NOT STEADY: {tag} c=1: ") for fault in faults] == [True] * colds


def test_unequal_work_and_percentiles_of_few_samples_are_found() -> None:
    faults = list(find_faults(SWEEPS["vllm_llama31_fp8"]))
    assert any(fault.startswith("UNEQUAL WORK: vllm_llama31_fp8 c=128 returned 255.6 of 256") for fault in faults)
    assert any(fault.startswith("p90 and p99 n/a: vllm_llama31_fp8 c=1 has 8 requests") for fault in faults)
    assert not any("n/a" in fault and "c=128" in fault for fault in faults)


def test_the_comparison_is_a_table_with_doubts_and_faults() -> None:
    text = render(SWEEPS[FP8[0]], SWEEPS[FP8[1]])
    assert "| throughput_tok_s | 1.249 | 1.055 | 1.032 | 1.051 | 0.901 | 0.606 | 40.0 (low to high) |" in text
    assert "none: high is better at every level" in text
    assert "a cold first request" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wall_s": "long"}, "vllm, 0, wall_s: Input should be a valid number"),
        ({"requests": None}, "vllm, 0, requests: Input should be a valid integer"),
        ({"concurrency": 3}, "trt and vllm have no concurrency in common"),
    ],
)
def test_a_file_that_is_wrong_names_the_field(change: dict[str, object], message: str) -> None:
    row = orjson.loads((DATA / "published.json").read_bytes())[FP8[0]][0]

    def compare_with_itself() -> None:
        sweeps = parse(orjson.dumps({"trt": [row], "vllm": [row | change]}))
        compare(sweeps["trt"], sweeps["vllm"])

    with pytest.raises(ValueError, match=message):
        compare_with_itself()
