"""`crossover policy simulate`: policies on simulated engines, and what the rules of `curve` are worth there."""

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from engines.simulation import Arrival, EngineSpeed
from engines.simulation import simulate as simulate_arrivals
from gateway.cli import main
from gateway.commands.policy_router import PolicyRouter
from gateway.core import Demand, State
from gateway.routing.policies import Share

# Two configurations of vLLM on two H100 that both share (docs/routing.md); "high" is better from 101 in flight on.
LATENCY = {
    "steps_ms": [[1, 4.05], [32, 5.3], [100, 7.2], [128, 9.0], [256, 15.5], [512, 27.0]],
    "prefill_tokens_per_s": 60_000,
    "max_in_flight": 512,
}
THROUGHPUT = {
    "steps_ms": [[1, 6.34], [32, 6.75], [100, 7.5], [128, 8.0], [256, 10.9], [512, 20.0]],
    "prefill_tokens_per_s": 60_000,
    "max_in_flight": 512,
}
SHARED = {"low": LATENCY, "high": THROUGHPUT, "interference": 1.0, "prompt_tokens": 80, "answer_tokens": 128}
PARTITIONED = {**SHARED, "interference": 0.0}
# Measured on two H100 (docs/results/h100-tritonserver-routing.md): few and long answers, "high" full at 59 a second.
BUSY = {
    "low": {
        "steps_ms": [[1, 4.298], [8, 4.563], [32, 5.5], [64, 6.329], [91, 7.293], [128, 9.114]],
        "prefill_tokens_per_s": 42_634,
        "max_in_flight": 256,
    },
    "high": {
        "steps_ms": [[1, 6.465], [8, 6.571], [32, 7.101], [64, 7.427], [91, 7.809], [128, 8.464]],
        "prefill_tokens_per_s": 43_940,
        "max_in_flight": 128,
    },
    "interference": 1.939,
    "prompt_tokens": 153,
    "answer_tokens": 256,
}


@dataclass(frozen=True, slots=True)
class Noting(Share):
    """Notes the demand of every beat."""

    seen: list[Demand] = field(default_factory=list)

    @property
    def plans(self) -> bool:
        return True

    def plan(self, demand: Demand, state: State, now: float) -> State:
        self.seen.append(demand)
        return state


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node.json").write_text(json.dumps(SHARED))
    return tmp_path / "node.json"


def simulate(node: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["policy", "simulate", "--node", str(node), *arguments])


def find_means(node: Path, figure: str, *arguments: str) -> dict[str, float]:
    """The mean of a figure over all traces and seeds, by policy."""
    result = simulate(node, "--json", *arguments)
    assert result.exit_code == 0, result.output
    outcomes = json.loads(result.stdout)
    policies = dict.fromkeys(outcome["policy"] for outcome in outcomes)
    return {
        name: statistics.fmean(outcome[figure] for outcome in outcomes if outcome["policy"] == name)
        for name in policies
    }


@pytest.mark.parametrize(("trace", "most"), [("ramp", 1.06), ("step", 1.03), ("bursts", 1.09), ("day", 1.04)])
def test_curve_is_better_than_a_threshold_and_no_worse_than_the_better_engine(
    node: Path, trace: str, most: float
) -> None:
    threshold = "threshold up=70 down=52"
    arguments = ("--trace", trace, "--seeds", "1-2", "--policy", "curve", "--policy", threshold)
    regret, mean_s = (find_means(node, figure, *arguments) for figure in ("regret", "mean_s"))
    assert regret["curve"] < min(most, regret[threshold])
    assert mean_s["curve"] < 1.03 * min(mean_s["low alone"], mean_s["high alone"])


def test_where_low_is_better_up_to_what_it_completes_caution_costs_no_more_than_the_other_engine(
    tmp_path: Path,
) -> None:
    (tmp_path / "node.json").write_text(json.dumps(BUSY))
    over_best = find_means(tmp_path / "node.json", "over_best", "--trace", "step", "--trace", "ramp", "--seeds", "1-3")
    assert over_best["low alone"] == 1.0
    assert over_best["curve"] < over_best["high alone"]


def test_where_prefill_is_slow_and_moves_are_dear_a_rising_load_is_followed_in_time(tmp_path: Path) -> None:
    slow = {
        **SHARED,
        "low": {**LATENCY, "prefill_tokens_per_s": 8_000},
        "high": {**THROUGHPUT, "prefill_tokens_per_s": 8_000},
    }
    (tmp_path / "node.json").write_text(json.dumps(slow))
    over_best = find_means(tmp_path / "node.json", "over_best", "--trace", "ramp", "--seeds", "1-3")
    assert over_best["curve"] < 1.05


