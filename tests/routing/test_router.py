"""Leases over two scripted backends: bursts, pins, failures and changes of policy."""

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import replace

import pytest

from gateway.core import FinishReason
from gateway.errors import BackendUnavailable, GatewayError, InvalidRequest, ModelNotFound, PolicyChanged
from gateway.routing import BEAT_S, PolicyChange
from gateway.routing.policies import Curve, Threshold
from tests.fakes.alone import make_router
from tests.fakes.backend import Pause
from tests.fakes.sink import RecordingSink
from tests.routing.conftest import Node, request_of
from tests.routing.nodes import read_node

POLICY = Threshold(low="triton", high="vllm", up=4, down=2, dwell_s=0)


def change(**edits: object) -> PolicyChange:
    return PolicyChange(policy=replace(POLICY, **edits), by="test")  # type: ignore[arg-type]  # edits of any field


def test_a_burst_splits_exactly_at_the_threshold(node: Node) -> None:
    with ExitStack() as stack:
        chosen = [stack.enter_context(node.fleet.lease(request_of())).route.backend for _ in range(10)]
        assert chosen == ["triton"] * 3 + ["vllm"] * 7
        assert repr(node.router) == "<Router llama triton=3 vllm=7>"
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


def test_a_request_counts_with_all_its_sequences_and_for_the_side_as_one_at_first() -> None:
    node = Node(replace(POLICY, up=12, down=6))
    with ExitStack() as stack:
        routes = [stack.enter_context(node.fleet.lease(request_of(sequences=3))).route for _ in range(13)]
        assert [route.backend for route in routes] == ["triton"] * 11 + ["vllm"] * 2
        assert routes[11].reason == "threshold in_flight=12 up=12 down=6"
        assert repr(node.router) == "<Router llama triton=33 vllm=6>"
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


def test_choices_count_for_the_side_by_their_mean_of_the_last_minute() -> None:
    node = Node(replace(POLICY, up=12, down=6))
    ledger, seen = node.fleet._ledger, list[int]()

    def in_flight() -> int:
        with node.fleet.lease(request_of()) as lease:
            return int(lease.route.reason.split()[1].removeprefix("in_flight="))

    with node.fleet.lease(request_of(sequences=41)) as held:
        for second in range(0, 181, 60):
            ledger.note_choices(1000.0 + second)
            seen.append(in_flight())
        assert seen == [2, 27, 37, 40]  # of 40 choices 63 % count after a minute
        node.fleet.move(held, request_of(sequences=41), avoid={held.route.backend})
        assert in_flight() == 40
    assert in_flight() == 39
    for second in range(240, 600, 60):
        ledger.note_choices(1000.0 + second)
    assert in_flight() == 1


def test_a_lease_counts_to_the_last_moment_and_is_given_back_on_an_error(node: Node) -> None:
    def fail() -> None:
        with node.fleet.lease(request_of()):
            assert repr(node.router) == "<Router llama triton=1 vllm=0>"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


