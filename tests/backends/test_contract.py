"""The contract of core.TokenBackend, tested on every adapter over real sockets."""

import asyncio
import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gateway.core import FinishReason, Guide, GuideKind, Need
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendLost,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    InvalidRequest,
)
from gateway.routing.trial import generates
from tests.backends.conftest import END_ID, OTHER_END_ID, REQUEST, Lane
from tests.fakes.script import EndToken, Fault, Full, Hush, Pause, Say, Stall, Step, StopWord
from tests.fakes.sink import RecordingSink, settled

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
BY_77 = {"stop_token_ids": (77,)}
ANSWERS: dict[str, tuple[Sequence[Step], Mapping[str, object], FinishReason, list[int]]] = {
    "many ids": (
        (Say((5,)), Say((6, 7)), Pause(0.02), Say((2**31 - 1,)), EndToken()),
        {},
        STOP,
        [5, 6, 7, 2**31 - 1, 2],
    ),
    "an end token alone": ((EndToken(),), {}, STOP, [END_ID]),
    "a slow first token": ((Pause(0.3), Say((5,)), EndToken()), {}, STOP, [5, END_ID]),
    "max_tokens reached": ((Say((5, 6)), Say((7,)), Full()), {"max_tokens": 3}, LENGTH, [5, 6, 7]),
    "an end token at the limit": ((Say((5, 6)), EndToken()), {"max_tokens": 3}, STOP, [5, 6, END_ID]),
    "another end token": ((Say((5,)), Say((OTHER_END_ID,)), StopWord()), BY_77, STOP, [5, OTHER_END_ID]),
    "another at the limit": ((Say((5,)), Say((3,)), StopWord()), BY_77 | {"max_tokens": 2}, STOP, [5, OTHER_END_ID]),
    "a stop token": ((Say((5,)), Say((77,)), StopWord()), BY_77, STOP, [5, 77]),
    "a stop token at the limit": ((Say((5,)), Say((77,)), StopWord()), BY_77 | {"max_tokens": 2}, STOP, [5, 77]),
    "min_tokens": ((Say((77, 5)), Say((6, 77)), StopWord()), BY_77 | {"min_tokens": 3}, STOP, [77, 5, 6, 77]),
    "ignored ends": (
        (Say((5, 2, 3)), Full()),
        {"max_tokens": 3, "ignore_eos": True},
        LENGTH,
        [5, END_ID, OTHER_END_ID],
    ),
}


@pytest.mark.parametrize(("steps", "params", "reason", "ids"), ANSWERS.values(), ids=ANSWERS)
async def test_an_answer_has_all_its_ids_in_order_and_its_reason(
    lane: Lane, steps: Sequence[Step], params: Mapping[str, object], reason: FinishReason, ids: list[int]
) -> None:
    lane.engine.play(*steps)
    assert await lane.answer(**params) == (reason, ids)
    (asked,) = lane.engine.asked
    assert (asked.prompt, asked.end_id is None) == (REQUEST.prompt.token_ids, "ignore_eos" in params)
    await lane.idle()


async def test_one_connection_serves_one_request_after_another(lane: Lane) -> None:
    for _ in range(5):
        sink = lane.ask()
        await sink.ended()
        await lane.idle()
    assert lane.wire.connections == 1


async def test_a_hundred_at_once_each_get_their_own_answer(lane: Lane) -> None:
    lane.engine.script = lambda asked: [
        *(step for i in range(10) for step in (Say((asked.prompt[-1], i)), Pause(0.005))),
        EndToken(),
    ]
    prompts = [replace(REQUEST.prompt, token_ids=(1, 1000 + n)) for n in range(100)]
    sinks = [lane.ask(replace(REQUEST, request_id=f"req-{n}", prompt=prompt)) for n, prompt in enumerate(prompts)]
    for n, sink in enumerate(sinks):
        assert await sink.ended() is FinishReason.STOP
        assert sink.token_ids == [*(token_id for i in range(10) for token_id in (1000 + n, i)), END_ID]
    await lane.idle()