def test_without_margin_evidence_dwell_and_price_the_plan_flaps(node: Path) -> None:
    hasty = "curve margin=0 evidence=0 dwell_s=0 horizon_s=30"  # what is saved in 30 s pays for any change
    arguments = ("--trace", "day", "--seeds", "1", "--policy", "curve", "--policy", hasty)
    changes, regret = (find_means(node, figure, *arguments) for figure in ("changes", "regret"))
    assert changes[hasty] > 5 * changes["curve"]
    assert regret[hasty] > 1.1 * regret["curve"]


def test_who_takes_shared_gpus_for_separate_ones_loses(node: Path) -> None:
    wrong = "curve node=" + json.dumps(PARTITIONED, separators=(",", ":"))
    regret = find_means(node, "regret", "--trace", "ramp", "--seeds", "1", "--policy", "curve", "--policy", wrong)
    assert regret[wrong] > 1.3 * regret["curve"]


def test_on_gpus_of_their_own_both_engines_together_are_faster_than_one(tmp_path: Path) -> None:
    node = tmp_path / "result.json"
    node.write_text(json.dumps({"model": "llama", "node": PARTITIONED}))
    assert find_means(node, "over_best", "--trace", "step", "--seeds", "1")["curve"] < 0.9
    over_optimum = find_means(node, "over_optimum", "--trace", "step", "--seeds", "1")
    assert 1.0 < over_optimum["curve"] < 1.05 < over_optimum["high alone"]


def test_a_policy_knows_the_lengths_of_answers_that_have_finished_as_it_does_live() -> None:
    """Long answers are in flight for longer: by what is in flight they would be 191 tokens in the mean."""
    arrivals = [Arrival(0.01 * index, 100 + index % 2, 10 if index % 2 else 200) for index in range(2000)]
    policy, speed = Noting("low", "high", share=0.5), EngineSpeed(lambda _: 0.01, 60_000, 512, 80)
    simulate_arrivals(arrivals, {"low": speed, "high": speed}, 0.0, PolicyRouter(policy))
    assert (policy.seen[0].prompt_tokens, policy.seen[0].answer_tokens) == (0, 0)
    assert policy.seen[390].answer_tokens == pytest.approx(105, rel=0.05)
    assert policy.seen[390].prompt_tokens == pytest.approx(100.5, abs=0.1)


def test_one_seed_gives_one_result_and_a_file_is_a_trace(node: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(json.dumps({"at": n / 50, "prompt_tokens": 80, "tokens": 20}) for n in range(100)))
    one, two = (simulate(node, "--json", "--trace", str(trace)) for _ in range(2))
    assert one.stdout == two.stdout
    assert [(outcome["trace"], outcome["seed"]) for outcome in json.loads(one.stdout)] == [(str(trace), None)] * 3
    assert "low alone" in simulate(node, "--trace", str(trace)).stdout


def test_recorded_traffic_is_a_trace(node: Path) -> None:
    name = "mooncake-chat peak=4 seconds=20 scale_prompt=0.01"
    outcomes = json.loads(simulate(node, "--json", "--trace", name).stdout)
    assert [(outcome["trace"], outcome["seed"]) for outcome in outcomes] == [(name, None)] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trace", "nowhere"), "known by name: ramp, step, bursts, day"),
        (("--policy", "curve margin"), "'margin' in 'curve margin': must be key=value"),
        (("--policy", "curve margin=2"), "margin: Input should be less than or equal to 1"),
        (("--policy", "threshold up=3 down=9"), "down: must be below up (3), is 9"),
        (("--seeds", "x"), "'x': must be a number, or two as in 1-20"),
        (("--seeds", "9-1"), "'9-1': must be 1 to 1000 seeds"),
        (("--node", "/nowhere"), "/nowhere"),
        (("--node", __file__), "Extra data"),
    ],
)
def test_a_bad_argument_is_named(node: Path, arguments: tuple[str, ...], message: str) -> None:
    result = simulate(node, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_a_bad_node_model_is_named_with_its_field(node: Path) -> None:
    node.write_text(json.dumps({**SHARED, "low": {**LATENCY, "steps_ms": [[8, 2.0], [4, 1.0]]}}))
    assert "low.steps_ms: Value error, must be sorted by in-flight" in " ".join(simulate(node).output.split())
