"""The policy `curve` as tables: no loop, no clock, no sockets."""

import math
from dataclasses import replace
from typing import Literal

import pytest

from gateway.core import (
    Arrivals,
    BackendDemand,
    Demand,
    GenerateRequest,
    Load,
    MoveTerms,
    Prompt,
    SamplingParams,
    State,
)
from gateway.routing.policies import Curve, EngineModel, NodeModel

REQUEST = GenerateRequest("id", "llama", Prompt((1,)), SamplingParams(max_tokens=1), (2,))
# Steps of two engines on two H100, in ms by in-flight (docs/routing.md): the first is better up to about 100.
LATENCY = EngineModel(((1, 4.05), (32, 5.3), (100, 7.2), (128, 9.0), (256, 15.5), (512, 27.0)), 60_000, 512)
THROUGHPUT = EngineModel(((1, 6.34), (32, 6.75), (100, 7.5), (128, 8.0), (256, 10.9), (512, 20.0)), 60_000, 512)
SHARED = NodeModel(LATENCY, THROUGHPUT, interference=1.0, prompt_tokens=80, answer_tokens=128)
PARTITIONED = replace(SHARED, interference=0.0)
LATER = 100.0


def policy(node: NodeModel | None = SHARED, **keys: float) -> Curve:
    return Curve(low="triton", high="vllm", node=node, **keys)  # type: ignore[arg-type]  # keys are numbers


def demand(rate: float, low: int = 0, high: int = 0, *, before: float | None = None, fixed: float = 0.0) -> Demand:
    """Three seconds at a rate; `before`: the rate until the last 0.3 s. `fixed`: the share that only vLLM can serve."""
    counts = [0.0]
    for beat in range(60):
        counts.append(counts[-1] + (rate if before is None or beat >= 54 else before) * 0.05)
    arrivals = tuple(Arrivals(LATER - 3 + 0.05 * index, round(count)) for index, count in enumerate(counts))
    backends = {
        "triton": BackendDemand(low, context=150 * low),
        "vllm": BackendDemand(
            high, fixed=round(fixed * high), fixed_share=fixed, context=round(150 * high * (1 - fixed))
        ),
    }
    return Demand(arrivals, backends, 80, 128)


def on(side: str, *, is_split: bool = False, since: float = 0.0) -> State:
    return State(side, since, 1, is_split)


def loads(low: int, high: int, *, ready: tuple[str, ...] = ("triton", "vllm")) -> dict[str, Load]:
    return {"triton": Load(low, "triton" in ready), "vllm": Load(high, "vllm" in ready)}


@pytest.mark.parametrize(
    ("side", "load", "chosen"),
    [
        ("triton", demand(0), "triton"),
        ("triton", demand(10, low=6), "triton"),
        ("triton", demand(150, low=120), "vllm"),
        ("vllm", demand(150, high=150), "vllm"),
        ("vllm", demand(300, high=900), "vllm"),  # more than either completes
        ("triton", demand(300, low=900), "vllm"),
        ("vllm", demand(100, high=95), "vllm"),  # as good as the other
        ("triton", demand(100, low=95), "triton"),
    ],
)
def test_the_plan_is_the_side_that_serves_the_demand_in_less_time(side: str, load: Demand, chosen: str) -> None:
    assert policy().plan(load, on(side), LATER).side == chosen


def test_a_jump_of_the_rate_acts_at_once_and_a_small_one_waits() -> None:
    jump = demand(165, low=40, before=8)
    assert policy().plan(jump, on("triton"), LATER).side == "vllm"
    assert policy().plan(jump, on("triton"), LATER).rate == pytest.approx(165, rel=0.05)
    small = demand(130, low=95, before=110)
    assert policy().plan(small, on("triton"), LATER).rate == pytest.approx(112, rel=0.02)


def test_a_load_that_grows_leaves_the_low_load_engine_before_the_crossing() -> None:
    load, steady = demand(100, low=80), replace(on("triton"), usual_rate=100.0)
    assert policy().plan(load, steady, LATER).side == "triton"
    assert policy().plan(load, replace(steady, usual_rate=80.0), LATER).side == "triton"  # may be chance
    assert policy().plan(load, replace(steady, usual_rate=40.0), LATER).side == "vllm"
    assert policy(replace(SHARED, interference=0.0)).plan(load, replace(steady, usual_rate=40.0), LATER).side != "vllm"


def test_the_usual_rate_follows_the_rate_within_seconds() -> None:
    load, state = demand(100, low=60), on("triton")
    assert policy().plan(load, state, LATER).usual_rate == pytest.approx(100, rel=0.05)
    state = replace(state, usual_rate=10.0)
    for _ in range(round(8 / 0.05)):
        state = policy().plan(load, state, LATER)
    assert state.usual_rate == pytest.approx(100 - 90 / math.e, rel=0.05)


