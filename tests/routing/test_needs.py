"""Requests that need what only some backends can do: who gets them, what the policy remembers, who is refused."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack, nullcontext

import pytest

from gateway.core import Need, Route
from gateway.errors import BackendUnavailable, InvalidRequest
from gateway.routing.policies import Threshold
from tests.routing.conftest import Node, request_of

POLICY = Threshold(low="triton", high="vllm", up=4, down=2, dwell_s=0)
ABLE: Mapping[str, Collection[Need]] = {
    "triton": {Need.GUIDE, Need.LOGIT_BIAS},
    "vllm": {Need.GUIDE, Need.LOGPROBS, Need.MIN_P},
}
PLAIN = "threshold in_flight=1 up=4 down=2"
NOTHING_PLACED = "<Router llama triton=0 vllm=0>"


@pytest.fixture
def node() -> Node:
    return Node(POLICY, able=ABLE)


def asking(*fields: str) -> Mapping[Need, str]:
    """The needs of a request with these fields; each is named as what it needs."""
    return {Need(field): field for field in fields}


# ---- who gets it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "fields", "route"),
    [
        (0, ["guided_decoding"], ("triton", "threshold in_flight=1 up=4 down=2")),
        (0, ["logprobs"], ("vllm", "needs=logprobs threshold in_flight=1 up=4 down=2")),
        (0, ["logprobs", "min_p"], ("vllm", "needs=logprobs,min_p threshold in_flight=1 up=4 down=2")),
        (0, ["guided_decoding", "min_p"], ("vllm", "needs=guided_decoding,min_p threshold in_flight=1 up=4 down=2")),
        (6, ["logprobs"], ("vllm", "threshold in_flight=7 up=4 down=2")),
        (6, ["logit_bias"], ("triton", "needs=logit_bias threshold in_flight=7 up=4 down=2")),
    ],
)
def test_who_lacks_a_need_is_no_candidate_whatever_the_load(
    node: Node, others: int, fields: list[str], route: tuple[str, str]
) -> None:
    with ExitStack() as stack:
        for _ in range(others):
            stack.enter_context(node.fleet.lease(request_of()))
        lease = stack.enter_context(node.fleet.lease(request_of(needs=asking(*fields))))
        assert lease.route == Route(*route)


@pytest.mark.parametrize(
    ("ready", "field", "route"),
    [
        ("vllm", "logprobs", ("vllm", f"{PLAIN} triton=unavailable")),
        ("spare", "logprobs", ("spare", f"{PLAIN} triton=unavailable")),
        ("triton spare", "logprobs", ("spare", f"needs=logprobs {PLAIN}")),
        ("triton vllm spare", "logprobs", ("vllm", f"needs=logprobs {PLAIN}")),  # the policy's own two come first
        ("vllm spare", "priority", ("spare", f"needs=priority {PLAIN} triton=unavailable")),
    ],
)
def test_of_those_that_are_able_and_ready_the_policy_prefers(ready: str, field: str, route: tuple[str, str]) -> None:
    able = {**ABLE, "spare": {Need.LOGPROBS, Need.PRIORITY}}
    node = Node(POLICY, names=("spare", "triton", "vllm"), able=able)
    node.ready(*ready.split())
    with node.fleet.lease(request_of(needs=asking(field))) as lease:
        assert lease.route == Route(*route)


def test_the_side_moves_as_if_the_request_had_been_plain(node: Node) -> None:
    with ExitStack() as stack:
        for _ in range(3):  # far from up, on the other side's backend
            assert stack.enter_context(node.fleet.lease(request_of(needs=asking("logprobs")))).route.backend == "vllm"
            assert node.router.model_state().side == "triton"
        fourth = stack.enter_context(node.fleet.lease(request_of(needs=asking("logit_bias"))))
        assert (fourth.route.backend, node.router.model_state().side) == ("triton", "vllm")
        assert node.router.model_state().switches == 1
    with node.fleet.lease(request_of(needs=asking("logprobs"))) as lease:
        assert (lease.route.backend, node.router.model_state().side) == ("vllm", "triton")


def test_needs_and_sequences_are_counted_where_the_request_went(node: Node) -> None:
    with node.fleet.lease(request_of(needs=asking("logprobs"), sequences=3)):
        assert repr(node.router) == "<Router llama triton=0 vllm=3>"
    assert repr(node.router) == NOTHING_PLACED


def test_a_model_with_one_backend_serves_what_that_one_can() -> None:
    node = Node(policy=None, names=("vllm",), able={"vllm": {Need.LOGPROBS}})
    with node.fleet.lease(request_of(needs=asking("logprobs"))) as lease:
        assert (lease.route.backend, lease.route.reason) == ("vllm", "single in_flight=1")
    with pytest.raises(InvalidRequest, match="any engine of model llama"):
        node.fleet.lease(request_of(needs=asking("logit_bias")))


# ---- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "problem", "param"),
    [
        (["priority"], "'priority' is", "priority"),
        (["logprobs", "priority"], "'priority' is", "priority"),
        (["logit_bias", "min_p"], "'logit_bias' and 'min_p' together are", "logit_bias"),
    ],
)
def test_what_no_backend_can_do_is_a_bad_request_that_names_the_field(
    node: Node, fields: list[str], problem: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        node.fleet.lease(request_of(needs=asking(*fields)))
    assert caught.value.message == f"{problem} not supported by any engine of model llama."
    assert caught.value.param == param
    assert repr(node.router) == NOTHING_PLACED


@pytest.mark.parametrize("ready", [["vllm"], []])
def test_it_is_a_bad_request_whoever_is_down(node: Node, ready: list[str]) -> None:
    node.ready(*ready)
    with pytest.raises(InvalidRequest, match="'priority'"):
        node.fleet.lease(request_of(needs=asking("priority")))


def test_the_field_named_is_the_clients_own(node: Node) -> None:
    with pytest.raises(InvalidRequest) as caught:
        node.fleet.lease(request_of(needs={Need.RELAY: "messages.0.content.1"}))
    assert caught.value.param == "messages.0.content.1"


@pytest.mark.parametrize(("ready", "avoid"), [(["triton"], []), (["triton", "vllm"], ["vllm"]), ([], [])])
def test_what_only_an_absent_backend_can_do_is_unavailable(node: Node, ready: list[str], avoid: list[str]) -> None:
    node.ready(*ready)
    with pytest.raises(BackendUnavailable, match="no backend of model llama that supports 'logprobs' is ready"):
        node.fleet.lease(request_of(needs=asking("logprobs")), avoid)
    assert repr(node.router) == NOTHING_PLACED


def test_a_retry_stays_among_the_able() -> None:
    able = {**ABLE, "spare": {Need.LOGPROBS}}
    node = Node(POLICY, names=("triton", "vllm", "spare"), able=able)
    with node.fleet.lease(request_of(needs=asking("logprobs")), avoid={"vllm"}) as lease:
        assert lease.route.backend == "spare"


@pytest.mark.parametrize(("learnt", "error"), [({Need.PRIORITY}, None), (set(), InvalidRequest)])
def test_what_a_backend_can_do_is_unknown_until_it_was_ready_once(
    node: Node, learnt: set[Need], error: type[Exception] | None
) -> None:
    wanted = request_of(needs=asking("priority"))
    node.backends["triton"].capabilities = frozenset()
    node.forget("triton")
    with pytest.raises(BackendUnavailable):
        node.fleet.lease(wanted)
    node.backends["triton"].capabilities = frozenset(learnt)
    node.ready("triton", "vllm")
    with pytest.raises(error) if error else nullcontext():
        assert node.fleet.lease(wanted).route.backend == "triton"


# ---- pins ------------------------------------------------------------------------------------------------------------


def test_a_pinned_backend_that_can_do_it_is_obeyed(node: Node) -> None:
    with node.fleet.lease(request_of(pin="vllm", needs=asking("logprobs"))) as lease:
        assert (lease.route.backend, lease.route.reason) == ("vllm", "pin")


@pytest.mark.parametrize("ready", [["triton", "vllm"], ["vllm"]])
def test_a_pinned_backend_that_cannot_is_a_bad_request_naming_field_and_backend(node: Node, ready: list[str]) -> None:
    node.ready(*ready)
    with pytest.raises(InvalidRequest) as caught:
        node.fleet.lease(request_of(pin="triton", needs=asking("logit_bias", "logprobs")))
    assert caught.value.message == "'logprobs' is not supported by backend triton of model llama."
    assert caught.value.param == "logprobs"
    assert repr(node.router) == NOTHING_PLACED


def test_a_pin_that_is_no_backend_is_the_first_thing_wrong(node: Node) -> None:
    with pytest.raises(InvalidRequest) as caught:
        node.fleet.lease(request_of(pin="x", needs=asking("priority")))
    assert caught.value.param == "x-crossover-pin"


def test_a_pinned_backend_never_seen_ready_is_unavailable(node: Node) -> None:
    node.forget("triton")
    with pytest.raises(BackendUnavailable, match="backend triton"):
        node.fleet.lease(request_of(pin="triton", needs=asking("logprobs")))
