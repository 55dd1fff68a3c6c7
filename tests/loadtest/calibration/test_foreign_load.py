"""Requests of others during a calibration: counted, reported, and a reason to measure again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from loadtest.admin import count_in_flight, find_system
from loadtest.calibration.cell_meter import observe
from loadtest.calibration.foreign_load import Count, ForeignLoad, wait_for_others
from loadtest.client.errors import Unreachable, Untrusted
from loadtest.client.recording import Recording
from loadtest.client.target import Target
from loadtest.results.plan import QUICK
from loadtest.results.system import InFlight
from tests.loadtest.calibration.runs import run_campaign, wait_for_lines
from tests.loadtest.fake_gateway import FakeGateway, Speed

STEADY, SLOWER = Speed(base_s=0.01, per_request_s=0.0), Speed(base_s=0.015, per_request_s=0.0)
PLAN = replace(QUICK, levels=(2,), tokens=8, window_s=0.8, window_requests=2, refine_pairs=0)
# Between an answer and the stream's next request a sample may show less than the whole level.
ONE_OF_THREE = pytest.approx(1 / 3, abs=0.15)
RECORDING = Recording(10.0, 20.0, (), ())


@asynccontextmanager
async def user(gateway: FakeGateway, backend: str, tokens: int) -> AsyncIterator[asyncio.StreamReader]:
    """One request that is pinned but not tagged as a run's: a user's. It ends with the block."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = {"messages": [{"content": "hello"}], "max_tokens": tokens, "stream_options": {}}
    content = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nx-crossover-pin: {backend}\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    await reader.readuntil(b"assistant")
    try:
        yield reader
    finally:
        writer.close()


async def counting(gateway: FakeGateway) -> Count:
    target = Target.parse(gateway.url)
    return partial(count_in_flight, target, await find_system(target, None))


@pytest.mark.parametrize(
    ("samples", "share"),
    [
        ([], None),
        ([(9.9, 8, 8), (20.1, 8, 8)], None),
        ([(10.0, 8, 0), (20.0, 8, 0)], 0.0),
        ([(9.9, 8, 8), (11.0, 8, 0), (12.0, 10, 2), (13.0, 2, 1)], 3 / 20),
        ([(11.0, 8, None), (12.0, 8, 2)], None),
        ([(11.0, 0, 0)], None),
    ],
)
def test_the_share_is_that_of_all_requests_seen_in_the_window(
    samples: list[tuple[float, int, int | None]], share: float | None
) -> None:
    taken = [(at, InFlight(in_flight, foreign)) for at, in_flight, foreign in samples]
    load = ForeignLoad(lambda: asyncio.sleep(0, dict[str, InFlight]()), "triton", taken)
    assert load.find_share(RECORDING) == share


async def test_a_cell_with_somebody_elses_request_is_void_and_measured_again(tmp_path: Path) -> None:
    async with FakeGateway(STEADY, SLOWER) as gateway, asyncio.TaskGroup() as tasks:
        # Retries for what a busy machine does besides.
        running = tasks.create_task(run_campaign(gateway, replace(PLAN, retries=20), tmp_path))
        async with user(gateway, "triton", tokens=100_000):
            await wait_for_lines(tmp_path, 1)
        result, lines, shown = await running
    assert "measuring again: FOREIGN LOAD: " in shown
    assert "of the requests at triton c=2 were others'" in str(lines[0]["void"])
    assert lines[0]["foreign"] == ONE_OF_THREE
    assert [cell.foreign for cell in result.cells] == [0.0] * 4


async def test_what_is_observed_raises_as_without_an_observer() -> None:
    async def measure() -> None:
        await asyncio.sleep(0)
        raise Untrusted("served by another")

    async with FakeGateway(STEADY, STEADY) as gateway:
        foreign = ForeignLoad(await counting(gateway), "triton")
        with pytest.raises(Untrusted, match="served by another"):
            await observe(measure(), [foreign.sample()])


async def test_a_gateway_that_goes_away_ends_what_is_observed() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        count = await counting(gateway)
    with pytest.raises(Unreachable, match="cannot connect"):
        await observe(asyncio.Event().wait(), [ForeignLoad(count, "triton").sample()])


async def test_others_are_waited_for_and_the_reason_is_noted_once() -> None:
    notes: list[str] = []
    async with FakeGateway(STEADY, STEADY) as gateway:
        count = await counting(gateway)
        async with user(gateway, "vllm", tokens=120):
            await wait_for_others(count, 1, notes.append)
            assert not notes
            await wait_for_others(count, 0, notes.append)
            assert gateway.in_flight == 0
    assert notes == ["waiting: 1 requests of others are in flight, and measurements begin at 0 or fewer"]


async def test_no_measurement_begins_while_more_requests_of_others_are_in_flight_than_allowed(tmp_path: Path) -> None:
    async with FakeGateway(STEADY, SLOWER) as gateway, user(gateway, "vllm", tokens=120):
        result, _, shown = await run_campaign(gateway, replace(PLAN, retries=0), tmp_path, max_foreign=0)
    assert shown.count("waiting: 1 requests of others are in flight") == 1
    assert [cell.foreign for cell in result.cells] == [0.0] * 4
