"""In a quiet minute the engine not used gets all for a few seconds."""

from dataclasses import replace

import pytest

from gateway.core import BackendDemand
from gateway.routing.policies import Curve
from gateway.routing.policies.curve import trying
from gateway.routing.policies.curve.load import Load
from gateway.routing.policies.curve.memory import EngineMemory, Memory
from tests.routing.nodes import BEAT_S, LATER, make_backend, make_demand, read_node

NAMES = ("triton", "vllm")
NODE = read_node()
ENGINES = (NODE.low, NODE.high)


def make_load(rate: float, in_flight: int = 5) -> Load:
    return Load.of(make_demand(rate, make_backend(in_flight), BackendDemand(0)), NAMES, NODE, rate)


@pytest.mark.parametrize(
    ("unused_s", "tried_s", "failed", "load", "is_due"),
    [
        (599, 1e9, 0, make_load(10, 5), False),
        (600, 1e9, 0, make_load(10, 5), True),
        (1e6, 599, 0, make_load(10, 5), False),
        (1e6, 1199, 1, make_load(10, 5), False),
        (1e6, 1200, 1, make_load(10, 5), True),
        (1e6, 6 * 3600, 30, make_load(10, 5), True),  # at least so often
        (1e6, 1e9, 0, make_load(40, 25), True),
        (1e6, 1e9, 0, make_load(70, 60), False),  # more than 0.3 of what the low-load engine completes
        (1e6, 1e9, 0, make_load(0, 0), False),  # nothing would show how fast it is
    ],
)
def test_a_try_is_due_after_ten_quiet_minutes_and_more_rarely_after_failures(
    unused_s: float, tried_s: float, failed: int, load: Load, is_due: bool
) -> None:
    now = 1e7
    unused = EngineMemory(used_at=now - unused_s)
    memory = Memory(EngineMemory(used_at=now), unused, tried_at=now - tried_s, tries_failed=failed)
    assert trying.is_due(memory, ENGINES, load, 0, now) == is_due


@pytest.mark.parametrize(
    ("here", "other", "tried_s", "load", "is_overdue"),
    [
        (EngineMemory(error=0.4, windows=8), EngineMemory(), None, make_load(10, 5), True),
        (EngineMemory(decode=0.65, windows=8), EngineMemory(), None, make_load(40, 25), True),  # at any load
        (EngineMemory(error=0.3, windows=8), EngineMemory(), None, make_load(10, 5), False),
        (EngineMemory(error=0.4, windows=5), EngineMemory(), None, make_load(10, 5), False),  # too early to say
        (EngineMemory(error=0.4, windows=8), EngineMemory(windows=1), None, make_load(10, 5), False),  # it was seen
        (EngineMemory(error=0.4, windows=8), EngineMemory(), 1e6, make_load(10, 5), False),  # once
        (EngineMemory(error=0.4, windows=8), EngineMemory(), None, make_load(1000, 90), False),  # nor would it keep up
    ],
)
def test_an_engine_that_nobody_saw_is_tried_once_where_the_model_of_the_other_one_is_wrong(
    here: EngineMemory, other: EngineMemory, tried_s: float | None, load: Load, is_overdue: bool
) -> None:
    memory = Memory(here, other) if tried_s is None else Memory(here, other, tried_at=LATER - tried_s)
    assert trying.is_overdue(memory, NODE.high, load, 0) == is_overdue


def test_an_engine_that_was_never_used_counts_as_used_at_the_beginning() -> None:
    memory = Memory()
    for now in (LATER, LATER + 5):
        trying.note_use(memory, 0, now)
    assert (memory.low.used_at, memory.high.used_at) == (LATER + 5, LATER)


@pytest.mark.parametrize(("is_better", "side", "failed"), [(True, 1, 0), (False, 0, 3)])
def test_a_try_stays_where_it_is_better(is_better: bool, side: int, failed: int) -> None:
    memory = Memory(tries_failed=2.0, is_watched=1.0)
    trying.begin(memory, LATER)
    assert (trying.is_on(memory), memory.is_watched) == (True, 0.0)
    assert trying.go_on(memory, 1, LATER + trying.TRY_S - 0.01, is_better=not is_better) == 1
    assert trying.is_on(memory)
    assert trying.go_on(memory, 1, LATER + trying.TRY_S, is_better=is_better) == side
    assert (trying.is_on(memory), memory.tries_failed) == (False, failed)


@pytest.mark.parametrize(("scale", "side"), [(1.0, "triton"), (0.5, "vllm")])
def test_the_plan_tries_the_other_engine_and_stays_if_it_is_faster_than_was_thought(scale: float, side: str) -> None:
    """By its model the high-load engine is the slower one at this load. `scale`: of its steps, beside the model."""
    curve = Curve(*NAMES, node=NODE)
    memory = Memory(EngineMemory(used_at=LATER), EngineMemory(used_at=LATER - trying.EVERY_S + 3))
    state = replace(curve.start(1, LATER, "triton"), words=memory.words())
    generated, sides = [0.0, 0.0], []
    for beat in range(round(16 / BEAT_S)):
        now, at = LATER + BEAT_S * beat, NAMES.index(state.side)
        step_ms = (NODE.low.decode_ms(6, 6 * 144), scale * NODE.high.decode_ms(3, 3 * 144))[at]
        generated[at] += 6 * 1e3 * BEAT_S / step_ms
        low, high = (make_backend(6 if index == at else 0, generated=round(generated[index])) for index in (0, 1))
        state = curve.plan(make_demand(10, low, high, now=now), state, now)
        sides.append(state.side)
    began = sides.index("vllm")
    assert began * BEAT_S == pytest.approx(3, abs=2 * BEAT_S)
    assert sides[began : began + 100] == ["vllm"] * 100  # five seconds
    assert sides[-1] == side
    assert Memory.read(state.words).tries_failed == (side == "triton")


@pytest.mark.parametrize("keys", [{"tries": False}, {"learns": False}])
def test_where_nothing_is_tried_or_learned_the_plan_stays(keys: dict[str, bool]) -> None:
    memory = Memory(EngineMemory(used_at=LATER), EngineMemory(used_at=LATER - 1e4))
    state = replace(Curve(*NAMES, node=NODE).start(1, LATER - 1e4, "triton"), words=memory.words())
    demand = make_demand(10, make_backend(6), BackendDemand(0))
    assert Curve(*NAMES, node=NODE).plan(demand, state, LATER).side == "vllm"
    assert Curve(*NAMES, node=NODE, **keys).plan(demand, state, LATER).side == "triton"  # type: ignore[arg-type]  # by name
