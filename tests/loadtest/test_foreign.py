"""Requests of others beside a calibration: counted, told, and a reason to measure again."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.cell import Recording
from loadtest.errors import Misrouted, Unreachable
from loadtest.foreign import Look, Watch, find_share, wait_for_room
from loadtest.plan import QUICK, Pair
from loadtest.subject import Counts, find_subject
from loadtest.target import Target
from tests.loadtest.fake_gateway import FakeGateway, Speed
from tests.loadtest.test_calibrate import wait_for_lines
from tests.loadtest.test_calibration import run_calibration

STEADY, SLOWER = Speed(base_s=0.01, per_request_s=0.0), Speed(base_s=0.015, per_request_s=0.0)
PLAN = replace(QUICK, levels=(2,), tokens=8, window_s=0.8, window_requests=2, refine_pairs=0)
# Between an answer and the stream's next request a look may find less than the whole level.
ONE_OF_THREE = pytest.approx(1 / 3, abs=0.15)
RECORDING = Recording("triton", Pair(4, low_first=True), 10.0, 20.0, (), ())


@asynccontextmanager
async def user(gateway: FakeGateway, backend: str, tokens: int) -> AsyncIterator[asyncio.StreamReader]:
    """One request that is pinned and no run's, so that everybody must take it for a user's; gone with the block."""
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


@pytest.mark.parametrize(
    ("looks", "share"),
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
    looks: list[tuple[float, int, int | None]], share: float | None
) -> None:
    assert find_share([Look(at, Counts(in_flight, foreign)) for at, in_flight, foreign in looks], RECORDING) == share


async def test_a_cell_beside_somebody_elses_request_is_void_and_measured_again(tmp_path: Path) -> None:
    async with FakeGateway(STEADY, SLOWER) as gateway, asyncio.TaskGroup() as tasks:
        # Retries for what a busy machine does besides.
        running = tasks.create_task(run_calibration(gateway, replace(PLAN, retries=20), tmp_path))
        async with user(gateway, "triton", tokens=100_000):
            await wait_for_lines(tmp_path, 1)
        result, lines, shown = await running
    assert "measuring again: FOREIGN LOAD: " in shown
    assert "of the requests at triton c=2 were others'" in str(lines[0]["void"])
    assert lines[0]["foreign"] == ONE_OF_THREE
    assert [cell.foreign for cell in result.cells] == [0.0] * 4


async def test_without_retries_it_is_kept_with_its_share_and_a_warning(tmp_path: Path) -> None:
    async with FakeGateway(STEADY, SLOWER) as gateway, user(gateway, "vllm", tokens=100_000):
        result, _, _ = await run_calibration(gateway, replace(PLAN, retries=0), tmp_path)
    assert {cell.backend: cell.foreign for cell in result.cells} == {"triton": 0.0, "vllm": ONE_OF_THREE}
    assert [check.status for check in result.checks if check.name == "steady load"] == ["warning"]


async def test_what_is_measured_under_a_watch_raises_as_without_one() -> None:
    async def measure() -> None:
        await asyncio.sleep(0)
        raise Misrouted("served by another")

    async with FakeGateway(STEADY, STEADY) as gateway:
        target = Target.parse(gateway.url)
        with pytest.raises(Misrouted, match="served by another"):
            await Watch(target, await find_subject(target, None), "triton").over(measure())


async def test_a_gateway_that_goes_away_ends_what_is_watched() -> None:
    async with FakeGateway(STEADY, STEADY) as gateway:
        target = Target.parse(gateway.url)
        subject = await find_subject(target, None)
    with pytest.raises(Unreachable, match="cannot connect"):
        await Watch(target, subject, "triton").over(asyncio.Event().wait())


async def test_room_is_waited_for_and_the_wait_is_told_once() -> None:
    said: list[str] = []
    async with FakeGateway(STEADY, STEADY) as gateway:
        target = Target.parse(gateway.url)
        subject = await find_subject(target, None)
        async with user(gateway, "vllm", tokens=120):
            await wait_for_room(target, subject, 1, said.append)
            assert not said
            await wait_for_room(target, subject, 0, said.append)
            assert gateway.in_flight == 0
    assert said == ["waiting: 1 requests of others are in flight, and measurements begin at 0 or fewer"]
