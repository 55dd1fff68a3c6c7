"""vLLM's peculiarities: its two routes, its JSON, and its refusals."""

from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.backends.calls import MAX_LAYOUTS, End
from gateway.backends.relay import RelayServer
from gateway.backends.vllm import VLLMBackend
from gateway.backends.vllm_json import COMPLETIONS, GENERATE, EventReader, encode, error_of_answer
from gateway.core import FinishReason, Guide, GuideKind, SamplingParams
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendProtocolError,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
)
from gateway.settings import VLLMSettings
from tests.backends.conftest import END_ID, OTHER_END_ID, REQUEST
from tests.fakes.script import EndToken, Fault, Say, Stall
from tests.fakes.sink import RecordingSink, settled
from tests.fakes.vllm import FakeVLLM

# Requests.


def body(route: str, **params: Any) -> dict[str, Any]:  # Any: by name, and decoded JSON
    request = replace(REQUEST, params=replace(REQUEST.params, **params))
    decoded: dict[str, Any] = orjson.loads(encode(route, request, "call-1"))
    return decoded


def sampling(**params: Any) -> dict[str, Any]:  # Any: by name, and decoded JSON
    sent: dict[str, Any] = body(GENERATE, **params)["sampling_params"]
    return sent


def test_generate_body_asks_for_ids_and_no_text() -> None:
    sent = body(GENERATE)
    assert sent["token_ids"] == [11, 12, 13]
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert sent["request_id"] == "call-1"
    assert sent["sampling_params"]["detokenize"] is False


def test_completions_body_asks_for_the_same_and_for_ids_back() -> None:
    sent = body(COMPLETIONS)
    assert sent["prompt"] == [11, 12, 13]
    assert (sent["stream"], sent["stream_options"]) == (True, {"include_usage": True})
    assert sent["return_token_ids"] is True
    assert {key: sent[key] for key in sampling() if key != "detokenize"} == {
        key: value for key, value in sampling().items() if key != "detokenize"
    }


def test_every_value_that_a_generation_config_could_change_is_written_out() -> None:
    assert sampling() == {
        "max_tokens": 32, "min_tokens": 0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "ignore_eos": False,
        "stop_token_ids": [END_ID, OTHER_END_ID], "detokenize": False,
    }  # fmt: skip


GIVEN = ("temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty", "frequency_penalty")


def test_given_values_are_sent_as_they_are() -> None:
    given = SamplingParams(
        max_tokens=5, min_tokens=4, temperature=0.5, top_p=0.25, top_k=7, seed=-3, repetition_penalty=1.5,
        presence_penalty=0.75, frequency_penalty=-0.5,
    )  # fmt: skip
    sent = orjson.loads(encode(GENERATE, replace(REQUEST, params=given), "c"))["sampling_params"]
    assert all(sent[name] == getattr(given, name) for name in ("max_tokens", "min_tokens", "seed", *GIVEN))
    assert sampling(temperature=0.0)["temperature"] == 0


def test_where_nothing_can_end_the_answer_early_no_min_tokens_are_sent() -> None:
    assert sampling(min_tokens=4, ignore_eos=True)["min_tokens"] == 0
    assert sampling(min_tokens=4, ignore_eos=True, stop_token_ids=(9,))["min_tokens"] == 4


def test_stop_ids_hold_every_end_id_once_and_none_when_the_end_is_ignored() -> None:
    assert sampling(stop_token_ids=(77, END_ID))["stop_token_ids"] == [END_ID, OTHER_END_ID, 77]
    assert sampling(stop_token_ids=(77,), ignore_eos=True)["stop_token_ids"] == [77]
    assert sampling(ignore_eos=True)["ignore_eos"] is True


def test_a_top_p_of_zero_becomes_one_that_vllm_accepts() -> None:
    assert 0 < sampling(top_p=0.0)["top_p"] <= 1e-6


