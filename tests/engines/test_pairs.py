"""The pairs of engines that ship, against what they were fitted to, and where two engines cross."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.embedded import PAIRS as CHOICES
from engines.physics import EngineModel
from engines.reference.pairs import PAIRS, Lengths, Role, find_crossing, find_throughput, load_pairs

SHORT = Lengths(85, 32)
FLAT = EngineModel(((1, 10.0),), request_ms=1.0)


def read_measured(name: str, tokens: int) -> dict[int, float]:
    """Tokens per second by the levels of curves.json, for shorter answers, with as much less time to first token."""
    levels = json.loads(PAIRS.with_name("curves.json").read_text())["curves"][name]["levels"]
    return {
        level["concurrency"]: level["concurrency"]
        * tokens
        / (level["ttft_p50_s"] * tokens / 256 + (tokens - 1) * level["itl_p50_ms"] / 1e3)
        for level in levels
    }


@pytest.mark.parametrize(("role", "name"), [("low", "trtllm"), ("high", "vllm")])
def test_the_demos_engines_give_as_many_tokens_as_were_measured(role: Role, name: str) -> None:
    engine = load_pairs()["demo"].engines[role]
    for level, tokens_per_s in read_measured(name, SHORT.answer).items():
        assert find_throughput(engine, level, SHORT) == pytest.approx(tokens_per_s, rel=0.005), level


def test_the_demos_engines_cross_where_the_measured_ones_do() -> None:
    engines = load_pairs()["demo"].engines
    assert find_crossing(engines["low"], engines["high"], SHORT) == pytest.approx(49.0, abs=0.5)


@pytest.mark.parametrize("name", CHOICES)
def test_every_pair_that_can_be_chosen_crosses_at_any_scale_alike(name: str) -> None:
    engines = load_pairs()[name].engines
    crossing = find_crossing(engines["low"], engines["high"], Lengths(64, 256))
    assert crossing is not None
    slow = [engines[role].slowed(16.0) for role in ("low", "high")]
    assert find_crossing(slow[0], slow[1], Lengths(64, 256)) == pytest.approx(crossing)
    assert set(load_pairs()) == set(CHOICES)


def test_an_engine_that_is_always_better_is_crossed_nowhere() -> None:
    assert find_crossing(FLAT, FLAT.slowed(2.0), SHORT) is None
    assert find_crossing(FLAT.slowed(2.0), FLAT, SHORT) is None


def test_a_closed_loop_gets_what_its_steps_give() -> None:
    # A client waits for the step under way, and has its answer 32 steps later.
    assert find_throughput(FLAT, 8, SHORT) == pytest.approx(8 * 32 / 0.33, rel=0.01)
    assert find_throughput(replace(FLAT, replicas=2), 8, SHORT) == pytest.approx(8 * 32 / 0.33, rel=0.01)
    assert find_throughput(replace(FLAT, max_sequences=4), 8, SHORT) == pytest.approx(4 * 32 / 0.32, rel=0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ('{"it": {"about": "", "interference": 0, "computes": true, "prefix_cache": false, "engines": {}}}', "two"),
        ('{"it": {"about": "", "interference": 0, "computes": true}}', "Field required"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused_with_its_name(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"pairs\.json.*{message}"):
        load_pairs(path)
