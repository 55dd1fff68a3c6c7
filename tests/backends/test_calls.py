"""The part of every adapter's contract that LiveCall keeps, tested by calling it, without a wire."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import pytest

from gateway.backends.calls import End, LiveCall, LiveCalls
from gateway.core import FinishReason, GenerateRequest, Prompt, SamplingParams
from gateway.errors import BackendError, BackendLost, BackendProtocolError, BackendTimeout, BackendUnavailable
from tests.fakes.sink import RecordingSink, settled

News: TypeAlias = tuple[Sequence[int], End | None]


class ScriptedReader:
    """Returns what the test passes to it."""

    must_abort = False

    def read(self, news: News) -> News:
        return news


class BareCall(LiveCall):
    """A call without an engine that counts how often it was aborted."""

    aborts = 0

    def feed(self, token_ids: Sequence[int], end: End | None = None) -> None:
        self.receive((token_ids, end))

    def abort(self) -> None:
        self.aborts += 1


def begin(calls: LiveCalls, max_tokens: int = 8, **params: Any) -> tuple[BareCall, RecordingSink]:  # Any: of any field
    sink = RecordingSink()
    request = GenerateRequest("r", "m", Prompt((1, 2, 3)), SamplingParams(max_tokens, **params), ())
    sink.call = call = BareCall(calls, sink, request, ScriptedReader())
    return call, sink


async def test_ids_and_end_of_one_read_arrive_in_that_order() -> None:
    call, sink = begin(LiveCalls("e", 60))
    call.feed([1, 2])
    call.feed([3], FinishReason.STOP)
    call.feed([4], FinishReason.LENGTH)
    call.fail(BackendError("late"))
    assert (sink.token_ids, sink.end, sink.breaches) == ([1, 2, 3], FinishReason.STOP, [])


async def test_an_empty_read_is_not_passed_on() -> None:
    call, sink = begin(LiveCalls("e", 60))
    call.feed([])
    assert sink.breaches == []


@pytest.mark.parametrize(
    ("params", "delivered", "reason", "is_allowed"),
    [
        ({}, 0, FinishReason.STOP, False),
        ({}, 0, FinishReason.LENGTH, False),
        ({}, 1, FinishReason.STOP, True),
        ({}, 1, FinishReason.LENGTH, True),  # the engine's context is narrower than the limit we know
        ({"ignore_eos": True}, 7, FinishReason.LENGTH, False),
        ({"ignore_eos": True}, 7, FinishReason.STOP, False),
        ({"ignore_eos": True}, 8, FinishReason.LENGTH, True),
        ({"ignore_eos": True, "stop_token_ids": (5,)}, 7, FinishReason.LENGTH, False),
        ({"ignore_eos": True, "stop_token_ids": (5,)}, 7, FinishReason.STOP, True),
    ],
)
async def test_an_end_that_comes_too_early_is_a_protocol_error(
    params: dict[str, Any], delivered: int, reason: FinishReason, is_allowed: bool
) -> None:
    call, sink = begin(LiveCalls("e", 60), **params)
    call.feed([9] * delivered, reason)
    assert sink.breaches == []
    assert (sink.end is reason) == is_allowed
    assert (type(sink.end) is BackendProtocolError) == (not is_allowed)
    assert call.aborts == (not is_allowed)


async def test_an_answer_may_be_short_where_no_longer_one_was_seen() -> None:
    """Prompts have three tokens. Where all end at eight, that is the engine's context; five are too few then."""
    calls = LiveCalls("e", 60)
    for delivered, is_allowed in ((2, True), (5, True), (5, True), (2, False), (8, True), (5, False)):
        call, sink = begin(calls)
        call.feed([9] * delivered, FinishReason.LENGTH)
        assert (type(sink.end) is not BackendProtocolError) == is_allowed
    call, sink = begin(calls)
    call.feed([9], FinishReason.STOP)
    assert sink.end is FinishReason.STOP
    calls.fail_waiting()  # not ready: another server may come, with a narrower context
    call, sink = begin(calls)
    call.feed([9, 9], FinishReason.LENGTH)
    assert sink.end is FinishReason.LENGTH


async def test_unavailable_becomes_an_error_once_tokens_went_out() -> None:
    call, sink = begin(LiveCalls("e", 60))
    call.feed([1], BackendUnavailable("gone"))
    assert type(sink.end) is BackendLost
    assert call.aborts == 1


async def test_a_normal_end_does_not_abort_and_a_cancel_after_it_neither() -> None:
    calls = LiveCalls("e", 60)
    call, _ = begin(calls)
    call.feed([1], FinishReason.STOP)
    call.cancel()
    assert (call.aborts, len(calls)) == (0, 1)
    call.release()
    assert len(calls) == 0


async def test_an_engine_that_would_go_on_is_aborted_at_the_end() -> None:
    calls = LiveCalls("e", 60)
    sink = RecordingSink()
    reader = ScriptedReader()
    request = GenerateRequest("r", "m", Prompt((1,)), SamplingParams(8), ())
    sink.call = call = BareCall(calls, sink, request, reader)
    call.feed([1])
    reader.must_abort = True
    call.feed([2], FinishReason.STOP)
    assert (sink.token_ids, sink.end, sink.breaches) == ([1, 2], FinishReason.STOP, [])
    assert (call.aborts, len(calls)) == (1, 0)


async def test_tokens_beyond_max_tokens_are_not_passed_on() -> None:
    call, sink = begin(LiveCalls("e", 60), max_tokens=2)
    call.feed([1, 2])
    call.feed([3])
    assert sink.token_ids == [1, 2]
    assert type(sink.end) is BackendProtocolError


async def test_an_exchange_that_does_not_end_after_the_answer_is_aborted() -> None:
    calls = LiveCalls("e", 0.08)
    call, sink = begin(calls)
    call.feed([1], FinishReason.STOP)
    await settled(lambda: call.aborts == 1, "an abort")
    assert sink.end is FinishReason.STOP
    assert len(calls) == 0


async def test_being_held_up_ourselves_is_not_taken_for_an_engines_silence() -> None:
    call, sink = begin(LiveCalls("e", 0.2))
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251 - the event loop is to stand still
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sink.end is None
    call.feed([1])
    assert type(await sink.ended()) is BackendTimeout


async def test_closing_ends_all_and_leaves_no_timer() -> None:
    calls = LiveCalls("e", 0.08)
    sinks = [begin(calls)[1] for _ in range(3)]
    calls.close(BackendUnavailable("closed"))
    assert all(type(sink.end) is BackendUnavailable for sink in sinks)
    assert calls._next_sweep is not None
    assert calls._next_sweep.cancelled()
