"""Agreement between load testers: what each one's file says, what the figures say together, and the program itself."""

import math
import re
import sys
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner, Result

from loadtest.agreement.cli import main
from loadtest.agreement.compare import METRICS, Run, Tally
from loadtest.agreement.interval import Interval, Verdict, difference
from loadtest.agreement.reading import Reading, expected, read_aiperf, read_crossover, read_vllm
from loadtest.agreement.report import write_report
from loadtest.agreement.session import rotate
from loadtest.agreement.testers import VLLM, AIPerf, LoadTester, Task, find
from loadtest.agreement.workload import Pace, Workload
from loadtest.bench import native
from loadtest.bench.errors import BenchError

DATA = Path(__file__).parent / "data" / "agreement"
RECORDED = Workload(concurrency=16, requests=96, tokens=64)


# What testers write


def test_vllms_file_is_read() -> None:
    found = read_vllm((DATA / "vllm-0.32.0.json").read_bytes(), RECORDED)
    assert astuple(found) == pytest.approx((656.7591, 0.2129752, 0.02002419), rel=1e-6)


def test_aiperfs_file_is_read() -> None:
    found = read_aiperf((DATA / "aiperf-0.13.0.json").read_bytes(), RECORDED)
    assert astuple(found) == pytest.approx((657.5561, 0.2120940, 0.02021565), rel=1e-6)


def test_our_own_file_is_read() -> None:
    times = {"ttft_s": {"p50": 0.2}, "tpot_s": {"p50": 0.02}}
    figures = {"tokens_per_s": 700.0, "requests_per_s": 12.0, "window_s": 8.0, **times}
    assert read_crossover(orjson.dumps(figures), RECORDED) == Reading(700.0, 0.2, 0.02)
    with pytest.raises(BenchError, match="did other work"):
        read_crossover(orjson.dumps({**figures, "window_s": 7.9}), RECORDED)


@pytest.mark.parametrize("change", [{"completed": 95}, {"total_output_tokens": 6143}])
def test_other_work_than_was_given_is_refused_in_vllms_file(change: dict[str, int]) -> None:
    content = orjson.loads((DATA / "vllm-0.32.0.json").read_bytes()) | change
    with pytest.raises(BenchError, match="vllm bench serve did other work than it was given"):
        read_vllm(orjson.dumps(content), RECORDED)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("request_count", {"avg": 95.0}, "did other work than it was given: requests answered 95, asked for 96"),
        ("total_osl", {"avg": 6100.0}, "tokens 6100, asked for 6144"),
        ("inter_token_latency", {"unit": "us"}, "tells a figure in us"),
    ],
)
def test_other_work_or_another_unit_is_refused_in_aiperfs_file(name: str, change: dict[str, Any], words: str) -> None:
    content = orjson.loads((DATA / "aiperf-0.13.0.json").read_bytes())
    content[name] |= change
    with pytest.raises(BenchError, match=re.escape(words)):
        read_aiperf(orjson.dumps(content), RECORDED)


def test_words_instead_of_figures_are_told() -> None:
    with pytest.raises(BenchError, match="wrote no figures: connection refused"):
        read_vllm(b"connection refused", RECORDED)


# Intervals


@pytest.mark.parametrize(
    ("samples", "mean", "half_width"),
    [
        ([1.0, 2.0, 3.0], 2.0, 2.920 / math.sqrt(3)),  # t(0.95; 2) = 2.920, of any table
        ([9.0, 10.0, 11.0, 12.0, 13.0], 11.0, 2.132 * math.sqrt(2.5 / 5)),  # t(0.95; 4) = 2.132
        ([7.0, 7.0], 7.0, 0.0),
        ([7.0], 7.0, math.inf),
    ],
)
def test_the_interval_is_students(samples: list[float], mean: float, half_width: float) -> None:
    found = Interval.of(samples)
    assert found.mean == mean
    assert found.half_width == pytest.approx(half_width, rel=1e-3)
    assert found.share == pytest.approx(half_width / mean, rel=1e-3)