def test_the_way_to_the_low_load_engine_needs_headroom() -> None:
    """With 80 in flight it is the faster one, with 100 it is not yet by the margin."""
    load, state = demand(100, high=85), replace(on("vllm"), foregone_s=1e6)
    assert policy(headroom=0.0).plan(load, state, LATER).side == "triton"
    assert policy().plan(load, state, LATER).side == "vllm"
    assert policy().plan(demand(40, high=30), state, LATER).side == "triton"


# As SHARED, with first tokens that come sooner from the high-load engine from about 10 in flight on.
FIRST = replace(
    SHARED,
    low=replace(LATENCY, ttft_ms=((1, 16.0), (64, 40.0), (512, 400.0))),
    high=replace(THROUGHPUT, ttft_ms=((1, 18.0), (64, 24.0), (512, 60.0))),
)


@pytest.mark.parametrize(
    ("load", "answer", "ttft"),
    [
        (demand(5, low=3), "triton", "triton"),
        (demand(60, low=45), "triton", "vllm"),
        (demand(150, low=120), *2 * ("vllm",)),
    ],
)
def test_a_plan_serves_its_objective(load: Demand, answer: str, ttft: str) -> None:
    steady = replace(on("triton"), usual_rate=150.0)
    assert policy(FIRST).plan(load, steady, LATER).side == answer
    first = replace(policy(FIRST), objective="ttft")
    state = first.plan(load, steady, LATER)
    assert state.side == ttft
    assert state.answer_s < 0.2
    assert first.choose(REQUEST, loads(1, 1), state, LATER)[0].reason.endswith(f" ttft={state.answer_s:g}s")


def test_on_gpus_of_their_own_a_request_goes_where_its_objective_is_shortest() -> None:
    split, at = State("triton", 0.0, 1, is_split=True), loads(40, 40)
    apart = policy(replace(FIRST, interference=0.0))
    assert apart.choose(REQUEST, at, split, LATER)[0].backend == "triton"
    assert replace(apart, objective="ttft").choose(REQUEST, at, split, LATER)[0].backend == "vllm"


@pytest.mark.parametrize("objective", ["answer", "ttft"])
def test_on_gpus_of_their_own_a_long_prompt_goes_where_it_stops_others_least(
    objective: Literal["answer", "ttft"],
) -> None:
    times = ((1, 20.0), (512, 20.0))
    slow, fast = replace(LATENCY, ttft_ms=times), replace(THROUGHPUT, ttft_ms=times, prefill_tokens_per_s=120_000)
    apart = replace(policy(replace(PARTITIONED, low=slow, high=fast)), objective=objective)
    split = State("triton", 0.0, 1, is_split=True)

    def choose(prompt_tokens: int, low: int, high: int, max_tokens: int = 128) -> str:
        request = replace(REQUEST, prompt=Prompt((1,) * prompt_tokens), params=SamplingParams(max_tokens=max_tokens))
        return apart.choose(request, loads(low, high), split, LATER)[0].backend

    assert choose(80, 40, 10) == "triton"  # the prefill of as many is part of the model's times
    assert choose(8_000, 40, 10) == "vllm"
    assert choose(8_000, 10, 40) == "triton"  # where fewer wait while it is read
    # 600 tokens more cost 0.08 s more at triton; 128 tokens of an answer come 0.25 s sooner from there, one 2 ms.
    assert choose(680, 12, 10) == ("triton" if objective == "answer" else "vllm")
    assert choose(680, 12, 10, max_tokens=1) == "vllm"


def test_for_first_tokens_the_node_model_needs_their_times() -> None:
    assert not list(replace(policy(FIRST), objective="ttft").problems(["triton", "vllm"]))
    assert not list(replace(policy(None), objective="ttft").problems(["triton", "vllm"]))
    problems = list(replace(policy(), objective="ttft").problems(["triton", "vllm"]))
    assert problems == [("objective", "ttft needs ttft_ms of both engines in the node model: calibrate again")]


def test_a_plan_says_what_it_expects() -> None:
    state = policy().plan(demand(10, low=6), on("triton"), LATER)
    assert state.rate == pytest.approx(10, rel=0.05)
    assert state.answer_s == pytest.approx(128 * LATENCY.step_s(5.5), rel=0.1)
    route, _ = policy().choose(REQUEST, loads(6, 0), state, LATER)
    assert route.backend == "triton"
    assert route.reason == f"curve all=triton in_flight=7 rate={state.rate:g}/s answer={state.answer_s:g}s"


