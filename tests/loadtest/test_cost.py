"""What tokens cost: by hand, in every report, and not at all where nobody told the price or the GPUs."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome
from rich.console import Console

from loadtest.comparison import compare_runs
from loadtest.cost import EVERY, Cost, Price, complete, find_flaw, parse_gpus, show_gpus
from loadtest.folder import RunFolder
from loadtest.hardware import Hardware
from loadtest.plan import QUICK
from loadtest.report.compared import render_comparison
from loadtest.report.cost import describe_costs
from loadtest.report.html import render_html
from loadtest.report.markdown import render_markdown
from loadtest.report.spreadsheet import render_csv
from loadtest.report_cli import report
from loadtest.result import Result
from loadtest.screen import PlainScreen, draw_table
from loadtest.single import Figures, price
from loadtest.stats import Percentiles
from tests.loadtest.samples import SUBJECT, make_cells, make_pair, make_result

PAIR = Cost(gpus={"triton": 2, "vllm": 1}, price=Price(3.6, "EUR"))
CROSSING = {1: 1.2, 8: 1.1, 32: 1.05, 64: 0.9, 128: 0.6}


def make_priced(cost: Cost | None = PAIR, ratios: dict[int, float] = CROSSING) -> Result:
    result = make_result(ratios)
    return replace(result, plan=replace(result.plan, cost=cost))


def test_tokens_and_money_by_hand() -> None:
    """1,000 tokens a second are 3.6 million an hour; two GPUs halve them and double their price."""
    assert PAIR.find_tokens_per_gpu_hour("vllm", 1000) == pytest.approx(3.6e6)
    assert PAIR.find_per_million("vllm", 1000) == pytest.approx(1.0)
    assert PAIR.find_tokens_per_gpu_hour("triton", 1000) == pytest.approx(1.8e6)
    assert PAIR.find_per_million("triton", 1000) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("cost", "tokens", "money"),
    [
        (Cost(), None, None),
        (Cost(price=Price(2.0)), None, None),
        (Cost(gpus={"vllm": 2}, price=Price(2.0)), None, None),
        (Cost(gpus={"triton": 1}), 3600.0, None),
        (Cost(gpus={EVERY: 1}, price=Price(3.6)), 3600.0, 1000.0),
        (Cost(gpus={EVERY: 4, "triton": 1}, price=Price(3.6)), 3600.0, 1000.0),
    ],
    ids=["nothing", "price alone", "another's GPUs", "GPUs alone", "everybody's GPUs", "own GPUs first"],
)
def test_nothing_is_said_that_nobody_told(cost: Cost, tokens: float | None, money: float | None) -> None:
    assert cost.find_tokens_per_gpu_hour("triton", 1.0) == tokens
    assert cost.find_per_million("triton", 1.0) == (pytest.approx(money) if money else None)


def test_no_tokens_have_no_price() -> None:
    assert PAIR.find_per_million("vllm", 0.0) is None


@pytest.mark.parametrize(
    ("text", "price"),
    [("2.5", Price(2.5)), ("2.50 EUR", Price(2.5, "EUR")), (" 3$", Price(3.0, "$")), (".5€", Price(0.5, "€"))],
)
def test_a_price_has_a_currency_or_none(text: str, price: Price) -> None:
    assert Price.parse(text) == price
    assert Price.parse(str(price)) == price


@pytest.mark.parametrize("text", ["", "EUR", "0", "-1", "1e400", "nan", "2,5", "2 EUR an hour", "2 a|b"])
def test_what_is_no_price_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="an amount above 0"):
        Price.parse(text)


@pytest.mark.parametrize(("text", "gpus"), [("2", {EVERY: 2}), ("triton=2,vllm=4", {"triton": 2, "vllm": 4})])
def test_gpus_are_told_for_all_or_each(text: str, gpus: dict[str, int]) -> None:
    assert parse_gpus(text) == gpus
    assert show_gpus(gpus) == text


@pytest.mark.parametrize("text", ["", "0", "triton", "triton=", "triton=-1", "triton=1,triton=2", "1.5"])
def test_what_is_no_number_of_gpus_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers above 0"):
        parse_gpus(text)


def test_gpus_of_the_hardware_are_known_where_they_were_declared() -> None:
    hardware = {"triton": Hardware(gpus=2), "vllm": Hardware(engine={"precision": "fp8"})}
    assert complete(Cost(price=Price(1.0)), hardware) == Cost(gpus={"triton": 2}, price=Price(1.0))
    assert complete(Cost(gpus={EVERY: 2}), hardware).gpus == {EVERY: 2}
    assert complete(None, None) == Cost()


@pytest.mark.parametrize(
    ("cost", "flaw"),
    [
        (Cost(gpus={EVERY: 2}), None),
        (Cost(gpus={"vllm": 4}), None),
        (Cost(gpus={"sglang": 4}), "sglang was told, and the backends are triton and vllm"),
        (Cost(gpus={EVERY: 4}), "triton has 4, and --hardware declares 2"),
    ],
)
def test_gpus_that_cannot_be_are_told(cost: Cost, flaw: str | None) -> None:
    assert find_flaw(cost, {"triton": Hardware(gpus=2)}, ("triton", "vllm")) == flaw


def test_both_reports_and_the_spreadsheet_tell_costs() -> None:
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
    text, page = render_markdown(make_priced(None)), render_html(make_priced(None))
    assert "GPU-h" not in text + page
    assert "per 1M" not in text + page
    assert describe_costs(make_priced(None)) == []
    row = next(csv.DictReader(io.StringIO(render_csv(make_priced(None).cells))))
    assert (row["gpu_count"], row["tokens_per_gpu_hour"], row["cost_per_million_tokens"]) == ("", "", "")


def test_gpus_without_a_price_have_tokens_and_no_money() -> None:
    text = render_markdown(make_priced(Cost(gpus={"vllm": 2})))
    assert "| tok/s | requests | M tok/GPU-h | TTFT" in text
    assert "| 1 | triton | 120.0 | 50 | n/a |" in text
    assert "**cost**: vllm on 2 GPUs: at best 23 million tokens per GPU-hour, at 128 in flight" in text
    assert "**cost**: triton" not in text


def test_the_screens_tell_money_while_it_is_measured() -> None:
    file = io.StringIO()
    screen = PlainScreen(Console(file=file, width=200))
    screen.begin(SUBJECT, replace(QUICK, cost=PAIR), Path("runs/x"), 75.0)
    screen.measured(make_pair(8, ratio=1.25, number=0))
    assert "EUR per 1M tok  triton/vllm" in file.getvalue()
    assert "1.25  1.250" in file.getvalue()  # 800 tokens a second of vllm's GPU
    console = Console(file=io.StringIO(), width=200)
    console.print(draw_table(make_cells({1: 1.2}), SUBJECT, "title", PAIR))
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert "vllm EUR per 1M tok" in shown
    assert {"10.00", "16.67"} <= set(shown.split())


def test_a_comparison_tells_what_another_number_of_gpus_makes_of_the_same_speed() -> None:
    a, b = make_priced(), make_priced(replace(PAIR, gpus={"triton": 4, "vllm": 1}))
    rows = {(row.metric, row.backend, row.level): row for row in compare_runs(a, replace(b, run="b")).rows}
    speed = rows["throughput_tok_s", "triton", 8]
    tokens, money = rows["tokens_per_gpu_hour", "triton", 8], rows["cost_per_million_tokens", "triton", 8]
    assert [speed.ratio, tokens.ratio, money.ratio] == pytest.approx([1.0, 0.5, 2.0])
    assert speed.ends is not None
    assert tokens.ends == pytest.approx((speed.ends[0] / 2, speed.ends[1] / 2))
    assert money.ends == pytest.approx((2 / speed.ends[1], 2 / speed.ends[0]))
    assert money.differs
    text = render_comparison(compare_runs(a, replace(b, run="b")))
    assert "Tokens per GPU-hour, millions" in text
    assert any("triton" in line and "2.000" in line and line.endswith("more in B") for line in text.splitlines())


def test_money_in_two_currencies_is_not_compared() -> None:
    b = make_priced(replace(PAIR, price=Price(3.6, "USD")))
    metrics = {row.metric for row in compare_runs(make_priced(), b).rows}
    assert "tokens_per_gpu_hour" in metrics
    assert "cost_per_million_tokens" not in metrics


def test_figures_of_one_workload_are_priced() -> None:
    times = Percentiles(50, 0.02, 0.03)
    figures = Figures(50, 10.0, 1000.0, 5.0, 8.0, times, times, times)
    priced = price(figures, Cost(gpus={EVERY: 2}, price=Price(3.6)), "")
    assert priced.tokens_per_gpu_hour == pytest.approx(1.8e6)
    assert priced.cost_per_million_tokens == pytest.approx(2.0)


def tell(*arguments: str | Path) -> Outcome:
    return CliRunner().invoke(report, list(map(str, arguments)))


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path)
    folder.write(make_priced(None))
    return folder


def test_a_run_is_priced_afterwards(run: RunFolder) -> None:
    outcome = tell(run.path, "--gpu-price", "3.6 EUR", "--gpu-count", "triton=2,vllm=1")
    assert outcome.exit_code == 0, outcome.output
    assert "cost       vllm on 1 GPU: at best 46.1 million" in outcome.stdout
    assert "EUR per 1M tok" in (run.path / "report.md").read_text()
    assert "--gpu-price '3.6 EUR' --gpu-count triton=2,vllm=1" in (run.path / "report.md").read_text()


def test_a_run_keeps_the_costs_it_was_measured_with(run: RunFolder) -> None:
    run.write(make_priced())
    assert run.read_result().plan.cost == PAIR
    assert "EUR per million tokens" in tell(run.path).stdout
    outcome = tell(run.path, "--gpu-price", "7.2 USD")
    assert "vllm on 1 GPU: at best 46.1 million tokens per GPU-hour, 0.156 USD per" in outcome.stdout


def test_two_runs_are_compared_at_a_price(run: RunFolder) -> None:
    outcome = tell(run.path, run.path, "--gpu-price", "1", "--gpu-count", "2", "--json")
    assert "cost_per_million_tokens" in {row["metric"] for row in json.loads(outcome.stdout)["figures"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu-price", "2"), "how many GPUs it is for is told by --gpu-count"),
        (("--gpu-price", "two", "--gpu-count", "1"), "two: an amount above 0"),
        (("--gpu-count", "none"), "none: whole numbers above 0"),
        (("--gpu-count", "sglang=2"), "--gpu-count: sglang was told, and the backends are triton and vllm"),
    ],
)
def test_costs_that_cannot_be_told_are_refused(run: RunFolder, arguments: tuple[str, ...], message: str) -> None:
    outcome = tell(run.path, *arguments)
    assert outcome.exit_code == 2
    assert message in " ".join(outcome.stderr.split())


def test_published_sweeps_have_no_costs(run: RunFolder) -> None:
    outcome = tell("--import", run.path / "result.json", "--low", "a", "--high", "b", "--gpu-count", "2")
    assert outcome.exit_code == 2
    assert "no costs go with it" in " ".join(outcome.stderr.split())
