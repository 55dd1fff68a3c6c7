"""The policy `curve` as tables: no loop, no clock, no sockets."""

import math
from dataclasses import fields, replace
from random import Random
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from engines.physics.forecast import HORIZON_S
from gateway.core import (
    STATE_WORDS,
    Arrivals,
    Demand,
    GenerateRequest,
    Load,
    MoveTerms,
    Prompt,
    SamplingParams,
    State,
)
from gateway.routing.policies import Curve, NodeModel, read_policy
from gateway.routing.policies.curve.learning import LEAST, LEAST_PREFILL
from gateway.routing.policies.curve.load import Load as NodeLoad
from gateway.routing.policies.curve.memory import WORDS, EngineMemory, Memory
from gateway.routing.policies.curve.planner import Planner, Rules
from gateway.routing.state_words import STATE_WORDS as ALL_WORDS
from gateway.routing.state_words import read_state, write_state
from gateway.shared import Memory as SharedMemory
from gateway.shared import as_floats
from tests.routing.nodes import ANSWER_TOKENS, BEAT_S, LATER, describe_node, make_backend, make_demand, read_node

NAMES = ("triton", "vllm")
REQUEST = GenerateRequest("id", "llama", Prompt((1,) * 80), SamplingParams(max_tokens=128), (2,))
SHARED = read_node()  # low is the faster one up to about 35 requests a second
PARTITIONED = replace(SHARED, interference=0.0)
RULES = Rules("answer", horizon_s=8.0, headroom=0.1, margin=0.05, dwell_s=0.3, guards=True, tries=True)


def policy(node: NodeModel | None = SHARED, **keys: Any) -> Curve:  # Any: by name
    return Curve(*NAMES, node=node, **keys)


def demand(rate: float, low: int = 0, high: int = 0, *, before: float | None = None, share: float = 0.0) -> Demand:
    """`share`: of what arrives and of vLLM's answers, that can run nowhere else."""
    return make_demand(rate, make_backend(low), make_backend(high, share=share), before=before)


def on(side: str, *, since: float = 0.0, **memory: Any) -> State:  # Any: by name
    return State(side, since, 1, Memory(**memory).words())


def loads(low: int, high: int, *, ready: tuple[str, ...] = NAMES) -> dict[str, Load]:
    return {"triton": Load(low, "triton" in ready), "vllm": Load(high, "vllm" in ready)}


def remember(state: State) -> Memory:
    return Memory.read(state.words)


@pytest.mark.parametrize(
    ("side", "load", "chosen"),
    [
        ("triton", demand(0), "triton"),
        ("vllm", demand(0), "vllm"),  # there is nothing to be gained
        ("triton", demand(10, low=5), "triton"),
        ("vllm", demand(10, high=5), "triton"),
        ("triton", demand(150, low=150), "vllm"),
        ("vllm", demand(150, high=150), "vllm"),
        ("vllm", demand(400, high=900), "vllm"),  # more than either completes
        ("triton", demand(250, low=300), "vllm"),
        ("vllm", demand(32, high=24), "vllm"),  # as good as the other
        ("triton", demand(32, low=22), "triton"),
    ],
)
def test_the_plan_is_the_side_that_serves_the_demand_in_less_time(side: str, load: Demand, chosen: str) -> None:
    assert policy().plan(load, on(side), LATER).side == chosen


def test_a_jump_of_the_rate_acts_at_once_and_a_small_one_waits() -> None:
    jump = policy().plan(demand(150, low=45, before=8), on("triton"), LATER)
    assert jump.side == "vllm"
    assert remember(jump).rate == pytest.approx(130, rel=0.05)  # the rate before counts a little longer
    small = policy().plan(demand(40, low=12, before=20), on("triton"), LATER)
    assert small.side == "triton"
    assert remember(small).rate == pytest.approx(23, rel=0.1)
    assert policy(evidence=0.5, margin=0.02).plan(demand(40, low=12, before=20), on("triton"), LATER).side == "vllm"


