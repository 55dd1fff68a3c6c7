"""A policy that was set is tried with routing live, and taken back if it serves worse or was not tried to the end."""

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from tests.loadtest.calibration.runs import HIGH, LOW, SHORT, calibrate, read_result, start
from tests.loadtest.fake_gateway import FakeGateway, Faults

pytestmark = pytest.mark.timeout(180)  # each calibrates once
APPLIED = (*SHORT, "--accept-wide", "--budget", "20", "--apply", "--turns", "1", "--rehearsals")


async def test_a_policy_that_serves_worse_than_one_backend_alone_is_taken_back(tmp_path: Path) -> None:
    """Routing that sends everything to the backend of low loads, whatever the policy says."""
    async with FakeGateway(LOW, HIGH, Faults(routes_to="triton")) as gateway:
        before = gateway.policy
        outcome = await calibrate(gateway, tmp_path, *APPLIED, "2")
    assert outcome.exit_code == 5, outcome
    assert gateway.policy == before | {"version": 2}
    assert "REGRET: with routing live, an answer takes " in outcome.stdout
    assert "Use vllm alone" in outcome.stdout
    result = read_result(tmp_path)
    assert (result["status"], result["threshold"], result["applied"]) == ("regretted", None, None)
    assert set(result["rehearsed"]) == {"triton alone", "vllm alone", "live"}


async def test_a_policy_that_serves_recorded_traffic_well_with_routing_live_stays(tmp_path: Path) -> None:
    began_at, trace = time.monotonic(), tmp_path / "trace.jsonl"
    lines = ({"at": number / 25, "prompt_tokens": 20, "tokens": 12 + number % 3} for number in range(100))
    trace.write_text("\n".join(map(json.dumps, lines)))
    async with FakeGateway(LOW, HIGH) as gateway:
        outcome = await calibrate(gateway, tmp_path, *APPLIED, "2", "--limit", "regret=0.3", "--trace", str(trace))
        assert {body["max_tokens"] for body in gateway.bodies[-100:]} == {12, 13, 14}
        assert outcome.exit_code == 0, outcome
        assert gateway.policy["calibration"] == read_result(tmp_path)["run"]
    result = read_result(tmp_path)
    assert result["duration_s"] > 0.9 * (time.monotonic() - began_at)  # with the rehearsal
    assert [check["status"] for check in result["checks"] if check["name"] == "regret"] == ["passed"]
    assert result["rehearsed"]["live"]["over_best"]["high"] < 1.5


@pytest.mark.parametrize("slow_policy_s", [0.0, 1.0], ids=["while it is tried", "while it is set"])
async def test_a_policy_that_was_not_tried_to_the_end_is_taken_back(tmp_path: Path, slow_policy_s: float) -> None:
    async with FakeGateway(LOW, HIGH, Faults(slow_policy_s=slow_policy_s)) as gateway:
        before = gateway.policy
        process = await start(gateway, tmp_path, *APPLIED, "9")
        waiting = asyncio.ensure_future(process.communicate())
        while gateway.policy["calibration"] is None and not waiting.done():  # noqa: ASYNC110 - another process sets it
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        await waiting
        assert process.returncode == 130
        assert gateway.policy == before | {"version": 2}
