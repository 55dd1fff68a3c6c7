"""Answers that go on at another backend, because theirs was lost or is to be left; their clients notice nothing."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
from openai import APIError, AsyncOpenAI

from gateway.core import FinishReason, GenerateRequest, Need, TokenLogprob
from gateway.errors import BackendError, BackendLost, BackendTimeout, BackendUnavailable, GatewayError
from gateway.language import ModelLanguage
from gateway.routing import BEAT_S, PolicyChange
from gateway.routing.moves import BURST_S
from gateway.routing.policies import Threshold
from gateway.serving.loss import FEW
from gateway.serving.mover import Mover
from gateway.settings import QueueSettings
from tests.fakes.backend import Pause, Scores, Script, ScriptedBackend
from tests.serving.stack import (
    HELLO,
    MODEL,
    RawAnswer,
    RawClient,
    Stack,
    Writer,
    eventually,
    make_stack,
    raw_client,
    running,
)

CUT = BackendLost("low was lost")
BEGUN, REST = "Paris is", " nice, as ever."


def lose(stack: Stack, writer: Writer, error: GatewayError = CUT) -> None:
    """`low` is lost with half of its answer out, `high` has the rest."""
    stack.low.script = [*([token_id] for token_id in writer.ids(BEGUN)), error]
    stack.high.script = writer.script(REST)


async def ask(stack: Stack, **fields: Any) -> RawAnswer:
    async with raw_client(stack) as client:
        client.ask(**fields)
        answer = await client.answer()
    await stack.settle()
    return answer


def events(body: bytes) -> list[dict[str, Any]]:  # Any: JSON
    lines = (line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line.startswith(b"data: {"))
    return [orjson.loads(line) for line in lines]


def text_of(chunks: Iterable[dict[str, Any]]) -> str:  # Any: JSON
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("error", [CUT, BackendTimeout("low sent nothing for 9 s"), BackendUnavailable("gone")])
async def test_a_stream_goes_on_from_its_last_token(stack: Stack, writer: Writer, error: GatewayError) -> None:
    lose(stack, writer, error)
    fields = {"stream_options": {"include_usage": True}, "max_tokens": 50, "min_tokens": 4}
    chunks = events((await ask(stack, stream=True, **fields)).body)
    assert text_of(chunks) == BEGUN + REST
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "stop"
    (first,), (second,) = stack.low.calls, stack.high.calls
    begun = writer.ids(BEGUN)
    assert second.request.prompt.token_ids == (*first.request.prompt.token_ids, *begun)
    assert (second.request.params.max_tokens, second.request.params.min_tokens) == (50 - len(begun), 4 - len(begun))
    assert chunks[-1]["usage"]["prompt_tokens"] == len(first.request.prompt)
    assert chunks[-1]["usage"]["completion_tokens"] == len(begun) + len(writer.ids(REST)) + 1


async def test_a_whole_answer_goes_on_too_and_its_headers_name_who_ended_it(
    stack: Stack, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    lose(stack, writer)
    answer = await ask(stack, stop=["never"])
    assert answer.status == 200
    assert orjson.loads(answer.body)["choices"][0]["message"]["content"] == BEGUN + REST
    assert answer.headers["x-crossover-backend"] == "high"
    assert "low=unavailable" in answer.headers["x-crossover-reason"]
    assert answer.headers["server-timing"].endswith(', moves;desc="1"')
    assert "backend low (tiny) is down" in caplog.text


async def test_what_metrics_count_of_an_answer_that_moved(stack: Stack, writer: Writer) -> None:
    lose(stack, writer)
    await ask(stack)
    begun, rest, prompt = len(writer.ids(BEGUN)), len(writer.ids(REST)) + 1, len(stack.low.calls[0].request.prompt)
    assert stack.counted("low", "backend_lost")
    assert stack.counted("high", "stop")
    for name, backend, value in (
        ("prompt_tokens_total", "low", prompt),
        ("completion_tokens_total", "low", begun),
        ("completion_tokens_total", "high", rest),
        ("prompt_tokens_total", "high", 0),
        ("moves_total", "high", 1),
        ("moved_tokens_total", "high", prompt + begun),
        ("ttft_seconds_count", "low", 1),
        ("e2e_seconds_count", "high", 1),
        ("tpot_seconds_count", "high", 1),
    ):
        assert f'crossover_{name}{{backend="{backend}",model="{MODEL}"}} {value}.0' in stack.metrics
    assert 'crossover_ttft_seconds_count{backend="high"' not in stack.metrics  # one answer has one first token


async def test_what_the_client_sees_of_text_and_stop_strings_spans_both_engines(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids("one two"), CUT]
    stack.high.script = writer.script(" three four")
    body = orjson.loads((await ask(stack, stop=["wo thr"])).body)
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("one t", "stop")


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 7},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"response_format": {"type": "json_object"}},
    ],
    ids=str,
)
async def test_what_must_not_move_starts_again_where_its_client_has_seen_nothing(
    stack: Stack, writer: Writer, fields: dict[str, object]
) -> None:
    stack.low.script = [writer.ids('{"a'), CUT]
    stack.high.script = writer.script('{"b": 1}')
    answer = await ask(stack, **fields)
    assert orjson.loads(answer.body)["choices"][0]["message"]["content"] == '{"b": 1}'
    assert orjson.loads(answer.body)["usage"]["completion_tokens"] == len(writer.ids('{"b": 1}')) + 1
    assert stack.high.calls[0].request == stack.low.calls[0].request

    await eventually(lambda: stack.is_ready("low"))
    stream = await ask(stack, stream=True, **fields)
    assert b'"code":"backend_lost"' in stream.body
    assert len(stack.high.calls) == 1


async def test_a_greedy_answer_moves_with_its_seed(stack: Stack, writer: Writer) -> None:
    lose(stack, writer)
    assert text_of(events((await ask(stack, stream=True, seed=7, temperature=0)).body)) == BEGUN + REST


async def test_the_choices_of_a_request_move_together_and_one_that_has_ended_stays(
    stack: Stack, writer: Writer
) -> None:
    scripts: list[Script] = [
        writer.script("Rome"),
        [writer.ids("Par"), Pause(0.05), CUT],
        [writer.ids("Oslo"), Pause()],
    ]
    rests: list[Script] = [writer.script("is"), writer.script(" fjord")]
    stack.low.script, stack.high.script = lambda _: scripts.pop(0), lambda _: rests.pop(0)
    answer = orjson.loads((await ask(stack, n=3)).body)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["Rome", "Paris", "Oslo fjord"]
    assert stack.counted("low", "moved")


@pytest.mark.parametrize(("max_tokens", "reason"), [(2, "length"), (9, "stop")])
async def test_an_answer_that_was_complete_but_for_its_end_needs_no_other_engine(
    stack: Stack, writer: Writer, max_tokens: int, reason: str
) -> None:
    last = [writer.eos] if reason == "stop" else writer.ids(" is")[:1]
    stack.low.script = [writer.ids("Paris")[:1], last, CUT]
    answer = orjson.loads((await ask(stack, max_tokens=max_tokens)).body)
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == (reason, 2)
    assert not stack.high.calls


async def test_scores_of_tokens_that_did_not_come_are_dropped(stack: Stack, writer: Writer) -> None:
    (one,), (two,) = writer.ids("a"), writer.ids("b")
    lost = Scores([TokenLogprob(two, -9.0)])
    stack.low.script = [Scores([TokenLogprob(one, -1.0)]), [one], lost, CUT]
    stack.high.script = [Scores([TokenLogprob(two, -2.0)]), [two], FinishReason.LENGTH]
    answer = orjson.loads((await ask(stack, logprobs=True, max_tokens=2)).body)
    assert [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]] == [-1.0, -2.0]


async def test_prompt_scores_are_asked_for_once_and_not_cut_in_two(stack: Stack, writer: Writer) -> None:
    scores = Scores([TokenLogprob(1, None), TokenLogprob(2, -1.0)])
    fields = {"prompt": [1, 2], "echo": True, "logprobs": 0, "max_tokens": 9}
    stack.low.script, stack.high.script = [scores, Scores([TokenLogprob(3, -2.0)]), [3], CUT], [FinishReason.LENGTH]
    async with raw_client(stack) as client:
        client.ask("/v1/completions", **fields)
        await client.answer()
    (moved,) = [call.request for call in stack.high.calls]
    assert (moved.prompt.token_ids, moved.params.prompt_logprobs) == ((1, 2, 3), None)


async def test_an_answer_that_loses_two_engines_without_a_token_in_between_ends(
    client: AsyncOpenAI, stack: Stack, writer: Writer
) -> None:
    lose(stack, writer)
    stack.high.script = [BackendUnavailable("high was lost")]
    with pytest.raises(APIError, match="high was lost"):
        await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert (len(stack.low.calls), len(stack.high.calls)) == (1, 1)


async def test_an_answer_with_tokens_in_between_survives_a_second_loss_and_waits_for_an_engine(
    stack: Stack, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    begun, middle, rest = writer.ids(BEGUN), writer.ids(" nice" * FEW), writer.ids(" as ever.")

    def die(backend: ScriptedBackend, ids: Sequence[int]) -> Callable[[GenerateRequest], Script]:
        def script(_: GenerateRequest) -> Script:
            backend.ready = False
            return [ids, BackendLost(f"{backend.name} was lost")]

        return script

    stack.low.script, stack.high.script = die(stack.low, begun), die(stack.high, middle)
    async with raw_client(stack) as client:
        client.ask(stream=True)
        await eventually(lambda: "high (tiny) is down" in caplog.text)
        await asyncio.sleep(0.1)
        assert sum(stack.in_flight.values()) == 1
        stack.low.ready, stack.low.script = True, [rest, [writer.eos], FinishReason.STOP]
        assert text_of(events((await client.answer()).body)) == BEGUN + " nice" * FEW + " as ever."
    await stack.settle()
    assert [len(backend.calls) for backend in (stack.low, stack.high)] == [2, 1]


async def test_an_answer_whose_engine_does_not_come_back_in_time_ends_with_its_error(
    language: ModelLanguage, writer: Writer
) -> None:
    async with running(make_stack(language, queue=QueueSettings(max_outage_s=0.3))) as stack:
        stack.high.ready = False
        await eventually(lambda: not stack.is_ready("high"))
        stack.low.script, stack.low.ready = [writer.ids(BEGUN), CUT], False
        async with raw_client(stack) as client:
            client.ask(stream=True)
            assert b"low was lost" in (await client.answer()).body


async def test_an_answer_loses_no_more_than_three_engines(stack: Stack, writer: Writer) -> None:
    for backend in (stack.low, stack.high):
        backend.script = [writer.ids("a" * 2 * FEW), BackendLost(f"{backend.name} was lost")]
    assert b"was lost" in (await ask(stack, stream=True)).body
    assert len(stack.requests) == 3


@pytest.mark.parametrize("hindrance", ["down", "unable", "pinned"])
async def test_where_there_is_no_other_engine_the_stream_ends_with_the_first_ones_error(
    stack: Stack, writer: Writer, hindrance: str
) -> None:
    lose(stack, writer)
    fields: dict[str, object] = {"logprobs": True} if hindrance == "unable" else {}
    if hindrance == "unable":
        stack.high.capabilities -= {Need.LOGPROBS}
    if hindrance == "down":
        stack.high.ready = False
        await eventually(lambda: not stack.is_ready("high"))
    stack.app.router._fleets[MODEL].max_outage_s = 0.0
    async with raw_client(stack) as client:
        body = orjson.dumps({"model": MODEL, "messages": HELLO, "stream": True, **fields})
        client.send(
            "POST", "/v1/chat/completions", body, **({"x-crossover-pin": "low"} if hindrance == "pinned" else {})
        )
        answer = await client.answer()
    assert (b"low was lost" in answer.body, stack.high.calls) == (True, [])


async def test_a_stream_goes_on_after_any_fault_of_its_engine(stack: Stack, writer: Writer) -> None:
    lose(stack, writer, BackendError("out of memory"))
    assert b"error" not in (await ask(stack, stream=True)).body
    assert len(stack.high.calls) == 1


async def test_a_client_may_leave_after_the_move(stack: Stack, writer: Writer) -> None:
    lose(stack, writer)
    stack.high.script = [writer.ids(REST)[:1], Pause()]
    async with raw_client(stack) as client:
        client.ask(stream=True)
        await eventually(lambda: len(stack.high.calls) == 1)
        assert stack.in_flight == {"low": 0, "high": 1}
        client.leave()
        await stack.settle()
    assert [call.was_cancelled for call in stack.high.calls] == [True]


# Backends that are left although they are well.


async def begin(stack: Stack, client: RawClient, **fields: Any) -> None:  # Any: by name
    """Returns when the request is in the pause of its script."""
    calls = len(stack.low.calls)
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    headers = {"x_crossover_pin": str(body.pop("pin"))} if "pin" in body else {}
    client.send("POST", "/v1/chat/completions", orjson.dumps(body), **headers)
    await eventually(lambda: len(stack.low.calls) > calls and stack.low.calls[-1]._timer is None)


async def test_a_backend_that_drains_loses_its_answers_and_gets_no_others(
    stack: Stack, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    stack.low.script, stack.high.script = [writer.ids(BEGUN), Pause()], writer.script(REST)
    async with raw_client(stack) as client:
        await begin(stack, client)
        stack.app.router.drain("low", is_draining=True)
        stack.app.endpoints.mover.beat()
        assert (stack.in_flight, stack.low.calls[0].was_cancelled) == ({"low": 0, "high": 1}, True)
        answer = await client.answer()
    assert text_of(events(answer.body)) == BEGUN + REST
    assert f"moved 1 answers away from low: requests {answer.headers['x-request-id']}" in caplog.text
    assert stack.counted("low", "moved")
    assert (await ask(stack)).headers["x-crossover-backend"] == "high"
    stack.app.router.drain("low", is_draining=False)
    stack.low.script = writer.script(BEGUN)
    assert (await ask(stack)).headers["x-crossover-backend"] == "low"


@pytest.mark.parametrize("fields", [{"seed": 7}, {"frequency_penalty": 1}, {"max_tokens": 12}, {"pin": "low"}], ids=str)
async def test_what_may_not_move_or_is_nearly_over_stays_on_a_backend_that_drains(
    stack: Stack, writer: Writer, fields: dict[str, Any]
) -> None:
    stack.low.script = [writer.ids(BEGUN), Pause(), writer.ids(REST), FinishReason.LENGTH]
    async with raw_client(stack) as client:
        await begin(stack, client, **fields)
        stack.app.router.drain("low", is_draining=True)
        stack.app.endpoints.mover.beat()
        assert stack.in_flight == {"low": 1, "high": 0}
        stack.low.live[0].go_on()
        assert (await client.answer()).body.endswith(b"[DONE]\n\n")


async def test_without_another_backend_answers_stay_where_they_are(stack: Stack, writer: Writer) -> None:
    stack.low.script = [writer.ids(BEGUN), Pause()]
    stack.high.ready = False
    await eventually(lambda: not stack.is_ready("high"))
    async with raw_client(stack) as client:
        await begin(stack, client)
        stack.app.router.drain("low", is_draining=True)
        stack.app.endpoints.mover.beat()
        assert (stack.in_flight, stack.low.calls[0].was_cancelled) == ({"low": 1, "high": 0}, False)
        client.leave()
        await stack.settle()


async def test_an_answer_whose_backend_is_lost_goes_on_at_a_drained_one_rather_than_nowhere(
    stack: Stack, writer: Writer
) -> None:
    stack.app.router.drain("low", is_draining=True)
    stack.low.script = writer.script(REST)
    stack.high.script = [*([token_id] for token_id in writer.ids(BEGUN)), BackendLost("high was lost")]
    assert text_of(events((await ask(stack, stream=True)).body)) == BEGUN + REST
    assert (len(stack.high.calls), len(stack.low.calls)) == (1, 1)
    stack.high.ready = False
    await eventually(lambda: not stack.is_ready("high"))
    assert (await ask(stack)).status == 503  # what has not begun has nothing to lose
    assert len(stack.low.calls) == 1


async def test_an_answer_leaves_a_drained_backend_again_when_another_is_ready(stack: Stack, writer: Writer) -> None:
    stack.app.router.drain("low", is_draining=True)
    stack.low.script = [writer.ids(REST[:5]), Pause()]
    stack.high.script = [writer.ids(BEGUN), BackendLost("high was lost")]
    async with raw_client(stack) as client:
        await begin(stack, client)
        await eventually(lambda: stack.is_ready("high"))
        stack.high.script = writer.script(REST[5:])
        stack.app.endpoints.mover.beat()
        assert text_of(events((await client.answer()).body)) == BEGUN + REST
    assert (len(stack.high.calls), stack.low.calls[0].was_cancelled) == (2, True)


@pytest.mark.parametrize("stack", ["off"], indirect=True)  # beats without time look like silence
async def test_answers_move_at_the_pace_of_their_tokens_the_shortest_first(stack: Stack, writer: Writer) -> None:
    stack.low.script, stack.high.script = [writer.ids(BEGUN), Pause()], [Pause()]
    mover = Mover(stack.app.endpoints._live, stack.app.router, tokens_per_s=2 / BEAT_S, workers=2)
    async with AsyncExitStack() as clients:
        for words in (30, 10, 20):
            client = await clients.enter_async_context(raw_client(stack))
            await begin(stack, client, messages=[{"role": "user", "content": "a " * words}])
        stack.app.router.drain("low", is_draining=True)
        lengths = sorted(len(call.request.prompt) + len(writer.ids(BEGUN)) for call in stack.low.calls)
        beats: list[int] = []
        for beat in range(sum(lengths)):
            mover.beat()
            beats += [beat] * (len(stack.high.calls) - len(beats))
        # A second's tokens at first and then one a beat: an answer moves when those before it are paid for.
        at_once = round(BURST_S / BEAT_S) - 1
        assert beats == [0, lengths[0] - at_once, lengths[0] + lengths[1] - at_once]
        assert [len(call.request.prompt) for call in stack.high.calls] == lengths
        for dispatch in tuple(stack.app.endpoints._live):
            dispatch.left()


async def test_running_answers_follow_a_threshold_that_moves_them(stack: Stack, writer: Writer) -> None:
    change = Threshold(low="low", high="high", up=3, down=1, dwell_s=0, moves=True)
    stack.app.router.set_policy(PolicyChange(change, by="test"))
    stack.low.script, stack.high.script = [writer.ids(BEGUN), Pause()], writer.script(REST)
    async with AsyncExitStack() as clients:
        begun = [await clients.enter_async_context(raw_client(stack)) for _ in range(2)]
        for client in begun:
            await begin(stack, client)
        stack.app.endpoints.mover.beat()
        assert not stack.high.calls
        begun.append(await clients.enter_async_context(raw_client(stack)))
        begun[-1].ask(stream=True)
        await eventually(lambda: len(stack.high.calls) == 1)
        stack.app.endpoints.mover.beat()
        texts = [text_of(events((await client.answer()).body)) for client in begun]
        assert texts == [BEGUN + REST, BEGUN + REST, REST]


async def test_an_answer_that_its_backend_does_not_begin_is_not_under_way(stack: Stack, writer: Writer) -> None:
    """`start` may raise: what was counted before it counts no more, and what begins elsewhere counts until its end."""

    def refuse(_request: object) -> list[object]:
        raise BackendUnavailable("low does not begin")

    stack.low.script, stack.high.script = refuse, writer.script(REST)  # type: ignore[assignment]  # it never returns
    flow = stack.app.router.flows()[stack.app.router.state()[0].model]
    assert (await ask(stack)).status == 200
    assert len(stack.high.calls) == 1
    assert [(each.streams, each.coming, each.held) for each in flow.free.values()] == [(0, 0, 0)] * 2
    assert sum(flow.lengths.running) == 0