def test_no_seed_is_no_field_and_one_that_vllm_takes_for_none_is_still_a_seed() -> None:
    assert "seed" not in sampling(seed=None)
    assert [sampling(seed=seed)["seed"] for seed in (0, -1, -2)] == [0, 2**63 - 1, -2]


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
def test_what_was_not_asked_for_is_not_sent(route: str) -> None:
    sent = body(route) | body(route).get("sampling_params", {})
    unasked = {"logit_bias", "structured_outputs", "priority", "logprobs", "echo", "return_tokens_as_token_ids", "seed"}
    unasked.add("cache_salt")
    assert not unasked & sent.keys()
    assert sent["min_p"] == 0


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
def test_a_cache_salt_is_sent_on_either_route(route: str) -> None:
    sent = orjson.loads(encode(route, replace(REQUEST, cache_salt="s" * 43), "id"))
    assert sent["cache_salt"] == "s" * 43


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
def test_a_priority_goes_to_an_engine_that_heeds_it(route: str) -> None:
    request = replace(REQUEST, params=replace(REQUEST.params, priority=-3))
    assert orjson.loads(encode(route, request, "id", heeds_priority=True))["priority"] == -3
    assert "priority" not in orjson.loads(encode(route, request, "id"))


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
def test_min_p_and_bias_are_sent_on_either_route(route: str) -> None:
    sent = body(route, min_p=0.25, logit_bias=((5, -100.0), (70000, 1.5)))
    sent |= sent.get("sampling_params", {})
    assert (sent["min_p"], sent["logit_bias"]) == (0.25, {"5": -100.0, "70000": 1.5})


@pytest.mark.parametrize("route", [GENERATE, COMPLETIONS])
@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        (Guide(GuideKind.JSON), {"json_object": True}),
        (Guide(GuideKind.JSON_SCHEMA, '{"type": "array"}'), {"json": '{"type": "array"}'}),
        (Guide(GuideKind.REGEX, "a+"), {"regex": "a+"}),
        (Guide(GuideKind.GRAMMAR, 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
    ],
    ids=[kind.value for kind in GuideKind],
)
def test_a_guide_goes_under_its_kind(route: str, guide: Guide, expected: dict[str, object]) -> None:
    sent = body(route, guide=guide)
    assert (sent | sent.get("sampling_params", {}))["structured_outputs"] == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"logprobs": 0}, {"logprobs": 0, "echo": False}),
        ({"logprobs": 5}, {"logprobs": 5, "echo": False}),
        ({"prompt_logprobs": 0}, {"logprobs": 0, "echo": True}),
        ({"prompt_logprobs": 3, "logprobs": 1}, {"logprobs": 3, "echo": True}),
        ({"prompt_logprobs": 1, "logprobs": 3}, {"logprobs": 3, "echo": True}),
    ],
)
def test_log_probabilities_are_asked_for_by_ids_with_one_count(
    counts: dict[str, int], expected: dict[str, object]
) -> None:
    sent = body(COMPLETIONS, **counts)
    assert {key: sent[key] for key in ("logprobs", "echo")} == expected
    assert sent["return_tokens_as_token_ids"] is True
    assert sent["return_token_ids"] is True


# Answers.


def event(token_ids: object, finish_reason: object = None) -> bytes:
    choice = {"index": 0, "token_ids": token_ids, "finish_reason": finish_reason}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


def error_event(code: object, message: str = "m") -> bytes:
    return b"data: " + orjson.dumps({"error": {"message": message, "type": "t", "param": None, "code": code}}) + b"\n\n"


def read(*pieces: bytes) -> tuple[list[int], End | None]:
    answer = EventReader("vllm", REQUEST)
    token_ids: list[int] = []
    for piece in pieces:
        new_ids, end = answer.read(piece)
        token_ids += new_ids
        if end is not None:
            return token_ids, end
    return token_ids, None


def test_an_answer_is_the_same_cut_at_any_byte() -> None:
    answer = event([5]) + event([6, 7]) + b'data: {"choices": [], "usage": {}}\n\n' + event([8, 2], "stop")
    for at in range(len(answer) + 1):
        assert read(answer[:at], answer[at:]) == ([5, 6, 7, 8, 2], FinishReason.STOP)


def test_several_events_in_one_read_come_as_one_lot() -> None:
    assert EventReader("vllm", REQUEST).read(event([5]) + event([6]) + event([7], "length")) == (
        [5, 6, 7],
        FinishReason.LENGTH,
    )


def usage_event(usage: object) -> bytes:
    return b"data: " + orjson.dumps({"usage": usage, "choices": []}) + b"\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}, 2),
        ({"prompt_tokens": 3, "prompt_tokens_details": None}, 0),
        ({"prompt_tokens": 3}, 0),
        (None, None),
        ({"prompt_tokens_details": {"cached_tokens": 2**40}}, 3),
        ({"prompt_tokens_details": 3}, 0),
        ({"prompt_tokens_details": {"cached_tokens": -1}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": "2"}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 1.5}}, 0),
        ([1], None),
    ],
)
def test_what_the_engines_cache_held_comes_behind_the_end(usage: object, cached: int | None) -> None:
    stream = event([5]) + event([6], "stop") + usage_event(usage)
    for at in range(len(stream)):
        answer = EventReader("vllm", REQUEST)
        ends = [end for _, end in map(answer.read, (stream[:at], stream[at:])) if end is not None]
        assert ends[0] is FinishReason.STOP
        assert answer.cached == cached


