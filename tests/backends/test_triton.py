"""Triton's peculiarities: TensorRT-LLM's tensors, ends that have to be inferred, errors that have only a text."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.backends.calls import MAX_LAYOUTS, End
from gateway.backends.rpc.call import Outcome, Status
from gateway.backends.rpc.h2_client import H2Client
from gateway.backends.triton import TritonBackend, status_error
from gateway.backends.triton_tensors import TensorReader, encode, inband_error, need_refused, word_list
from gateway.core import FinishReason, Guide, GuideKind, Need
from gateway.errors import (
    BackendError,
    BackendFull,
    BackendProtocolError,
    BackendTimeout,
    BackendUnavailable,
    ContextLengthExceeded,
    GatewayError,
    InvalidRequest,
)
from gateway.settings import TritonSettings
from tests.backends.conftest import END_ID, OTHER_END_ID, REQUEST, Certificate
from tests.fakes.script import EndToken, Pause, Say
from tests.fakes.sink import RecordingSink
from tests.fakes.triton import FakeTriton, Message, decode_inputs, error_response, tokens_response

# Requests.


def message(**params: Any) -> Message:  # Any: by name
    return encode(replace(REQUEST, params=replace(REQUEST.params, **params)), "tensorrt_llm", "call-1")


def tensors(**params: Any) -> dict[str, tuple[tuple[int, ...], list[Any]]]:  # Any: by name, and as the datatype says
    return decode_inputs(message(**params))


def test_a_plain_request_is_sampled_with_a_top_p_of_one_and_a_drawn_seed() -> None:
    sent = tensors()
    (shape, (seed,)) = sent.pop("seed")
    assert (shape, 0 <= seed < 2**63) == ((1, 1), True)
    assert sent == {
        "input_ids": ((1, 3), [11, 12, 13]), "input_lengths": ((1, 1), [3]), "request_output_len": ((1, 1), [32]),
        "streaming": ((1, 1), [True]), "temperature": ((1, 1), [1.0]), "runtime_top_p": ((1, 1), [1.0]),
        "end_id": ((1, 1), [END_ID]), "stop_words_list": ((1, 2, 1), [OTHER_END_ID, 1]),
    }  # fmt: skip


def test_the_message_names_model_outputs_and_asks_for_an_empty_last_response() -> None:
    sent = message()
    assert (sent.model_name, sent.id) == ("tensorrt_llm", "call-1")
    assert [output.name for output in sent.outputs] == ["output_ids", "sequence_length"]
    assert sent.parameters["triton_enable_empty_final_response"].bool_param is True


def test_unseeded_requests_do_not_share_a_seed() -> None:
    assert tensors()["seed"] != tensors()["seed"]


def test_given_seeds_are_sent_and_negative_ones_wrapped() -> None:
    assert [tensors(seed=seed)["seed"] for seed in (0, -1)] == [((1, 1), [0]), ((1, 1), [2**64 - 1])]


def test_greedy_is_a_top_k_of_one_without_temperature_top_p_or_seed() -> None:
    sent = tensors(temperature=0.0, top_p=0.5, top_k=40, seed=7)
    assert sent["runtime_top_k"] == ((1, 1), [1])
    assert not {"temperature", "runtime_top_p", "seed"} & sent.keys()


def test_given_sampling_values_are_sent() -> None:
    sent = tensors(
        temperature=0.5, top_p=0.25, top_k=40, repetition_penalty=1.5, presence_penalty=0.75, frequency_penalty=-0.5
    )
    assert {name: value for name, (_, (value, *_)) in sent.items() if name not in {"seed", "input_ids"}} == {
        "input_lengths": 3, "request_output_len": 32, "streaming": True, "temperature": 0.5, "runtime_top_p": 0.25,
        "runtime_top_k": 40, "repetition_penalty": 1.5, "presence_penalty": 0.75, "frequency_penalty": -0.5,
        "end_id": END_ID, "stop_words_list": OTHER_END_ID,
    }  # fmt: skip


def test_penalties_may_reward() -> None:
    sent = tensors(repetition_penalty=0.5, presence_penalty=-0.25, frequency_penalty=-0.75)
    assert sent["repetition_penalty"] == ((1, 1), [0.5])
    assert (sent["presence_penalty"], sent["frequency_penalty"]) == (((1, 1), [-0.25]), ((1, 1), [-0.75]))


def test_what_the_engine_reads_from_no_tensor_is_not_sent() -> None:
    assert tensors(seed=7, min_p=0.5, priority=-3) == tensors(seed=7)


def test_where_nothing_can_end_the_answer_early_no_min_tokens_are_sent() -> None:
    assert "min_tokens" not in tensors(min_tokens=4, ignore_eos=True)
    assert tensors(min_tokens=4, ignore_eos=True, stop_token_ids=(9,))["min_tokens"] == ((1, 1), [4])


def test_with_min_tokens_no_stop_word_is_sent_for_the_engine_would_obey_it_too_early() -> None:
    sent = tensors(min_tokens=4, stop_token_ids=(9,))
    assert sent["min_tokens"] == ((1, 1), [4])
    assert "stop_words_list" not in sent


def test_with_min_tokens_a_stop_token_ends_the_answer_once_they_are_out() -> None:
    asked = replace(REQUEST, params=replace(REQUEST.params, min_tokens=4, stop_token_ids=(9,)))
    answer = TensorReader("triton", asked)
    assert answer.feed(tokens_response("call-1", [5, 9], is_final=False)) == ((5, 9), None)
    assert not answer.must_abort
    assert answer.feed(tokens_response("call-1", [6, 7, 9, 8], is_final=False)) == ((6, 7, 9), FinishReason.STOP)
    assert answer.must_abort


def test_with_min_tokens_a_stop_token_is_seen_in_a_response_like_those_before() -> None:
    answer = TensorReader("triton", replace(REQUEST, params=replace(REQUEST.params, min_tokens=3, stop_token_ids=(9,))))
    response = tokens_response("call-1", [9], is_final=False).SerializeToString()
    assert [answer.read([response])[1] for _ in range(3)] == [None, None, FinishReason.STOP]
    assert answer.must_abort


def test_ignoring_the_end_sends_no_end_id_and_no_end_as_stop_word() -> None:
    sent = tensors(ignore_eos=True)
    assert not {"end_id", "stop_words_list"} & sent.keys()
    assert tensors(ignore_eos=True, stop_token_ids=(77,))["stop_words_list"] == ((1, 2, 1), [77, 1])


def test_stop_ids_are_one_token_words_each_once_and_never_the_end_id() -> None:
    sent = tensors(stop_token_ids=(77, END_ID, OTHER_END_ID, 78))
    assert sent["stop_words_list"] == ((1, 2, 3), [OTHER_END_ID, 77, 78, 1, 2, 3])


def test_a_bias_is_a_number_for_every_logit() -> None:
    asked = replace(REQUEST, params=replace(REQUEST.params, logit_bias=((0, 1.5), (3, -100.0), (5, 9.0), (4, 2.5))))
    sent = decode_inputs(encode(asked, "tensorrt_llm", "call-1", vocab_size=5))
    assert sent["embedding_bias"] == ((1, 5), [1.5, 0.0, 0.0, -100.0, 2.5])  # id 5 has no logit
    assert "embedding_bias" not in tensors()


@pytest.mark.parametrize(
    ("guide", "sent_kind", "sent_text"),
    [
        (Guide(GuideKind.JSON_SCHEMA, '{"const": "é"}'), "json_schema", '{"const": "é"}'),
        (Guide(GuideKind.REGEX, "a+"), "regex", "a+"),
        (Guide(GuideKind.GRAMMAR, 'root ::= "a"'), "ebnf_grammar", 'root ::= "a"'),
        # As on vLLM; the engine's own kind allows arrays too.
        (Guide(GuideKind.JSON), "json_schema", '{"type": "object"}'),
    ],
    ids=["json_schema", "regex", "grammar", "json"],
)
def test_a_guide_is_two_texts(guide: Guide, sent_kind: str, sent_text: str) -> None:
    sent = tensors(guide=guide)
    assert sent["guided_decoding_guide_type"] == ((1, 1), [sent_kind])
    assert sent["guided_decoding_guide"] == ((1, 1), [sent_text])
    assert not {"guided_decoding_guide_type", "guided_decoding_guide"} & tensors().keys()


def test_log_probabilities_are_never_asked_for() -> None:
    """A cancelled request for log-probabilities crashes TensorRT-LLM."""
    assert "return_log_probs" not in tensors(logprobs=5, prompt_logprobs=5)
    assert [output.name for output in message(logprobs=5).outputs] == ["output_ids", "sequence_length"]


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ([(7,)], [7, 1]),
        ([(7,), (8,)], [7, 8, 1, 2]),
        ([(7, 8), (9,)], [7, 8, 9, 2, 3, -1]),
        ([(7, 8, 9)], [7, 8, 9, 3, -1, -1]),
    ],
)
def test_word_lists_end_in_cumulative_offsets_padded_with_minus_one(
    words: list[tuple[int, ...]], rows: list[int]
) -> None:
    encoded = word_list(words)
    assert [int.from_bytes(encoded[at : at + 4], "little", signed=True) for at in range(0, len(encoded), 4)] == rows


# Answers.


def read(*responses: Message, **params: Any) -> tuple[list[int], End | None]:  # Any: by name
    answer = TensorReader("triton", replace(REQUEST, params=replace(REQUEST.params, **params)))
    token_ids: list[int] = []
    for response in responses:
        new_ids, end = answer.feed(response)
        token_ids += new_ids
        if end is not None:
            return token_ids, end
    return token_ids, None


def ids(*token_ids: int, is_final: bool = False) -> Message:
    return tokens_response("1", token_ids, is_final=is_final)


def empty_final() -> Message:
    response = service_pb2.ModelStreamInferResponse()
    response.infer_response.parameters["triton_final_response"].bool_param = True
    return response


STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("responses", "params", "expected"),
    [
        ([ids(5), ids(6, 7), ids(is_final=True)], {}, ([5, 6, 7, END_ID], STOP)),
        ([ids(5), empty_final()], {}, ([5, END_ID], STOP)),
        ([empty_final()], {}, ([END_ID], STOP)),
        ([ids(5, 6, is_final=True)], {}, ([5, 6, END_ID], STOP)),
        ([ids(5), ids(6, is_final=True)], {"max_tokens": 2}, ([5, 6], LENGTH)),
        ([ids(5), ids(6), empty_final()], {"max_tokens": 2}, ([5, 6], LENGTH)),
        ([ids(5), empty_final()], {"max_tokens": 2}, ([5, END_ID], STOP)),
        ([ids(5), ids(OTHER_END_ID, is_final=True)], {"max_tokens": 2}, ([5, OTHER_END_ID], STOP)),
        ([ids(5), ids(OTHER_END_ID), empty_final()], {}, ([5, OTHER_END_ID], STOP)),
        ([ids(OTHER_END_ID, is_final=True)], {"ignore_eos": True, "max_tokens": 1}, ([OTHER_END_ID], LENGTH)),
        # The engine's limit is lower than ours: it ended early, but not by an end token, which it had to ignore.
        ([ids(5), empty_final()], {"ignore_eos": True}, ([5], LENGTH)),
        ([ids(5)], {}, ([5], None)),
    ],
)
def test_ends_are_inferred(responses: list[Message], params: dict[str, Any], expected: object) -> None:
    assert read(*responses, **params) == expected


def with_length(length: int, *token_ids: int) -> Message:
    response = ids(*token_ids)
    response.infer_response.raw_output_contents[1] = length.to_bytes(4, "little")
    return response


def test_ids_beyond_the_sequence_length_are_padding() -> None:
    assert read(with_length(2, 5, 6, -1, -1)) == ([5, 6], None)


def test_large_and_many_ids_are_decoded() -> None:
    assert read(ids(2**31 - 1)) == ([2**31 - 1], None)
    assert read(ids(*range(100_000, 101_000)), max_tokens=2000) == (list(range(100_000, 101_000)), None)


def without(response: Message, field: str) -> Message:
    del getattr(response.infer_response, field)[1]
    return response


UNREADABLE: dict[str, bytes] = {
    "an output without content": without(ids(5), "raw_output_contents").SerializeToString(),
    "no sequence_length": without(without(ids(5), "raw_output_contents"), "outputs").SerializeToString(),
    "no output_ids": ids(5).SerializeToString().replace(b"output_ids", b"other_name"),
    "a length beyond what was sent": with_length(2, 5).SerializeToString(),
    "no message": b"\xff\xff\xff",
}


@pytest.mark.parametrize("response", UNREADABLE.values(), ids=UNREADABLE)
def test_a_response_that_cannot_be_read_is_a_protocol_error(response: bytes) -> None:
    token_ids, end = TensorReader("triton", REQUEST).read([response])
    assert (list(token_ids), type(end)) == ([], BackendProtocolError)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Request for unknown model: 'tensorrt_llm' is not found", BackendUnavailable),
        ("Request for unknown model: 'tensorrt_llm' has no available versions", BackendUnavailable),
        ("GRPC server is shutting down and has stopped accepting new requests.", BackendUnavailable),
        ("[request id: tf4] Exceeds maximum queue size", BackendFull),
        ("Maximum queue size of 128 has been reached, please try again later", BackendFull),
        ("Request timeout expired", BackendFull),
        ("temperature is not supported by this engine: allow_advanced_sampling is off", InvalidRequest),
        ("Prompt length (9000) exceeds maximum input length (8192). Set log level", ContextLengthExceeded),
        ("Executor failed process requestId 7 due to the following error: Encountered an error", BackendError),
        ("unexpected inference input 'bogus' for model 'tensorrt_llm'", BackendError),
        ("boom", BackendError),
    ],
)
def test_inband_errors_end_the_answer_by_their_text(text: str, error: type[GatewayError]) -> None:
    found = inband_error("triton", text)
    assert type(found) is error
    assert text not in found.message
    assert type(read(ids(5), error_response("1", text))[1]) is error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Grammar error: unterminated character class", InvalidRequest),
        ("Executor failed process requestId 7 due to the following error: EBNF parser error at line 1", InvalidRequest),
        ("Guided decoding error: unsupported type", InvalidRequest),
        ("Guided decoding is not enabled", BackendError),
        ("Encountered an error in forwardAsync function: CUDA runtime error", BackendError),
        ("Prompt length (9000) exceeds maximum input length (8192). Set log level", ContextLengthExceeded),
    ],
)
def test_an_error_may_be_what_only_an_engine_can_judge(text: str, error: type[GatewayError]) -> None:
    blame = InvalidRequest("the guide", param="response_format")
    found = inband_error("triton", text, blame)
    assert type(found) is error
    assert (found is blame) is (error is InvalidRequest)
    guided = {"guide": Guide(GuideKind.REGEX, "[")}
    assert type(read(error_response("1", text), **guided)[1]) is error
    assert not isinstance(inband_error("triton", "Grammar error"), InvalidRequest)


NEEDS = {Need.PENALTIES: "presence_penalty", Need.MIN_TOKENS: "min_tokens", Need.LOGIT_BIAS: "logit_bias"}


@pytest.mark.parametrize(
    ("text", "need"),
    [
        # Our Python model's errors.
        ("repetition_penalty is not supported by this engine: drafts are made within the model", Need.PENALTIES),
        ("min_tokens is not supported by this engine: drafts are made within the model", Need.MIN_TOKENS),
        # TensorRT-LLM's errors (_torch/speculative, later releases).
        ("repetition_penalty / presence_penalty / frequency_penalty require 'enable_penalty: true'", Need.PENALTIES),
        ("repetition_penalty / presence_penalty / frequency_penalty are not supported with tree", Need.PENALTIES),
        ("min_length is not supported with one-model speculative decoding. Drop", Need.MIN_TOKENS),
        ("embedding_bias is not supported with one-model speculative decoding. Drop", Need.LOGIT_BIAS),
        # Triton's errors for a tensor that its model does not declare.
        ("unexpected inference input 'frequency_penalty' for model 'tensorrt_llm'", Need.PENALTIES),
        ("[request id: r1-2] unexpected inference input 'min_tokens' for model 'tensorrt_llm'", Need.MIN_TOKENS),
        ("unexpected inference input 'bogus' for model 'tensorrt_llm'", None),
        ("temperature is not supported by this engine: allow_advanced_sampling is off", None),
        # A text that only quotes the request does not count.
        ("Grammar error: at 'min_tokens is not supported with'", None),
        ("Grammar error: [request id: 1] unexpected inference input 'min_tokens'", None),
    ],
)
def test_refused_need_is_recognised_by_the_beginning_of_the_engines_words(text: str, need: Need | None) -> None:
    refused = need_refused("triton", text, NEEDS)
    assert (refused and refused.need) == need
    if refused is not None and need is not None:
        assert (refused.status, refused.param) == (400, NEEDS[need])
        assert repr(NEEDS[need]) in refused.message
        others = {other: field for other, field in NEEDS.items() if other is not need}
        assert need_refused("triton", text, others) is None  # the request has not this need


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (Status.OK, BackendUnavailable),
        (Status.UNAVAILABLE, BackendUnavailable),
        (Status.CANCELLED, BackendUnavailable),
        (Status.ABORTED, BackendUnavailable),
        (Status.RESOURCE_EXHAUSTED, BackendUnavailable),
        (Status.DEADLINE_EXCEEDED, BackendTimeout),
        (Status.UNIMPLEMENTED, BackendProtocolError),
        (Status.INTERNAL, BackendError),
        (Status.UNKNOWN, BackendError),
    ],
)
def test_statuses(code: Status, error: type[GatewayError]) -> None:
    found = status_error("triton", Outcome(code, "secret"))
    assert type(found) is error
    assert "secret" not in found.message


def test_a_request_that_could_not_be_sent_is_unavailable() -> None:
    assert type(status_error("triton", Outcome(Status.INTERNAL, is_sent=False))) is BackendUnavailable


# On a socket.


@pytest.fixture
async def served() -> AsyncIterator[tuple[FakeTriton, TritonBackend]]:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(FakeTriton().serving())
        backend = TritonBackend(TritonSettings("triton", f"grpc://127.0.0.1:{engine.port}"))
        stack.push_async_callback(backend.aclose)
        yield engine, backend


async def test_ready_needs_the_server_and_the_model(served: tuple[FakeTriton, TritonBackend]) -> None:
    engine, backend = served
    other = TritonBackend(TritonSettings("triton", f"grpc://127.0.0.1:{engine.port}", model="other"))
    assert (await backend.is_ready(), await other.is_ready()) == (True, False)
    engine.is_model_ready = False
    assert not await backend.is_ready()
    engine.is_model_ready, engine.is_server_ready = True, False
    assert not await backend.is_ready()
    await other.aclose()


async def test_closing_while_readiness_is_asked_for_answers_no(served: tuple[FakeTriton, TritonBackend]) -> None:
    _, backend = served
    assert await backend.is_ready()
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(backend.is_ready())
        await asyncio.sleep(0)
        await backend.aclose()
    assert asked.result() is False


async def finish_all(backend: TritonBackend, count: int) -> list[RecordingSink]:
    sinks = [RecordingSink() for _ in range(count)]
    for sink in sinks:
        sink.call = backend.start(REQUEST, sink)
    for sink in sinks:
        assert await sink.ended() is FinishReason.STOP
        assert sink.breaches == []
    return sinks


@asynccontextmanager
async def serving(engine: FakeTriton) -> AsyncIterator[TritonBackend]:
    async with engine.serving():
        backend = TritonBackend(TritonSettings("triton", f"grpc://127.0.0.1:{engine.port}"))
        yield backend
        await backend.aclose()


async def test_a_server_that_ends_connections_by_age_loses_no_answer() -> None:
    """grpc's own server sends GOAWAY twice, with a ping in between."""
    engine = FakeTriton(options=[("grpc.max_connection_age_ms", 100)])
    engine.play(*(step for n in range(20) for step in (Say((n,)), Pause(0.01))), EndToken())
    async with serving(engine) as backend:
        links: set[object] = set()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(40):
                tasks.create_task(finish_all(backend, 2))
                await asyncio.sleep(0.02)
                assert isinstance(backend.channel, H2Client)
                links |= backend.channel._links
        assert len(links) > 3


