"""`crossover report` on run folders: one run told again, two runs compared."""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadtest.cell import Cell
from loadtest.comparison import Row, compare_runs
from loadtest.folder import RunFolder
from loadtest.report_cli import report
from loadtest.result import Result
from loadtest.slo import Slo
from loadtest.stats import Percentiles
from tests.loadtest.samples import CELL, make_result

CROSSING = {1: 1.2, 8: 1.1, 32: 1.05, 64: 0.9, 128: 0.6}
LATER = {1: 1.3, 8: 1.25, 32: 1.2, 64: 1.1, 128: 0.6}
NOT_THERE = "is not the folder of a run: it has no result.json"


def slow_down(cell: Cell, backend: str, times: float) -> Cell:
    """A backend that takes so many times as long to its first token."""
    if cell.backend != backend or cell.ttft_s.p50 is None:
        return cell
    return replace(cell, ttft_s=Percentiles(cell.ttft_s.n, cell.ttft_s.p50 * times))


def make_run(ratios: Mapping[int, float], name: str = "b", scatter: float = 0.001) -> Result:
    result = make_result(ratios, scatter=scatter)
    engines = {"triton": {"version": "2.51"}, "vllm": {"version": "0.24.0"}}
    return replace(result, run=name, subject=replace(result.subject, engines=engines))


def upgrade(result: Result, **changes: str | int) -> Result:
    engines = {**result.subject.engines, "vllm": {**result.subject.engines["vllm"], **changes}}
    return replace(result, subject=replace(result.subject, engines=engines))


def break_off(result: Result, cells: int) -> Result:
    failure = "MISROUTED: a request went astray."
    return replace(result, status="untrusted", failure=failure, cells=result.cells[:cells], findings={}, threshold=None)


def write(path: Path, result: Result) -> Path:
    path.mkdir()
    RunFolder(path).write(result)
    return path


def invoke(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(report, list(map(str, arguments)))
    return done.exit_code, done.output


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


def test_a_backend_that_became_slower_is_told_and_the_other_is_not() -> None:
    a, b = make_run(CROSSING, "a"), make_run({level: ratio * 0.9 for level, ratio in CROSSING.items()})
    slower, same = rows_of(a, b, "throughput_tok_s", "triton"), rows_of(a, b, "throughput_tok_s", "vllm")
    assert {row.differs for row in slower.values()} == {True}
    assert [row.ratio for row in slower.values()] == pytest.approx([0.9] * 6)
    assert {row.differs for row in same.values()} == {False}
    assert {row.differs for row in rows_of(a, b, "throughput_low_over_high", "triton/vllm").values()} == {True}


def test_within_the_scatter_of_the_cells_nothing_is_told() -> None:
    a, b = (
        make_run(CROSSING, "a", 0.05),
        make_run({level: ratio * 0.97 for level, ratio in CROSSING.items()}, "b", 0.05),
    )
    assert {row.differs for row in rows_of(a, b, "throughput_tok_s", "triton").values()} == {False}


# Of vLLM in two runs of a demo: levels scatter from a hundred-thousandth to a twelfth, and 45 was measured once a run.
TIMES = (
    {1: (0.047739, 0.047690), 8: (0.049297, 0.049296), 32: (0.053289, 0.053287), 64: (0.058993, 0.058970),
     128: (0.066676, 0.072270), 45: (0.056111,)},
    {1: (0.047651, 0.047814), 8: (0.049308, 0.049308), 32: (0.053289, 0.053295), 64: (0.058978, 0.059027),
     128: (0.071513, 0.073999), 45: (0.056063,)},
)  # fmt: skip


def test_an_interval_of_next_to_no_degrees_of_freedom_is_a_number_and_said_to_be_noise(tmp_path: Path) -> None:
    runs = []
    for name, by_level in zip("ab", TIMES, strict=True):
        drawn = [(level, time_s) for level, times in by_level.items() for time_s in times]
        cells = [
            replace(CELL, backend="vllm", level=level, pair=pair, tpot_s=Percentiles(50, time_s))
            for pair, (level, time_s) in enumerate(drawn)
        ]
        runs.append(replace(make_run(CROSSING, name), cells=cells))
    ends = rows_of(runs[0], runs[1], "tpot_p50_s", "vllm")[None].ends
    assert ends is not None
    assert 0 < ends[0] < 1e-200
    assert 1e200 < ends[1] < math.inf
    code, told = invoke(*(write(tmp_path / each.run, each) for each in runs))
    assert (code, "too noisy" in told) == (0, True), told


def make_noisy_run(chance: random.Random, repeats: int) -> Result:
    """Engines that are always the same; every cell is off by chance of its own."""

    def draw(backend: str, level: int, pair: int) -> Cell:
        times = Percentiles(50, 0.02 * math.exp(chance.gauss(0, 0.09)))
        tpot = Percentiles(50, 0.01 * math.exp(chance.gauss(0, 0.01)))
        rate = 100.0 * level * math.exp(chance.gauss(0, 0.02))
        return replace(CELL, backend=backend, level=level, pair=pair, throughput=rate, ttft_s=times, tpot_s=tpot)

    places = enumerate((level, repeat) for repeat in range(repeats) for level in (1, 2, 4, 8, 16, 32, 64, 128))
    pairs = [
        [draw(backend, level, pair) for backend in (("triton", "vllm"), ("vllm", "triton"))[(pair + repeat) % 2]]
        for pair, (level, repeat) in places
    ]
    return replace(make_result({}), cells=[cell for pair in pairs for cell in pair])


@pytest.mark.parametrize("repeats", [2, 3])
def test_of_comparisons_of_like_runs_no_more_are_wrong_anywhere_than_said(repeats: int) -> None:
    """200 of 63 figures each: 5 in a hundred, with three standard errors."""
    chance = random.Random(0)
    found = [compare_runs(make_noisy_run(chance, repeats), make_noisy_run(chance, repeats)) for _ in range(200)]
    wrong = sum(any(row.differs for row in comparison.rows) for comparison in found)
    assert {len(comparison.rows) for comparison in found} == {63}
    assert wrong / len(found) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / len(found))


