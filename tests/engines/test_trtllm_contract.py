"""The tensor contract as tables: arrays in, requests and answers out; no server."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engines.reference.guide import Grammars, Guide
from engines.reference.kserve.messages import model_config
from engines.reference.launch import WEIGHTS
from engines.reference.trtllm_answer import TensorAnswer
from engines.reference.trtllm_contract import (
    NUMPY_TYPES,
    ContractError,
    Limits,
    TokenRequest,
    decode_request,
    decode_words,
    output_names,
)

CONFIG = Path(__file__).parents[2] / "model_repo/python/tensorrt_llm/config.pbtxt"
LIMITS = Limits(vocab_size=128, context_length=64, check_guide=Grammars(WEIGHTS, 1024).walk)


def decode(limits: Limits = LIMITS, **tensors: Any) -> TokenRequest:
    """Of a minimal request and these scalars, each with its own NumPy type; None leaves one out."""
    inputs = {
        "input_ids": np.array([[5, 6, 7]], np.int32),
        "input_lengths": np.int32(3),
        "request_output_len": np.int32(8),
        **tensors,
    }
    return decode_request({name: np.atleast_2d(value) for name, value in inputs.items() if value is not None}, limits)


def guide_of(kind: str, text: str | None) -> dict[str, Any]:
    """Its tensors."""
    named = {"guided_decoding_guide_type": kind, "guided_decoding_guide": text}
    return {name: np.array([value.encode()], np.object_) for name, value in named.items() if value is not None}


def test_model_configuration_file_declares_the_tensors_of_the_contract() -> None:
    declared = text_format.Parse(CONFIG.read_text(), model_config_pb2.ModelConfig())
    served = model_config("tensorrt_llm").config
    assert list(declared.input) == list(served.input)
    assert list(declared.output) == list(served.output)
    assert declared.max_batch_size == served.max_batch_size
    assert declared.model_transaction_policy.decoupled
    backend = declared.parameters["guided_decoding_backend"]
    assert backend == served.parameters["guided_decoding_backend"]
    assert backend.string_value
    off = model_config("tensorrt_llm", follows_guides=False).config.parameters
    assert off["guided_decoding_backend"].string_value == ""  # the C++ backend needs the empty text


@pytest.mark.parametrize(
    ("words", "decoded"),
    [
        ([[7], [1]], ((7,),)),
        ([[7, 8], [1, 2]], ((7,), (8,))),
        ([[1, 2, 3], [2, 3, -1]], ((1, 2), (3,))),
        ([[0, 0], [-1, -1]], ()),
    ],
)
def test_word_lists_are_ids_over_cumulative_ends(words: list[list[int]], decoded: tuple[tuple[int, ...], ...]) -> None:
    assert decode_words(np.array([words], np.int32)) == decoded


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([[1, 2], [-1, 2]], "Sparse list must not have additional -1s: 1 2 -1 2 "),
        ([[1, 2], [3, -1]], "Sparse list must not have out-of-bound offsets: 1 2 3 -1 "),
        ([[1, 2], [2, 2]], "Sparse list must not have non-increasing offsets: 1 2 2 2 "),
        ([[1, 2], [0, 2]], "Sparse list must not have non-increasing offsets: 1 2 0 2 "),
    ],
)
def test_bad_word_lists_are_refused_in_tensorrt_llms_words(words: list[list[int]], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        decode_words(np.array([words], np.int32))


@pytest.mark.parametrize(
    ("tensors", "sampling"),
    [
        ({}, (0.0, 0, 1.0)),
        ({"temperature": np.float32(0.5)}, (0.0, 0, 1.0)),
        ({"runtime_top_k": np.int32(1), "runtime_top_p": np.float32(0.9)}, (0.0, 0, 1.0)),
        ({"runtime_top_p": np.float32(1.0)}, (1.0, 0, 1.0)),
        ({"runtime_top_p": np.float32(0.5), "temperature": np.float32(0.5)}, (0.5, 0, 0.5)),
        ({"runtime_top_k": np.int32(9)}, (1.0, 9, 1.0)),
        ({"runtime_top_p": np.float32(1.0), "temperature": np.float32(0.0)}, (0.0, 0, 1.0)),
    ],
)
def test_sampling_follows_tensorrt_llms_defaults(tensors: dict[str, Any], sampling: tuple[float, int, float]) -> None:
    params = decode(**tensors).params
    assert (params.temperature, params.top_k, params.top_p) == sampling


def test_lengths_are_clamped_to_what_there_is() -> None:
    assert decode(request_output_len=np.int32(500)).params.max_tokens == 61
    assert decode(min_tokens=np.int32(500)).params.min_tokens == 8
    assert decode(input_lengths=np.int32(2)).prompt == (5, 6)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"input_ids": None}, "input_ids or encoder_input_features is not present in the request."),
        ({"request_output_len": None}, "request_output_len is not present in the request"),
        ({"request_output_len": np.int32(0)}, "request_output_len must be at least 1, got 0"),
        ({"input_lengths": np.int32(4)}, "input_lengths is 4, but input_ids holds 3 tokens"),
        ({"input_ids": np.array([[5, 128, 7]])}, r"input_ids must lie in \[0, 128\)"),
        ({"end_id": np.int32(128)}, r"EndId \(128\) is not within acceptable range \[-1, 128\)."),
        ({"temperature": np.float32(-1), "runtime_top_p": np.float32(1)}, "temperature must be non-negative"),
        ({"repetition_penalty": np.float32(0)}, "repetition_penalty must be greater than zero"),
        ({"embedding_bias": np.ones(5, np.float32)}, "embedding_bias must hold 128 values, got 5"),
        ({"beam_width": np.int32(2)}, "beam_width must be 1 on this model"),
        ({"input_ids": np.array([[5, 6, 7]] * 2)}, "input_ids: a batch of 2 is not supported"),
    ],
)
def test_bad_requests_are_refused(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        decode(**tensors)


def test_a_bias_holds_a_value_for_every_token_and_zero_is_none() -> None:
    bias = np.zeros(128, np.float32)
    bias[[3, 100]] = 1.5, -2
    assert decode(embedding_bias=bias).params.logit_bias == ((3, 1.5), (100, -2.0))
    assert decode(embedding_bias=np.zeros(0, np.float32)).params.logit_bias == decode().params.logit_bias == ()


@pytest.mark.parametrize(
    ("kind", "guide", "decoded"),
    [
        ("json", None, Guide("json")),
        ("json_schema", '{"type": "string"}', Guide("json_schema", '{"type": "string"}')),
        ("regex", "é+", Guide("regex", "é+")),
        ("ebnf_grammar", 'root ::= "a"', Guide("ebnf_grammar", 'root ::= "a"')),
    ],
)
def test_a_guide_is_its_type_and_its_text(kind: str, guide: str | None, decoded: Guide) -> None:
    assert decode(**guide_of(kind, guide)).params.guide == decoded
    assert decode().params.guide is None


@pytest.mark.parametrize(
    ("kind", "guide", "message"),
    [
        ("choice", "[]", "guided_decoding_guide_type must be one of json, json_schema, regex, ebnf_grammar, got 'choi"),
        ("regex", None, "The guide string must be provided unless using GuideType::kJSON."),
        ("regex", "(", "Grammar error: "),
        ("json_schema", "{", "Invalid grammar specification: "),
    ],
)
def test_what_is_no_guide_is_refused(kind: str, guide: str | None, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        decode(**guide_of(kind, guide))


def test_without_a_backend_for_them_guides_are_refused() -> None:
    with pytest.raises(ContractError, match="guided decoding is off"):
        decode(Limits(128, 64), **guide_of("json", None))


def test_listed_outputs_have_to_include_ids_and_length() -> None:
    plain, logprobs = decode(), decode(return_log_probs=np.bool_(True))
    assert output_names((), plain) == ("output_ids", "sequence_length")
    assert output_names({"output_ids", "sequence_length", "cum_log_probs"}, logprobs) == (
        "output_ids",
        "sequence_length",
        "cum_log_probs",
    )
    with pytest.raises(ContractError, match="output_ids tensor must be present in list of output tensors"):
        output_names({"sequence_length"}, plain)


def taken(answer: TensorAnswer) -> list[int] | None:
    tensors = answer.take()
    if tensors is None:
        return None
    assert {name: array.dtype.type for name, array in tensors.items()} == {
        "output_ids": NUMPY_TYPES["INT32"],
        "sequence_length": NUMPY_TYPES["INT32"],
        "cum_log_probs": NUMPY_TYPES["FP32"],
        "output_log_probs": NUMPY_TYPES["FP32"],
    }
    ids = tensors["output_ids"]
    assert tensors["sequence_length"].tolist() == [[ids.shape[2]]]
    return [int(token_id) for token_id in ids[0, 0]]


def test_streamed_answer_holds_what_is_new_and_ends_empty_at_the_end_token() -> None:
    answer = TensorAnswer(decode(streaming=np.bool_(True)))
    answer.feed(11, None, None)
    answer.feed(12, None, None)
    assert (taken(answer), answer.is_final) == ([11, 12], False)
    assert taken(answer) is None
    answer.feed(2, None, "stop")
    assert (taken(answer), answer.is_final) == ([], True)


def test_whole_answer_waits_for_the_end_and_begins_with_the_prompt() -> None:
    answer = TensorAnswer(decode())
    answer.feed(11, None, None)
    assert taken(answer) is None
    answer.feed(12, None, "length")
    assert (taken(answer), answer.is_final) == ([5, 6, 7, 11, 12], True)


def test_stop_word_across_responses_ends_the_answer_and_what_follows_is_dropped() -> None:
    words = np.array([[[11, 12, 9], [2, 3, -1]]], np.int32)
    answer = TensorAnswer(decode(streaming=np.bool_(True), stop_words_list=words))
    answer.feed(12, None, None)
    answer.feed(11, None, None)
    assert (taken(answer), answer.is_final) == ([12, 11], False)
    answer.feed(12, None, None)
    answer.feed(13, None, None)
    assert (taken(answer), answer.is_final) == ([12], True)


def test_log_probabilities_add_up_over_responses() -> None:
    answer = TensorAnswer(decode(streaming=np.bool_(True), return_log_probs=np.bool_(True)))
    answer.feed(11, -0.5, None)
    answer.take()
    answer.feed(12, -0.25, "length")
    tensors = answer.take()
    assert tensors is not None
    assert tensors["output_log_probs"].tolist() == [[[-0.25]]]
    assert tensors["cum_log_probs"].tolist() == [[-0.75]]


def test_lora_task_id_is_that_of_an_adapter_which_the_model_has() -> None:
    limits = Limits(128, 64, lora_task_ids=(1, 12))
    assert decode(limits, lora_task_id=np.uint64(12)).lora_task_id == 12
    assert decode(limits).lora_task_id is None
    with pytest.raises(ContractError, match=re.escape("lora_task_id 7 is no adapter of this model, which has [1, 12]")):
        decode(limits, lora_task_id=np.uint64(7))
    with pytest.raises(ContractError, match="which has none"):
        decode(lora_task_id=np.uint64(1))


UNFOLLOWED = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens", "embedding_bias"),
    *("return_log_probs", "temperature"),
)


@pytest.mark.parametrize(
    ("name", "asking", "neutral"),
    [
        ("repetition_penalty", np.float32(1.1), np.float32(1)),
        ("presence_penalty", np.float32(-0.5), np.float32(0)),
        ("frequency_penalty", np.float32(0.5), np.float32(0)),
        ("min_tokens", np.int32(2), np.int32(0)),
        ("embedding_bias", np.eye(1, 128, dtype=np.float32)[0], np.zeros(128, np.float32)),
        ("return_log_probs", np.bool_(True), np.bool_(False)),
    ],
)
def test_tensor_that_the_engine_does_not_follow_is_refused_unless_neutral(name: str, asking: Any, neutral: Any) -> None:
    limits = Limits(128, 64, unfollowed=dict.fromkeys(UNFOLLOWED, "it drafts"))
    assert decode(limits, **{name: neutral}) == decode(**{name: neutral})
    assert decode(**{name: asking}) != decode(**{name: neutral})
    with pytest.raises(ContractError, match=f"^{name} is not supported by this engine: it drafts$"):
        decode(limits, **{name: asking})
