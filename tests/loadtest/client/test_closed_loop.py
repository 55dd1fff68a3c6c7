"""Cells on a gateway whose pace is known, over real sockets."""

import asyncio
import time

import pytest

from loadtest.client.answer_gate import AnswerGate
from loadtest.client.closed_loop import ClosedLoad, ClosedLoop
from loadtest.client.errors import Untrusted
from loadtest.client.recording import Recording
from loadtest.client.sender import Sender
from loadtest.client.streams import Streams, StreamsJob
from loadtest.client.target import Target
from loadtest.client.window import WindowRule
from loadtest.results.cell import Cell, Pair, summarise
from tests.loadtest.fake_gateway import FakeGateway, Faults, Speed

STEADY = Speed(base_s=0.02, per_request_s=0.0)
TOKENS, WINDOW_S = 16, 0.5
RULE = WindowRule(settle_requests=0, min_requests=2, min_s=WINDOW_S)


def make_sender(gateway: FakeGateway) -> Sender:
    return Sender(Target.parse(gateway.url), "toy", "run-1", seed=1, prompt_words=5)


async def run_cell(gateway: FakeGateway, level: int) -> Recording:
    load = ClosedLoad("triton", level, TOKENS, RULE)
    return await ClosedLoop(make_sender(gateway), AnswerGate(), load).run()


def sum_up(recording: Recording, level: int) -> Cell:
    return summarise(recording, "triton", Pair(level, low_first=True), TOKENS)


async def test_a_cell_holds_its_level_at_the_pace_of_the_backend_out_of_step_and_leaves_nothing_behind() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        cell = sum_up(await run_cell(gateway, level=8), 8)
        await gateway.wait_until_left()
        assert [backend.most_running for backend in gateway.backends.values()] == [8, 0]
    assert cell.in_flight > 7.5
    assert cell.throughput == pytest.approx(8 / 0.02, rel=0.1)
    assert cell.tpot_s.p50 == pytest.approx(0.02, rel=0.1)
    assert cell.e2e_s.p50 == pytest.approx(TOKENS * 0.02, rel=0.15)
    assert (cell.phase_order or 1) < 0.5


async def test_every_prompt_is_sent_once_and_both_backends_get_the_same() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        gate = AnswerGate()
        for backend in ("triton", "vllm"):
            await ClosedLoop(make_sender(gateway), gate, ClosedLoad(backend, 2, TOKENS, RULE)).run()
        low, high, body = gateway.prompts["triton"], gateway.prompts["vllm"], gateway.bodies[-1]
        assert gateway.runs == {"run-1"}
    assert len(set(low)) == len(low)
    shorter = min(len(low), len(high)) - 2  # the last ones depend on when the window closed
    assert shorter >= 4
    assert len(set(low) & set(high)) >= shorter
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"], body["stream"]) == (16, 16, True, True)


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(short_answer=3), "UNEQUAL WORK: triton returned 15 of 16 tokens"),
        (Faults(error_answer=3), "HTTP 503: the engine is on fire"),
        (Faults(cut_answer=3), "lost"),
    ],
)
async def test_one_answer_that_is_not_the_requested_work_ends_the_cell(faults: Faults, message: str) -> None:
    async with FakeGateway(STEADY, STEADY, faults) as gateway:
        with pytest.raises(Untrusted, match=message):
            await run_cell(gateway, level=1)


async def test_cancelling_a_cell_closes_every_connection_at_once() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await run_cell(gateway, level=8)
        await gateway.wait_until_left()


async def test_a_client_that_is_held_up_records_how_late_it_was() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        streams = Streams(make_sender(gateway), AnswerGate(), StreamsJob("triton", 0, TOKENS, {0: TOKENS}))
        running = asyncio.ensure_future(streams.run())
        await asyncio.sleep(0.2)
        time.sleep(0.3)  # noqa: ASYNC251 - it is to block the event loop
        await asyncio.sleep(0.1)
        running.cancel()
        await asyncio.wait([running])
    assert max(tick.lag_s for tick in streams.ticks) > 0.2
