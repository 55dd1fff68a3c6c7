"""Several processes of one client: the same figures as one's, and the same refusals."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from loadtest.batch import Batch
from loadtest.cell import Recording, Tick, summarise
from loadtest.closed_loop import ClosedLoop
from loadtest.crew import Helper, crew
from loadtest.errors import RequestFailed, UnequalWork, Unreachable
from loadtest.judge import Judge
from loadtest.plan import Pair
from loadtest.sender import Sender
from loadtest.target import Target
from tests.loadtest.fake_gateway import FakeGateway, Faults
from tests.loadtest.test_closed_loop import PLAN, STEADY

pytestmark = pytest.mark.timeout(120)


async def run_cell(
    gateway: FakeGateway, pair: Pair, helpers: Sequence[Helper], judge: Judge | None = None, backend: str = "triton"
) -> Recording:
    sender = Sender(Target.parse(gateway.url), "toy", "run-1", seed=1, prompt_words=5)
    return await ClosedLoop(sender, judge or Judge(), PLAN, pair, backend, helpers=helpers).run()


def at(level: int, number: int = 0) -> Pair:
    return Pair(level, low_first=True, number=number)


async def test_streams_of_all_processes_make_one_cell() -> None:
    judge = Judge()
    async with FakeGateway(STEADY, STEADY) as gateway, crew(2) as helpers:
        recording = await run_cell(gateway, at(8), helpers, judge)
        async with asyncio.timeout(5):
            await gateway.empty.wait()
        assert gateway.backends["triton"].most_running == 8
        again = await run_cell(gateway, at(8, number=1), helpers, judge)
        prompts = gateway.prompts["triton"]
    for each in (recording, again):
        cell = summarise(each, PLAN.tokens)
        assert cell.throughput == pytest.approx(8 / 0.02, rel=0.1)
        assert cell.tpot_s.p50 == pytest.approx(0.02, rel=0.1)
        assert cell.in_flight > 7.5
        assert {tick.process for tick in each.ticks} == {0, 1, 2}
        starts = [answer.started_at for answer in each.answers]
        assert starts == sorted(starts)
    assert len(set(prompts)) == len(prompts)
    assert judge.answers == sum(answer.is_complete for each in (recording, again) for answer in each.answers)


async def test_a_prompt_that_is_longer_on_the_other_backend_is_noticed_whoever_sent_it() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(longer_prompts_on="vllm")) as gateway, crew(1) as helpers:
        await run_cell(gateway, at(8), helpers)
        with pytest.raises(UnequalWork, match="the same prompt was"):  # our own judge has forgotten, the helper's not
            await run_cell(gateway, at(8), helpers, backend="vllm")


async def test_a_wrong_answer_in_another_process_ends_the_cell() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(error_answer=20)) as gateway:
        async with crew(7) as helpers:
            with pytest.raises(RequestFailed, match="REQUEST FAILED"):
                await run_cell(gateway, at(8), helpers)
        async with asyncio.timeout(10):
            await gateway.empty.wait()


async def test_processes_without_a_stream_wait_for_the_end_and_work_again() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway, crew(2) as helpers:
        for number, level in enumerate((1, 1, 4)):
            recording = await run_cell(gateway, at(level, number), helpers)
            assert summarise(recording, PLAN.tokens).throughput == pytest.approx(level / 0.02, rel=0.1)
            assert {tick.process for tick in recording.ticks} == {0, 1, 2}


def batch(gateway: FakeGateway, helpers: Sequence[Helper], judge: Judge, level: int, number: int = 0) -> Batch:
    sender = Sender(Target.parse(gateway.url), "toy", "run-1", seed=1, prompt_words=5)
    return Batch(sender, judge, PLAN, at(level, number), 2, helpers)


async def test_a_batch_is_over_by_itself_in_every_process_and_another_may_follow() -> None:
    judge = Judge()
    async with FakeGateway(STEADY, STEADY) as gateway, crew(2) as helpers:
        for number, level in enumerate((1, 7)):  # the first leaves the helpers without a stream
            recording = await batch(gateway, helpers, judge, level, number).run()
            assert [answer.is_complete for answer in recording.answers] == [True] * level * 2
            assert recording.opened_at == min(answer.started_at for answer in recording.answers)
            assert recording.closed_at == max(answer.finished_at or 0 for answer in recording.answers)
            first_round = 2 * PLAN.tokens * 0.02
            assert recording.closed_at - recording.opened_at >= first_round * 0.95
        steady = await run_cell(gateway, at(8, number=2), helpers, judge)
    assert judge.answers == 2 * 8 + sum(answer.is_complete for answer in steady.answers)


async def test_a_wrong_answer_in_another_process_ends_a_batch() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(error_answer=20)) as gateway, crew(3) as helpers:
        with pytest.raises(RequestFailed, match="REQUEST FAILED"):
            await batch(gateway, helpers, Judge(), 16).run()


async def test_whoever_ends_a_batch_early_leaves_no_request_behind() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        async with crew(1) as helpers:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await batch(gateway, helpers, Judge(), 8).run()
        async with asyncio.timeout(5):
            await gateway.empty.wait()


async def test_a_process_that_dies_ends_the_cell() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway, crew(1) as helpers:
        pid = helpers[0].pid
        asyncio.get_running_loop().call_later(0.3, os.kill, pid, signal.SIGKILL)
        with pytest.raises(Unreachable, match=r"a process of the load tester ended by itself \(status -9\)"):
            await run_cell(gateway, at(4), helpers)


async def test_processes_end_with_the_block() -> None:
    async with crew(2) as helpers:
        pids = [helper.pid for helper in helpers]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_the_busiest_process_counts() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway, crew(1) as helpers:
        recording = await run_cell(gateway, at(2), helpers)
    span = (recording.opened_at, recording.closed_at)
    ticks = [
        Tick(moment, lag_s=0.0, cpu_s=share * (moment - span[0]), machine_load=0.1, process=process)
        for moment in span
        for process, share in enumerate((0.2, 0.9))
    ]
    assert summarise(replace(recording, ticks=tuple(ticks)), PLAN.tokens).client_cpu == pytest.approx(0.9)