def test_a_shorter_time_is_faster_and_more_tokens_are() -> None:
    a = make_run(CROSSING, "a")
    b = replace(a, run="b", cells=[slow_down(cell, "vllm", 1.5) for cell in a.cells])
    assert {row.differs for row in rows_of(a, b, "ttft_p50_s", "vllm").values()} == {True}
    assert {row.differs for row in rows_of(a, b, "ttft_p50_s", "triton").values()} == {False}


# What was measured


def test_another_engine_is_named() -> None:
    a = make_run(CROSSING, "a")
    (difference,) = compare_runs(a, upgrade(replace(a, run="b"), version="0.25.0")).differences
    assert (difference.name, difference.a, difference.b) == ("engines.vllm.version", "0.24.0", "0.25.0")
    (difference,) = compare_runs(a, upgrade(a, tp=2)).differences
    assert (difference.name, difference.a, difference.b) == ("engines.vllm.tp", None, 2)


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
    assert any(note.startswith("UNEQUAL WORK: answers of 32 tokens in A, of 64 in B") for note in notes)


def test_backends_of_other_names_are_told_and_not_compared() -> None:
    a = make_run(CROSSING, "a")
    cells = [replace(cell, backend={"triton": "sglang"}.get(cell.backend, cell.backend)) for cell in a.cells]
    b = replace(a, run="b", cells=cells, subject=replace(a.subject, low="sglang"))
    comparison = compare_runs(a, b)
    assert {row.backend for row in comparison.rows} == {"vllm"}
    assert {"Only A measured triton.", "Only B measured sglang."} <= set(comparison.notes)


# The command


def test_two_runs_are_compared_for_people(tmp_path: Path) -> None:
    a = write(tmp_path / "a", make_run(CROSSING, "a"))
    b = write(tmp_path / "b", upgrade(make_run(LATER), version="0.25.0"))
    code, text = invoke(a, b / "result.json")
    assert code == 0, text
    assert "engines.vllm.version  0.24.0 -> 0.25.0" in text
    (row,) = [line for line in text.splitlines() if line.split()[:2] == ["64", "triton"]][:1]
    assert row.endswith("B is faster")
    assert "the sets do not overlap: the crossing has moved" in text
    assert "A  up 47, down 33" in text
    assert "B  up " in text