@pytest.mark.parametrize("sequences", [1, 3])
async def test_a_lease_is_given_back_when_its_task_is_cancelled(node: Node, sequences: int) -> None:
    async def hold() -> None:
        with node.fleet.lease(request_of(sequences=sequences)):
            await asyncio.Event().wait()

    async with asyncio.TaskGroup() as tasks:
        holders = [tasks.create_task(hold()) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert sum(backend.in_flight for backend in node.router.state()[0].backends.values()) == 5 * sequences
        for holder in holders:
            holder.cancel()
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


def test_a_model_nobody_serves_is_not_found(node: Node) -> None:
    with pytest.raises(ModelNotFound, match="'gpt'"):
        node.router.find("gpt")


def test_a_model_with_one_backend_needs_no_policy() -> None:
    node = Node(policy=None, names=("vllm",))
    with node.fleet.lease(request_of()) as lease:
        assert (lease.route.backend, lease.route.reason) == ("vllm", "single in_flight=1")
    with node.fleet.lease(request_of(sequences=4)) as lease:
        assert (lease.route.backend, lease.route.reason) == ("vllm", "single in_flight=4")


# ---- pins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pin", ["triton", "vllm"])
def test_a_pin_is_obeyed_whatever_the_load(node: Node, pin: str) -> None:
    with ExitStack() as stack:
        routes = [stack.enter_context(node.fleet.lease(request_of(pin=pin))).route for _ in range(10)]
    assert {(route.backend, route.reason) for route in routes} == {(pin, "pin")}


def test_an_unknown_pin_is_a_bad_request_that_names_the_header(node: Node) -> None:
    with pytest.raises(InvalidRequest, match="it has triton, vllm") as caught:
        node.fleet.lease(request_of(pin="x"))
    assert caught.value.param == "x-crossover-pin"


def test_a_pinned_request_is_never_moved_elsewhere(node: Node) -> None:
    node.ready("vllm")
    with pytest.raises(BackendUnavailable, match="triton"):
        node.fleet.lease(request_of(pin="triton"))
    node.ready("triton", "vllm")
    with pytest.raises(BackendUnavailable):
        node.fleet.lease(request_of(pin="triton"), avoid={"triton"})
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


@pytest.mark.parametrize(
    ("pin", "run", "chosen"),
    [
        ("vllm", "calibration-1", "triton"),  # a measurement: tagged and pinned
        ("vllm", None, "vllm"),  # a user's pin is a user's load
        (None, "regret-check", "vllm"),  # tagged but routed: the run measures the routing itself
    ],
)
def test_only_a_tagged_and_pinned_request_does_not_steer(
    node: Node, pin: str | None, run: str | None, chosen: str
) -> None:
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(node.fleet.lease(request_of(pin=pin, run=run)))
        assert sum(backend.in_flight for backend in node.router.state()[0].backends.values()) == 6
        assert stack.enter_context(node.fleet.lease(request_of())).route.backend == chosen


def test_a_pin_does_not_move_the_side(node: Node) -> None:
    with ExitStack() as stack:
        for _ in range(9):
            stack.enter_context(node.fleet.lease(request_of(pin="triton")))
        assert node.router.model_state().side == "triton"


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_backend_that_is_down_is_no_candidate(node: Node) -> None:
    node.fleet.healths["triton"].doubt("it is away")
    with node.fleet.lease(request_of()) as lease:
        assert lease.route.backend == "vllm"
        assert lease.route.reason == "threshold in_flight=1 up=4 down=2 triton=unavailable"


def test_a_retry_avoids_the_backend_that_failed(node: Node) -> None:
    with node.fleet.lease(request_of(), avoid={"triton"}) as lease:
        assert lease.route.backend == "vllm"


@pytest.mark.parametrize(("ready", "avoid"), [((), ()), (("triton",), ("triton",)), (("vllm",), ("vllm",))])
def test_without_a_candidate_nothing_is_counted(node: Node, ready: tuple[str, ...], avoid: tuple[str, ...]) -> None:
    node.ready(*ready)
    with pytest.raises(BackendUnavailable, match="no backend of model llama is ready"):
        node.fleet.lease(request_of(), avoid=avoid)
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


# ---- changing the policy ---------------------------------------------------------------------------------------------


def test_a_new_policy_holds_from_the_next_lease(node: Node) -> None:
    with node.fleet.lease(request_of()) as before:
        state = node.router.set_policy(change(up=1, down=0))
        assert state.current.version == 2
        with node.fleet.lease(request_of()) as after:
            assert (before.route.backend, after.route.backend) == ("triton", "vllm")
            assert after.route.reason == "threshold in_flight=2 up=1 down=0"
            assert repr(node.router) == "<Router llama triton=1 vllm=1>"


def test_a_new_policy_keeps_the_side_inside_its_band(node: Node) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(node.fleet.lease(request_of()))
        assert node.router.model_state().side == "vllm"
        node.router.set_policy(change(up=40, down=3))
        assert stack.enter_context(node.fleet.lease(request_of())).route.backend == "vllm"
        node.router.set_policy(change(up=40, down=10))
        assert stack.enter_context(node.fleet.lease(request_of())).route.backend == "triton"


def test_a_new_policy_does_not_wait_for_the_old_ones_dwell() -> None:
    node = Node(replace(POLICY, up=1, down=0, dwell_s=60))
    with node.fleet.lease(request_of()) as lease:
        assert lease.route.backend == "vllm"
    node.router.set_policy(change(up=40, down=30, dwell_s=60))
    with node.fleet.lease(request_of()) as lease:
        assert lease.route.backend == "triton"


@pytest.mark.parametrize(
    ("edits", "param"),
    [({"low": "trt"}, "low"), ({"high": "x"}, "high"), ({"down": 4}, "down"), ({"high": "triton"}, "high")],
)
def test_a_policy_that_makes_no_sense_changes_nothing(node: Node, edits: dict[str, object], param: str) -> None:
    before = node.router.model_state()
    with pytest.raises(InvalidRequest) as caught:
        node.router.set_policy(change(**edits))
    assert caught.value.param == param
    assert node.router.model_state() == before


def test_a_change_meant_for_another_version_is_refused(node: Node) -> None:
    node.router.set_policy(change(up=5))
    with pytest.raises(PolicyChanged, match="version 1 was replaced by 2"):
        node.router.set_policy(replace(change(up=6), version=1))
    assert node.router.set_policy(replace(change(up=6), version=2)).current.version == 3


def test_the_history_tells_who_changed_what_from_which_calibration(node: Node) -> None:
    node.router.set_policy(replace(change(up=9), by="alice", calibration="run-7"))
    first, second = node.router.model_state().history
    assert (first.version, first.by, first.policy) == (1, "configuration", POLICY)
    assert (second.version, second.by, second.calibration) == (2, "alice", "run-7")
    assert second.policy == replace(POLICY, up=9)
    assert second.at >= first.at


def test_a_model_with_one_backend_has_no_policy_to_change() -> None:
    with pytest.raises(InvalidRequest, match="one backend"):
        Node(policy=None, names=("vllm",)).router.set_policy(change())


def test_with_several_models_a_change_must_name_one() -> None:
    first, second = Node(POLICY), Node(POLICY)
    second.fleet.model = "qwen"
    router = make_router([first.fleet, second.fleet])
    with pytest.raises(InvalidRequest, match="name one of llama, qwen"):
        router.set_policy(change(up=9))
    router.set_policy(replace(change(up=9), model="qwen"))
    assert [state.current.version for state in router.state()] == [1, 2]


async def test_a_threshold_changed_under_load_drops_nothing(node: Node) -> None:
    for backend in node.backends.values():
        backend.script = [Pause(0.001), (1,), Pause(0.001), (2,), FinishReason.STOP]
    endings: list[FinishReason | GatewayError] = []
    used: set[str] = set()

    async def client() -> None:
        for _ in range(20):
            sink = RecordingSink()
            with node.fleet.lease(request_of()) as lease:
                used.add(lease.route.backend)
                sink.call = node.backends[lease.route.backend].start(request_of(), sink)
                endings.append(await sink.ended())
            assert sink.token_ids == [1, 2]

    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(client())
        for up in range(1, 11):
            await asyncio.sleep(0.005)
            node.router.set_policy(change(up=up, down=up - 1))
    assert endings == [FinishReason.STOP] * 200
    assert used == {"triton", "vllm"}
    assert repr(node.router) == "<Router llama triton=0 vllm=0>"


def test_a_wrong_model_is_logged_within_twenty_seconds_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    """An engine generates half as fast as its model: a gateway's log and its state say so, once, until it has been
    as fast as its model for a minute.
    """
    caplog.set_level(logging.INFO)
    node = Node(Curve(low="triton", high="vllm", node=read_node(), tries=False))
    flow, count, made = node.router.flows()["llama"].free["triton"], 8, 0.0
    step_s, again = read_node().low.decode_ms(count, count * 200) / 1e3, "triton of llama is as it was measured again"

    def play(seconds: float, slower: float) -> None:
        nonlocal made
        for _ in range(round(seconds / BEAT_S)):
            node.clock.now += BEAT_S
            made += count * BEAT_S / (slower * step_s)
            flow.generated = round(made)
            node.router.plan()

    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(node.fleet.lease(request_of()))
            flow.begin(100)
            flow.decode(100, node.clock.now)
        flow.held = count * 200
        play(20.0, slower=2.0)
        found = node.router.model_state().backends["triton"].readings
        for slower in (1.0, 2.0):  # it is slow again before it has been right for a minute
            play(40.0, slower)
            assert again not in caplog.messages
        play(120.0, slower=1.0)
    (message, last) = [each for each in caplog.messages if again in each or "is not the engine" in each]
    assert message.startswith("triton of llama is not the engine that was measured: decode_scale=")
    assert last == again
    assert found["model_wrong"] == 1
    assert found["step_error"] == pytest.approx(0.69, abs=0.05)
    assert not node.router.model_state().backends["vllm"].readings
