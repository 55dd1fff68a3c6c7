"""Several processes of one client: the same figures as those of one, and the same refusals."""

import asyncio
import os
import signal
from collections.abc import Sequence

import pytest

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.errors import Unreachable, Untrusted
from loadtest.client.recording import Recording
from loadtest.client.worker_pool import Worker, worker_pool
from tests.loadtest.client.test_closed_loop import RULE, STEADY, TOKENS, make_sender, sum_up
from tests.loadtest.fake_gateway import FakeGateway, Faults

pytestmark = pytest.mark.timeout(120)


async def run_cell(
    gateway: FakeGateway, level: int, workers: Sequence[Worker], number: int = 0, backend: str = "triton"
) -> tuple[Recording, int]:
    """With the number of answers that passed a gate of this cell's own."""
    gate = AnswerGate()
    load = ClosedLoad(backend, level, TOKENS, RULE, number)
    return await ClosedLoop(make_sender(gateway), gate, load, workers).run(), gate.answers


async def test_streams_of_all_processes_make_one_cell() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway, worker_pool(2) as workers:
        for number, level in enumerate((8, 1, 1, 4)):  # a process without a stream waits for the end
            recording, passed = await run_cell(gateway, level, workers, number)
            await gateway.wait_until_left()
            cell = sum_up(recording, level)
            assert cell.throughput == pytest.approx(level / 0.02, rel=0.1)
            assert cell.tpot_s.p50 == pytest.approx(0.02, rel=0.1)
            assert cell.in_flight > 0.93 * level
            assert {tick.process for tick in recording.ticks} == {0, 1, 2}
            starts = [answer.started_at for answer in recording.answers]
            assert starts == sorted(starts)
            assert passed == sum(answer.is_complete for answer in recording.answers)
        prompts = gateway.prompts["triton"]
        assert gateway.backends["triton"].most_running == 8
    assert len(set(prompts)) == len(prompts)


async def test_a_prompt_that_is_longer_on_the_other_backend_is_noticed_in_the_process_that_sent_it() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(longer_prompts_on="vllm")) as gateway, worker_pool(1) as workers:
        await run_cell(gateway, 8, workers)
        with pytest.raises(Untrusted, match="the same prompt was"):  # this process has a new gate, the worker has not
            await run_cell(gateway, 8, workers, backend="vllm")


async def test_a_wrong_answer_in_another_process_ends_the_cell() -> None:
    async with FakeGateway(STEADY, STEADY, Faults(error_answer=20)) as gateway:
        async with worker_pool(7) as workers:
            with pytest.raises(Untrusted, match="REQUEST FAILED"):
                await run_cell(gateway, 8, workers)
        await gateway.wait_until_left()


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
