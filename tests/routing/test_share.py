"""The share policy as tables: no loop, no clock, no sockets."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from gateway.core import GenerateRequest, Load, Prompt, SamplingParams, State
from gateway.routing.policies import Share, Threshold
from gateway.routing.states import PolicyChange
from tests.routing.conftest import Node, request_of

REQUEST = GenerateRequest("id", "llama", Prompt((1,)), SamplingParams(max_tokens=1), (2,))
STATE = State("vllm", 0.0, 1)
MANY = [replace(REQUEST, request_id=f"chatcmpl-bcf904270e31da3e{k:016x}") for k in range(0x6CAB4C1, 0x6CAB4C1 + 4000)]


def policy(share: float) -> Share:
    return Share(low="triton", high="vllm", share=share)


def loads(ready: Sequence[str] = ("triton", "vllm"), in_flight: int = 0) -> dict[str, Load]:
    return {name: Load(in_flight, name in ready) for name in ("triton", "vllm", "third")}


def chosen(share: float, in_flight: int = 0) -> list[str]:
    return [policy(share).choose(request, loads(in_flight=in_flight), STATE, 0.0)[0].backend for request in MANY]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.05, 0.5, 0.95, 1.0])
def test_so_many_go_to_low_and_the_others_to_high(share: float) -> None:
    names = chosen(share)
    assert set(names) <= {"triton", "vllm"}
    deviation = math.sqrt(len(names) * share * (1 - share))
    assert abs(names.count("triton") - share * len(names)) <= 3 * deviation


def test_they_come_in_no_pattern() -> None:
    """As often twice in a row as chance would have it; ids differ in a digit or two."""
    names = chosen(0.25)
    pairs = sum(one == other == "triton" for one, other in pairwise(names))
    assert pairs == pytest.approx(len(names) / 16, rel=0.2)


def test_load_moves_nothing() -> None:
    assert chosen(0.3) == chosen(0.3, in_flight=500)


def test_who_is_in_a_share_is_in_every_larger_one() -> None:
    """So that raising it moves nobody back."""
    small, large = chosen(0.1), chosen(0.3)
    assert all(after == "triton" for before, after in zip(small, large, strict=True) if before == "triton")


@pytest.mark.parametrize(
    ("share", "ready", "backend", "reason"),
    [
        (1.0, ["triton", "vllm"], "triton", "share triton=1"),
        (0.0, ["triton", "vllm"], "vllm", "share triton=0"),
        (1.0, ["vllm"], "vllm", "share triton=1 triton=unavailable"),
        (0.0, ["triton"], "triton", "share triton=0 vllm=unavailable"),
        (0.0, ["third"], "third", "share triton=0 vllm=unavailable"),
    ],
)
def test_what_is_down_is_replaced_and_the_reason_says_so(
    share: float, ready: list[str], backend: str, reason: str
) -> None:
    route, state = policy(share).choose(REQUEST, loads(ready), STATE, 0.0)
    assert (route.backend, route.reason, state) == (backend, reason, STATE)


def test_a_model_goes_from_one_engine_to_a_share_and_to_a_threshold_without_a_break() -> None:
    steps: list[tuple[Threshold | Share, set[str]]] = [
        (Threshold(low="triton", high="vllm", up=1, down=0), {"vllm"}),
        (Share(low="triton", high="vllm", share=0.5), {"triton", "vllm"}),
        (Share(low="triton", high="vllm", share=1.0), {"triton"}),
        (Threshold(low="triton", high="vllm", up=48, down=40), {"triton"}),
        (Share(low="triton", high="vllm", share=0.0), {"vllm"}),
    ]
    node = Node(steps[0][0])
    for settings, expected in steps:
        node.router.set_policy(PolicyChange(settings, by="test"))
        assert node.router.model_state().current.policy == settings
        leases = [node.fleet.lease(request_of(request_id=request.request_id)) for request in MANY[:20]]
        assert {lease.route.backend for lease in leases} == expected
        for lease in leases:
            lease.close()
