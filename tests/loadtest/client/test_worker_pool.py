"""Several processes of one client: the same figures as those of one, and the same refusals."""

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.errors import RequestFailed, UnequalWork, Unreachable
from loadtest.client.recording import Recording
from loadtest.client.worker_pool import Worker, worker_pool
from tests.loadtest.client.test_closed_loop import RULE, STEADY, TOKENS, make_sender, sum_up
from tests.loadtest.fake_gateway import FakeGateway, Faults

pytestmark = pytest.mark.timeout(120)


async def run_cell(
    gateway: FakeGateway,
    level: int,
    workers: Sequence[Worker],
    gate: AnswerGate | None = None,
    *,
    number: int = 0,
    backend: str = "triton",
) -> Recording:
    load = ClosedLoad(backend, level, TOKENS, RULE, number)
    return await ClosedLoop(make_sender(gateway), gate or AnswerGate(), load, workers).run()


async def test_streams_of_all_processes_make_one_cell() -> None:
    gate = AnswerGate()
    async with FakeGateway(STEADY, STEADY) as gateway, worker_pool(2) as workers:
        recording = await run_cell(gateway, 8, workers, gate)
        async with asyncio.timeout(5):
            await gateway.empty.wait()
        assert gateway.backends["triton"].most_running == 8
        again = await run_cell(gateway, 8, workers, gate, number=1)
        prompts = gateway.prompts["triton"]
    for each in (recording, again):
        cell = sum_up(each, 8)
        assert cell.throughput == pytest.approx(8 / 0.02, rel=0.1)
        assert cell.tpot_s.p50 == pytest.approx(0.02, rel=0.1)
        assert cell.in_flight > 7.5
        assert {tick.process for tick in each.ticks} == {0, 1, 2}
        starts = [answer.started_at for answer in each.answers]
        assert starts == sorted(starts)
    assert len(set(prompts)) == len(prompts)
    assert gate.answers == sum(answer.is_complete for each in (recording, again) for answer in each.answers)


async def test_a_prompt_that_is_longer_on_the_other_backend_is_noticed_in_the_process_that_sent_it() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(longer_prompts_on="vllm")) as gateway, worker_pool(1) as workers:
        await run_cell(gateway, 8, workers)
        with pytest.raises(UnequalWork, match="the same prompt was"):  # this process has a new gate, the worker has not
            await run_cell(gateway, 8, workers, backend="vllm")


async def test_a_wrong_answer_in_another_process_ends_the_cell() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(error_answer=20)) as gateway:
        async with worker_pool(7) as workers:
            with pytest.raises(RequestFailed, match="REQUEST FAILED"):
                await run_cell(gateway, 8, workers)
        async with asyncio.timeout(10):
            await gateway.empty.wait()


async def test_processes_without_a_stream_wait_for_the_end_and_work_again() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway, worker_pool(2) as workers:
        for number, level in enumerate((1, 1, 4)):
            recording = await run_cell(gateway, level, workers, number=number)
            assert sum_up(recording, level).throughput == pytest.approx(level / 0.02, rel=0.1)
            assert {tick.process for tick in recording.ticks} == {0, 1, 2}


async def test_a_process_that_dies_ends_the_cell() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway, worker_pool(1) as workers:
        asyncio.get_running_loop().call_later(0.3, os.kill, workers[0].pid, signal.SIGKILL)
        with pytest.raises(Unreachable, match=r"a process of the load tester ended by itself \(status -9\)"):
            await run_cell(gateway, 4, workers)


async def test_processes_end_with_the_block() -> None:
    async with worker_pool(2) as workers:
        pids = [worker.pid for worker in workers]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
