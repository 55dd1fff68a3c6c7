"""What came after a change, beside what the engine before would have made of it."""

from dataclasses import replace

import pytest

from gateway.core import BackendDemand
from gateway.routing.policies import Curve
from gateway.routing.policies.curve import guard
from gateway.routing.policies.curve.load import Load
from gateway.routing.policies.curve.memory import EngineMemory, Memory
from tests.routing.nodes import BEAT_S, CONTEXT, LATER, make_backend, make_demand, read_node

NAMES = ("triton", "vllm")
NODE = read_node()
ENGINES = (NODE.low, NODE.high)
IN_FLIGHT = 100
STEP_MS = NODE.low.decode_ms(IN_FLIGHT, IN_FLIGHT * CONTEXT)  # of the engine that was left


def watch(
    memory: Memory, share: float, seconds: float, *, left: int = 0, decoding: int = IN_FLIGHT
) -> tuple[bool, float]:
    """Generates this share of what the engine before would have. Returns the verdict, and when it came."""
    guard.begin(memory)
    rate = 0.0  # no prompts: then a step is known without a fixed point
    for beat in range(round(seconds / BEAT_S)):
        now = LATER + BEAT_S * beat
        generated = share * IN_FLIGHT * 1e3 * BEAT_S * beat / STEP_MS
        here = make_backend(IN_FLIGHT, generated=round(generated))._replace(decoding=decoding)
        demand = make_demand(rate, make_backend(left), here, now=now)
        if guard.was_wrong(memory, ENGINES, Load.of(demand, NAMES, NODE, rate), 1, now):
            return True, now - LATER
        if not memory.is_watched:
            return False, now - LATER
    return False, seconds


@pytest.mark.parametrize(("share", "is_wrong"), [(0.5, True), (0.85, True), (0.95, False), (1.0, False), (1.5, False)])
def test_a_change_was_wrong_where_clearly_fewer_tokens_come(share: float, is_wrong: bool) -> None:
    memory = Memory()
    verdict, after_s = watch(memory, share, 3.0)
    assert verdict is is_wrong
    assert after_s == pytest.approx(guard.WATCH_S, abs=2 * BEAT_S)
    assert not memory.is_watched


def test_tokens_count_when_what_has_moved_has_begun() -> None:
    assert watch(Memory(), 0.5, 3.0, left=1) == (False, 3.0)
    assert watch(Memory(), 0.5, 3.0, decoding=IN_FLIGHT // 2) == (False, 3.0)
    assert watch(Memory(), 0.5, 3.0, decoding=0) == (False, 3.0)


def test_what_nobody_watches_is_not_wrong() -> None:
    demand = make_demand(0, BackendDemand(0), make_backend(IN_FLIGHT))
    assert not guard.was_wrong(Memory(), ENGINES, Load.of(demand, NAMES, NODE, 0.0), 1, LATER)


def test_an_engine_is_blocked_longer_each_time_until_it_was_right() -> None:
    engine, pauses = EngineMemory(), []
    for _ in range(8):
        guard.block(engine, LATER)
        pauses.append(engine.until - LATER)
    assert pauses == [5, 10, 20, 40, 80, 120, 120, 120]
    memory = Memory(high=engine)
    assert watch(memory, 1.0, 3.0)[0] is False
    guard.block(engine, LATER)
    assert engine.until - LATER == 5


def test_the_plan_goes_back_and_does_not_watch_the_return() -> None:
    """By the model the high-load engine is the faster one. Its steps take three times as long, and teach nothing:
    relayed answers are beside those that are counted.
    """
    curve = Curve(*NAMES, node=NODE, tries=False)
    state, generated, changes = curve.start(1, LATER - 60, "triton"), [0.0, 0.0], []
    step_ms = (STEP_MS, 3 * NODE.high.decode_ms(IN_FLIGHT / 2, IN_FLIGHT / 2 * CONTEXT))
    for beat in range(round(6 / BEAT_S)):
        now, side = LATER + BEAT_S * beat, NAMES.index(state.side)
        generated[side] += IN_FLIGHT * 1e3 * BEAT_S / step_ms[side]
        low, high = (
            make_backend(IN_FLIGHT if index == side else 0, generated=round(generated[index]))._replace(foreign=1)
            for index in (0, 1)
        )
        after = curve.plan(make_demand(100, low, high, now=now), state, now)
        if after.side != state.side:
            changes.append((after.side, now - LATER))
            assert bool(Memory.read(after.words).is_watched) == (after.side == "vllm")
        state = after
    (there, at), (back, later) = changes
    assert (there, back) == ("vllm", "triton")
    assert later - at == pytest.approx(guard.WATCH_S, abs=3 * BEAT_S)
    assert Memory.read(state.words).high.until == pytest.approx(LATER + later + guard.BLOCK_S)


def test_a_policy_that_does_not_learn_does_not_go_back() -> None:
    curve = Curve(*NAMES, node=NODE, learns=False)
    wrong = Memory(is_watched=1.0, watched=LATER - 2, made=0.0, would_ms=1.0, should_ms=1.0)
    state = replace(curve.start(1, LATER - 60, "vllm"), words=wrong.words())
    demand = make_demand(100, make_backend(0), make_backend(IN_FLIGHT, generated=1000))
    assert curve.plan(demand, state, LATER).side == "vllm"
    assert replace(curve, learns=True).plan(demand, state, LATER).side == "triton"
