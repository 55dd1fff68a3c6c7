"""How long an engine may generate nothing, by streams that the test counts."""

from dataclasses import replace

from gateway.flow import ModelFlow
from gateway.routing.demand import BEAT_S
from gateway.routing.policies import Threshold
from gateway.routing.policies.curve import Curve
from gateway.routing.policies.curve.memory import Memory
from gateway.routing.stall import LEAST_FIRST_S, LEAST_S, PAUSES, SLOWEST_PREFILL, STEPS, UNKNOWN_S, Stall
from tests.routing.nodes import read_node


def beat(stall: Stall, flow: ModelFlow, seconds: float, tokens: int = 0) -> None:
    for _ in range(round(seconds / BEAT_S)):
        flow.free["e"].generated += tokens
        stall.note(flow, "e")


def is_over(stall: Stall, step_s: float | None, waiting: float) -> bool:
    return stall.is_over(stall.silent_s, step_s, waiting)


def make(pause_s: float = BEAT_S, streams: int = 4) -> tuple[Stall, ModelFlow]:
    """Streams that have decoded for a while."""
    stall, flow = Stall(), ModelFlow(["e"])
    for _ in range(streams):
        flow.free["e"].begin(100)
        flow.free["e"].decode(100, 0.0)
    for _ in range(200):
        beat(stall, flow, pause_s - BEAT_S)
        beat(stall, flow, BEAT_S, tokens=streams)
    return stall, flow


def test_silence_lasts_while_streams_wait_and_nothing_comes() -> None:
    stall, flow = make()
    assert stall.silent_s == 0
    beat(stall, flow, 2.0)
    assert round(stall.silent_s, 6) == 2.0
    beat(stall, flow, BEAT_S, tokens=1)
    assert stall.silent_s == 0
    beat(stall, flow, 1.0)
    flow.free["e"].streams = 0
    beat(stall, flow, BEAT_S)
    assert stall.silent_s == 0


def test_nothing_is_silent_beside_answers_whose_tokens_nobody_counts_here() -> None:
    stall, flow = make()
    flow.relayed["e"] = 1
    beat(stall, flow, 60.0)
    assert stall.silent_s == 0
    flow.relayed["e"], flow.ignored.streams = 0, 1
    beat(stall, flow, 60.0)
    assert stall.silent_s == 0


def test_without_a_model_it_may_last_many_usual_pauses_and_as_long_as_prompts_need() -> None:
    stall, flow = make(pause_s=0.1)
    beat(stall, flow, PAUSES * 0.1 - 0.2)
    assert not is_over(stall, None, 0.0)
    beat(stall, flow, 0.4)
    assert is_over(stall, None, 0.0)
    assert not is_over(stall, None, SLOWEST_PREFILL)
    fast, flow = make()
    beat(fast, flow, LEAST_S)
    assert not is_over(fast, None, 0.0)
    beat(fast, flow, 2 * BEAT_S)
    assert is_over(fast, None, 0.0)


def test_first_tokens_may_take_longer() -> None:
    stall, flow = make()
    flow.free["e"].decoding = 0
    beat(stall, flow, LEAST_FIRST_S)
    assert not is_over(stall, 0.1, 0.0)
    beat(stall, flow, 2 * BEAT_S)
    assert is_over(stall, 0.1, 0.0)


def test_what_a_stuck_engine_keeps_shows_nothing_of_it_afterwards() -> None:
    stall, flow = make(streams=2)
    beat(stall, flow, 2.0)
    stall.found_stuck()
    beat(stall, flow, 60.0)
    assert stall.silent_s == 0
    flow.free["e"].begin(100)  # a trial
    beat(stall, flow, 2.0)
    assert round(stall.silent_s, 6) == 2.0
    flow.free["e"].streams = 1
    beat(stall, flow, 2.0)
    flow.free["e"].begin(100)
    beat(stall, flow, 1.0)
    assert round(stall.silent_s, 6) == 1.0


def test_the_first_token_of_all_may_take_long() -> None:
    stall, flow = Stall(), ModelFlow(["e"])
    flow.free["e"].begin(100)
    beat(stall, flow, UNKNOWN_S)
    assert not is_over(stall, None, 0.0)
    beat(stall, flow, 2 * BEAT_S)
    assert is_over(stall, None, 0.0)


def test_with_a_model_the_longest_step_counts() -> None:
    stall, flow = make()
    beat(stall, flow, 2.0)
    assert is_over(stall, 0.1, 0.0)
    assert not is_over(stall, 2.0 / STEPS + 0.1, 0.0)


def test_the_longest_step_has_all_prompts_that_wait_in_it() -> None:
    node = read_node()
    curve = Curve("low", "high", node=node)
    state = curve.start(1, 0.0)
    quiet, one, many = (curve.find_step_s("low", state, *load) for load in ((1, 0.0), (1, 8000.0), (8, 8000.0)))
    assert quiet is not None
    assert one is not None
    assert many is not None
    assert quiet < many < one  # one long prompt has more to attend to than eight short ones
    assert one > 8 * node.low.prompt_ms / 1e3
    assert curve.find_step_s("third", state, 1, 0.0) is None
    assert Curve("low", "high").find_step_s("low", state, 1, 0.0) is None
    assert Threshold(low="low", high="high", up=5, down=2).find_step_s("low", state, 1, 0.0) is None


def test_a_prompt_that_no_cache_holds_may_take_its_calibrated_time() -> None:
    curve = Curve("low", "high", node=read_node())
    state = curve.start(1, 0.0)
    memory = Memory.read(state.words)
    for engine in memory.engines:
        engine.windows, engine.prefill = 20.0, 0.05
    spared = replace(state, words=memory.words())
    for backend in ("low", "high"):
        assert curve.find_step_s(backend, spared, 50, 8000.0) == curve.find_step_s(backend, state, 50, 8000.0)
        assert curve.find_capacity(backend, spared) == curve.find_capacity(backend, state)
