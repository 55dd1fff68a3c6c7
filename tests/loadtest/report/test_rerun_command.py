"""The command in a report, parsed as the command line parses it, makes the plan it was written from."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.calibrate_cli import calibrate
from loadtest.calibration.options import make_plans
from loadtest.decide.cost import EVERY, Cost, Price
from loadtest.decide.slo import Slo
from loadtest.report.rerun_command import describe_command
from loadtest.results.hardware import Hardware
from loadtest.results.plan import FULL, QUICK, Plan
from tests.loadtest.samples import make_result

OF_NO_PLAN = {"target", "key", "model", "should_apply", "kind", "out", "resume", "as_json", "progress"}
OF_NO_PLAN |= {"max_foreign", "processes", "gpus", "max_in_flight"}  # the last: it leaves out levels


def describe(plan: Plan, model: str = "toy") -> list[str]:
    result = make_result({})
    return shlex.split(describe_command(replace(result, plan=plan, system=replace(result.system, model=model))))


@pytest.mark.parametrize(
    "plan",
    [
        FULL,
        QUICK,
        replace(QUICK, levels=(1, 2, 4), tokens=64, window_s=0.4, budget_s=12.5, repeats=5),
        replace(FULL, prompt_words=512, tokens=64),
        replace(QUICK, prompt_words=12, turns=0),
        replace(FULL, levels=(3,), budget_s=3600.0, widest=None),
        replace(FULL, slo=Slo(ttft_s=0.1234567891, e2e_s=2.0), rehearsals=0),
        replace(FULL, trace="bursts length=20"),
        replace(FULL, limits=replace(FULL.limits, client_cpu=0.95, chunking=0.5)),
        replace(QUICK, limits=FULL.limits),
        replace(QUICK, cost=Cost(gpus={"triton": 2, "vllm": 4}, price=Price(2.49, "EUR"))),
        replace(QUICK, cost=Cost(gpus={EVERY: 8})),
    ],
)
def test_the_command_makes_the_plan_again(plan: Plan) -> None:
    command = describe(plan)
    assert command[:2] == ["crossover", "calibrate"]
    given = calibrate.make_context("calibrate", command[2:]).params
    assert given["model"] == "toy"
    (made,) = make_plans(given)
    assert replace(made, seed=plan.seed) == plan


def test_declared_hardware_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = describe(replace(QUICK, hardware={"vllm": Hardware(weights_gb=8.0, bandwidth_gb_s=3350.0)}))
    assert command[-4:] == ["--hardware", "hardware.yaml", "--model", "toy"]
    monkeypatch.chdir(tmp_path)
    Path("hardware.yaml").write_text("vllm: {weights_gb: 8, bandwidth_gb_s: 3350}\n")
    given = calibrate.make_context("calibrate", command[2:]).params
    assert make_plans(given)[0].hardware == {"vllm": Hardware(weights_gb=8.0, bandwidth_gb_s=3350.0)}


def test_a_model_is_quoted_for_a_shell() -> None:
    assert describe(QUICK, "it's $HOME; rm") == ["crossover", "calibrate", "--quick", "--model", "it's $HOME; rm"]


def test_every_option_of_a_plan_is_in_the_command() -> None:
    """A new option has to be described too, or it is none of the plan's."""
    described = {"is_quick", "levels", "tokens", "shapes", "window_s", "budget_s", "repeats", "slo", "accept_wide"}
    described |= {"rehearsals", "trace", "turns", "limits", "hardware", "gpu_price", "gpu_count"}
    assert {parameter.name for parameter in calibrate.params} - OF_NO_PLAN == described
