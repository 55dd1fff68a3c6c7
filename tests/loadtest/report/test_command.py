"""`crossover report` on run folders: one run's reports again, two runs compared, what cannot be reported."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadtest.report.command import write_reports
from loadtest.report_cli import report
from loadtest.results.folder import RunFolder
from loadtest.results.result import Result
from tests.loadtest.report.test_costs import PAIR
from tests.loadtest.results.test_comparison import make_run, upgrade
from tests.loadtest.samples import CROSSING

LATER = {1: 1.3, 8: 1.25, 32: 1.2, 64: 1.1, 128: 0.6}
NO_RUN = "is not the folder of a run: it has no result.json"
PUBLISHED = str(Path(__file__).parent / "data" / "published.json")


def break_off(result: Result, cells: int) -> Result:
    failure = "MISROUTED: a request went astray."
    return replace(result, status="untrusted", failure=failure, cells=result.cells[:cells], findings={}, threshold=None)


def write(path: Path, result: Result) -> Path:
    path.mkdir()
    RunFolder(path).write_result(result)
    write_reports(path, result)
    return path


def invoke(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(report, list(map(str, arguments)))
    return done.exit_code, done.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write(tmp_path / "a", make_run(CROSSING, "a"))


def test_one_run_is_reported_again(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for name in ("report.html", "report.md", "cells.csv"):
        (run / name).unlink()
    code, text = invoke(run)
    assert code == 0, text
    assert f"report     {run / 'report.html'}" in text
    assert "crossing   triton is better below 39.9 in flight" in text
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_is_priced_afterwards_and_keeps_the_costs_it_was_measured_with(tmp_path: Path, run: Path) -> None:
    code, text = invoke(run, "--gpu-price", "3.6 EUR", "--gpu-count", "triton=2,vllm=1")
    assert code == 0, text
    assert "cost       vllm on 1 GPU: at best 46.1 million" in text
    assert "EUR per 1M tok" in (run / "report.md").read_text()
    assert "--gpu-price '3.6 EUR' --gpu-count triton=2,vllm=1" in (run / "report.md").read_text()
    result = make_run(CROSSING)
    priced = write(tmp_path / "b", replace(result, plan=replace(result.plan, cost=PAIR)))
    assert "EUR per million tokens" in invoke(priced)[1]
    assert "at best 46.1 million tokens per GPU-hour, 0.156 USD per" in invoke(priced, "--gpu-price", "7.2 USD")[1]


def test_two_runs_are_compared_for_people(tmp_path: Path, run: Path) -> None:
    b = write(tmp_path / "b", upgrade(make_run(LATER), version="0.25.0"))
    code, text = invoke(run, b / "result.json", "--gpu-count", "2")
    assert code == 0, text
    costs = text.partition("Tokens per GPU-hour, millions")[2].splitlines()
    assert any(line.split()[1:2] == ["triton"] and line.endswith("more in B") for line in costs)
    assert "engines.vllm.version  0.24.0 -> 0.25.0" in text
    (row,) = [line for line in text.splitlines() if line.split()[:2] == ["64", "triton"]][:1]
    assert row.endswith("B is faster")
    assert "the sets do not overlap: the crossing has moved" in text
    assert "A  up 47, down 33" in text
    assert "B  up " in text


def test_two_runs_are_compared_for_programs(tmp_path: Path, run: Path) -> None:
    code, text = invoke(run, write(tmp_path / "b", make_run(LATER)), "--json", "--gpu-price", "1", "--gpu-count", "2")
    assert code == 0, text
    found: Any = json.loads(text)  # Any: JSON, read key by key
    assert found["schema"] == "crossover.comparison/1"
    assert (found["a"]["run"], found["b"]["run"]) == ("a", "b")
    assert found["a"]["threshold"] == {"up": 47, "down": 33}
    crossing = found["crossover"]["throughput"]
    assert crossing["sets_overlap"] is False
    assert crossing["a"]["point"] < crossing["b"]["point"]
    row = next(each for each in found["figures"] if (each["backend"], each["level"]) == ("triton", 64))
    assert (row["metric"], row["differs"]) == ("throughput_tok_s", True)
    assert row["ratio"] == pytest.approx(row["b"] / row["a"]) == pytest.approx(1.1 / 0.9, rel=0.01)
    assert row["interval"][0] < row["ratio"] < row["interval"][1]
    assert {each["level"] for each in found["figures"]} == {*CROSSING, None}
    assert "cost_per_million_tokens" in {each["metric"] for each in found["figures"]}


def test_a_run_that_was_broken_off_is_compared_as_far_as_its_cells_go(tmp_path: Path, run: Path) -> None:
    code, text = invoke(run, write(tmp_path / "b", break_off(make_run(CROSSING), cells=4)))
    assert code == 0, text
    assert "B is untrusted, compared as far as its 4 cells go: MISROUTED: a request went astray." in text
    assert "Only A measured at 32, 64, 128 in flight." in text
    assert "  B  not measured to the end" in text
    assert "B  none: MISROUTED" in text
    assert "B/A" in text
    code, text = invoke(run, write(tmp_path / "c", break_off(make_run(CROSSING), cells=0)))
    assert (code, "No level was measured in both runs." in text) == (0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "one run or two, or --import FILE; none given"),
        (("a", "a", "a"), "one run or two, or --import FILE; 3 given"),
        (("a", "--json"), "--json is for two runs"),
        (("a", "--low", "x"), "--low and --high name tags of a file: they go with --import"),
        (("a", "--import", PUBLISHED, "--low", "x", "--high", "y"), "no runs and no --json go with it"),
        (("--import", PUBLISHED, "--low", "x", "--high", "y", "--json"), "no runs and no --json go with it"),
        (("--import", PUBLISHED, "--low", "x", "--high", "y", "--gpu-count", "2"), "no costs go with it"),
        (("--import", PUBLISHED, "--low", "trtllm_llama31"), "--import needs --high: one of "),
        (("--import", PUBLISHED, "--low", "nobody", "--high", "x"), "--low: the file has no nobody, only"),
        (("a", "nowhere"), NO_RUN),
        (("nowhere/result.json",), NO_RUN),
        (("a/report.md",), "cannot read"),
        (("begun",), "has no result.json yet: that run goes on, or was killed"),
        (("a", "other"), "its schema is somebody.else/3, this version reads crossover.calibration/1"),
        (("a", "--gpu-price", "2"), "--gpu-price needs the number of GPUs: --gpu-count"),
        (("a", "--gpu-price", "two", "--gpu-count", "1"), "two: an amount above 0"),
        (("a", "--gpu-count", "sglang=2"), "--gpu-count: sglang was given, and the backends are triton and vllm"),
    ],
)
def test_what_cannot_be_reported_is_one_line_and_exit_code_2(
    run: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    for name, file, text in (("begun", "run.json", "{}"), ("other", "result.json", '{"schema": "somebody.else/3"}')):
        (run.parent / name).mkdir()
        (run.parent / name / file).write_text(text)
    monkeypatch.chdir(run.parent)
    code, text = invoke(*options)
    assert code == 2, text
    assert message in " ".join(text.split())
