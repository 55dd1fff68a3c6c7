"""The spillover policy as tables: no loop, no clock, no sockets."""

from dataclasses import replace

import pytest

from gateway.core import GenerateRequest, Load, Prompt, SamplingParams
from gateway.routing.policies import Spillover, Threshold
from gateway.routing.states import PolicyChange
from tests.routing.conftest import Node, request_of

REQUEST = GenerateRequest("id", "llama", Prompt((1,)), SamplingParams(max_tokens=1), (2,))
POLICY = Spillover(low="triton", high="vllm", keep=4)


@pytest.mark.parametrize(
    ("at_low", "sequences", "ready", "backend", "reason"),
    [
        (0, 1, "triton vllm", "triton", "spillover triton=1 keep=4"),
        (3, 1, "triton vllm", "triton", "spillover triton=4 keep=4"),
        (4, 1, "triton vllm", "vllm", "spillover triton=5 keep=4"),
        (0, 5, "triton vllm", "vllm", "spillover triton=5 keep=4"),
        (0, 1, "vllm", "vllm", "spillover triton=1 keep=4 triton=unavailable"),
        (4, 1, "triton", "triton", "spillover triton=5 keep=4 vllm=unavailable"),
        (4, 1, "third", "third", "spillover triton=5 keep=4 vllm=unavailable"),
    ],
)
def test_low_keeps_so_many_and_the_rest_spill_over(
    at_low: int, sequences: int, ready: str, backend: str, reason: str
) -> None:
    loads = {
        name: Load(at_low if name == "triton" else 9, name in ready.split()) for name in ("triton", "vllm", "third")
    }
    request = replace(REQUEST, sequences=sequences)
    state = POLICY.start(1, 0.0)
    route, after = POLICY.choose(request, loads, state, 0.0)
    assert (route.backend, route.reason, after) == (backend, reason, state)


def test_what_ends_makes_room_and_a_policy_before_it_needs_no_break() -> None:
    node = Node(Threshold(low="triton", high="vllm", up=1, down=0))
    first = node.fleet.lease(request_of())
    node.router.set_policy(PolicyChange(POLICY, by="test"))
    leases = [node.fleet.lease(request_of()) for _ in range(6)]
    assert [lease.route.backend for lease in (first, *leases)] == ["vllm", *["triton"] * 4, "vllm", "vllm"]
    leases[0].close()
    with node.fleet.lease(request_of()) as lease:
        assert lease.route.backend == "triton"
    for lease in (first, *leases):
        lease.close()