# TLS.


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_certificate_is_checked(certificate: Certificate, *, is_trusted: bool) -> None:
    async with FakeTriton(credentials=certificate.credentials).serving() as engine:
        settings = TritonSettings("triton", f"grpcs://localhost:{engine.port}")
        backend = TritonBackend(settings, certificate.connect(engine.port) if is_trusted else None)
        assert await backend.is_ready() is is_trusted
        sink = RecordingSink()
        sink.call = backend.start(REQUEST, sink)
        end = await sink.ended()
        assert end is FinishReason.STOP if is_trusted else type(end) is BackendUnavailable
        await backend.aclose()


# Messages that differ only in their id are read without parsing them.


def serialized(response: Message) -> bytes:
    data: bytes = response.SerializeToString()
    return data


def test_messages_alike_are_read_by_their_layout() -> None:
    answer = TensorReader("triton", REQUEST)
    assert answer.read([serialized(ids(5))]) == ((5,), None)
    assert answer._size == len(serialized(ids(6)))
    for token_id in (6, 0, 1, 4, 2**31 - 1):
        assert answer.read([serialized(ids(token_id))]) == ((token_id,), None)
    assert answer._layouts_left == MAX_LAYOUTS - 1
    assert answer.read([serialized(ids(7, 8))]) == ((7, 8), None)
    assert answer.read([serialized(ids(is_final=True))]) == ((END_ID,), FinishReason.STOP)