@pytest.mark.parametrize("rest", [b"data: {\n\n", b"data: []\n\n", b"data: 3\n\n", b"data: %b\n\n" % (b"[" * 5000)])
def test_what_is_no_event_behind_the_end_harms_no_answer(rest: bytes) -> None:
    answer = EventReader("vllm", REQUEST)
    assert answer.read(event([6], "stop") + rest) == ([6], FinishReason.STOP)
    assert answer.cached is None


# Events that differ only in their id are read without parsing them.


def digits(text: bytes) -> bytes:
    """An event with this spelling of its id."""
    return event([1]).replace(b"[1]", b"[%b]" % text)


def test_events_alike_are_read_by_their_form() -> None:
    answer = EventReader("vllm", REQUEST)
    assert answer.read(event([5])) == ([5], None)
    for token_id in (6, 10, 99_999, 1, 0, 2**31 - 1):
        token_ids, end = answer.read(event([token_id]))
        assert (list(token_ids), end) == ([token_id], None)
    assert answer._layouts_left == MAX_LAYOUTS - 2  # one for 0, which is always parsed
    assert answer.read(event([7, 8])) == ([7, 8], None)
    assert answer.read(event([], None)) == ([], None)
    assert answer.read(event([9], "length")) == ([9], FinishReason.LENGTH)


@pytest.mark.parametrize("spelling", [b"007", b"00", b"1 ", b" 1", b"1.5", b"1e3", b"+1", b"1,2", b"null", b"", b"-3"])
def test_an_id_in_an_unusual_spelling_is_read_as_parsing_reads_it(spelling: bytes) -> None:
    quick, slow = EventReader("vllm", REQUEST), EventReader("vllm", REQUEST)
    slow._layouts_left = 0
    heard = []
    for answer in (quick, slow):
        answer.read(event([5]))
        token_ids, end = answer.read(digits(spelling))
        heard.append((list(token_ids), type(end)))
    assert heard[0] == heard[1]


@pytest.mark.parametrize("token_id", [-1, -5, 1000, 2**31, 2**32, 2**63, 10**20])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_id_outside_the_vocabulary_is_a_protocol_error(token_id: int, before: int) -> None:
    answer = EventReader("vllm", REQUEST, vocab_size=1000)
    for last_id in (0, 1, 999)[:before]:  # from the second on, an event is read by its layout
        assert list(answer.read(event([last_id]))[0]) == [last_id]
    token_ids, end = answer.read(digits(b"%d" % token_id))
    assert (list(token_ids), type(end)) == ([], BackendProtocolError)


def test_an_event_of_more_than_was_asked_for_is_a_protocol_error() -> None:
    """Parsing 8 MB of empty lists would block the event loop for a quarter of a second."""
    for surplus in (
        b'"x":[%b]' % b",".join([b"[]"] * 30_000),
        b'"x":[%b]' % b",".join([b"0"] * 30_000),
        b'"x":"%070000d"' % 0,
    ):
        data = b'data: {%b,"choices":[{"token_ids":[5],"finish_reason":null}]}\n\n' % surplus
        assert isinstance(EventReader("vllm", REQUEST).read(data)[1], BackendProtocolError)


def test_an_unknown_finish_reason_is_cut_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    _, end = EventReader("vllm", REQUEST).read(event([5], "x" * 50_000))
    assert isinstance(end, BackendError)
    assert "unknown finish_reason" in caplog.text
    assert len(caplog.text) < 500


@pytest.mark.parametrize("token_id", [1.5, None, "7", True, [7]])
def test_an_id_that_is_no_integer_is_a_protocol_error(token_id: object) -> None:
    _, end = EventReader("vllm", REQUEST).read(event([5, token_id]))
    assert isinstance(end, BackendProtocolError)


@pytest.mark.parametrize("text", ["[5]", '"token_ids":[5]', "5"])
def test_the_id_is_found_wherever_its_digits_occur_besides(text: str) -> None:
    for around in ({"text": text, "logprobs": [5]}, {"prompt_token_ids": [5], "other": {"token_ids": [5]}}):
        answer = EventReader("vllm", REQUEST)
        for token_id in (5, 6, 5, 77):
            choice = {**around, "token_ids": [token_id], "finish_reason": None, "after": around}
            data = b"data: " + orjson.dumps({"before": around, "choices": [choice], "last": [5]}) + b"\n\n"
            assert list(answer.read(data)[0]) == [token_id]
        assert answer._layouts_left == MAX_LAYOUTS - 1