async def test_the_same_request_never_meets_itself_on_the_server(lane: Lane) -> None:
    for _ in range(2):
        await lane.answer()
    raws = [asked.raw for asked in lane.engine.asked]
    call_ids = {str(raw["id"] if "id" in raw else raw["request_id"]) for raw in raws}
    assert len(call_ids) == 2
    assert all(call_id.startswith(REQUEST.request_id) for call_id in call_ids)


# Cancelling.


async def test_cancel_at_once_reaches_no_sink_and_leaves_nothing(lane: Lane) -> None:
    lane.engine.play(Say((5,)), Stall())
    sink = lane.ask()
    sink.cancel()
    await asyncio.sleep(0.1)
    await lane.idle()
    assert sink.token_ids == []


async def test_cancel_before_the_first_token_frees_the_engine(lane: Lane) -> None:
    lane.engine.play(Stall())
    sink = lane.ask()
    await settled(lambda: lane.engine.running == 1, "request running")
    sink.cancel()
    await settled(lambda: lane.engine.left == 1, "the engine seeing its caller leave")
    await lane.idle()


async def test_cancel_in_mid_answer_frees_the_engine_and_harms_no_neighbour(lane: Lane) -> None:
    lane.engine.play(Say((5,)), Pause(0.3), Say((6,)), EndToken())
    neighbour, sink = lane.ask(), lane.ask()
    await sink.received(1)
    sink.cancel()
    sink.cancel()
    await settled(lambda: lane.engine.left == 1, "the engine seeing its caller leave")
    assert await neighbour.ended() is FinishReason.STOP
    assert neighbour.token_ids == [5, 6, END_ID]
    assert sink.token_ids == [5]
    await lane.idle()


async def test_a_sink_may_cancel_from_inside_tokens(lane: Lane) -> None:
    lane.engine.play(Say((5,)), Say((6,)), Say((7,)), EndToken())
    sink = lane.ask(reaction=RecordingSink.cancel)
    await sink.received(1)
    await asyncio.sleep(0.1)
    await lane.idle()


async def test_cancel_after_the_end_keeps_the_connection(lane: Lane) -> None:
    sink = lane.ask()
    await sink.ended()
    sink.cancel()
    await lane.idle()
    assert lane.wire.connections == 1


def lives(kind: type) -> bool:
    """Skipped for compiled calls, which have no weak references."""
    return any(type(thing) is kind for thing in gc.get_objects())


@pytest.mark.parametrize("end", ["finished", "cancelled", "failed"])
async def test_a_call_that_is_over_is_freed_without_waiting_for_the_collector(lane: Lane, end: str) -> None:
    gc.collect()  # what the tests before have left: a closed TLS connection and its protocol refer to each other
    lane.engine.play(Say((5,)), *([EndToken()] if end == "finished" else [Stall()]))
    sink = lane.ask()
    await sink.received(1)
    kind = type(sink.call)
    assert lives(kind)
    gc.disable()
    try:
        if end == "cancelled":
            sink.cancel()
        elif end == "failed":
            lane.wire.cut()
        await lane.idle()
        sink.call = None
        await settled(lambda: not lives(kind), "the call freed")
    finally:
        gc.enable()


# Failing.


async def test_a_server_that_does_not_speak_ends_a_call_in_bounded_time(lane: Lane) -> None:
    lane.wire.freeze()
    started = asyncio.get_running_loop().time()
    lane.backend.calls._idle_timeout_s = 0.5
    sink = lane.ask()
    # Over HTTP a silent connection looks like a slow engine; a gRPC server has to send its settings first.
    assert type(await sink.ended()) in {BackendUnavailable, BackendTimeout}
    assert asyncio.get_running_loop().time() - started < 10
    await settled(lambda: len(lane.backend.calls) == 0, repr(lane.backend))


@pytest.mark.parametrize(("said", "error"), [((), BackendUnavailable), ((5,), BackendLost)])
async def test_a_cut_is_unavailable_before_the_first_token_and_an_error_after_it(
    lane: Lane, said: tuple[int, ...], error: type[Exception]
) -> None:
    lane.engine.play(*([Say(said)] if said else []), Stall())
    sink = lane.ask()
    await settled(lambda: lane.engine.running == 1, "request running")
    await sink.received(len(said))
    lane.wire.cut()
    assert type(await sink.ended()) is error
    assert sink.token_ids == list(said)
    assert len(lane.engine.asked) == 1
    await lane.idle()


