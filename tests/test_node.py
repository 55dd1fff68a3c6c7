"""What one generation hands to the next: counts by name, drained backends, policies; and how a gateway stands."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.core import Route
from gateway.node import Node
from gateway.restarts import MOST_WORDS, SIZE, Board, Restart, Standing
from gateway.routing import PolicyRecord
from gateway.routing.policies import Threshold
from gateway.shared import Predecessor
from tests.fakes.backend import described
from tests.serving.stack import MODEL
from tests.serving.test_app import SETTINGS


def lease(node: Node, backend: str, *, steers: bool = True) -> None:
    ledger = node.ledgers[MODEL]
    ledger.place(Route(backend, "test"), ledger.state, sequences=2, steers=steers)


def as_predecessor(node: Node) -> Predecessor:
    assert node.fd is not None
    return Predecessor.open(os.dup(node.fd), node.places())


def test_what_generations_before_hold_counts_by_name_in_any_order_of_backends() -> None:
    settings = replace(SETTINGS, workers=2)
    before = Node.create(settings)
    assert before.fd is not None
    for index in range(2):
        worker = Node.join(settings, index, before.fd)
        lease(worker, "triton")
        lease(worker, "vllm", steers=False)
    model = replace(settings.models[0], backends=described(("new", "vllm", "triton")))
    node = Node.create(replace(settings, workers=3, models=(model,)))
    lease(node, "triton")
    predecessors = [as_predecessor(before), as_predecessor(before)]
    node.inherit(predecessors)
    seen = node.ledgers[MODEL].read()
    assert seen.in_flight == {"new": 0, "vllm": 8, "triton": 10}
    assert seen.steering == {"new": 0, "vllm": 0, "triton": 10}
    assert seen.workers == (2, 0, 0)
    before.clear(1)
    node.inherit(predecessors[:1])
    assert node.ledgers[MODEL].read().in_flight == {"new": 0, "vllm": 2, "triton": 4}
    node.inherit([])
    assert node.ledgers[MODEL].read().in_flight == {"new": 0, "vllm": 0, "triton": 2}


def test_backends_stay_drained_as_far_as_there_are_such() -> None:
    before, after = Node.create(SETTINGS), Node.create(SETTINGS)
    before.ledgers[MODEL].drain("vllm", is_draining=True)
    after.drain({**before.drained(), "gone": ["vllm"]})
    assert after.drained() == {MODEL: ["vllm"]}
    before.ledgers[MODEL].drain("vllm", is_draining=False)
    after.drain({MODEL: ["triton", "unknown"]})
    assert after.drained() == {MODEL: ["triton"]}


def test_a_policy_that_is_set_while_the_next_generation_starts_is_in_force_there(tmp_path: Path) -> None:
    settings = replace(SETTINGS, state_folder=tmp_path)
    before, after = Node.create(settings), Node.create(settings)
    after.renew_policies()
    assert after.ledgers[MODEL].glance()[0].version == 1
    policy = Threshold(low="triton", high="vllm", up=90, down=80)
    records = [*before.policies.begin(settings.models[0]), PolicyRecord(2, policy, "alice", 1.5)]
    before.policies.try_to_keep(MODEL, records)
    after.renew_policies()
    seen = after.ledgers[MODEL].read()
    assert seen.state.version == 2
    assert b'"up":90' in seen.text


def test_a_board_shows_every_process_how_the_gateway_stands() -> None:
    board = Board.create()
    assert board.read() == Standing(os.getpid())
    standing = Standing(1, generation=3, begun=4, ended=4, last=Restart(5, 1.5, "“\x00" * MOST_WORDS))
    board.write(standing)
    assert os.fstat(board.fd).st_size == SIZE
    seen = Board(board.fd).read()
    assert seen.last is not None
    assert (seen.generation, seen.last.generation) == (3, 5)
    board.write(Standing(1))
    assert board.read() == Standing(1)
    os.close(board.fd)


@pytest.mark.parametrize("words", [b"", b"123", b"{}", b'{"pid": 1, "last": {}}', b"\xff"])
def test_what_is_no_standing_is_not_read_as_one(words: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Standing.decode(words)
