"""Cells on a gateway whose pace is known, over real sockets."""

import asyncio
from dataclasses import replace

import pytest

from loadtest.cell import Recording, summarise
from loadtest.closed_loop import ClosedLoop
from loadtest.decide.threshold import Threshold
from loadtest.errors import Misrouted, RequestFailed, UnequalWork, Unreachable, Untrusted
from loadtest.judge import Judge
from loadtest.plan import QUICK, Pair
from loadtest.sender import Sender
from loadtest.subject import Subject, apply_threshold, count_in_flight, find_subject
from loadtest.target import Target
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)
PLAN = replace(QUICK, tokens=16, window_s=0.5)


async def run_cell(gateway: FakeGateway, level: int, judge: Judge | None = None) -> Recording:
    sender = Sender(Target.parse(gateway.url), "toy", "run-1", seed=1, prompt_words=5)
    return await ClosedLoop(sender, judge or Judge(), PLAN, Pair(level, low_first=True, number=0), "triton").run()


async def test_cell_holds_its_level_in_flight_and_leaves_nothing_behind() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        recording = await run_cell(gateway, level=8)
        async with asyncio.timeout(5):
            await gateway.empty.wait()
        assert gateway.in_flight == 0
        assert gateway.backends["triton"].most_running == 8
        assert gateway.backends["vllm"].most_running == 0
        assert summarise(recording, PLAN.tokens).in_flight > 7.5


async def test_throughput_is_what_the_backend_was_told() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        cell = summarise(await run_cell(gateway, level=4), PLAN.tokens)
    assert cell.throughput == pytest.approx(4 / 0.02, rel=0.1)
    assert cell.tpot_s.p50 == pytest.approx(0.02, rel=0.1)
    assert cell.e2e_s.p50 == pytest.approx(16 * 0.02, rel=0.15)


async def test_streams_do_not_run_in_step() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        cell = summarise(await run_cell(gateway, level=8), PLAN.tokens)
    assert cell.phase_order is not None
    assert cell.phase_order < 0.5


async def test_window_spans_whole_requests_of_the_leading_stream() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        recording = await run_cell(gateway, level=4)
    window_s = recording.closed_at - recording.opened_at
    assert window_s >= PLAN.window_s
    ends = [answer.finished_at for answer in recording.answers]
    assert recording.opened_at in ends
    assert recording.closed_at in ends


async def test_every_prompt_is_asked_once_and_both_backends_get_the_same() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        sender = Sender(Target.parse(gateway.url), "toy", "run-1", seed=1, prompt_words=5)
        judge = Judge()
        for backend in ("triton", "vllm"):
            await ClosedLoop(sender, judge, PLAN, Pair(2, low_first=True, number=0), backend).run()
        low, high = gateway.prompts["triton"], gateway.prompts["vllm"]
    assert len(set(low)) == len(low)
    shorter = min(len(low), len(high)) - 2  # the last ones depend on when the window closed
    assert shorter >= 4
    assert len(set(low) & set(high)) >= shorter


async def test_requests_fix_their_length_and_name_the_run() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        await run_cell(gateway, level=1)
        body = gateway.bodies[-1]
        assert gateway.runs == {"run-1"}
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["stream"]) == (16, 16, True, True)


@pytest.mark.parametrize(
    ("faults", "error", "message"),
    [
        (Faults(short_answer=3), UnequalWork, "UNEQUAL WORK: triton returned 15 of 16 tokens"),
        (Faults(stop_reason=True), UnequalWork, "finish=stop"),
        (Faults(misrouted_answer=3), Misrouted, "MISROUTED: a request pinned to triton was served by elsewhere"),
        (Faults(error_answer=3), RequestFailed, "HTTP 503: the engine is on fire"),
        (Faults(cut_answer=3), RequestFailed, "lost"),
        (Faults(no_usage=True), RequestFailed, "NO USAGE"),
    ],
)
async def test_one_answer_that_is_not_the_work_asked_for_ends_the_cell(
    faults: Faults, error: type[Untrusted], message: str
) -> None:
    async with FakeGateway(STEADY, STEADY, faults) as gateway:
        with pytest.raises(error, match=message):
            await run_cell(gateway, level=1)


async def test_cancelling_a_cell_closes_every_connection_at_once() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await run_cell(gateway, level=8)
        async with asyncio.timeout(5):
            await gateway.empty.wait()
        assert gateway.in_flight == 0


# What is measured


async def find(gateway: FakeGateway, model: str | None = None) -> Subject:
    return await find_subject(Target.parse(gateway.url), model)


async def test_subject_is_the_only_model_with_the_policys_backends() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        subject = await find(gateway)
        assert (subject.model, subject.backends) == ("toy", ("triton", "vllm"))
        assert await find(gateway, "toy") == subject
        assert await count_in_flight(Target.parse(gateway.url), subject) == 0


async def test_a_model_that_is_not_served_is_named() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        with pytest.raises(Unreachable, match="serves no model other, only toy"):
            await find(gateway, "other")


async def test_a_policy_without_two_backends_is_nothing_to_compare() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        gateway.policy = {"model": "toy", "kind": "single"}
        with pytest.raises(Unreachable, match="nothing to compare"):
            await find(gateway)


async def test_a_backend_that_is_not_ready_is_named() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        gateway.is_ready["vllm"] = False
        with pytest.raises(Unreachable, match="backend vllm of model toy is not ready"):
            await find(gateway)


async def test_a_server_that_is_no_gateway_is_unreachable() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        with pytest.raises(Unreachable, match=r"HTTP 404: .*no route GET /elsewhere/admin/state"):
            await find_subject(Target.parse(f"{gateway.url}/elsewhere"), None)


async def test_threshold_is_set_under_the_runs_name_and_the_rest_stays() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        target = Target.parse(gateway.url)
        applied = await apply_threshold(target, await find(gateway), Threshold(up=59, down=43), "run-7")
        assert gateway.policy | {"up": 59, "down": 43, "calibration": "run-7", "dwell_s": 1.0} == gateway.policy
        assert applied == gateway.policy


async def test_a_threshold_takes_the_place_of_a_share() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        subject = await find(gateway)
        gateway.policy |= {"kind": "share", "up": None, "down": None, "dwell_s": None, "share": 0.05}
        await apply_threshold(Target.parse(gateway.url), subject, Threshold(up=59, down=43), "run-7")
        assert (gateway.policy["kind"], gateway.policy["up"], gateway.policy["down"]) == ("threshold", 59, 43)
        assert "share" not in gateway.policy


async def test_a_policy_changed_to_other_backends_meanwhile_is_left_alone() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        subject = await find(gateway)
        gateway.policy["high"] = "third"
        with pytest.raises(Unreachable, match="nothing applied"):
            await apply_threshold(Target.parse(gateway.url), subject, Threshold(59, 43), "run-7")
        assert gateway.policy["up"] == 48


async def test_a_gateway_that_keeps_its_policy_is_found_out() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(policy_is_stuck=True)) as gateway:
        subject = await find(gateway)
        with pytest.raises(Unreachable, match="reported up=48 down=40"):
            await apply_threshold(Target.parse(gateway.url), subject, Threshold(59, 43), "run-7")
