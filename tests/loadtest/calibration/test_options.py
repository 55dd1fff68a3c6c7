"""Options of `crossover calibrate`: the plans they ask for, and those that are refused before anything is written."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadtest.calibrate_cli import calibrate
from loadtest.calibration.options import make_plans
from loadtest.results.plan import FULL, Plan


def plans_of(*arguments: str) -> tuple[Plan, ...]:
    options: dict[str, Any] = calibrate.make_context("calibrate", list(arguments)).params  # Any: click's
    return make_plans(options)


def test_several_shapes_have_a_plan_each() -> None:
    plans = plans_of("--shape", "5x16", "--shape", "40x8", "--levels", "2,4")
    assert [(plan.prompt_words, plan.tokens, plan.levels) for plan in plans] == [(5, 16, (2, 4)), (40, 8, (2, 4))]


def test_levels_above_the_bound_are_left_out() -> None:
    (plan,) = plans_of("--max-in-flight", "16")
    assert plan.levels == tuple(level for level in FULL.levels if level <= 16)


def test_no_two_runs_have_the_same_prompts() -> None:
    assert plans_of()[0].seed != plans_of()[0].seed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--levels", "one"), "whole numbers with commas between them"),
        (("--levels", "0,1"), "levels are distinct and at least 1"),
        (("--levels", "2,4", "--max-in-flight", "1"), "levels are distinct and at least 1"),
        (("--tokens", "1"), "an answer needs at least 2 tokens"),
        (("--url", "nowhere"), "not an http or https URL"),
        (("--limit", "patience=1"), "patience=1: no such limit"),
        (("--hardware", __file__), "is not YAML"),
        (("--gpu-price", "free", "--gpu-count", "1"), "free: an amount above 0"),
        (("--gpu-price", "2.50"), "--gpu-price needs the number of GPUs"),
        (("--gpu-count", "triton"), "triton: whole numbers above 0"),
        (("--trace", "/nowhere.jsonl"), "--trace /nowhere.jsonl: No such file or directory"),
        (("--trace", __file__), "line 1: JSONDecodeError"),
        (("--trace", "step high=1"), "high: Unexpected keyword argument"),
        (("--shape", "8"), "words of a prompt and tokens of an answer"),
        (("--shape", "8x8", "--shape", "8x8"), "every shape once"),
        (("--shape", "8x8", "--tokens", "9"), "it goes without --tokens"),
        (("--resume", ".", "--tokens", "9"), "a run that is resumed keeps its plan"),
        (("--resume", ".", "--max-in-flight", "9"), "a run that is resumed keeps its plan"),
    ],
)
def test_options_that_cannot_be_are_usage_errors(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(calibrate, ["--out", str(tmp_path / "runs"), *options])
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()
