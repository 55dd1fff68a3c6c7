"""How fast engines are beside their model, as tables: no loop, no clock, no sockets."""

from dataclasses import replace

import pytest
from gateway.routing.policies.pace import find_pace, find_paces, look

from engines.simulation import Arrival, EngineSpeed, simulate
from gateway.commands.policy_router import PolicyRouter
from gateway.core import NOTHING_SEEN, BackendDemand, Seen, State
from gateway.routing.policies import Curve, EngineModel, NodeModel, pace
from loadtest.rehearsal.traces import Pair, Variant, make_trace
from tests.routing.test_curve import LATER, REQUEST, SHARED, demand, loads, on, policy

TOKEN_S, BEAT_S = 0.01, 0.05
USUAL = 1000.0  # tokens a second


def watch(seconds: float, slower: float, seen: Seen = NOTHING_SEEN, in_flight: int = 10) -> Seen:
    """Looks at an engine for so long whose tokens take so many times as long as they should."""
    generated = seen.counted
    for _ in range(round(seconds / BEAT_S)):
        generated += in_flight * BEAT_S / (TOKEN_S * slower)
        seen = look(seen, BackendDemand(in_flight, generated=round(generated)), TOKEN_S, BEAT_S)
    return seen


@pytest.mark.parametrize(("slower", "pace"), [(1.0, 1.0), (1.1, 1.1), (1.2, 1.15), (0.9, 0.9), (3.0, 1.25), (0.2, 0.8)])
def test_a_minute_shows_a_pace_within_bounds(slower: float, pace: float) -> None:
    assert find_pace(watch(60, slower), USUAL) == pytest.approx(pace, abs=0.051)


def test_a_moment_decides_nothing_and_an_idle_engine_is_forgotten() -> None:
    assert find_pace(watch(0.5, 3.0), USUAL) == pytest.approx(1.0, abs=0.051)
    slow = watch(120, 1.25)
    assert find_pace(slow, USUAL) > 1.15
    idle = slow
    for _ in range(round(240 / BEAT_S)):
        idle = look(idle, BackendDemand(0, generated=round(idle.counted)), TOKEN_S, BEAT_S)
    assert find_pace(idle, USUAL) == pytest.approx(1.0, abs=0.051)


def test_the_count_of_a_dead_worker_is_missed_and_not_subtracted() -> None:
    before = watch(60, 1.0)
    after = look(before, BackendDemand(10, generated=round(before.counted / 2)), TOKEN_S, BEAT_S)
    assert (after.expected, after.generated) == (before.expected, before.generated)
    assert find_pace(watch(60, 1.0, after), USUAL) == pytest.approx(1.0, abs=0.051)


def test_an_engine_that_has_shown_nothing_is_taken_to_be_as_slow_as_the_other() -> None:
    slow, right = watch(600, 1.2), watch(600, 1.0)
    assert find_pace(slow, USUAL) == 1.15
    assert find_paces((slow, Seen()), (USUAL, USUAL)) == (1.15, 1.15)
    assert find_paces((Seen(), slow), (USUAL, USUAL)) == (1.15, 1.15)
    low, high = find_paces((slow, right), (USUAL, USUAL))
    assert low == pytest.approx(1.15, abs=0.051)
    assert high == pytest.approx(1.0, abs=0.051)
    assert low > high


def test_relayed_answers_without_usage_are_no_pace() -> None:
    seen = Seen()
    for _ in range(1000):
        seen = look(seen, BackendDemand(50), TOKEN_S, BEAT_S)
    assert find_pace(seen, USUAL) == 1.0


def test_a_plan_reckons_with_the_pace_and_a_route_of_a_split_too() -> None:
    load = demand(95, low=88)
    assert policy().plan(load, on("triton"), LATER).side == "triton"
    slow = Seen(1e9, 1e9 / 1.25, 1.0)
    right = Seen(1e9, 1e9, 1.0)
    state = policy().plan(load, replace(on("triton"), seen=(slow, right)), LATER)
    assert state.side == "vllm"
    assert state.paces == (1.25, 1.0)
    apart = policy(replace(SHARED, interference=0.0))
    split = State("triton", 0.0, 1, is_split=True)
    at = loads(80, 80)
    assert apart.choose(REQUEST, at, split, LATER)[0].backend == "triton"
    assert apart.choose(REQUEST, at, replace(split, paces=(1.24, 1.0)), LATER)[0].backend == "vllm"


# The embedded pair, whose engines are close to each other (docs/results/embedded-live-routing.md).
CLOSE = NodeModel(
    EngineModel(((1, 41.4), (8, 48.3), (32, 53.4), (45, 59.2), (64, 65.4), (128, 139.0)), 50_000, 256),
    EngineModel(((1, 47.3), (8, 49.9), (32, 56.2), (45, 59.8), (64, 63.5), (128, 85.8)), 15_000, 128),
    interference=1.0,
    prompt_tokens=84,
    answer_tokens=32,
)


def serve(
    trace_name: str, low: float, high: float = 1.0, node: NodeModel = SHARED, headroom: float = 0.25
) -> tuple[float, tuple[float, float]]:
    """Serves a trace where steps of the engines take so many times as long as by the model that routes.

    Returns the mean seconds of an answer, and the paces at the end.
    """
    variant = Variant.parse(trace_name)
    assert variant is not None
    prompt, answer = node.prompt_tokens, node.answer_tokens
    pair = Pair(answer * node.low.step_s(1), node.high.answers_per_s(0, answer), prompt, answer)
    trace = make_trace(variant, pair, seed=1)
    router = PolicyRouter(Curve(low="low", high="high", node=node, headroom=headroom))
    true = node.at_paces((low, high))
    speeds = {
        name: EngineSpeed(engine.step_s, engine.prefill_tokens_per_s, engine.max_in_flight, node.prompt_tokens)
        for name, engine in zip(("low", "high"), true, strict=True)
    }
    arrivals = [Arrival(request.at, request.prompt_tokens, request.tokens) for request in trace]
    jobs = simulate(arrivals, speeds, node.interference, router)
    times = [job.end_s - job.arrival.at for job in jobs if job.end_s is not None]
    return sum(times) / len(times), router.state.paces


def test_a_model_that_is_wrong_is_corrected_and_serves_better_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else guards against it: headroom leaves the low-load engine early, whatever its model promises."""
    corrected_s, (low, high) = serve("day", 1.25, headroom=0.0)
    assert 1.05 <= high + 0.05 <= low <= 1.25
    monkeypatch.setattr(pace, "MOST", 1.0)
    uncorrected_s, paces = serve("day", 1.25, headroom=0.0)
    assert paces == (1.0, 1.0)
    assert corrected_s < 0.98 * uncorrected_s


def test_where_both_engines_are_slower_than_their_model_the_correction_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    corrected_s, (low, high) = serve("bursts", 1.2, 1.2, CLOSE)
    assert low == high >= 1.15
    monkeypatch.setattr(pace, "MOST", 1.0)
    uncorrected_s, _ = serve("bursts", 1.2, 1.2, CLOSE)
    assert corrected_s < 1.01 * uncorrected_s


def test_a_model_that_is_right_is_left_alone() -> None:
    _, paces = serve("bursts length=240", 1.0)
    assert paces == (1.0, 1.0)