def test_a_change_is_kept_for_its_dwell_and_within_its_margin() -> None:
    load = demand(150, low=150)
    assert policy().plan(load, on("triton", since=LATER - 0.2), LATER).side == "triton"
    assert policy(dwell_s=0.1).plan(load, on("triton", since=LATER - 0.2), LATER).side == "vllm"
    assert policy(margin=0.9).plan(load, on("triton"), LATER).side == "triton"


def count_beats(curve: Curve, load: Demand, state: State) -> int:
    """Returns how many beats a load of which nothing changes takes to move the plan."""
    side, beats = state.side, 0
    while state.side == side:
        state, beats = curve.plan(load, state, LATER), beats + 1
        assert beats < 1000
    return beats


def test_what_was_lost_pays_the_price_of_a_change_and_the_way_back() -> None:
    """Where nothing is expected of the seconds to come, those that have passed have to have been worth it."""
    quiet, patient = demand(10, high=6), policy(horizon_s=0.0)
    assert count_beats(policy(), quiet, on("vllm")) == 1
    beats = count_beats(patient, quiet, on("vllm"))
    assert 10 < beats < 30
    dear = replace(SHARED, move_s=1.0)
    assert count_beats(policy(dear, horizon_s=0.0), quiet, on("vllm")) > 10 * beats
    state = on("vllm")
    for _ in range(beats):
        state = patient.plan(quiet, state, LATER)
    assert (state.side, remember(state).owed_s, remember(state).price_s) == ("triton", 0.0, 0.0)


@pytest.mark.parametrize(
    ("rate", "in_flight", "owed_s", "minutes", "side"),
    [
        (24, 16, 100.0, 1.1, "vllm"),  # vllm is a little worse now, and moving costs little
        (24, 16, 100.0, 0.9, "triton"),  # all of it may have been one peak
        (24, 16, 0.1, 1.1, "triton"),  # it would not pay for the change
        (10, 5, 100.0, 1.1, "triton"),  # vllm is much worse
    ],
)
def test_what_is_owed_for_long_pays_for_a_change_in_a_quiet_moment(
    rate: float, in_flight: int, owed_s: float, minutes: float, side: str
) -> None:
    state = on("triton", since=LATER - 60 * minutes, owed_s=owed_s)
    assert policy().plan(demand(rate, low=in_flight), state, LATER).side == side


@pytest.mark.parametrize("caution", [2.0, 8.0])
def test_caution_is_how_many_times_its_price_a_change_has_to_be_worth(caution: float) -> None:
    quiet, patient = demand(10, high=6), policy(horizon_s=0.0)
    usual = count_beats(patient, quiet, on("vllm"))
    assert count_beats(patient, quiet, on("vllm", caution=caution)) == pytest.approx(caution * usual, rel=0.05)


def test_a_saving_counts_for_half_as_long_as_plans_of_its_kind_lasted() -> None:
    """After peaks of two seconds a change has to pay within one, or what staying has lost pays for it."""
    quiet, patient = demand(10, high=6), policy(horizon_s=0.0)
    long, short, none = (on("vllm", low=EngineMemory(lasted_s=lasted_s)) for lasted_s in (600.0, 0.5, 1e-9))
    beats = [count_beats(policy(), quiet, state) for state in (on("vllm"), long, short, none)]
    assert beats[0] == beats[1] == 1 < beats[2] < beats[3] == count_beats(patient, quiet, on("vllm"))


def test_plans_last_as_long_as_they_did_of_late() -> None:
    load, state = demand(10, high=6), on("vllm", since=LATER - 6.0)
    first = remember(policy().plan(load, state, LATER))
    assert first.low.lasted_s == 0.0
    assert first.high.lasted_s == pytest.approx(6.0)
    again = on("vllm", since=LATER - 2.0, high=EngineMemory(lasted_s=6.0))
    assert remember(policy().plan(load, again, LATER)).high.lasted_s == pytest.approx(4.0)
    taken_back = on("vllm", since=LATER - 0.4, high=EngineMemory(lasted_s=6.0))
    assert remember(policy().plan(load, taken_back, LATER)).high.lasted_s == 6.0


