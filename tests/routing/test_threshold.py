"""The threshold policy as tables: no loop, no clock, no sockets."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from gateway.core import GenerateRequest, Load, Prompt, SamplingParams, State
from gateway.routing.policies import Threshold

REQUEST = GenerateRequest("id", "llama", Prompt((1,)), SamplingParams(max_tokens=1), (2,))


def policy(up: int = 48, down: int = 40, dwell_s: float = 0.0) -> Threshold:
    return Threshold(low="triton", high="vllm", up=up, down=down, dwell_s=dwell_s)


def loads(others: int, *, ready: Sequence[str] = ("triton", "vllm")) -> dict[str, Load]:
    return {"triton": Load(others, "triton" in ready), "vllm": Load(0, "vllm" in ready)}


@pytest.mark.parametrize(
    ("side", "others", "sequences", "chosen"),
    [
        ("triton", 0, 1, "triton"),
        ("triton", 46, 1, "triton"),  # the 47th
        ("triton", 47, 1, "vllm"),  # the 48th: in_flight counts the request being placed
        ("triton", 200, 1, "vllm"),
        ("vllm", 47, 1, "vllm"),
        ("vllm", 40, 1, "vllm"),  # the 41st, between down and up: stays
        ("vllm", 39, 1, "triton"),  # the 40th
        ("vllm", 0, 1, "triton"),
        ("triton", 0, 128, "triton"),  # many choices do not count at once
        ("triton", 47, 3, "vllm"),
        ("vllm", 39, 3, "triton"),
    ],
)
def test_up_and_down_are_reached_by_the_request_being_placed(
    side: str, others: int, sequences: int, chosen: str
) -> None:
    request = replace(REQUEST, sequences=sequences)
    route, state = policy().choose(request, loads(others), State(side, 0.0, 1), now=10.0)
    assert (route.backend, state.side) == (chosen, chosen)
    assert route.reason == f"threshold in_flight={others + 1} up=48 down=40"


def test_of_choices_those_count_that_are_usual() -> None:
    both = {"triton": Load(137, True, brief=100), "vllm": Load(10, True, brief=-2)}
    route, _ = policy().choose(REQUEST, both, State("triton", 0.0, 1), now=10.0)
    assert route.reason.startswith("threshold in_flight=50 ")


def test_what_is_in_flight_on_both_backends_counts_together() -> None:
    both = {"triton": Load(24, True), "vllm": Load(23, True)}
    route, _ = policy().choose(REQUEST, both, State("triton", 0.0, 1), now=10.0)
    assert route.backend == "vllm"


def test_a_load_that_rises_and_falls_switches_once_each_way() -> None:
    rising_and_falling = [*range(100), *reversed(range(100))]
    state = policy().start(1, now=0.0)
    sides = []
    for second, others in enumerate(rising_and_falling):
        _, state = policy().choose(REQUEST, loads(others), state, now=float(second))
        sides.append(state.side)
    switches = [(index, to) for index, (at, to) in enumerate(pairwise(sides), 1) if at != to]
    assert switches == [(47, "vllm"), (160, "triton")]  # others 47, and 39 on the way down


def test_a_load_that_sways_inside_the_band_never_switches() -> None:
    for side in ("triton", "vllm"):
        state = State(side, 0.0, 1)
        for second, others in enumerate([40, 46] * 50):
            _, state = policy().choose(REQUEST, loads(others), state, now=float(second))
        assert state == State(side, 0.0, 1)


@pytest.mark.parametrize(("now", "side"), [(100.0, "triton"), (100.9, "triton"), (101.0, "vllm"), (200.0, "vllm")])
def test_a_side_is_kept_for_its_dwell(now: float, side: str) -> None:
    _, state = policy(dwell_s=1.0).choose(REQUEST, loads(90), State("triton", 100.0, 1), now)
    assert state.side == side
    assert state.since == (100.0 if side == "triton" else now)


def test_a_fresh_policy_may_switch_at_its_first_request() -> None:
    fresh = policy(up=1, down=0, dwell_s=60.0)
    route, _ = fresh.choose(REQUEST, loads(0), fresh.start(1, now=5.0), now=5.0)
    assert route.backend == "vllm"


@pytest.mark.parametrize(
    ("previous", "side"), [(None, "triton"), ("triton", "triton"), ("vllm", "vllm"), ("x", "triton")]
)
def test_a_policy_starts_on_the_side_before_it_if_it_knows_that_side(previous: str | None, side: str) -> None:
    assert policy().start(7, 5.0, previous) == State(side, 5.0, 7)


@pytest.mark.parametrize(
    ("others", "ready", "chosen", "side"),
    [(0, "vllm", "vllm", "triton"), (90, "triton", "triton", "vllm")],
)
def test_a_backend_that_is_not_ready_is_no_candidate_but_the_side_still_follows_the_load(
    others: int, ready: str, chosen: str, side: str
) -> None:
    route, state = policy().choose(REQUEST, loads(others, ready=[ready]), State("triton", 0.0, 1), now=10.0)
    assert (route.backend, state.side) == (chosen, side)
    assert route.reason == f"threshold in_flight={others + 1} up=48 down=40 {side}=unavailable"


def test_a_third_backend_is_the_last_resort() -> None:
    three = {"spare": Load(0, True), **loads(0, ready=[])}
    assert policy().choose(REQUEST, three, State("triton", 0.0, 1), now=1.0)[0].backend == "spare"
    with_vllm = {"spare": Load(0, True), **loads(0, ready=["vllm"])}
    assert policy().choose(REQUEST, with_vllm, State("triton", 0.0, 1), now=1.0)[0].backend == "vllm"


@pytest.mark.parametrize(("up", "down", "others"), [(1, 0, 0), (1, 0, 500)])
def test_up_1_down_0_means_always_high(up: int, down: int, others: int) -> None:
    always = policy(up, down)
    route, _ = always.choose(REQUEST, loads(others), always.start(1, 0.0), now=1.0)
    assert route.backend == "vllm"