async def test_asking_in_the_moment_in_which_the_connection_breaks_is_answered_or_unavailable(lane: Lane) -> None:
    for yields in range(30):
        await lane.ask().ended()
        lane.wire.cut()
        for _ in range(yields % 5):
            await asyncio.sleep(0)
        assert type(await lane.ask().ended()) in {FinishReason, BackendUnavailable}
        await settled_ready(lane)


async def test_calls_without_a_token_fail_when_the_engine_answers_no_probe_any_more(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.calls.READY_TIMEOUT_S", 0.3)
    lane.engine.script = lambda asked: [*([Say((5,))] if asked.prompt[0] == 1 else []), Stall()]
    waiting = lane.ask()
    answered = lane.ask(replace(REQUEST, prompt=replace(REQUEST.prompt, token_ids=(1,))))
    await answered.received(1)
    await settled(lambda: lane.engine.running == 2, "both running")
    lane.wire.freeze()
    assert not await lane.backend.is_ready()
    assert type(await waiting.ended()) is BackendUnavailable
    assert answered.end is None


async def test_connections_that_died_without_a_word_cost_one_probe(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.backends.calls.READY_TIMEOUT_S", 0.3)
    await asyncio.gather(*(lane.ask().ended() for _ in range(3)))
    lane.wire.freeze()
    assert not await lane.backend.is_ready()
    lane.wire.thaw()
    assert await lane.backend.is_ready()
    assert await lane.ask().ended() is FinishReason.STOP


async def test_connections_that_died_without_a_word_cost_one_trial(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.routing.trial.TIMEOUT_S", 0.3)
    await asyncio.gather(*(lane.ask().ended() for _ in range(3)))
    lane.wire.freeze()
    assert not await generates(lane.backend)
    lane.wire.thaw()
    assert await generates(lane.backend)


async def test_an_engine_that_lets_a_probe_wait_but_generates_is_ready(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.backends.calls.READY_TIMEOUT_S", 0.3)
    slow = [step for _ in range(20) for step in (Say((5,)), Pause(0.1))]
    lane.engine.script = lambda asked: [*(slow if asked.prompt[0] == 1 else []), Stall()]
    waiting = lane.ask()
    lane.ask(replace(REQUEST, prompt=replace(REQUEST.prompt, token_ids=(1,))))
    assert await lane.backend.is_ready()
    lane.engine.answers_probes = False
    assert await lane.backend.is_ready()
    assert "but generates" in caplog.text
    assert waiting.end is None


async def test_a_probe_whose_answer_waits_unread_because_we_were_held_up_is_no_silence(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await lane.backend.is_ready()
    monkeypatch.setattr("gateway.backends.calls.READY_TIMEOUT_S", 0.4)
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(lane.backend.is_ready())
        await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251 - it holds the loop up, as a machine without processor time does
    assert probe.result()


async def test_a_stream_that_ends_without_a_reason_is_unavailable_or_an_error(lane: Lane) -> None:
    lane.engine.play(Hush())
    assert type(await lane.ask().ended()) is BackendUnavailable
    lane.engine.play(Say((5,)), Hush())
    assert type(await lane.ask().ended()) is BackendLost


@pytest.mark.parametrize(
    ("kind", "first", "later"),
    [
        ("busy", BackendFull, BackendError),
        ("too long", ContextLengthExceeded, ContextLengthExceeded),
        ("broken", BackendError, BackendError),
    ],
)
async def test_the_engines_own_errors_are_distinguished(
    lane: Lane, kind: str, first: type[Exception], later: type[Exception]
) -> None:
    lane.engine.play(Fault(kind))
    assert type(await lane.ask().ended()) is first
    lane.engine.play(Say((5,)), Fault(kind))
    assert type(await lane.ask().ended()) is later
    await lane.idle()


@pytest.mark.parametrize("said", [(), (Say((5,)),)], ids=["at once", "late"])
async def test_a_guide_that_the_engine_refuses_is_the_requests_fault(lane: Lane, said: tuple[Step, ...]) -> None:
    lane.engine.play(*said, Fault("bad guide"))
    guided = replace(REQUEST, needs={Need.GUIDE: "response_format"})
    end = await lane.ask(guided, guide=Guide(GuideKind.REGEX, "[")).ended()
    assert type(end) is InvalidRequest
    assert end.param == "response_format"
    assert "character class" not in end.message
    assert isinstance(await lane.ask().ended(), BackendError)


async def test_no_error_shows_the_client_an_engines_own_words(lane: Lane) -> None:
    lane.engine.play(Fault("broken"))
    end = await lane.ask().ended()
    assert isinstance(end, BackendError)
    assert "CUDA" not in end.message
    assert "Internal server error" not in end.message
    assert lane.backend.name in end.message


async def test_more_tokens_than_asked_for_end_the_call(lane: Lane) -> None:
    lane.engine.play(Say((5,)), Say((6,)), Say((7,)), Stall())
    sink = lane.ask(max_tokens=2)
    assert isinstance(await sink.ended(), BackendError)
    assert len(sink.token_ids) <= 2
    await lane.idle()


@pytest.mark.parametrize("said", [(), (5,)])
async def test_silence_beyond_the_limit_is_a_timeout_and_frees_the_engine(lane: Lane, said: tuple[int, ...]) -> None:
    lane.engine.play(*([Say(said)] if said else []), Stall())
    lane.backend.calls._idle_timeout_s = 0.4
    sink = lane.ask()
    assert type(await sink.ended()) is BackendTimeout
    assert sink.token_ids == list(said)
    await settled(lambda: lane.engine.left == 1, "the engine seeing its caller leave")
    await lane.idle()


async def test_tokens_hold_the_timeout_off(lane: Lane) -> None:
    lane.engine.play(*(step for n in range(12) for step in (Pause(0.15), Say((n,)))), EndToken())
    lane.backend.calls._idle_timeout_s = 1.2  # less than the answer takes, far more than one pause
    sink = lane.ask()
    assert await sink.ended() is FinishReason.STOP


# Readiness, death and return.


async def test_is_ready_follows_the_server(lane: Lane) -> None:
    assert await lane.backend.is_ready()
    await lane.wire.refuse()
    assert not await lane.backend.is_ready()
    await lane.wire.mend()
    await settled_ready(lane)


async def test_a_server_that_comes_back_is_used_again(lane: Lane) -> None:
    await lane.ask().ended()
    await lane.wire.refuse()
    assert type(await lane.ask().ended()) is BackendUnavailable
    await lane.wire.mend()
    await settled_ready(lane)
    assert await lane.ask().ended() is FinishReason.STOP


async def settled_ready(lane: Lane) -> None:
    async with asyncio.timeout(20):
        while not await lane.backend.is_ready():  # noqa: ASYNC110 - readiness is polled, as routing does
            await asyncio.sleep(0.05)


# Closing.


async def test_closing_ends_every_call_and_frees_the_engine(lane: Lane) -> None:
    lane.engine.script = lambda asked: [*([Say((5,))] if asked.prompt[0] == 1 else []), Stall()]
    waiting = lane.ask()
    answered = lane.ask(replace(REQUEST, prompt=replace(REQUEST.prompt, token_ids=(1,))))
    await answered.received(1)
    await settled(lambda: lane.engine.running == 2, "both running")
    fresh = lane.ask()
    await lane.backend.aclose()
    assert type(await waiting.ended()) is BackendUnavailable
    assert type(await answered.ended()) is BackendLost
    assert type(await fresh.ended()) is BackendUnavailable
    await settled(lambda: lane.engine.running == 0, "nothing running")


async def test_a_closed_backend_is_unavailable_and_not_ready(lane: Lane) -> None:
    await lane.ask().ended()
    await lane.backend.aclose()
    sink = lane.ask()
    assert type(await sink.ended()) is BackendUnavailable
    assert not await lane.backend.is_ready()