def test_a_peak_in_which_nothing_moves_counts_once_the_engine_in_use_is_clearly_better_again() -> None:
    patient, busy, quiet = policy(horizon_s=0.0), demand(150, low=150), demand(10, high=6)
    risen = patient.plan(busy, on("triton", since=LATER - 60), LATER)
    assert remember(risen).behind_since == LATER
    lasts = patient.plan(busy, risen, LATER + 3)
    assert (lasts.side, remember(lasts).behind_since, remember(lasts).high.lasted_s) == ("triton", LATER, 0.0)
    over = remember(patient.plan(quiet, lasts, LATER + 4))
    assert over.behind_since == 0.0
    assert over.high.lasted_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("paid_s", "gained_s", "before", "after"),
    [(1.0, 5.0, 4.0, 3.6), (1.0, 0.5, 4.0, 8.0), (1.0, 0.5, 8.0, 8.0), (1.0, 5.0, 1.0, 1.0), (0.0, -5.0, 1.0, 1.0)],
)
def test_a_change_that_has_not_paid_makes_the_next_ones_promise_more(
    paid_s: float, gained_s: float, before: float, after: float
) -> None:
    state = on("triton", paid_s=paid_s, gained_s=gained_s, caution=before)
    memory = remember(policy(horizon_s=600.0).plan(demand(150, low=150), state, LATER))
    assert memory.caution == pytest.approx(after)
    assert memory.gained_s == 0.0
    assert memory.paid_s > 0


def find_price(load: Demand, side: str) -> float:
    """Returns the price of the change that a plan considers."""
    return remember(policy().plan(load, on(side, caution=1e9), LATER)).price_s


def test_an_overload_does_not_lock_the_plan() -> None:
    """Twice as many beyond the crossing make the change twice as dear, not four times: they count in part."""
    some, many, more = (find_price(demand(300, low=count), "triton") for count in (10, 200, 400))
    assert some < many / 4
    assert more == pytest.approx(2 * many, rel=0.15)


def test_the_way_to_the_low_load_engine_has_the_way_back_in_its_price() -> None:
    few, many = (find_price(demand(10, high=count), "vllm") for count in (5, 10))
    assert many > 1.9 * few > 0
    there = replace(SHARED, high=replace(SHARED.high, prompt_ms=2 * SHARED.high.prompt_ms))
    dearer = remember(policy(there).plan(demand(10, high=10), on("vllm", caution=1e9), LATER)).price_s
    assert dearer > 1.1 * many


def weigh(load: Demand, side: int, node: NodeModel = SHARED, objective: Literal["answer", "ttft"] = "answer") -> float:
    engines = node.low, node.high
    planner = Planner(replace(RULES, objective=objective), node, engines, engines)
    return planner.weigh(NodeLoad.of(load, NAMES, node, 10.0), side, 0.0).cost


@pytest.mark.parametrize("objective", ["answer", "ttft"])
def test_what_only_one_engine_serves_counts_and_slows_the_other_down(objective: Literal["answer", "ttft"]) -> None:
    free = make_demand(10, make_backend(6), make_backend(2))
    bound = make_demand(10, make_backend(6), make_backend(2, share=1.0)._replace(fixed_share=0.25))
    assert weigh(bound, 0, objective=objective) > 1.5 * weigh(free, 0, objective=objective)
    assert weigh(bound, 0, PARTITIONED, objective) < 0.8 * weigh(bound, 0, objective=objective)
    assert weigh(bound, 1, objective=objective) == pytest.approx(weigh(free, 1, objective=objective), rel=0.05)


def test_where_one_engine_works_all_the_time_all_others_join_it() -> None:
    assert policy().plan(demand(10, low=5, high=1), on("triton"), LATER).side == "triton"
    bound = make_demand(10, make_backend(5), make_backend(1, share=1.0)._replace(fixed_share=0.2))
    assert policy().plan(bound, on("triton"), LATER).side == "vllm"


