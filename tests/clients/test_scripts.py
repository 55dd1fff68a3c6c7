"""What an engine does once in a while, as the official clients show it: scripts are played behind the gateway."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from anyio import to_thread
from tokenizers import Tokenizer

from deploy.stacks import WEIGHTS
from gateway.core import FinishReason, GenerateRequest
from gateway.errors import BackendLost, BackendTimeout, BackendUnavailable, GatewayError, Overloaded
from gateway.language import ModelLanguage
from tests.clients.conftest import Connect
from tests.clients.question import Client, Place, Question, Refused
from tests.fakes.backend import Script
from tests.serving.stack import MODEL, Stack, Writer, make_stack, running

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
HELLO = Question([{"role": "user", "content": "Hello"}], model=MODEL)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}  # what `crossover serve` runs on


@pytest.fixture(scope="module")
def language() -> ModelLanguage:
    return ModelLanguage.load(WEIGHTS)


@pytest.fixture
def writer(language: ModelLanguage) -> Writer:
    return Writer(Tokenizer.from_file(str(Path(WEIGHTS) / "tokenizer.json")), language.eos_token_ids[0])


@pytest.fixture
async def scripted(language: ModelLanguage) -> AsyncIterator[Stack]:
    """A gateway before engines that play scripts; it ends with nothing left of any request."""
    async with running(make_stack(language)) as stack:
        yield stack


@pytest.fixture
async def client(connect: Connect, scripted: Stack) -> AsyncIterator[Client]:
    client = connect(Place(scripted.url, "low"))
    yield client
    client.close()


async def test_a_stream_comes_token_by_token(client: Client, scripted: Stack, writer: Writer) -> None:
    said = "Once upon a time two engines lived in one house."
    scripted.low.script = writer.says(said)
    answer = await to_thread.run_sync(client.ask, replace(HELLO, stream=True))
    assert answer.text == said
    assert len(answer.pieces) == len(writer.ids(said))


async def test_a_stream_that_breaks_off_is_an_error(client: Client, scripted: Stack, writer: Writer) -> None:
    scripted.low.script = writer.says("Pa", BackendLost("the engine died"))
    with pytest.raises(Refused) as caught:
        await to_thread.run_sync(client.ask, replace(HELLO, stream=True))
    assert (caught.value.code, caught.value.status) == ("backend_lost", None), caught.value
    assert "the engine died" in caught.value.message


async def test_a_folded_answer_that_breaks_off_is_an_error_with_a_status(
    client: Client, scripted: Stack, writer: Writer
) -> None:
    scripted.low.script = writer.says("Pa", BackendLost("the engine died"))
    with pytest.raises(Refused) as caught:
        await to_thread.run_sync(client.ask, HELLO)
    assert (caught.value.code, caught.value.status) == ("backend_lost", 502), caught.value


REFUSALS = [
    (Overloaded("too many"), ("RateLimitError", "OpenAIRateLimitError", "AI_APICallError")),
    (BackendTimeout("too long"), ("InternalServerError", "OpenAIAPIError", "AI_APICallError")),
]


@STREAMED
@pytest.mark.parametrize(("error", "names"), REFUSALS, ids=["shed", "timed out"])
async def test_a_failure_before_the_answer_is_of_the_clients_own_class(
    client: Client, scripted: Stack, error: GatewayError, names: Sequence[str], *, stream: bool
) -> None:
    scripted.low.script = [error]
    with pytest.raises(Refused) as caught:
        await to_thread.run_sync(client.ask, replace(HELLO, stream=stream))
    assert (caught.value.code, caught.value.status) == (error.code, error.status)
    assert caught.value.error in names


@STREAMED
async def test_an_engine_that_could_not_be_reached_is_asked_again(
    client: Client, scripted: Stack, writer: Writer, *, stream: bool
) -> None:
    def script(request: GenerateRequest) -> Script:
        return [BackendUnavailable("not now")] if len(scripted.low.calls) == 0 else writer.says("Hello!")

    scripted.low.script = script
    answer = await to_thread.run_sync(client.ask, replace(HELLO, stream=stream, retries=1))
    assert answer.text == "Hello!"
    assert answer.finish_reasons == (FinishReason.STOP,)
    assert len(scripted.low.calls) == 2