def test_an_id_that_stands_elsewhere_too_is_parsed() -> None:
    """A layout in which two numbers change together is not learnt."""
    answer = EventReader("vllm", REQUEST)
    for token_id in (5, 6, 7):
        choices = [{"token_ids": [], "finish_reason": None}, {"token_ids": [token_id], "finish_reason": None}]
        assert answer.read(b"data: " + orjson.dumps({"choices": choices}) + b"\n\n") == ([token_id], None)
    assert answer._before == b""


def test_an_answer_whose_layout_keeps_changing_is_parsed() -> None:
    answer = EventReader("vllm", REQUEST)
    for number in range(1, 10):
        choice = {"token_ids": [number], "finish_reason": None, "text": "x" * number}
        assert answer.read(b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n") == ([number], None)
    assert answer._layouts_left == 0


def test_a_known_form_counts_between_events_only() -> None:
    for before in (b"data: ", b": a comment ", b"da"):
        quick, slow = EventReader("vllm", REQUEST), EventReader("vllm", REQUEST)
        slow._layouts_left = 0
        heard = []
        for answer in (quick, slow):
            answer.read(event([5]))
            assert answer.read(before) == ([], None)
            token_ids, end = answer.read(event([6]))
            heard.append((list(token_ids), type(end)))
        assert heard[0] == heard[1]
    assert read(event([5]), b"\r", event([6]), b"\n", event([7], "stop")) == ([5, 6, 7], FinishReason.STOP)


def test_events_alike_are_the_same_cut_at_any_byte() -> None:
    wire = event([5]) + event([6]) + event([70]) + event([8], "stop")
    for first in range(len(wire)):
        for second in range(first, len(wire), 7):
            pieces = (event([4]), wire[:first], wire[first:second], wire[second:])
            assert read(*pieces) == ([4, 5, 6, 70, 8], FinishReason.STOP)


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (event([], "abort"), BackendUnavailable),
        (event(None, "abort"), BackendUnavailable),
        (event([], "error"), BackendError),
        (event([], "repetition"), BackendError),
        (b"data: [DONE]\n\n", BackendUnavailable),
        (error_event(503), BackendFull),
        (error_event(500), BackendError),
        (error_event(500, "EngineCore encountered an issue. See stack trace"), BackendUnavailable),
        (error_event(None), BackendError),
        (error_event("500"), BackendError),
        (error_event("often"), BackendProtocolError),
        (b"data: not json\n\n", BackendProtocolError),
        (b"data: [1, 2]\n\n", BackendProtocolError),
        (b'data: {"choices": 1}\n\n', BackendProtocolError),
        (b'data: {"other": 1}\n\n', BackendProtocolError),
        (event(None), BackendProtocolError),
        (event(None, "stop"), BackendProtocolError),
    ],
)
def test_bad_ends(last: bytes, error: type[GatewayError]) -> None:
    assert type(read(last)[1]) is error
    token_ids, end = read(event([5]) + last)
    assert token_ids == [5]
    assert type(end) is error


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "This model's maximum context length is 2048 tokens. However, your prompt", ContextLengthExceeded),
        (400, "temperature must be non-negative", BackendProtocolError),
        (422, "anything", BackendProtocolError),
        (401, "Unauthorized", BackendUnavailable),
        (404, "The model `x` does not exist.", BackendUnavailable),
        (429, "slow down", BackendFull),
        (503, "The server is overloaded", BackendFull),
        (500, "EngineDeadError()", BackendUnavailable),
        (500, "oops", BackendError),
        (501, "no", BackendError),
        (302, "", BackendProtocolError),
    ],
)
def test_refusals(status: int, message: str, error: type[GatewayError]) -> None:
    refused = error_of_answer("vllm", status, message.encode())
    assert type(refused) is error
    assert not message or message not in refused.message


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (400, "Grammar error: unterminated character class", InvalidRequest),
        (422, "anything", InvalidRequest),
        (400, "This model's maximum context length is 2048 tokens. However, your prompt", ContextLengthExceeded),
        (404, "The model `x` does not exist.", BackendUnavailable),
        (500, "oops", BackendError),
    ],
)
def test_a_refusal_may_be_of_a_request_that_only_an_engine_can_check(
    status: int, message: str, error: type[GatewayError]
) -> None:
    blame = InvalidRequest("the guide", param="response_format")
    for refused in (
        error_of_answer("vllm", status, message.encode(), blame),
        EventReader("vllm", REQUEST, if_refused=blame).read(error_event(status, message))[1],
    ):
        assert type(refused) is error
        assert (refused is blame) is (error is InvalidRequest)


