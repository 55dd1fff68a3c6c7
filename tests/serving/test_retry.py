"""A backend that fails before anything of the answer exists: the request is answered by another one (test_moves)."""

import pytest
from openai import APIStatusError, AsyncOpenAI, BadRequestError, InternalServerError

from gateway.core import GenerateRequest, Need
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendProtocolError,
    BackendUnavailable,
    InvalidRequest,
    NeedRefused,
)
from tests.fakes.backend import Pause, Script
from tests.serving.stack import HELLO, MODEL, Stack, Writer, eventually, fault, raw_client

GONE = BackendUnavailable("connection refused")


@pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])
async def test_a_request_that_has_not_begun_is_answered_by_the_other_backend(
    stack: Stack, writer: Writer, stream: bool
) -> None:
    stack.low.script, stack.high.script = [GONE], writer.script("Paris is")
    async with raw_client(stack) as client:
        client.ask(stream=stream, stop=["is is"])
        answer = await client.answer()
    assert (answer.status, answer.headers["x-crossover-backend"]) == (200, "high")
    assert (answer.body.count(b'"assistant"'), answer.body.count(b'"stop"')) == (1, 1)
    assert b"is is" not in answer.body
    assert b"error" not in answer.body
    await stack.settle()
    assert (len(stack.low.calls), len(stack.high.calls)) == (1, 1)
    assert stack.counted("low", "backend_unavailable")
    assert stack.counted("high", "stop")


