"""Costs in every report, and not at all where the price or the GPUs are not known."""

import csv
import io
from dataclasses import replace

import pytest

from loadtest.decide.cost import Cost, Price
from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.report.spreadsheet import render_csv
from loadtest.report.text import describe_costs
from loadtest.results.result import Result
from tests.loadtest.samples import CROSSING, make_result

PAIR = Cost(gpus={"triton": 2, "vllm": 1}, price=Price(3.6, "EUR"))


def make_priced(cost: Cost | None = PAIR) -> Result:
    result = make_result(CROSSING)
    return replace(result, plan=replace(result.plan, cost=cost))


def test_both_reports_and_the_spreadsheet_show_costs() -> None:
    result = make_priced()
    text, page = render_markdown(result), render_html(result)
    assert "| tok/s | requests | M tok/GPU-h | EUR per 1M tok |" in text
    sentence = (
        "vllm on 1 GPU: at best 46.1 million tokens per GPU-hour, 0.0781 EUR per million tokens, at 128 in flight"
    )
    assert f"- **cost**: {sentence}" in text
    assert sentence in page
    assert "<th>EUR per 1M tok</th>" in page
    first = next(csv.DictReader(io.StringIO(render_csv(result.cells, result.plan.known_cost))))
    rate = float(first["throughput_tok_s"])
    assert (first["backend"], first["gpu_count"]) == ("triton", "2")
    assert float(first["tokens_per_gpu_hour"]) == pytest.approx(rate * 1800)
    assert float(first["cost_per_million_tokens"]) == pytest.approx(3.6e6 / (rate * 1800))


def test_reports_without_costs_have_no_columns_for_them() -> None:
    result = make_priced(None)
    text = render_markdown(result) + render_html(result)
    assert ("GPU-h" in text, "per 1M" in text, describe_costs(result)) == (False, False, [])
    row = next(csv.DictReader(io.StringIO(render_csv(result.cells))))
    assert (row["gpu_count"], row["tokens_per_gpu_hour"], row["cost_per_million_tokens"]) == ("", "", "")


def test_gpus_without_a_price_have_tokens_and_no_money() -> None:
    text = render_markdown(make_priced(Cost(gpus={"vllm": 2})))
    assert "| tok/s | requests | M tok/GPU-h | TTFT" in text
    assert "| 1 | triton | 120.0 | 50 | n/a |" in text
    assert "**cost**: vllm on 2 GPUs: at best 23 million tokens per GPU-hour, at 128 in flight" in text
    assert "**cost**: triton" not in text
