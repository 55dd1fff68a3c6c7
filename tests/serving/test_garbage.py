"""A finished answer is freed by reference counts: the garbage collector would stall every stream while it runs."""

import gc
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from gateway.language import ModelLanguage
from tests.fakes.openai import STREAM, chunked, event, saying, sized
from tests.serving.relay_stack import relaying
from tests.serving.stack import RawClient, Writer, make_stack, raw_client, running

REQUESTS = 20
# uvicorn's connections wait for the collector, those of tests before this one too, and each has its last exchange.
OF_CONNECTIONS = frozenset({"ClientConnection", "TransportExchange"})
Forget: TypeAlias = Callable[[], None]  # what the scripted engines keep of the requests they had
Lane: TypeAlias = tuple[Any, Forget]  # Any: a Stack or a RelayStack


@asynccontextmanager
async def token_lane(language: ModelLanguage, writer: Writer, _: bool) -> AsyncIterator[Lane]:
    """Its backend is scripted: what an adapter leaves is in tests/backends/test_contract.py."""
    async with running(make_stack(language)) as stack:
        stack.low.script = writer.script("Paris, as ever.")
        yield stack, stack.low.calls.clear


@asynccontextmanager
async def relay_lane(_language: ModelLanguage, _writer: Writer, is_stream: bool) -> AsyncIterator[Lane]:
    async with relaying() as stack:
        streamed = (STREAM, chunked(event("Par"), event("is")))
        stack.low.answer = saying(*streamed) if is_stream else saying(sized(b"{}"))
        yield stack, stack.low.exchanges.clear


def garbage() -> Counter[str]:
    """Objects of the gateway's own types that only the collector could free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        ours = (type(found) for found in gc.garbage if type(found).__module__.startswith("gateway."))
        return Counter(kind.__qualname__ for kind in ours if kind.__qualname__ not in OF_CONNECTIONS)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def ask(client: RawClient, *, is_stream: bool, count: int) -> None:
    for _ in range(count):
        client.ask(stream=is_stream)
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("lane", [token_lane, relay_lane])
async def test_answers_leave_nothing_for_the_collector(
    language: ModelLanguage,
    writer: Writer,
    lane: Callable[[ModelLanguage, Writer, bool], AbstractAsyncContextManager[Lane]],
    is_stream: bool,
) -> None:
    async with lane(language, writer, is_stream) as (stack, forget), raw_client(stack) as client:
        await ask(client, is_stream=is_stream, count=2)
        gc.collect()
        gc.disable()
        try:
            await ask(client, is_stream=is_stream, count=REQUESTS)
            await stack.settle()
            forget()
            left = garbage()
        finally:
            gc.enable()
    assert not left