def test_two_runs_are_compared_for_programs(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", make_run(CROSSING, "a")), write(tmp_path / "b", make_run(LATER))
    code, text = invoke(a, b, "--json")
    assert code == 0, text
    told: Any = json.loads(text)  # Any: JSON, read key by key
    assert told["schema"] == "crossover.comparison/1"
    assert (told["a"]["run"], told["b"]["run"]) == ("a", "b")
    assert told["a"]["threshold"] == {"up": 47, "down": 33}
    crossing = told["crossover"]["throughput"]
    assert crossing["sets_overlap"] is False
    assert crossing["a"]["point"] < crossing["b"]["point"]
    row = next(each for each in told["figures"] if (each["backend"], each["level"]) == ("triton", 64))
    assert (row["metric"], row["differs"]) == ("throughput_tok_s", True)
    assert row["ratio"] == pytest.approx(row["b"] / row["a"]) == pytest.approx(1.1 / 0.9, rel=0.01)
    assert row["interval"][0] < row["ratio"] < row["interval"][1]
    assert {each["level"] for each in told["figures"]} == {*CROSSING, None}


def test_sets_that_overlap_are_said_to(tmp_path: Path) -> None:
    a = write(tmp_path / "a", make_run(CROSSING, "a"))
    code, text = invoke(a, write(tmp_path / "b", make_run(CROSSING)), "--json")
    assert code == 0
    assert json.loads(text)["crossover"]["throughput"]["sets_overlap"] is True


def test_a_run_that_was_broken_off_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    a = write(tmp_path / "a", make_run(CROSSING, "a"))
    b = write(tmp_path / "b", break_off(make_run(CROSSING), cells=4))
    code, text = invoke(a, b)
    assert code == 0, text
    assert "B is untrusted, compared as far as its 4 cells go: MISROUTED: a request went astray." in text
    assert "Only A measured at 32, 64, 128 in flight." in text
    assert "  B  not measured to the end" in text
    assert "B  none: MISROUTED" in text
    assert "B/A" in text


def test_a_run_without_a_cell_is_compared_by_what_it_was(tmp_path: Path) -> None:
    a = write(tmp_path / "a", make_run(CROSSING, "a"))
    code, text = invoke(write(tmp_path / "b", break_off(make_run(CROSSING), cells=0)), a)
    assert code == 0, text
    assert "No level was measured in both runs." in text


def test_one_run_is_told_again(tmp_path: Path) -> None:
    run = write(tmp_path / "a", make_run(CROSSING, "a"))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for name in ("report.html", "report.md", "cells.csv"):
        (run / name).unlink()
    code, text = invoke(run)
    assert code == 0, text
    assert f"report     {run / 'report.html'}" in text
    assert "crossing   triton is better below 39.9 in flight" in text
    after = {path.name: path.read_bytes() for path in run.iterdir()}
    assert after.keys() == before.keys()
    assert (after["result.json"], after["cells.csv"]) == (before["result.json"], before["cells.csv"])
    assert b"<svg" in after["report.html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "one run or two, or --import FILE; none given"),
        (("a", "a", "a"), "one run or two, or --import FILE; 3 given"),
        (("a", "--json"), "--json is for two runs"),
        (("a", "--low", "x"), "--low and --high name tags of a file: they go with --import"),
        (("a", "--import", "a/result.json", "--low", "x", "--high", "y"), "no runs and no --json go with it"),
        (("--import", "a/result.json", "--low", "x", "--high", "y", "--json"), "no runs and no --json go with it"),
        (("a", "nowhere"), NOT_THERE),
        (("nowhere/result.json",), NOT_THERE),
        (("a/report.md",), "cannot read"),
        (("begun",), "has no result.json yet: that run goes on, or was killed"),
        (("a", "other"), "its schema is somebody.else/3, this version reads crossover.calibration/1"),
    ],
)
def test_what_cannot_be_told_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    write(tmp_path / "a", make_run(CROSSING, "a"))
    for name, file, text in (("begun", "run.json", "{}"), ("other", "result.json", '{"schema": "somebody.else/3"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    code, text = invoke(*options)
    assert code == 2, text
    assert message in " ".join(text.split())


def test_an_import_needs_both_tags(tmp_path: Path) -> None:
    (tmp_path / "curves.json").write_text('{"trt": [], "vllm": []}')
    code, text = invoke("--import", tmp_path / "curves.json", "--low", "trt")
    assert code == 2
    assert "--import needs --high: one of trt, vllm" in text