# Routes, on a socket.


def ask(backend: VLLMBackend) -> RecordingSink:
    sink = RecordingSink()
    sink.call = backend.start(REQUEST, sink)
    return sink


async def test_the_probe_finds_generate_without_asking_the_engine(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    assert await backend.is_ready()
    assert await backend.is_ready()
    assert engine.paths == ["/health", GENERATE, "/health"]
    assert engine.asked == []
    await ask(backend).ended()
    assert engine.paths[3:] == [GENERATE]


async def test_without_generate_the_probe_chooses_completions(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    engine.has_generate = False
    assert await backend.is_ready()
    await ask(backend).ended()
    assert engine.paths == ["/health", GENERATE, COMPLETIONS]


async def test_without_a_probe_the_first_call_falls_back_and_the_next_knows(
    served: tuple[FakeVLLM, VLLMBackend],
) -> None:
    engine, backend = served
    engine.has_generate = False
    for _ in range(2):
        sink = ask(backend)
        assert await sink.ended() is FinishReason.STOP
        assert sink.token_ids == [1, END_ID]
    assert engine.paths == [GENERATE, COMPLETIONS, COMPLETIONS]


async def test_a_server_that_was_not_ready_is_asked_for_its_routes_again(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    engine.has_generate = False
    assert await backend.is_ready()
    engine.is_healthy = False
    assert not await backend.is_ready()
    engine.is_healthy = engine.has_generate = True
    assert await backend.is_ready()
    await ask(backend).ended()
    assert engine.paths[-1] == GENERATE


async def test_a_server_that_ignores_return_token_ids_is_named(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    engine.has_generate = engine.returns_ids = False
    engine.play(Say((5,)), Stall())
    end = await ask(backend).ended()
    assert type(end) is BackendProtocolError
    assert "return_token_ids" in end.message
    await settled(lambda: engine.left == 1, "the engine seeing its caller leave")


async def test_an_error_that_follows_a_200_is_still_unavailable(served: tuple[FakeVLLM, VLLMBackend]) -> None:
    engine, backend = served
    engine.late_errors = True
    engine.play(Fault("busy"))
    assert type(await ask(backend).ended()) is BackendFull


@pytest.mark.parametrize("has_generate", [True, False])
async def test_a_backend_counts_what_its_engines_cache_held_but_not_of_measurements(
    served: tuple[FakeVLLM, VLLMBackend], has_generate: bool
) -> None:
    engine, backend = served
    engine.has_generate = has_generate
    await ask(backend).ended()
    await settled(lambda: backend.cache_use == (3, 0), "a usage without cached tokens")
    engine.cached = 2
    for request in (REQUEST, replace(REQUEST, pin="vllm"), replace(REQUEST, run="r1")):
        sink = RecordingSink()
        sink.call = backend.start(request, sink)
        await sink.ended()
    await settled(lambda: backend.cache_use == pytest.approx((11.82, 5.94), abs=0.01), "three with two each")
    measurement = RecordingSink()
    measurement.call = backend.start(replace(REQUEST, pin="vllm", run="r1"), measurement)
    await measurement.ended()
    await settled(lambda: not len(backend.calls), "the end of its exchange")
    assert backend.cache_use == pytest.approx((11.82, 5.94), abs=0.01)
    engine.is_healthy = False  # who comes back has an empty cache
    await backend.is_ready()
    assert backend.cache_use == (0, 0)


@pytest.mark.parametrize("has_generate", [True, False])
@pytest.mark.parametrize(("api_key", "is_served"), [("open-sesame", True), ("another-key", False), (None, False)])
async def test_an_engine_that_wants_a_key_gets_it_with_every_request(
    api_key: str | None, *, is_served: bool, has_generate: bool
) -> None:
    async with FakeVLLM().serving() as engine:
        engine.api_key, engine.has_generate = "open-sesame", has_generate
        engine.play(Say((14, 15)), EndToken())
        settings = VLLMSettings("vllm", f"http://127.0.0.1:{engine.port}", api_key=api_key)
        assert "sesame" not in repr(settings)
        async with aclosing(VLLMBackend(settings)) as backend, aclosing(RelayServer(settings)) as relay:
            assert (await backend.is_ready(), await relay.is_ready()) == (is_served, is_served)
            if is_served:
                assert await (sink := ask(backend)).ended()
                assert sink.token_ids[:2] == [14, 15]
