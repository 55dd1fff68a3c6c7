"""The gateway's admin API: what is measured is found there, and the threshold is written to it."""

from collections.abc import Awaitable

import pytest

from loadtest.admin import apply_policy, count_in_flight, find_system, read_sizes
from loadtest.client.errors import Unreachable
from loadtest.client.target import Target
from loadtest.results.system import Json, SystemUnderTest
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)
THRESHOLD = {"up": 59, "down": 43}


async def find(gateway: FakeGateway, model: str | None = None) -> SystemUnderTest:
    return await find_system(Target.parse(gateway.url), model)


def apply(gateway: FakeGateway, system: SystemUnderTest) -> Awaitable[Json]:
    return apply_policy(Target.parse(gateway.url), system, THRESHOLD, "run-7")


async def test_the_only_model_is_found_with_the_policys_backends() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        system = await find(gateway)
        assert (system.model, system.backends) == ("toy", ("triton", "vllm"))
        assert await find(gateway, "toy") == system
        counts = await count_in_flight(Target.parse(gateway.url), system)
        assert {name: (each.all, each.foreign) for name, each in counts.items()} == {"triton": (0, 0), "vllm": (0, 0)}


async def test_how_much_engines_hold_is_read_where_they_report_it() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        gateway.sizes["vllm"] = {"replicas": 2, "kv_tokens": 9000}
        system = await read_sizes(Target.parse(gateway.url), await find(gateway))
        assert system.sizes == {"triton": {}, "vllm": {"replicas": 2.0, "kv_tokens": 9000.0}}


async def test_what_cannot_be_compared_is_named() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        with pytest.raises(Unreachable, match="serves no model other, only toy"):
            await find(gateway, "other")
        with pytest.raises(Unreachable, match=r"HTTP 404: .*no route GET /elsewhere/admin/state"):
            await find_system(Target.parse(f"{gateway.url}/elsewhere"), None)
        gateway.is_ready["vllm"] = False
        with pytest.raises(Unreachable, match="backend vllm of model toy is not ready"):
            await find(gateway)
        gateway.policy = {"model": "toy", "kind": "single"}
        with pytest.raises(Unreachable, match="nothing to compare"):
            await find(gateway)


async def test_threshold_is_set_under_the_runs_name_and_the_rest_stays() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        applied = await apply(gateway, await find(gateway))
        assert gateway.policy | {"up": 59, "down": 43, "calibration": "run-7", "dwell_s": 1.0} == gateway.policy
        assert applied == gateway.policy


async def test_a_threshold_takes_the_place_of_a_share() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        system = await find(gateway)
        gateway.policy |= {"kind": "share", "up": None, "down": None, "dwell_s": None, "share": 0.05}
        await apply(gateway, system)
        assert (gateway.policy["kind"], gateway.policy["up"], gateway.policy["down"]) == ("threshold", 59, 43)
        assert "share" not in gateway.policy


async def test_a_node_model_brings_the_policy_that_takes_one() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        await apply_policy(Target.parse(gateway.url), await find(gateway), {"node": {"interference": 1.0}}, "run-7")
        assert (gateway.policy["kind"], gateway.policy["node"]) == ("curve", {"interference": 1.0})
        assert "up" not in gateway.policy
        with pytest.raises(Unreachable, match="no policy with the keys node and up"):
            await apply_policy(Target.parse(gateway.url), await find(gateway), {"node": {}, "up": 3}, "run-8")


async def test_a_policy_changed_to_other_backends_meanwhile_is_left_alone() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        system = await find(gateway)
        gateway.policy["high"] = "third"
        with pytest.raises(Unreachable, match="nothing applied"):
            await apply(gateway, system)
        assert gateway.policy["up"] == 48


async def test_a_gateway_that_keeps_its_policy_is_found_out() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(policy_is_stuck=True)) as gateway:
        with pytest.raises(Unreachable, match="reported up=48 down=40"):
            await apply(gateway, await find(gateway))
