"""Every status with which gRPC can end a call, from a Triton, before and after the first token of an answer."""

from collections.abc import AsyncIterator

import pytest
from openai import APIError, AsyncOpenAI

from tests.fakes.script import GrpcStatus, Say, Step
from tests.serving.stack import HELLO, Writer
from tests.serving.test_serve import Served, served
from tests.serving.test_sick_engines import TEXT, be_well

MODEL = "tiny"
LOST = "backend_lost"
# What a begun stream that may not move ends with; everything else goes on at the other engine.
CODES = {
    1: LOST,
    2: "backend_error",
    3: "backend_error",
    4: "backend_timeout",
    5: "backend_error",
    6: "backend_error",
    7: "backend_error",
    8: LOST,
    9: "backend_error",
    10: LOST,
    11: "backend_error",
    12: "backend_protocol_error",
    13: "backend_error",
    14: LOST,
    15: "backend_error",
    16: "backend_error",
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"  # the engines' loop; the gateway has its own process


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory, writer: Writer) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("statuses")) as gateway:
        yield gateway


async def ask(client: AsyncOpenAI, **fields: object) -> str:
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **fields)  # type: ignore[call-overload]  # any field
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def answer_soundly(gateway: Served, client: AsyncOpenAI, writer: Writer, times: int) -> None:
    """Until Triton has answered so often: it is used, and its faults are the smaller part."""
    be_well(gateway.triton, writer.ids(TEXT))
    be_well(gateway.vllm, writer.ids(TEXT))
    before = len(gateway.triton.asked)
    while len(gateway.triton.asked) - before < times:
        assert await ask(client, temperature=0) == TEXT


@pytest.mark.parametrize("begun", [False, True], ids=["before a token", "after a token"])
@pytest.mark.parametrize("status", CODES)
async def test_a_status_costs_no_answer_that_may_move(
    gateway: Served, writer: Writer, status: int, begun: bool
) -> None:
    async with gateway.client as client:
        await answer_soundly(gateway, client, writer, 8)
        steps: list[Step] = [Say(tuple(writer.ids(TEXT)[:1]))] if begun else []
        gateway.triton.play(*steps, GrpcStatus(status))
        asked = len(gateway.triton.asked)
        assert await ask(client, temperature=0) == TEXT
        assert len(gateway.triton.asked) == asked + 1
        await answer_soundly(gateway, client, writer, 8)
        gateway.triton.play(*steps, GrpcStatus(status))
        if begun:
            with pytest.raises(APIError) as caught:
                await ask(client, temperature=1, seed=7)
            assert caught.value.code == CODES[status]
        else:
            assert await ask(client, temperature=1, seed=7) == TEXT
        await answer_soundly(gateway, client, writer, 1)
    assert gateway.process.returncode is None