def test_the_way_back_waits_until_what_was_lost_would_have_paid_both_changes() -> None:
    """Who leaves the high-load engine comes back when the load rises: one quiet moment does not pay that."""
    quiet, state = demand(8, high=6), on("vllm")
    beats = 0
    while state.side == "vllm":
        state = policy().plan(quiet, state, LATER)
        beats += 1
        assert beats < 400
    assert beats > 10
    assert policy().plan(demand(150, high=120), replace(on("vllm"), foregone_s=1.0), LATER).foregone_s == 0.0


def test_a_plan_is_kept_for_its_dwell_and_within_its_margin() -> None:
    load = demand(150, low=120)
    assert policy().plan(load, on("triton", since=LATER - 0.2), LATER).side == "triton"
    assert policy(dwell_s=0.1).plan(load, on("triton", since=LATER - 0.2), LATER).side == "vllm"
    assert policy(margin=0.9).plan(load, on("triton"), LATER).side == "triton"


def test_what_only_one_engine_serves_is_a_given() -> None:
    """With a fifth of the load on vLLM whatever is planned, its engine works all the time: the others join it."""
    assert policy(margin=0.9).plan(demand(40, low=20), on("vllm"), LATER).foregone_s > 0
    tied = demand(40, low=20, high=10, fixed=0.2)
    assert policy().plan(tied, on("triton"), LATER).side == "vllm"
    assert policy(margin=0.9).plan(tied, on("vllm"), LATER).foregone_s == 0


def test_answers_follow_on_shared_gpus_only() -> None:
    assert set(policy().find_left(on("vllm"))) == {"triton"}
    assert set(policy().find_left(on("triton"))) == {"vllm"}
    assert not policy(PARTITIONED).find_left(on("vllm"))
    assert not policy().find_left(on("triton", is_split=True))


def test_an_answer_moves_unless_it_ends_while_it_would_move() -> None:
    """At 8 in flight a step of vllm takes about 6 ms; a move takes 50 ms, and its prefill."""
    few = policy().find_terms(on("vllm"), {"triton"}, 8).min_left
    assert 8 <= few <= 10
    assert policy().find_terms(on("vllm"), {"triton"}, 500).min_left < few
    assert policy(None).find_terms(on("vllm"), {"triton"}, 8) == MoveTerms()


def test_answers_move_as_fast_as_the_engine_that_they_go_to_reads_prompts() -> None:
    slow_reader = policy(replace(SHARED, high=replace(THROUGHPUT, prefill_tokens_per_s=20_000)))
    for side in ("triton", "vllm"):  # an operator may drain the plan's own side
        assert slow_reader.find_terms(on(side), {"vllm"}, 8).tokens_per_s == 60_000
        assert slow_reader.find_terms(on(side), {"triton"}, 8).tokens_per_s == 20_000


def test_on_gpus_of_their_own_both_engines_are_used_each_where_a_token_comes_first() -> None:
    split = policy(PARTITIONED).plan(demand(150, low=120), on("triton"), LATER)
    assert split.is_split
    chosen = [policy(PARTITIONED).choose(REQUEST, loads(*counts), split, LATER)[0] for counts in ((0, 0), (64, 20))]
    assert [route.backend for route in chosen] == ["triton", "triton"]
    assert policy(PARTITIONED).choose(REQUEST, loads(100, 20), split, LATER)[0].backend == "vllm"
    assert policy(PARTITIONED).choose(REQUEST, loads(100, 20), split, LATER)[0].reason.startswith("curve split in_")
    assert not policy().plan(demand(150, low=120), on("triton"), LATER).is_split


@pytest.mark.parametrize("is_split", [False, True])
def test_a_backend_that_is_down_is_no_candidate(is_split: bool) -> None:
    state = on("triton", is_split=is_split)
    route, after = policy(PARTITIONED).choose(REQUEST, loads(0, 0, ready=("vllm",)), state, LATER)
    assert route.backend == "vllm"
    assert after is state
    assert is_split or route.reason.endswith("triton=unavailable")


def test_without_a_node_model_all_go_to_the_fallback_and_the_reason_says_so() -> None:
    blind = policy(None)
    state = blind.start(1, LATER, "triton")
    assert (state.side, blind.plans) == ("vllm", False)
    assert blind.plan(demand(10), state, LATER) is state
    assert blind.choose(REQUEST, loads(3, 0), state, LATER)[0].reason == "curve fallback=vllm in_flight=4 node=unknown"
    assert Curve("triton", "vllm", fallback="low").start(1, LATER).side == "triton"
    assert str(blind).endswith("node=unknown")
    assert str(policy()).endswith("node=measured")


def test_it_starts_where_the_policy_before_it_was() -> None:
    assert policy().start(2, LATER, "vllm").side == "vllm"
    assert policy().start(2, LATER, "third").side == "triton"
    assert policy().max_in_flight("vllm") == 512
    assert policy(None).max_in_flight("vllm") is None