@pytest.mark.parametrize("token_id", [-1, -(2**31), 1000, 2**31 - 1])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_an_id_outside_the_vocabulary_is_a_protocol_error(token_id: int, before: int) -> None:
    answer = TensorReader("triton", REQUEST, id_limit=1000)
    for last_id in (0, 1, 999)[:before]:  # from the second on, a message is read by its layout
        assert answer.read([serialized(ids(last_id))]) == ((last_id,), None)
    token_ids, end = answer.read([serialized(ids(token_id))])
    assert (list(token_ids), type(end)) == ([], BackendProtocolError)


@pytest.mark.parametrize("first", [0, 1, 4, 65, 0x0A0A0A0A, 0x04320432])
def test_the_id_is_found_wherever_its_bytes_occur_besides(first: int) -> None:
    for names in (("output_ids", "sequence_length"), ("sequence_length", "output_ids")):
        answer = TensorReader("triton", REQUEST)
        for token_id in (first, first + 1, 0, 77):
            assert answer.read([serialized(reordered(ids(token_id), names))]) == ((token_id,), None)
        assert answer._layouts_left == MAX_LAYOUTS - 1


def reordered(response: Message, names: tuple[str, str]) -> Message:
    inner = response.infer_response
    content = {output.name: raw for output, raw in zip(inner.outputs, inner.raw_output_contents, strict=True)}
    inner.raw_output_contents[:] = [content[name] for name in names]
    for output, name in zip(inner.outputs, names, strict=True):
        output.name = name
    return response


def test_an_answer_whose_layout_keeps_changing_is_parsed() -> None:
    answer = TensorReader("triton", REQUEST)
    for number in range(10):
        response = ids(number)
        response.infer_response.model_version = "1" * number
        assert answer.read([serialized(response)]) == ((number,), None)
    assert answer._layouts_left == 0


def test_another_length_or_a_final_flag_is_not_taken_for_the_same_form() -> None:
    answer = TensorReader("triton", REQUEST)
    answer.read([serialized(ids(5))])
    assert answer.read([serialized(with_length(0, 6))]) == ((), None)
    assert answer.read([serialized(ids(7, is_final=True))]) == ((7, END_ID), FinishReason.STOP)


def test_messages_that_arrived_together_are_read_together_up_to_the_end() -> None:
    answer = TensorReader("triton", REQUEST)
    together = [serialized(ids(5)), serialized(ids(6, 7)), serialized(empty_final()), serialized(ids(8))]
    assert answer.read(together) == ([5, 6, 7, END_ID], FinishReason.STOP)
