"""The wire -> core translation as tables: no loop, no sockets."""

import typing
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from gateway.api.ask import Ask, translate
from gateway.api.chat import ChatCompletionRequest
from gateway.api.completions import CompletionRequest
from gateway.api.envelope import Envelope
from gateway.api.generation import Generation
from gateway.api.parse import parse_body, parse_json
from gateway.core import SamplingParams
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage

USER = {"role": "user", "content": "Hello"}
CHAT: Mapping[str, object] = {"model": "tiny", "messages": [USER]}
TEXT: Mapping[str, object] = {"model": "tiny", "prompt": "Hello"}
ENVELOPE = Envelope(request_id="r1", created=1)


def refuse(body_type: type[Generation], body: object) -> InvalidRequest:
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body_type, parse_json(raw))
    return caught.value


def ask_chat(language: ModelLanguage, **fields: object) -> Ask:
    return translate(parse_body(ChatCompletionRequest, {**CHAT, **fields}), language, ENVELOPE)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"model": "tiny",', "line 1 column 18"),
        (b'{"model":\n "tiny" oops}', "line 2 column 9"),
        (b"", "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"temperature": NaN}', "not valid JSON"),
        (b"[1, 2]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
    ],
)
def test_malformed_json_names_the_place_and_no_field(raw: bytes, words: str) -> None:
    error = refuse(ChatCompletionRequest, raw)
    assert words in error.message
    assert error.param is None