@pytest.mark.parametrize(
    ("low", "high", "margin"),
    [
        ((0.05, 0, 0.0), (0.1, 0, 0.0), 0.05),  # the two errors of a calibration, and what live steps showed
        ((0.5, 0, 0.0), (0.0, 0, 0.0), 0.25),
        ((0.0, 0, 0.0), (0.9, 0, 0.0), 0.45),
        ((0.5, 15, 0.0), (0.0, 0, 0.0), 0.05),  # an engine that was seen for long is known by that
        ((0.0, 15, -0.7), (0.0, 0, 0.0), 0.35),
        ((0.5, 14, 0.0), (0.0, 0, 0.0), 0.25),
    ],
)
def test_the_margin_is_wider_where_the_model_is_off(
    low: tuple[float, int, float], high: tuple[float, int, float], margin: float
) -> None:
    node = replace(SHARED, low_error=low[0], high_error=high[0])
    seen = [EngineMemory(windows=windows, misfit=misfit) for _, windows, misfit in (low, high)]
    engines = node.low, node.high
    planner = Planner(RULES, node, engines, engines)
    assert planner.find_margin(Memory(seen[0], seen[1])) == pytest.approx(margin)


def test_a_model_that_is_off_has_the_plan_wait_for_a_larger_gain() -> None:
    load = demand(60, low=53)
    assert policy().plan(load, on("triton"), LATER).side == "vllm"
    assert policy(replace(SHARED, high_error=1.0)).plan(load, on("triton"), LATER).side == "triton"


def test_the_policys_words_survive_and_fit() -> None:
    draw = Random(1)
    values = {each.name: draw.uniform(-1e9, 1e9) for each in fields(Memory)[2:]}
    engines = [EngineMemory(*(draw.uniform(-9, 9) for _ in fields(EngineMemory))) for _ in range(2)]
    memory = replace(Memory(engines[0], engines[1]), **values)  # type: ignore[arg-type]  # by name
    assert len(memory.words()) == WORDS <= STATE_WORDS
    ints = SharedMemory().ints(ALL_WORDS)
    floats = as_floats(ints)
    state = State("vllm", 12.5, 7, memory.words())
    write_state(ints, floats, state, NAMES)
    assert read_state(ints, floats, NAMES) == state
    assert remember(read_state(ints, floats, NAMES)) == memory
    assert Memory.read(()) == Memory()
    assert remember(policy().start(1, LATER)) == Memory()


def test_a_plan_serves_its_objective() -> None:
    """The low-load engine decodes faster, and is the slower one to read prompts."""
    node = replace(SHARED, low=replace(SHARED.low, mixed_ms=30.0, prompt_ms=40.0))
    load = demand(8, low=6)
    assert policy(node).plan(load, on("triton"), LATER).side == "triton"
    first = policy(node, objective="ttft")
    state = first.plan(load, on("triton"), LATER)
    assert state.side == "vllm"
    assert remember(state).answer_s < 0.1
    reason = first.choose(REQUEST, loads(1, 1), state, LATER)[0].reason
    assert reason.endswith(f" ttft={remember(state).answer_s:g}s")


def test_a_plan_says_what_it_expects() -> None:
    state = policy().plan(demand(10, low=6), on("triton"), LATER)
    memory = remember(state)
    assert memory.rate == pytest.approx(10, rel=0.05)
    assert memory.answer_s == pytest.approx((ANSWER_TOKENS + 1) * SHARED.low.decode_ms(6, 6 * 144) / 1e3, rel=0.1)
    route, after = policy().choose(REQUEST, loads(6, 0), state, LATER)
    assert (route.backend, after) == ("triton", state)
    assert route.reason == f"curve all=triton in_flight=7 rate={memory.rate:g}/s answer={memory.answer_s:g}s"


def test_what_was_foreseen_is_compared_with_what_came() -> None:
    curve = policy()
    state = curve.plan(demand(10, low=6), on("triton"), LATER)
    foreseen = remember(state).foreseen
    assert foreseen == pytest.approx(10 * remember(state).answer_s, rel=0.05)
    for in_flight, later_s, error in ((6, HORIZON_S - 0.1, 0.0), (12, HORIZON_S, math.log(12 / foreseen))):
        now = LATER + later_s
        state = curve.plan(make_demand(10, make_backend(in_flight), make_backend(0), now=now), state, now)
        assert remember(state).forecast_error == pytest.approx(error)


