"""A policy on trial beside the one in force: it sees the same requests, and places none."""

from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product

import pytest

from gateway.core import Load, Need, Needs
from gateway.routing import DryRun
from gateway.routing.policies import Curve, EngineModel, NodeModel, Threshold
from tests.fakes.seats import make_seats
from tests.routing.conftest import PLAIN, Node, request_of

NAMES = ("triton", "vllm")
HIGHER = Threshold(*NAMES, up=4, down=2, dwell_s=0)
LOWER = Threshold(*NAMES, up=2, down=1, dwell_s=0)
NODE = NodeModel(
    EngineModel(((1, 4.0), (256, 40.0)), prompt_ms=20.0),
    EngineModel(((1, 6.0), (256, 12.0)), prompt_ms=20.0),
    interference=1.0,
    prompt_tokens=80,
    answer_tokens=128,
)


def choices(node: Node) -> Mapping[tuple[str, str], int]:
    dry = node.router.model_state().dry
    assert dry is not None
    return {pair: count for pair, count in dry.choices.items() if count}


def test_it_chooses_for_every_request_and_the_policy_in_force_places_them() -> None:
    node = Node(HIGHER, dry=LOWER)
    with ExitStack() as stack:
        placed = [stack.enter_context(node.fleet.lease(request_of())).route.backend for _ in range(5)]
        assert placed == ["triton"] * 3 + ["vllm"] * 2
        assert choices(node) == {("triton", "triton"): 1, ("triton", "vllm"): 2, ("vllm", "vllm"): 2}
        dry = node.router.model_state().dry
        assert dry is not None
        assert (dry.policy, dry.side, dry.switches) == (LOWER, "vllm", 1)
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


@pytest.mark.parametrize(
    ("pin", "run", "needs"),
    [("vllm", None, {}), ("vllm", "a-run", {}), (None, None, {Need.GUIDE: "response_format"})],
)
def test_requests_that_no_policy_may_place_are_not_counted(pin: str | None, run: str | None, needs: Needs) -> None:
    node = Node(HIGHER, able={"triton": ()}, dry=LOWER)
    node.fleet.lease(request_of(pin=pin, run=run, needs=needs)).close()
    assert choices(node) == {}
    node.fleet.lease(request_of()).close()
    assert choices(node) == {("triton", "triton"): 1}


def test_it_knows_which_backends_are_ready() -> None:
    node = Node(Threshold(*NAMES, up=9, down=8), dry=LOWER)
    node.ready("triton")
    with node.fleet.lease(request_of()), node.fleet.lease(request_of()):
        assert choices(node) == {("triton", "triton"): 2}


def test_one_that_plans_does_so_though_the_policy_in_force_does_not() -> None:
    node = Node(Threshold(*NAMES, up=999, down=998), dry=Curve(*NAMES, node=NODE))
    assert node.fleet.plans
    with ExitStack() as stack:
        for _ in range(40):
            for _ in range(5):
                stack.enter_context(node.fleet.lease(request_of()))
            node.clock.now += 0.05
            node.router.plan()
        state = node.router.model_state()
        assert state.dry is not None
        assert (state.side, state.switches) == ("triton", 0)
        assert (state.dry.side, state.dry.switches) == ("vllm", 1)
        assert choices(node)["triton", "vllm"] > 100
        assert not node.router.find_left()


def test_workers_share_its_side_and_its_counts() -> None:
    runs = [DryRun(HIGHER, NAMES, seat) for seat in make_seats(2)]
    runs[0].begin(0.0)
    runs[0].choose(PLAIN, {"triton": Load(3, True), "vllm": Load(0, True)}, "triton", 1.0)
    # Between its down and up the second worker's answer is that of the side to which the first one has gone over.
    runs[1].choose(PLAIN, {"triton": Load(2, True), "vllm": Load(0, True)}, "triton", 2.0)
    for run in runs:
        state = run.read(lambda: 5.0)
        assert (state.side, state.side_age_s, state.switches) == ("vllm", 4.0, 1)
        assert state.choices == dict.fromkeys(product(NAMES, NAMES), 0) | {("triton", "vllm"): 2}
