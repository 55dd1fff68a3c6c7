"""What engines do rarely, as the official clients show it: scripted backends behind the gateway."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from anyio import to_thread

from gateway.core import FinishReason, GenerateRequest
from gateway.errors import BackendLost, BackendTimeout, BackendUnavailable, GatewayError, Overloaded
from tests.clients.conftest import Connect
from tests.clients.question import MESSAGES, Client, Place, Question, Refused
from tests.fakes.backend import Script
from tests.serving.stack import MODEL, Stack, Writer, anyio_backend, language, stack, writer

__all__ = ["anyio_backend", "language", "stack", "writer"]  # fixtures

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
HELLO = Question([{"role": "user", "content": "Hello"}], model=MODEL)


@pytest.fixture
async def client(connect: Connect, stack: Stack) -> AsyncIterator[Client]:
    client = connect(Place(stack.url, "low"))
    yield client
    client.close()


async def test_a_stream_comes_token_by_token(client: Client, stack: Stack, writer: Writer) -> None:
    text = "Once upon a time two engines lived in one house."
    stack.low.script = writer.script(text)
    answer = await to_thread.run_sync(client.ask, replace(HELLO, stream=True))
    assert answer.text == text
    assert len(answer.pieces) == len(writer.ids(text))


@STREAMED
async def test_an_answer_broken_off_is_an_error(client: Client, stack: Stack, writer: Writer, *, stream: bool) -> None:
    stack.low.script = writer.script("Pa", BackendLost("the engine died"))
    with pytest.raises(Refused) as caught:
        await to_thread.run_sync(client.ask, replace(HELLO, stream=stream))
    code = "api_error" if client.wire == MESSAGES else "backend_lost"
    assert (caught.value.code, caught.value.status) == (code, None if stream else 502), caught.value
    assert "the engine died" in caught.value.message


REFUSALS = [
    (Overloaded("too many"), ("RateLimitError", "OpenAIRateLimitError", "AI_APICallError")),
    (BackendTimeout("too long"), ("InternalServerError", "GatewayTimeoutError", "OpenAIAPIError", "AI_APICallError")),
]


@STREAMED
@pytest.mark.parametrize(("error", "names"), REFUSALS, ids=["shed", "timed out"])
async def test_a_failure_before_the_answer_is_of_the_clients_own_class(
    client: Client, stack: Stack, error: GatewayError, names: Sequence[str], *, stream: bool
) -> None:
    stack.low.script = [error]
    with pytest.raises(Refused) as caught:
        await to_thread.run_sync(client.ask, replace(HELLO, stream=stream))
    code = {429: "rate_limit_error", 504: "timeout_error"}[error.status] if client.wire == MESSAGES else error.code
    assert (caught.value.code, caught.value.status) == (code, error.status)
    assert caught.value.error in names


@STREAMED
async def test_an_engine_that_could_not_be_reached_is_asked_again(
    client: Client, stack: Stack, writer: Writer, *, stream: bool
) -> None:
    def script(request: GenerateRequest) -> Script:
        return [BackendUnavailable("not now")] if len(stack.low.calls) == 0 else writer.script("Hello!")

    stack.low.script = script
    answer = await to_thread.run_sync(client.ask, replace(HELLO, stream=stream, retries=1))
    assert answer.text == "Hello!"
    assert answer.finish_reasons == (FinishReason.STOP,)
    assert len(stack.low.calls) == 2
