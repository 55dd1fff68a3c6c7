"""The HTTP/2 client with the real tritonserver: many streams, cancels at any moment, long prompts, a server's death."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from deploy.launch import Launched
from gateway.backends.triton import TritonBackend
from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams
from gateway.errors import BackendLost, BackendUnavailable, ContextLengthExceeded
from gateway.settings import TritonSettings
from tests.engines.wires.servers import Server, free_ports, is_zero, metric_becomes, serving
from tests.fakes.sink import RecordingSink, settled
from tests.processes import find_children

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("anyio_backend", [True], ids=["uvloop"], indirect=True),
]

LONGEST_PROMPT = 900  # the reference model's context is 1024
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


class Ports:
    """The settings for a tritonserver of this test's own."""

    def __init__(self) -> None:
        self.grpc, self.http, self.metrics = free_ports(3)

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.metrics}/metrics"

    @contextmanager
    def triton(self) -> Iterator[Server]:
        ports = ("--grpc-port", self.grpc, "--http-port", self.http, "--metrics-port", self.metrics)
        with serving("engines.triton", *ports, "--start-timeout", "200", "--exit-timeout", "3") as server:
            yield server


@pytest.fixture
async def backend(cpu_stack: Launched) -> AsyncIterator[TritonBackend]:
    urls = cpu_stack.stack.backends["triton"]
    backend = TritonBackend(TritonSettings("triton", str(urls["url"]), connect_timeout_s=10.0))
    assert await backend.is_ready()
    yield backend
    await is_idle(backend, str(urls["metrics_url"]))
    await backend.aclose()


async def is_idle(backend: TritonBackend, metrics_url: str) -> None:
    """Neither side holds anything for a call."""
    await settled(lambda: len(backend.calls) == 0, repr(backend))
    name = "nv_trt_llm_request_metrics"
    await metric_becomes(is_zero, metrics_url, name, model="tensorrt_llm", request_type="active")


def ask(backend: TritonBackend, prompt: tuple[int, ...], **params: object) -> RecordingSink:
    sink = RecordingSink()
    changed = replace(GREEDY, **params)  # type: ignore[arg-type]  # by name
    sink.call = backend.start(GenerateRequest("req", "m", Prompt(prompt), changed, (2,)), sink)
    return sink


async def test_random_prompts_and_cancels_at_random_moments(backend: TritonBackend) -> None:
    draw = random.Random(1)
    prompts = [tuple(draw.randrange(300, 500) for _ in range(draw.randrange(1, LONGEST_PROMPT))) for _ in range(6)]
    alone = []
    for prompt in prompts:
        sink = ask(backend, prompt)
        assert await sink.ended() is FinishReason.LENGTH
        alone.append(sink.token_ids)
    sinks: list[tuple[int, RecordingSink]] = []
    loop = asyncio.get_running_loop()
    leaving = set()
    for number in range(250):
        which = draw.randrange(len(prompts))
        sink = ask(backend, prompts[which])
        sinks.append((which, sink))
        if draw.random() < 0.6:
            leaving.add(number)
            loop.call_later(draw.random() * draw.choice((0.0, 0.05, 3.0)), leave, sink)
        if draw.random() < 0.5:
            await asyncio.sleep(draw.random() * 0.02)
    for number, (which, sink) in enumerate(sinks):
        if number not in leaving:
            assert await sink.ended() is FinishReason.LENGTH
            assert sink.token_ids == alone[which]
        assert sink.breaches == []
    await settled(lambda: all(sink.end is not None or sink._is_cancelled for _, sink in sinks), "all ended or left")
    # An answer's last ids arrive before its stream's end.
    await settled(lambda: "streams=0" in repr(backend), "every stream closed")
    assert repr(backend).count("<Link") == 1


def leave(sink: RecordingSink) -> None:
    if sink.end is None:
        sink.cancel()


async def test_prompts_of_a_hundred_thousand_ids_reach_it_whole_and_hold_up_nobody(backend: TritonBackend) -> None:
    short = [ask(backend, (300, 301, 302)) for _ in range(8)]
    long = [ask(backend, tuple(range(100_000))) for _ in range(8)]
    short += [ask(backend, (300, 301, 302)) for _ in range(8)]
    for sink in long:
        # Triton can only know after it has read all 400 kB.
        assert type(await sink.ended()) is ContextLengthExceeded
    for sink in short:
        assert await sink.ended() is FinishReason.LENGTH
    assert len({tuple(sink.token_ids) for sink in short}) == 1


async def test_long_prompts_that_are_left_while_they_are_being_sent_do_no_harm(backend: TritonBackend) -> None:
    draw = random.Random(2)
    for _ in range(30):
        sink = ask(backend, tuple(range(100_000)))
        await asyncio.sleep(draw.choice((0, 0, 0.001, 0.005)))
        leave(sink)
        assert sink.breaches == []
    last = ask(backend, (300, 301, 302))
    assert await last.ended() is FinishReason.LENGTH


async def test_a_server_that_is_killed_in_mid_answer_and_comes_back() -> None:
    ports = Ports()
    backend = TritonBackend(TritonSettings("triton", f"grpc://127.0.0.1:{ports.grpc}", connect_timeout_s=10.0))
    with ports.triton() as server:
        assert await backend.is_ready()
        begun = [ask(backend, (300, 301), max_tokens=900) for _ in range(4)]
        for sink in begun:
            await sink.received(1)
        waiting = [ask(backend, tuple(range(300, 1020)), max_tokens=100) for _ in range(4)]
        tritonserver = next(iter(find_children(server.process.pid)))
        os.kill(tritonserver, signal.SIGKILL)
        for sink in begun:
            assert type(await sink.ended()) is BackendLost
        for sink in waiting:
            assert type(await sink.ended()) in {BackendUnavailable, BackendLost}
        assert not await backend.is_ready()
        assert type(await ask(backend, (300,)).ended()) is BackendUnavailable
        await asyncio.to_thread(server.process.wait, 30)
    with ports.triton():
        async with asyncio.timeout(20):
            while not await backend.is_ready():  # noqa: ASYNC110 - readiness is polled, as routing does
                await asyncio.sleep(0.05)
        assert await ask(backend, (300, 301)).ended() is FinishReason.LENGTH
        await is_idle(backend, ports.metrics_url)
        await backend.aclose()