def test_nothing_is_foreseen_before_a_rate_is_known() -> None:
    load = demand(10, low=6)
    first = replace(load, arrivals=[Arrivals(each.at, each.total - load.arrivals[0].total) for each in load.arrivals])
    assert remember(policy().plan(first, on("triton"), LATER)).foreseen == 0
    assert remember(policy().plan(load, on("triton"), LATER)).foreseen > 0


# ---- GPUs of their own -----------------------------------------------------------------------------------------------


def split(objective: Literal["answer", "ttft"] = "answer", *, rate: float = 60, low: int = 30, high: int = 30) -> State:
    state = policy(PARTITIONED, objective=objective).plan(demand(rate, low=low, high=high), on("triton"), LATER)
    assert state.side == "triton"
    return state


def choose(node: NodeModel, state: State, at: tuple[int, int], prompt_tokens: int = 80, max_tokens: int = 128) -> str:
    request = replace(REQUEST, prompt=Prompt((1,) * prompt_tokens), params=SamplingParams(max_tokens=max_tokens))
    return policy(node).choose(request, loads(*at), state, LATER)[0].backend


@pytest.mark.parametrize(
    ("at", "chosen"), [((0, 0), "triton"), ((10, 40), "triton"), ((40, 10), "vllm"), ((100, 20), "vllm")]
)
def test_on_gpus_of_their_own_a_request_goes_where_it_costs_all_least(at: tuple[int, int], chosen: str) -> None:
    assert policy(PARTITIONED).splits
    assert not policy().splits
    assert choose(PARTITIONED, split(), at) == chosen
    reason = policy(PARTITIONED).choose(REQUEST, loads(*at), split(), LATER)[0].reason
    assert reason.startswith(f"curve split in_flight={sum(at) + 1} rate=60/s answer=")


def test_on_gpus_of_their_own_a_long_prompt_goes_where_it_stops_others_least() -> None:
    fast = replace(SHARED.low, prompt_ms=6.0)
    apart = replace(PARTITIONED, low=SHARED.low, high=fast)
    state = policy(apart).plan(demand(40, low=20, high=20), on("triton"), LATER)
    assert choose(apart, state, (18, 20)) == "triton"
    assert choose(apart, state, (18, 20), 8_000) == "vllm"  # which reads it twice as fast
    assert choose(apart, state, (4, 40), 8_000) == "triton"  # where fewer wait while it is read
    assert choose(apart, state, (16, 24), 600) == "triton"
    assert choose(apart, state, (16, 24), 600, max_tokens=1) == "vllm"  # which has no answer to be slower with


def test_on_gpus_of_their_own_a_full_engine_has_a_queue() -> None:
    small = replace(PARTITIONED, low=replace(SHARED.low, max_sequences=16), high=SHARED.low)
    state = policy(small).plan(demand(40, low=15, high=15), on("triton"), LATER)
    assert choose(small, state, (15, 16)) == "triton"
    assert choose(small, state, (20, 24)) == "vllm"


@pytest.mark.parametrize("objective", ["answer", "ttft"])
def test_on_gpus_of_their_own_a_request_weighs_its_objective(objective: Literal["answer", "ttft"]) -> None:
    """The high-load engine of this pair decodes as fast, and prefills slower."""
    node = replace(PARTITIONED, high=replace(SHARED.low, steps_ms=((1, 3.0), (256, 8.0)), prompt_ms=40.0))
    curve = policy(node, objective=objective)
    state = curve.plan(demand(40, low=16, high=16), on("triton"), LATER)
    chosen = curve.choose(replace(REQUEST, prompt=Prompt((1,) * 200)), loads(12, 12), state, LATER)[0].backend
    assert chosen == ("vllm" if objective == "answer" else "triton")


def test_answers_follow_on_shared_gpus_only() -> None:
    assert set(policy().find_left(on("vllm"))) == {"triton"}
    assert set(policy().find_left(on("triton"))) == {"vllm"}
    assert not policy(PARTITIONED).find_left(on("vllm"))
    assert not policy(None).find_left(on("vllm"))