def test_what_a_round_does_to_both_cancels_in_their_difference() -> None:
    found = difference([1.0, 2.0, 4.0], [1.1, 2.2, 4.4])
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("mean", "half_width", "verdict"),
    [
        (0.01, 0.02, "agree"),
        (-0.03, 0.001, "agree"),  # surely another figure, and surely within the margin
        (0.0, 0.06, "undecided"),  # too noisy to say: not agreement
        (0.04, 0.02, "undecided"),
        (-0.10, 0.02, "differ"),
        (0.0, math.inf, "undecided"),
    ],
)
def test_agreement_has_to_be_shown(mean: float, half_width: float, verdict: Verdict) -> None:
    assert Interval(mean, half_width).verdict(0.05) == verdict


# Runs together


def tally(ours: list[float], theirs: list[float]) -> Tally:
    runs = [
        Run(tester, number, Reading(throughput, 0.2, 0.02), 1e-4)
        for tester, values in (("crossover bench", ours), ("AIPerf", theirs))
        for number, throughput in enumerate(values, 1)
    ]
    return Tally(0.05, tuple(runs))


def test_equal_and_precise_runs_agree() -> None:
    found = tally([700.0, 701.0, 699.0], [690.0, 692.0, 691.0])
    assert found.testers == ("crossover bench", "AIPerf")
    assert found.is_settled
    assert found.is_agreed


def test_a_tester_that_is_far_off_does_not_agree_however_precise() -> None:
    found = tally([700.0, 701.0, 699.0], [600.0, 601.0, 599.0])
    assert found.is_settled
    assert not found.is_agreed


def test_noise_is_no_agreement() -> None:
    found = tally([700.0, 701.0, 699.0], [600.0, 700.0, 800.0])
    assert not found.is_precise
    assert not found.is_settled
    assert not found.is_agreed


def test_the_report_has_every_tester_and_every_difference() -> None:
    found = tally([700.0, 701.0, 699.0], [690.0, 692.0, 691.0])
    pace = expected(Pace(ttft_s=0.2, interval_s=0.02), RECORDED)
    report = write_report(found, RECORDED, pace)
    assert "| the engine's own pace | 701.37 | 200.00 | 20.00 | |" in report
    assert re.search(
        r"\| crossover bench \| 700\.00 ± 0\.24 % \| 200\.00 ± 0\.00 % \| 20\.00 ± 0\.00 % \| 100 us \|", report
    )
    assert re.search(r"\| AIPerf against crossover bench \| -1\.\d+ to -1\.\d+ %: agree \| \+0\.00 to", report)
    assert "engine's own" not in write_report(found, RECORDED, None)


def test_the_pace_says_what_a_perfect_tester_reads() -> None:
    found = expected(Pace(ttft_s=0.5, interval_s=0.1), Workload(concurrency=2, requests=4, tokens=6))
    assert found == Reading(throughput=12.0, ttft_s=0.5, tpot_s=0.1)
    assert set(METRICS) == {"throughput", "ttft_s", "tpot_s"}


def test_everyone_is_first_in_turn() -> None:
    testers: list[LoadTester] = [VLLM(Path("vllm")), AIPerf(Path("aiperf"))]
    assert [[tester.name for tester in rotate(testers, by)] for by in range(3)] == [
        ["vllm bench serve", "AIPerf"],
        ["AIPerf", "vllm bench serve"],
        ["vllm bench serve", "AIPerf"],
    ]


# Work


@pytest.mark.parametrize("change", [{"requests": 100}, {"requests": 0}, {"tokens": 1}])
def test_work_that_testers_would_count_differently_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"multiple of the concurrency|at least 2 tokens"):
        replace(RECORDED, **change)


def test_prompts_are_of_one_size_and_none_comes_twice() -> None:
    prompts = [*RECORDED.prompts(1), *RECORDED.prompts(2)]
    assert len(set(prompts)) == len(prompts) == 2 * (96 + 16)
    assert {len(prompt.split()) for prompt in prompts} == {len(prompts[0].split())}


@pytest.mark.parametrize(
    ("tester", "field"), [(VLLM(Path("/env/bin/vllm")), "prompt"), (AIPerf(Path("/env/bin/aiperf")), "text")]
)
def test_others_read_their_prompts_from_a_file(tester: LoadTester, field: str, tmp_path: Path) -> None:
    task = Task(url="http://x", model="m", tokenizer=DATA, workload=RECORDED, seed=1, folder=tmp_path)
    argv = tester.launch(task).argv
    path = tmp_path / "prompts.jsonl"
    assert str(path) in argv
    assert [orjson.loads(line)[field] for line in path.read_bytes().splitlines()] == list(RECORDED.prompts(1))