async def test_the_backend_that_could_not_be_reached_is_not_chosen_until_it_passes_a_probe(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:

    def die(_request: GenerateRequest) -> Script:
        stack.low.ready = False
        return [GONE]

    stack.low.script, stack.high.script = die, writer.script("Paris")
    for _ in range(3):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert (len(stack.low.calls), len(stack.high.calls)) == (1, 3)
    stack.low.ready, stack.low.script = True, writer.script("Paris")
    await eventually(lambda: stack.is_ready("low"))
    await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert len(stack.low.calls) == 2


def refuse(_: GenerateRequest) -> Script:
    raise GONE


async def test_a_second_backend_that_cannot_even_begin_is_down_too(
    client: AsyncOpenAI, stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    stack.low.script, stack.high.script = [GONE], refuse
    with pytest.raises(InternalServerError):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert [f"backend {name} (tiny) is down" in caplog.text for name in ("low", "high")] == [True, True]


async def test_a_full_backend_is_not_taken_for_a_dead_one(
    client: AsyncOpenAI, stack: Stack, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    stack.low.script, stack.high.script = [BackendFull("low is full")], writer.script("Paris")
    answer = await client.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO)
    assert answer.headers["x-crossover-backend"] == "high"
    assert "is down" not in caplog.text
    stack.low.script = [GONE]
    await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert "is down" in caplog.text


@pytest.mark.parametrize("error", [GONE, BackendFull("it is full")], ids=lambda error: error.code)
async def test_it_is_tried_once_only(client: AsyncOpenAI, stack: Stack, error: BackendUnavailable) -> None:
    stack.low.script = stack.high.script = [error]
    with pytest.raises(InternalServerError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert (caught.value.status_code, caught.value.code) == (503, error.code)
    assert caught.value.response.headers["x-crossover-backend"] == "high"
    assert caught.value.response.headers["retry-after"] == "1"
    assert (len(stack.low.calls), len(stack.high.calls)) == (1, 1)


async def test_without_another_backend_the_client_gets_the_error(client: AsyncOpenAI, stack: Stack) -> None:
    stack.high.ready = False
    await eventually(lambda: not stack.is_ready("high"))
    stack.low.script = [GONE]
    with pytest.raises(InternalServerError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert (caught.value.status_code, caught.value.code) == (503, "backend_unavailable")


async def test_a_pinned_request_stays_where_it_was_sent(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script, stack.high.script = [GONE], writer.script("Paris")
    with pytest.raises(APIStatusError, match="connection refused"):
        await client.chat.completions.create(model=MODEL, messages=HELLO, extra_headers={"x-crossover-pin": "low"})
    assert not stack.high.calls


@pytest.mark.parametrize("error", [BackendError("out of memory"), BackendProtocolError("id -3")], ids=lambda e: e.code)
async def test_any_fault_of_an_engine_is_tried_elsewhere(
    client: AsyncOpenAI, stack: Stack, writer: Writer, error: BackendError
) -> None:
    stack.low.script, stack.high.script = [error], writer.script("Paris")
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == "Paris"
    assert stack.is_ready("low")
    stack.high.script = [error]
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert (caught.value.status_code, caught.value.response.headers["x-crossover-backend"]) == (502, "high")


async def test_errors_that_a_request_makes_itself_are_not_tried_elsewhere(client: AsyncOpenAI, stack: Stack) -> None:
    stack.low.script = [InvalidRequest("the engine refuses it")]
    with pytest.raises(BadRequestError):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert not stack.high.calls


async def test_faults_are_tried_elsewhere_within_a_budget(client: AsyncOpenAI, stack: Stack, writer: Writer) -> None:
    stack.low.script, stack.high.script = [BackendError("out of memory")], writer.script("Paris")
    for _ in range(64):
        stack.app.endpoints.retries.spend()
    with pytest.raises(APIStatusError):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    stack.low.script = writer.script("Paris")
    for _ in range(5):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    stack.low.script = [BackendError("out of memory")]
    await client.chat.completions.create(model=MODEL, messages=HELLO)
    with pytest.raises(APIStatusError):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    stack.low.script = [GONE]  # a loss costs nothing
    await client.chat.completions.create(model=MODEL, messages=HELLO)


@pytest.mark.parametrize("user", ["u", "u" * 20_000], ids=["at once", "in a task"])
async def test_a_fault_of_the_gateway_in_the_second_try_is_a_500_and_not_the_first_engines(
    client: AsyncOpenAI, stack: Stack, caplog: pytest.LogCaptureFixture, user: str
) -> None:
    stack.low.script, stack.high.script = [Pause(0.01), GONE], fault
    with pytest.raises(APIStatusError) as caught:
        await client.chat.completions.create(model=MODEL, messages=HELLO, user=user, timeout=5)
    assert (caught.value.status_code, caught.value.code) == (500, "internal_error")
    assert caught.value.response.headers["x-request-id"] in caplog.text
    await stack.settle()


def refuse_penalties(stack: Stack) -> None:
    """As an adapter does when the engine's model turns out not to declare them."""

    def refuse(request: GenerateRequest) -> Script:
        stack.low.capabilities -= {Need.PENALTIES}
        field = request.needs[Need.PENALTIES]
        return [NeedRefused(f"{field!r} is not supported by the engine of low.", need=Need.PENALTIES, param=field)]

    stack.low.script = refuse


async def test_what_an_engine_turns_out_not_to_support_is_answered_by_one_that_does(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    refuse_penalties(stack)
    stack.high.script = writer.script("Paris")
    for reason in ("threshold", "needs=penalties"):
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, extra_body={"repetition_penalty": 1.2}
        )
        assert raw.headers["x-crossover-backend"] == "high"
        assert raw.headers["x-crossover-reason"].startswith(reason)
    assert (len(stack.low.calls), len(stack.high.calls)) == (1, 2)  # it is not asked again


@pytest.mark.parametrize("pin", [None, "low"])
async def test_where_no_other_can_it_is_a_bad_request_that_names_the_field(
    client: AsyncOpenAI, stack: Stack, pin: str | None
) -> None:
    refuse_penalties(stack)
    stack.high.capabilities -= {Need.PENALTIES}
    headers = {} if pin is None else {"x-crossover-pin": pin}
    for _ in range(2):
        with pytest.raises(BadRequestError) as caught:
            await client.chat.completions.create(
                model=MODEL, messages=HELLO, frequency_penalty=0.5, extra_headers=headers
            )
        assert (caught.value.param, caught.value.code) == ("frequency_penalty", "invalid_value")
    assert (len(stack.low.calls), len(stack.high.calls)) == (1, 0)
