"""Which requests a fleet lets wait, and what of them policies see."""

from collections.abc import Sequence

import pytest

from gateway.core import Capacity, GenerateRequest, Prompt
from gateway.errors import GatewayError
from gateway.routing import Lease, MustWait, Ticket
from gateway.routing.policies import Curve, Threshold
from gateway.settings import QueueSettings
from tests.routing.conftest import Node, request_of
from tests.routing.nodes import read_node

ROOM = 256  # of an engine that nothing is known of
LOW = Threshold(low="triton", high="vllm", up=10_000, down=1)


def fill(node: Node, count: int) -> Sequence[Lease]:
    return [node.fleet.lease(request_of()) for _ in range(count)]


def refuse(error: GatewayError) -> None:
    raise error


def test_what_one_engine_has_no_room_for_goes_to_the_other() -> None:
    node = Node(LOW)
    backends = [lease.route.backend for lease in fill(node, 2 * ROOM)]
    assert backends == ["triton"] * ROOM + ["vllm"] * ROOM
    with pytest.raises(MustWait):
        node.fleet.lease(request_of())


def test_an_ejected_engine_gets_nothing_that_the_other_has_no_room_for() -> None:
    node = Node(LOW)
    for _ in range(10):
        node.fleet.ejection.note_end("vllm", GatewayError("out of memory"))
    fill(node, ROOM)
    with pytest.raises(MustWait):
        node.fleet.lease(request_of())
    node.ready("vllm")  # then it is better than none
    assert node.fleet.lease(request_of()).route.backend == "vllm"


def test_a_policy_on_trial_sees_each_request_once() -> None:
    node = Node(LOW, dry=Threshold(low="triton", high="vllm", up=1, down=0), queue=QueueSettings())
    leases = fill(node, 2 * ROOM)
    admitted = list[Lease]()
    with pytest.raises(MustWait):
        node.fleet.lease(request_of())
    ticket = Ticket(request_of(), frozenset(), admitted.append, refuse)
    node.fleet.wait(ticket, "someone")
    for _ in range(10):
        node.router.admit()
    assert not admitted
    for lease in leases[: ROOM // 16 + 1]:  # a sixteenth is kept for others
        lease.close()
    node.router.admit()
    assert len(admitted) == 1
    dry = node.router.model_state().dry
    assert dry is not None
    assert sum(dry.choices.values()) == 2 * ROOM + 1


def test_a_node_model_gives_the_room_and_more_than_it_knows_so_that_it_can_learn() -> None:
    curve = Curve(low="triton", high="vllm", node=read_node())
    state = curve.start(1, 0.0)
    low, high = (curve.find_capacity(name, state) for name in ("triton", "vllm"))
    assert low == Capacity(512 * 9 / 8, 1e6 / 13.2)  # it reads 1,000 tokens in 13.2 ms
    assert high == Capacity(2 * 512 * 9 / 8, 2 * 1e6 / 19.3)
    assert curve.find_capacity("third", state) is None
    assert not curve.spills  # on shared GPUs


def test_prompts_that_wait_for_their_first_token_fill_an_engine_too() -> None:
    node = Node(Curve(low="triton", high="vllm", node=read_node(), learns=False))
    node.router.admit()  # reads the capacities
    flow, long = node.fleet.flow.free[node.fleet.state().side], 30_000
    for _ in range(2):
        lease = node.fleet.lease(long_request(long))
        assert lease.route.backend == node.fleet.state().side
        flow.begin(long)
    with pytest.raises(MustWait):
        node.fleet.lease(long_request(long))
    flow.decode(long, 0.0)
    node.fleet.lease(long_request(long))


def long_request(tokens: int) -> GenerateRequest:
    return request_of(prompt=Prompt(tuple(range(tokens))))