def test_vllms_command_may_be_a_python(tmp_path: Path) -> None:
    task = Task(url="http://x", model="m", tokenizer=DATA, workload=RECORDED, seed=1, folder=tmp_path)
    python, command = VLLM(Path("/env/bin/python3")).launch(task).argv, VLLM(Path("/env/bin/vllm")).launch(task).argv
    assert list(command[:3]) == ["/env/bin/vllm", "bench", "serve"]
    assert Path(python[1]).name == "vllm_serve.py"
    assert Path(python[1]).exists()
    assert python[2:] == command[3:]


def test_a_tester_is_where_the_user_says_or_beside_this_python(tmp_path: Path) -> None:
    command = tmp_path / "aiperf"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    assert find("aiperf", {"aiperf": command}) == AIPerf(command)
    assert find("aiperf", {"aiperf": tmp_path / "elsewhere"}) is None
    ours = find("crossover", {})
    assert ours is not None
    assert ours.name == "crossover bench"


# The program, over real processes and sockets

SHORT = [
    *("--ttft-ms", "20", "--interval-ms", "2", "--tokens", "8", "--concurrency", "4", "--requests", "8"),
    *("--target", "0.5", "--max-rounds", "3"),
]

# Writes what vLLM writes, of an engine whose throughput is `factor` times what SHORT's pace allows.
STRANGER = """#!{python}
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--result-dir") + 1], sys.argv[sys.argv.index("--result-filename") + 1])
out.write_text(json.dumps({{"completed": {completed}, "total_output_tokens": 64, "output_throughput": {factor} * 941.2,
                            "median_ttft_ms": 20.0, "median_tpot_ms": 2.0}}))
"""


def run(tmp_path: Path, *options: str) -> Result:
    try:
        native.find_compiler()
    except BenchError as exc:
        pytest.skip(str(exc))
    where = ["--out", str(tmp_path / "runs"), "--cache", str(tmp_path / "cache")]
    return CliRunner().invoke(main, [*SHORT, *where, *options])


def stranger(tmp_path: Path, factor: float = 1.0, completed: int = 8) -> str:
    command = tmp_path / "vllm"
    command.write_text(STRANGER.format(python=sys.executable, factor=factor, completed=completed))
    command.chmod(0o755)
    return f"vllm={command}"


@pytest.mark.alone
def test_who_is_missing_is_left_out_with_a_line_on_how_to_get_it(tmp_path: Path) -> None:
    done = run(tmp_path, "--testers", "crossover,aiperf", "--at", f"aiperf={tmp_path}/none")
    assert done.exit_code == 0, done.output
    assert "left out: aiperf was not found (pip install aiperf" in done.output
    [folder] = (tmp_path / "runs").iterdir()
    runs = [orjson.loads(line) for line in (folder / "runs.jsonl").read_bytes().splitlines()]
    assert [(row["tester"], row["round"]) for row in runs] == [("crossover bench", number) for number in (1, 2, 3)]
    assert (folder / "report.md").read_text() in done.output
    assert all(0.5 < row["reading"]["ttft_s"] / (10 * row["reading"]["tpot_s"]) < 2 for row in runs)  # as the pace's


@pytest.mark.alone
def test_a_tester_that_reads_three_times_as_much_is_told_by_the_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "--testers", "crossover,vllm", "--at", stranger(tmp_path, factor=3))
    assert done.exit_code == 1, done.output
    assert re.search(r"vllm bench serve against crossover bench \| \+\d+\.\d+ to \+\d+\.\d+ %: differ", done.output)


@pytest.mark.alone
def test_a_tester_that_loses_a_request_ends_the_comparison(tmp_path: Path) -> None:
    done = run(tmp_path, "--testers", "crossover,vllm", "--at", stranger(tmp_path, completed=7))
    assert done.exit_code == 2, done.output
    assert "requests answered 7, asked for 8" in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--testers", "vllm"], "crossover has to be one of them"),
        (["--testers", "crossover,locust"], "unknown: locust"),
        (["--at", "aiperf"], "expected NAME=PATH"),
        (["--requests", "9"], "multiple of the concurrency"),
    ],
)
def test_options_that_make_no_comparison_are_refused(options: list[str], words: str, tmp_path: Path) -> None:
    done = run(tmp_path, *options)
    assert done.exit_code == 2
    assert words in done.output