def message(**fields: object) -> dict[str, object]:
    return {"messages": [{**USER, **fields}]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": None}, "model", "Missing"),
        ({"model": ""}, "model", "empty"),
        ({"model": 5}, "model", "valid string"),
        ({"messages": None}, "messages", "Missing"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": ["hi"]}, "messages.0", "dictionary"),
        (message(role="tool"), "messages.0.role", "does not support 'tool' yet"),
        (message(role="wizard"), "messages.0.role", "'user'"),
        (message(role=["user"]), "messages.0.role", "'user'"),
        ({"messages": [USER, {"content": "x"}]}, "messages.1.role", "Missing"),
        (message(content=None), "messages.0.content", "Missing"),
        (message(content=7), "messages.0.content", "string or a list"),
        (message(content=[]), "messages.0.content", "at least 1"),
        (message(content=[{"type": "image_url", "image_url": {}}]), "messages.0.content.0.type", "'image_url' yet"),
        (message(content=[{"type": "text", "text": 3}]), "messages.0.content.0.text", "valid string"),
        (message(content=[{"type": "text", "text": "a", "x": 1}]), "messages.0.content.0.x", "Unrecognized"),
        (message(name=""), "messages.0.name", "empty"),
        (message(tool_calls=[]), "messages.0.tool_calls", "not supported yet"),
        (message(weight=1), "messages.0.weight", "Unrecognized"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": "5"}, "max_tokens", "valid integer"),
        ({"max_tokens": True}, "max_tokens", "valid integer"),
        ({"max_completion_tokens": -3}, "max_completion_tokens", "greater than or equal to 1"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", "valid number"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"top_p": 1.01}, "top_p", "less than or equal to 1"),
        ({"presence_penalty": 3}, "presence_penalty", "less than"),
        ({"frequency_penalty": -3}, "frequency_penalty", "greater than"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"seed": 1.5}, "seed", "valid integer"),
        ({"stop": ""}, "stop", "empty"),
        ({"stop": ["a", ""]}, "stop.1", "empty"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"stop": 5}, "stop", "string or a list"),
        ({"stream": "true"}, "stream", "valid boolean"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "valid boolean"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "not supported yet"),
        ({"stream_options": {"chunky": True}}, "stream_options.chunky", "Unrecognized"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"repetition_penalty": 1e-320}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"messages": [USER] * 32_769}, "messages", "at most 32768"),
        (
            {"messages": [0] * 1_000_000},
            "messages.0",
            "valid dictionary",
        ),  # the first mistake is all that is looked for
        ({"metadata": dict.fromkeys(map(str, range(17)), "x")}, "metadata", "more than 16"),
        ({"stop": ["x" * 4097]}, "stop.0", "longer than 4096"),
        (dict.fromkeys(map(str, range(300)), 1), None, "302 fields"),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0"),
        ({"ignore_eos": 1}, "ignore_eos", "valid boolean"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0", "greater than or equal to 0"),
        ({"user": 5}, "user", "valid string"),
        ({"metadata": {"a": 1}}, "metadata.a", "valid string"),
        ({"service_tier": "golden"}, "service_tier", "'default'"),
        ({"temprature": 0.5}, "temprature", "Unrecognized"),
        ({"frobnicate": None}, "frobnicate", "Unrecognized"),
        ({"<text>": 1, "x" * 5000: 1}, None, "Unrecognized"),
    ],
)
def test_a_bad_chat_field_is_named_as_the_client_wrote_it(
    fields: Mapping[str, object], param: str | None, words: str
) -> None:
    error = refuse(ChatCompletionRequest, {**CHAT, **fields})
    assert words in error.message
    assert param is None or (error.param == param and param in error.message)
    assert len(error.message) < 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("n", True),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"5": 1}),
        ("tools", []),
        ("tool_choice", "auto"),
        ("functions", []),
        ("parallel_tool_calls", True),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {}),
        ("reasoning_effort", "low"),
        ("web_search_options", {}),
        ("min_p", 0.1),
        ("chat_template", "x"),
        ("continue_final_message", True),
    ],
)
def test_what_is_not_supported_yet_is_refused_by_name(field: str, value: object) -> None:
    error = refuse(ChatCompletionRequest, {**CHAT, field: value})
    assert error.param == field
    assert error.message == f"'{field}' is not supported yet."


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "Missing"),
        ({"prompt": 5}, "prompt", "list of token ids"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": [[]]}, "prompt", "at least 1"),
        ({"prompt": ["a", "b"]}, "prompt", "more than one"),
        ({"prompt": [1, "a"]}, "prompt.1", "valid integer"),
        ({"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ({"echo": True}, "echo", "not supported yet"),
        ({"suffix": "x"}, "suffix", "not supported yet"),
        ({"logprobs": 0}, "logprobs", "not supported yet"),
        ({"best_of": 2}, "best_of", "not supported yet"),
        ({"n": 2}, "n", "not supported yet"),
        ({"messages": [USER]}, "messages", "Unrecognized"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "Unrecognized"),
    ],
)
def test_a_bad_completion_field_is_named(fields: Mapping[str, object], param: str, words: str) -> None:
    error = refuse(CompletionRequest, {**TEXT, **fields})
    assert (error.param, words in error.message) == (param, True), error.message


def fields_of(*sources: Any) -> set[str]:  # Any: TypedDicts are no common type
    return {name for source in sources for name in typing.get_type_hints(source)}


@pytest.mark.parametrize(
    ("body_type", "sources"),
    [
        (ChatCompletionRequest, (chat_params.CompletionCreateParamsStreaming,)),
        (CompletionRequest, (completion_params.CompletionCreateParamsStreaming,)),
    ],
)
def test_every_field_of_the_official_client_is_known(body_type: type[Generation], sources: Any) -> None:
    assert fields_of(*sources) - set(body_type.model_fields) == set()


@pytest.mark.parametrize("body_type", [ChatCompletionRequest, CompletionRequest])
def test_null_means_absent_for_every_optional_field(body_type: type[Generation]) -> None:
    required = CHAT if body_type is ChatCompletionRequest else TEXT
    nulls = {**dict.fromkeys(body_type.model_fields), **required}
    assert parse_body(body_type, dict(nulls)) == parse_body(body_type, dict(required))


def test_values_that_ask_for_nothing_are_let_through() -> None:
    neutral = {
        "n": 1,
        "logprobs": False,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "tool_choice": "none",
        "min_p": 0,
        "stop": [],
        "store": False,
        "metadata": {"team": "red"},
        "service_tier": "auto",
        "user": "someone",
    }
    body = parse_body(ChatCompletionRequest, {**CHAT, **neutral})
    assert body.stop_strings == ()


def test_sampling_fields_reach_the_engine_request(language: ModelLanguage) -> None:
    sampling: dict[str, Any] = {
        "max_tokens": 7,
        "min_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "seed": -5,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "ignore_eos": True,
    }
    ask = ask_chat(language, **sampling, stop_token_ids=[9, 11], stop=["END", "\n"])
    assert ask.request.params == SamplingParams(**sampling, stop_token_ids=(9, 11))
    assert ask.stop == ("END", "\n")
    assert ask.request.eos_token_ids == language.eos_token_ids
    assert ask.request.prompt == language.render_chat([USER])


@pytest.mark.parametrize(("asked", "told"), [(0, 0.0), (1e-46, 0.0), (9e-6, 0.0), (1e-5, 0.01), (0.01, 0.01), (2, 2.0)])
def test_temperatures_too_small_to_divide_by_are_settled_here(
    language: ModelLanguage, asked: float, told: float
) -> None:
    assert ask_chat(language, temperature=asked).request.params.temperature == told


def test_defaults_are_openais_but_for_max_tokens_which_is_all_the_room(language: ModelLanguage) -> None:
    ask = ask_chat(language)
    room = language.context_length - len(ask.request.prompt)
    assert ask.request.params == SamplingParams(max_tokens=room)
    assert (ask.stop, ask.stream, ask.include_usage) == ((), False, False)


def test_vllms_minus_one_turns_top_k_off(language: ModelLanguage) -> None:
    assert ask_chat(language, top_k=-1).request.params.top_k == 0


def test_max_completion_tokens_is_the_newer_name_of_max_tokens(language: ModelLanguage) -> None:
    assert ask_chat(language, max_completion_tokens=9).request.params.max_tokens == 9
    assert ask_chat(language, max_completion_tokens=9, max_tokens=9).request.params.max_tokens == 9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_completion_tokens": 9, "max_tokens": 8}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 5000}, "min_tokens"),
        ({"stop_token_ids": [1024]}, "stop_token_ids"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    language: ModelLanguage, fields: Mapping[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ask_chat(language, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
        ({"max_tokens": 1024}, "max_tokens"),
        ({"max_completion_tokens": 10**12}, "max_completion_tokens"),
    ],
)
def test_what_does_not_fit_the_context_is_refused(
    language: ModelLanguage, fields: Mapping[str, object], param: str
) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        ask_chat(language, **fields)
    assert caught.value.param == param
    assert caught.value.code == "context_length_exceeded"


def test_the_last_token_of_the_context_may_be_asked_for(language: ModelLanguage) -> None:
    room = language.context_length - len(ask_chat(language).request.prompt)
    assert ask_chat(language, max_tokens=room).request.params.max_tokens == room


def test_text_parts_render_as_their_text(language: ModelLanguage) -> None:
    ask = ask_chat(language, messages=[{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    assert ask.request.prompt == language.render_chat([USER])


def test_developer_is_another_word_for_system(language: ModelLanguage) -> None:
    as_developer = ask_chat(language, messages=[{"role": "developer", "content": "Be brief."}, USER])
    as_system = ask_chat(language, messages=[{"role": "system", "content": "Be brief."}, USER])
    assert as_developer.request.prompt == as_system.request.prompt


@pytest.mark.parametrize("form", ["text", "list of text", "ids", "list of ids"])
def test_a_completion_prompt_may_be_text_or_ids_alone_or_in_a_list(language: ModelLanguage, form: str) -> None:
    prompt = language.encode_text("Hello")
    ids = list(prompt.token_ids)
    value = {"text": "Hello", "list of text": ["Hello"], "ids": ids, "list of ids": [ids]}[form]
    body = parse_body(CompletionRequest, {"model": "tiny", "prompt": value})
    assert translate(body, language, ENVELOPE).request.prompt == prompt
