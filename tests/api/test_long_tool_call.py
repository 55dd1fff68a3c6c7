"""A tool call of 200 kB, streamed: what it takes grows with its length, and not faster."""

import time

import orjson
import pytest

from gateway.core import FinishReason
from tests.api.conftest import RawClient, Stack, Writer, raw_client
from tests.fakes.backend import Script
from tests.reference_world import GET_WEATHER

KB = 1000
LONG, SHORT = 200 * KB, 100 * KB
ROUNDS = 3
MOST = 2.5  # 2 is linear, 4 quadratic
PER_STEP = 4  # tokens that an engine sends together


def calling(writer: Writer, size: int) -> tuple[Script, str]:
    """A model that calls a tool with so many bytes of arguments, and those."""
    text = "".join(f'{number} is a city, and \\"so\\" on {{}}; \\n' for number in range(size // 20))[:size]
    arguments = '{"city": "' + text.rstrip("\\") + '"}'
    ids = writer.ids(f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>')
    steps = [ids[at : at + PER_STEP] for at in range(0, len(ids), PER_STEP)]
    return [*steps, [writer.eos], FinishReason.STOP], arguments


async def stream(client: RawClient) -> bytes:
    """All of a streamed answer's body, in chunks as they came."""
    client.ask(stream=True, tools=[GET_WEATHER])
    assert b" 200 " in await client.until(b"\r\n\r\n")
    heard = bytearray()
    while not heard.endswith(b"\r\n0\r\n\r\n"):
        data = await client.reader.read(1 << 20)
        assert data
        heard += data
    return bytes(heard)


def read_arguments(body: bytes) -> str:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    deltas = [orjson.loads(line)["choices"][0]["delta"] for line in lines]
    return "".join(call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ()))


async def clock(stack: Stack, client: RawClient, script: Script) -> tuple[float, bytes]:
    stack.low.script = script
    started = time.perf_counter()
    body = await stream(client)
    return time.perf_counter() - started, body


@pytest.mark.alone
async def test_time_of_a_streamed_tool_call_is_linear_in_its_length(stack: Stack, writer: Writer) -> None:
    scripts = {size: calling(writer, size) for size in (SHORT, LONG)}
    times: dict[int, list[float]] = {SHORT: [], LONG: []}
    async with raw_client(stack) as client:
        for _ in range(ROUNDS):
            for size, (script, arguments) in scripts.items():
                seconds, body = await clock(stack, client, script)
                assert read_arguments(body) == arguments
                times[size].append(seconds)
    ratio = min(times[LONG]) / min(times[SHORT])
    print(f"{min(times[LONG]):.2f} s for 200 kB, {min(times[SHORT]):.2f} s for 100 kB: ratio {ratio:.2f}")  # noqa: T201
    assert ratio < MOST, times