# ---- moves, failures, beginnings -------------------------------------------------------------------------------------


def test_an_answer_moves_unless_it_ends_while_it_would_move() -> None:
    """At 8 in flight a step of vllm takes 4.8 ms; a move takes 50 ms, and its prefill."""
    few = policy().find_terms(on("vllm"), {"triton"}, 8).min_left
    assert few == 11
    assert policy().find_terms(on("vllm"), {"triton"}, 500).min_left < few
    assert policy(None).find_terms(on("vllm"), {"triton"}, 8) == MoveTerms()
    drafts = replace(SHARED, high=replace(SHARED.high, tokens_per_step=3.0))
    assert policy(drafts).find_terms(on("vllm"), {"triton"}, 8).min_left == pytest.approx(3 * few, abs=3)


def test_answers_move_as_fast_as_the_engine_that_they_go_to_reads_prompts() -> None:
    for side in NAMES:  # an operator may drain the plan's own side
        assert policy().find_terms(on(side), {"vllm"}, 8).tokens_per_s == pytest.approx(1e6 / 13.2)
        assert policy().find_terms(on(side), {"triton"}, 8).tokens_per_s == pytest.approx(2e6 / 19.3)
    seen = on("vllm", high=EngineMemory(prefill=2.0, windows=20.0))
    assert policy().find_terms(seen, {"triton"}, 8).tokens_per_s == pytest.approx(1e6 / 19.3)


def test_what_moves_is_in_no_cache_of_the_engine_that_it_goes_to() -> None:
    """Where prompts begin alike, and the engine does not report its cache, prompts seem to be read 20 times as fast."""
    prices, rates = [], []
    for prefill in (LEAST, LEAST_PREFILL):
        seen = on("triton", caution=1e9, high=EngineMemory(prefill=prefill, windows=20.0))
        rates.append(policy().find_terms(seen, {"triton"}, 8).tokens_per_s)
        prices.append(remember(policy().plan(demand(300, low=200), seen, LATER)).price_s)
    assert rates[0] == rates[1]
    assert prices[1] == pytest.approx(prices[0], rel=0.2)


@pytest.mark.parametrize("node", [SHARED, PARTITIONED])
def test_a_backend_that_is_down_is_no_candidate(node: NodeModel) -> None:
    state = on("triton")
    route, after = policy(node).choose(REQUEST, loads(0, 0, ready=("vllm",)), state, LATER)
    assert (route.backend, after) == ("vllm", state)
    assert node is PARTITIONED or route.reason.endswith(" triton=unavailable")


def test_without_a_node_model_all_go_to_the_fallback_and_the_reason_says_so() -> None:
    blind = policy(None)
    state = blind.start(1, LATER, "triton")
    assert (state.side, state.words, blind.plans) == ("vllm", (), False)
    assert blind.plan(demand(10), state, LATER) is state
    assert blind.choose(REQUEST, loads(3, 0), state, LATER)[0].reason == "curve fallback=vllm in_flight=4 node=unknown"
    route = blind.choose(REQUEST, loads(3, 0, ready=("triton",)), state, LATER)[0]
    assert (route.backend, route.reason.endswith(" vllm=unavailable")) == ("triton", True)
    assert Curve(*NAMES, fallback="low").start(1, LATER).side == "triton"
    assert str(blind).endswith("node=unknown")
    assert str(policy()).endswith("node=measured")
    assert not blind.readings(state)


def test_it_starts_where_the_policy_before_it_was() -> None:
    assert policy().start(2, LATER, "vllm").side == "vllm"
    assert policy().start(2, LATER, "third").side == "triton"
    assert policy().max_in_flight("vllm") == 1024  # over its two replicas
    assert policy(None).max_in_flight("vllm") is None


