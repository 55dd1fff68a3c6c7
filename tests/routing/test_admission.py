"""Which requests a fleet lets wait, and what of them policies see."""

from collections.abc import Sequence

import pytest

from gateway.errors import GatewayError
from gateway.routing import Lease, MustWait, Ticket
from gateway.routing.policies import Threshold
from gateway.settings import QueueSettings
from tests.routing.conftest import Node, request_of

ROOM = 256  # of an engine that nothing is known of
LOW = Threshold(low="triton", high="vllm", up=10_000, down=1)


def fill(node: Node, count: int) -> Sequence[Lease]:
    return [node.router.lease(request_of()) for _ in range(count)]


def refuse(error: GatewayError) -> None:
    raise error


def test_what_one_engine_has_no_room_for_goes_to_the_other() -> None:
    node = Node(LOW)
    backends = [lease.route.backend for lease in fill(node, 2 * ROOM)]
    assert backends == ["triton"] * ROOM + ["vllm"] * ROOM
    with pytest.raises(MustWait):
        node.router.lease(request_of())


def test_an_ejected_engine_gets_nothing_that_the_other_has_no_room_for() -> None:
    node = Node(LOW)
    for _ in range(10):
        node.fleet.ejection.note_end("vllm", GatewayError("out of memory"))
    fill(node, ROOM)
    with pytest.raises(MustWait):
        node.router.lease(request_of())
    node.ready("vllm")  # then it is better than none
    assert node.router.lease(request_of()).route.backend == "vllm"


def test_a_policy_on_trial_sees_each_request_once() -> None:
    node = Node(LOW, dry=Threshold(low="triton", high="vllm", up=1, down=0), queue=QueueSettings())
    leases = fill(node, 2 * ROOM)
    admitted = list[Lease]()
    with pytest.raises(MustWait):
        node.router.lease(request_of())
    ticket = Ticket[Lease](request_of(), frozenset(), admitted.append, refuse)
    node.router.wait(ticket, "someone")
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