def test_what_was_learned_can_be_read() -> None:
    low = EngineMemory(decode=1.5, prefill=0.8, error=0.4, misfit=0.02, windows=7, max_sequences=63.6)
    readings = policy().readings(on("triton", low=low, forecast_error=-0.1))
    assert readings == {
        "triton": {
            "decode_scale": 1.5,
            "prefill_scale": 0.8,
            "step_error": 0.4,
            "step_misfit": 0.02,
            "forecast_error": -0.1,
            "model_wrong": 1.0,
            "max_sequences": 64.0,
        }
    }


def test_a_node_model_of_an_older_form_is_refused_with_what_to_do() -> None:
    older = {"steps_ms": [[1, 5.0]], "prefill_tokens_per_s": 50_000, "max_in_flight": 64}
    section = {"kind": "curve", "low": "triton", "high": "vllm", "node": {**describe_node(), "high": older}}
    with pytest.raises(ValidationError, match=r"older form.*`crossover calibrate --apply` makes a new one"):
        read_policy(section)
    section["node"] = describe_node()
    assert read_policy(section) == policy()


@pytest.mark.parametrize(("learns", "beside", "decode"), [(True, 0, 1.9), (True, 1, 1.0), (False, 0, 1.0)])
def test_live_steps_correct_the_model_of_an_engine_that_works_alone(learns: bool, beside: int, decode: float) -> None:
    """Its steps take twice as long as by its model."""
    curve, state, step_ms = policy(learns=learns), on("vllm", since=LATER + 60), SHARED.high.decode_ms(50, 50 * 144)
    for beat in range(22):
        now = LATER + BEAT_S * beat
        working = make_backend(100, generated=round(100 * 1e3 * BEAT_S * beat / (2 * step_ms)))
        state = curve.plan(make_demand(60, make_backend(beside), working, now=now), state, now)
    assert remember(state).high.decode == pytest.approx(decode, abs=0.11)
    assert ("vllm" in curve.readings(state)) == (decode > 1)


# ---- prefix caches ---------------------------------------------------------------------------------------------------


def hold(load: Demand, low: float, high: float, prompt_tokens: float = 2000.0) -> Demand:
    """Returns the load with long prompts. `low`, `high`: the part of them that each engine's cache holds."""
    backends = zip(load.backends.items(), (low, high), strict=True)
    held = {name: backend._replace(cached=cached) for (name, backend), cached in backends}
    return replace(load, backends=held, prompts=(prompt_tokens,))


def test_what_is_cached_is_context_but_not_prefilled() -> None:
    plain = NodeLoad.of(hold(demand(20), 0.0, 0.0), NAMES, SHARED, 20)
    cached = NodeLoad.of(hold(demand(20), 0.25, 0.75), NAMES, SHARED, 20)
    assert [mix.prompts for mix in (plain.mix, *plain.mixes)] == [(2000.0,)] * 3
    assert [mix.prompts for mix in (cached.mix, *cached.mixes)] == [(1000.0,), (1500.0,), (500.0,)]
    assert {mix.context for mix in (plain.mix, *plain.mixes, cached.mix, *cached.mixes)} == {2000.0 + ANSWER_TOKENS / 2}


@pytest.mark.parametrize(("cached", "chosen"), [(0.0, "vllm"), (0.9, "triton")])
@pytest.mark.parametrize("side", NAMES)
def test_an_engine_that_holds_most_of_the_prompts_keeps_up_with_more(side: str, cached: float, chosen: str) -> None:
    """Whole, such prompts at such a rate are more than the low-load engine prefills beside its answers."""
    low, high = (20, 0) if side == "triton" else (0, 20)
    assert policy(margin=0.05).plan(hold(demand(20, low, high), cached, cached), on(side), LATER).side == chosen


@pytest.mark.parametrize(("cached", "chosen"), [((0.9, 0.0), "triton"), ((0.0, 0.9), "vllm")])
def test_on_gpus_of_their_own_a_long_prompt_goes_where_more_of_it_is_cached(
    cached: tuple[float, float], chosen: str
) -> None:
    load = hold(demand(20, low=8, high=8), *cached, prompt_tokens=80.0)
    state = policy(PARTITIONED).plan(load, on("triton"), LATER)
    assert choose(PARTITIONED, state, (8, 8), 4000) == chosen
