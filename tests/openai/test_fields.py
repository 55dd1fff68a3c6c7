"""The wire -> core translation as tables: no loop, no sockets."""

import time
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pytest
from openai.types import chat as official
from openai.types import completion_create_params as completion_params
from openai.types.chat import chat_completion_message_function_tool_call_param as official_call
from openai.types.chat import completion_create_params as chat_params
from openai.types.shared_params import FunctionDefinition as OfficialFunction
from openai.types.shared_params import response_format_json_schema

from gateway.core import NO_NEEDS, Guide, GuideKind, Need, SamplingParams
from gateway.errors import ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.messages import AssistantMessage, CalledFunction, PromptMessage, TextPart, ToolCall, ToolMessage
from gateway.openai.response_format import JsonSchema
from gateway.openai.tools import AllowedTools, FunctionDefinition, ToolDefinition
from gateway.wire.body import Body, parse_body
from gateway.wire.fields import WireModel
from gateway.wire.translate import Generations
from tests.language.small_models import CHATML, build_byte_level, build_sentencepiece
from tests.openai.bodies import (
    CHAT,
    TEXT,
    USER,
    chat,
    presented,
    refuse,
    refuse_chat,
    text,
    translate_chat,
    translate_text,
)


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


def test_a_seed_of_more_than_64_bits_is_refused_by_its_range() -> None:
    raw = orjson.dumps(CHAT)[:-1] + b',"seed":%d}' % (2**70)
    error = refuse(ChatCompletionRequest, raw)
    assert (error.param, "from -9223372036854775808 to 9223372036854775807" in error.message) == ("seed", True)


def message(**fields: object) -> dict[str, object]:
    return {"messages": [{**USER, **fields}]}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"model": None}, "model", "Missing"),
        ({"model": ""}, "model", "empty"),
        ({"messages": None}, "messages", "Missing"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "valid list"),
        ({"messages": ["hi"]}, "messages.0", "dictionary"),
        (message(role="function"), "messages.0.role", "replaced by 'tool'"),
        (message(role="wizard"), "messages.0.role", "'user'"),
        (message(role=["user"]), "messages.0.role", "'user'"),
        ({"messages": [USER, {"content": "x"}]}, "messages.1.role", "Missing"),
        (message(content=None), "messages.0.content", "Missing"),
        (message(content=7), "messages.0.content", "string or a list"),
        (message(content=[]), "messages.0.content", "at least 1"),
        (message(content=[{"type": "refusal", "refusal": "no"}]), "messages.0.content.0.type", "'refusal' here"),
        (message(content=[{"type": "video"}]), "messages.0.content.0.type", "'text'"),
        (message(content=["text"]), "messages.0.content.0", "dictionary"),
        (message(content=[{"type": "text", "text": 3}]), "messages.0.content.0.text", "valid string"),
        (message(content=[{"type": "text", "text": "a", "x": 1}]), "messages.0.content.0.x", "Unrecognized"),
        (message(name=""), "messages.0.name", "empty"),
        (message(tool_calls=[]), "messages.0.tool_calls", "Unrecognized"),
        (message(weight=1), "messages.0.weight", "Unrecognized"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"seed": 1.5}, "seed", "valid integer"),
        ({"temperature": 2.1}, "temperature", "less than or equal to 2"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"stop": ["a", ""]}, "stop.1", "empty"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4"),
        ({"stop": 5}, "stop", "string or a list"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage", "valid boolean"),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation", "valid boolean"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "less than or equal to 100"),
        *(({"logit_bias": {key: 1}}, "logit_bias", f"keys, not {key!r}.") for key in ("five", "05", "-5", "\u0665")),
        ({"logit_bias": {"bad": 1, "5": 1, "worse": 1}}, "logit_bias", "not 'bad', 'worse'."),
        ({"logit_bias": dict.fromkeys("abcdefg", 1)}, "logit_bias", "not 'a', 'b', 'c', 'd', 'e' and 2 more."),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias", "more than 1024"),
        ({"logit_bias": [1]}, "logit_bias", "valid dictionary"),
        ({"top_logprobs": 3}, "top_logprobs", "only allowed when 'logprobs' is true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "greater than or equal to 0"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", "'xhigh'"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt", "together"),
        *(
            ({"chat_template_kwargs": {name: None}}, "chat_template_kwargs", repr(name))
            for name in (
                *("messages", "conversation", "tools", "documents", "chat_template", "tokenize"),
                *("add_generation_prompt", "continue_final_message"),
            )
        ),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "valid dictionary"),
        ({"prediction": {"type": "content"}}, "prediction.content", "Missing"),
        ({"stream_options": {"chunky": True}}, "stream_options.chunky", "Unrecognized"),
        ({"messages": [USER] * 32_769}, "messages", "at most 32768"),
        ({"messages": [0] * 200_000}, "messages.0", "valid dictionary"),  # only the first mistake is looked for
        ({"metadata": dict.fromkeys(map(str, range(17)), "x")}, "metadata", "more than 16"),
        (dict.fromkeys(map(str, range(300)), 1), None, "302 fields"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0", "greater than or equal to 0"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention", "'24h'"),
        ({"prompt_cache_options": {"a": 1}}, "prompt_cache_options.a", "valid string"),
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
    error = refuse_chat(**fields)
    assert words in error.message
    assert param is None or (error.param == param and param in error.message)
    assert len(error.message) < 400


BOOLEANS = (
    "stream logprobs ignore_eos include_stop_str_in_output skip_special_tokens return_token_ids store "
    "spaces_between_special_tokens add_special_tokens"
)


@pytest.mark.parametrize(
    ("fields", "words", "values"),
    [
        ("model user safety_identifier prompt_cache_key", "valid string", (5, True, ["x"])),
        (BOOLEANS, "valid boolean", (1, "true", [])),
        ("max_tokens max_completion_tokens min_tokens n seed top_k priority", "valid integer", (True, "5", 1.5)),
        ("temperature top_p min_p presence_penalty frequency_penalty", "valid number", ("1", [])),
        ("repetition_penalty", "valid number", ("1", True)),
    ],
)
def test_no_value_is_converted_to_a_fields_type(fields: str, words: str, values: Sequence[object]) -> None:
    for field in fields.split():
        for value in values:
            error = refuse_chat(**{field: value})
            assert (error.param, words in error.message) == (field, True), error.message


@pytest.mark.parametrize(
    "fields", [{"frobnicate": 1}, message(x=None, content=[{"type": "text", "text": "Hello", "y": [1]}])]
)
def test_unknown_fields_are_dropped_where_the_operator_has_them_dropped(fields: Mapping[str, object]) -> None:
    given = {**CHAT, **fields}
    read = parse_body(ChatCompletionRequest, given, "ignore")
    known = {name: value for name, value in given.items() if name in CHAT}
    known["messages"] = [{"role": "user", "content": read.messages[0].plain()["content"]}]
    assert read == parse_body(ChatCompletionRequest, known)
    for refused in ({"echo": True}, {"temperature": "1"}):
        with pytest.raises(InvalidRequest):
            parse_body(ChatCompletionRequest, {**given, **refused}, "ignore")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True),
        ("modalities", ["text", "smell"]),
        ("functions", []),
        ("include_reasoning", False),
        ("documents", []),
        ("use_beam_search", 0),
        ("length_penalty", 0.5),
        ("length_penalty", True),
        ("bad_words", ["x"]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field: str, value: object) -> None:
    error = refuse_chat(**{field: value})
    assert error.param == field
    assert error.message == f"'{field}' is not supported."


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "Missing"),
        ({"prompt": 5}, "prompt", "list of token ids"),
        ({"prompt": []}, "prompt", "at least 1"),
        ({"prompt": [[]]}, "prompt.0", "at least 1"),
        ({"prompt": [1, "a"]}, "prompt.1", "valid integer"),
        ({"prompt": ["a", 1]}, "prompt.1", "valid string"),
        ({"prompt": [[1], "a"]}, "prompt.1", "valid list"),
        ({"prompt": [[1], [-1]]}, "prompt.1.0", "greater than or equal to 0"),
        ({"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ({"prompt": ["a"] * 129}, "prompt", "at most 128"),
        ({"prompt": [[1]] * 129}, "prompt", "at most 128"),
        ({"prompt": ["a"] * 64, "n": 3}, "n", "192 choices"),
        ({"max_tokens": 0, "echo": True}, "max_tokens", "greater than or equal to 1"),
        ({"echo": 1}, "echo", "valid boolean"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
        ({"logprobs": -1}, "logprobs", "greater than or equal to 0"),
        ({"logprobs": True}, "logprobs", "valid integer"),
        ({"best_of": 2}, "best_of", "equals 'n'"),
        ({"best_of": 1, "n": 2}, "best_of", "equals 'n'"),
        ({"top_logprobs": 1}, "top_logprobs", "Unrecognized"),
        ({"tools": []}, "tools", "Unrecognized"),
        ({"messages": [USER]}, "messages", "Unrecognized"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "Unrecognized"),
    ],
)
def test_a_bad_completion_field_is_named(fields: Mapping[str, object], param: str, words: str) -> None:
    error = refuse(CompletionRequest, {**TEXT, **fields})
    assert (error.param, words in error.message) == (param, True), error.message


RANGES: Mapping[str, tuple[Sequence[object], Sequence[object]]] = {  # the last values taken, the first refused
    "max_tokens": ([1], [0]),
    "max_completion_tokens": ([1], [0]),
    "n": ([1, 128], [0, 129]),
    "temperature": ([0, 2], [-0.001, 2.001]),
    "top_p": ([1e-9, 1], [0, 1.001]),
    "seed": ([-(2**63), 2**63 - 1], [-(2**63) - 1, 2**63]),
    "stop": (["x" * 4096, [*"abcd"]], ["", ["x" * 4097], [*"abcde"]]),
    "presence_penalty": ([-2, 2], [-2.001, 2.001]),
    "frequency_penalty": ([-2, 2], [-2.001, 2.001]),
    "repetition_penalty": ([0.01, 2], [0.009, 2.001]),
    "logit_bias": (
        [{"5": -100, "7": 100}, dict.fromkeys(map(str, range(1024)), 1)],
        [{"5": -100.1}, {"5": 100.1}, dict.fromkeys(map(str, range(1025)), 1)],
    ),
    "top_k": ([-1, 0, 2**31 - 1], [-2, 2**31]),
    "min_p": ([0, 1], [-0.001, 1.001]),
    "min_tokens": ([0], [-1]),
    "stop_token_ids": ([[*range(128)]], [[*range(129)], [-1]]),
    "priority": ([-(2**31), 2**31 - 1], [-(2**31) - 1, 2**31]),
}


@pytest.mark.parametrize(
    ("body_type", "field"),
    [
        (body, field)
        for body in (ChatCompletionRequest, CompletionRequest)
        for field in RANGES
        if field in body.model_fields
    ],
)
def test_a_range_ends_where_it_is_said_to(body_type: type[Body], field: str) -> None:
    required = CHAT if body_type is ChatCompletionRequest else TEXT
    taken, refused = RANGES[field]
    for value in taken:
        assert getattr(parse_body(body_type, {**required, field: value}), field) == value
    for value in refused:
        with pytest.raises(InvalidRequest) as caught:
            parse_body(body_type, {**required, field: value})
        assert (caught.value.param or "").partition(".")[0] == field


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        (text, {"prompt": ["a"] * 128}),
        (text, {"prompt": [[1]] * 128}),
        (text, {"logprobs": 0}),
        (text, {"logprobs": 5}),
        (text, {"suffix": ""}),
        (text, {"best_of": 3, "n": 3}),
        (chat, {"logprobs": True, "top_logprobs": 0}),
        (chat, {"logprobs": True, "top_logprobs": 20}),
        (chat, {"stream": True, "stream_options": {"include_obfuscation": False}}),
    ],
)
def test_the_last_value_that_is_allowed_is_taken(ask: Callable[..., Body], fields: Mapping[str, object]) -> None:
    assert fields.keys() <= ask(**fields).model_fields_set


@pytest.mark.parametrize(
    ("model", "source"),
    [
        (ChatCompletionRequest, chat_params.CompletionCreateParamsStreaming),
        (CompletionRequest, completion_params.CompletionCreateParamsStreaming),
        (PromptMessage, official.ChatCompletionSystemMessageParam),
        (PromptMessage, official.ChatCompletionDeveloperMessageParam),
        (PromptMessage, official.ChatCompletionUserMessageParam),
        (AssistantMessage, official.ChatCompletionAssistantMessageParam),
        (ToolMessage, official.ChatCompletionToolMessageParam),
        (TextPart, official.ChatCompletionContentPartTextParam),
        (ToolCall, official.ChatCompletionMessageFunctionToolCallParam),
        (CalledFunction, official_call.Function),
        (ToolDefinition, official.ChatCompletionFunctionToolParam),
        (FunctionDefinition, OfficialFunction),
        (AllowedTools, official.ChatCompletionAllowedToolsParam),
        (JsonSchema, response_format_json_schema.JSONSchema),
    ],
)
def test_every_field_of_the_official_client_is_known(model: type[WireModel], source: Any) -> None:  # Any: a TypedDict
    known = {field.alias or name for name, field in model.model_fields.items()}
    assert set(typing.get_type_hints(source)) - known == set()


@pytest.mark.parametrize("body_type", [ChatCompletionRequest, CompletionRequest])
def test_null_means_absent_for_every_optional_field(body_type: type[Body]) -> None:
    required = CHAT if body_type is ChatCompletionRequest else TEXT
    nulls = {**dict.fromkeys(body_type.model_fields), **required}
    assert parse_body(body_type, dict(nulls)) == parse_body(body_type, dict(required))


def test_values_that_ask_for_nothing_are_let_through() -> None:
    neutral: dict[str, object] = {
        "n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "response_format": {"type": "text"},
        "tool_choice": "none", "parallel_tool_calls": False, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0,
        "frequency_penalty": 0, "min_tokens": 0, "priority": 0, "stop": [], "chat_template_kwargs": {}, "store": False,
        "metadata": {"team": "red"}, "service_tier": "auto", "user": "someone",
        "prediction": {"type": "content", "content": "Hello"}, "spaces_between_special_tokens": False,
    }  # fmt: skip
    body = chat(**neutral)
    assert (body.needs() is NO_NEEDS, body.relay_field) == (True, None)
    assert (body.stop_strings, body.bias, body.logprob_count, body.tool_plan) == ((), (), None, None)
    assert not body.is_guided


BIAS = {"17": 2, "5": -50, "9": 0.0}


@pytest.mark.parametrize(
    ("body", "needs"),
    [
        (chat(), {}),
        (chat(logprobs=True), {Need.LOGPROBS: "logprobs"}),
        (text(logprobs=0), {Need.LOGPROBS: "logprobs"}),
        (text(logprobs=2, echo=True), {Need.LOGPROBS: "logprobs", Need.PROMPT_LOGPROBS: "echo"}),
        (text(echo=True), {}),
        (chat(logit_bias=BIAS), {Need.LOGIT_BIAS: "logit_bias"}),
        (chat(logit_bias={"9": 0}), {}),
        (chat(min_p=0.1), {Need.MIN_P: "min_p"}),
        (chat(repetition_penalty=1.1), {Need.PENALTIES: "repetition_penalty"}),
        (chat(presence_penalty=-0.1), {Need.PENALTIES: "presence_penalty"}),
        (text(frequency_penalty=0.1), {Need.PENALTIES: "frequency_penalty"}),
        (chat(presence_penalty=1, frequency_penalty=1), {Need.PENALTIES: "presence_penalty"}),
        (chat(min_tokens=2), {Need.MIN_TOKENS: "min_tokens"}),
        (chat(min_tokens=2, ignore_eos=True), {}),  # no token can end it early
        (chat(min_tokens=2, ignore_eos=True, stop_token_ids=[7]), {Need.MIN_TOKENS: "min_tokens"}),
        (chat(priority=-1), {}),
        (chat(response_format={"type": "json_object"}), {Need.GUIDE: "response_format"}),
        (text(structured_outputs={"regex": "a+"}), {Need.GUIDE: "structured_outputs"}),
        (chat(n=3, top_k=5, seed=1, include_stop_str_in_output=True, skip_special_tokens=False), {}),
    ],
)
def test_a_body_needs_what_it_asks_for_by_the_field_that_asks(body: Body, needs: Mapping[Need, str]) -> None:
    assert body.needs() == needs


NO_EFFECT: Mapping[str, object] = {
    "user": "someone", "metadata": {"team": "red"}, "store": True,
    "safety_identifier": "low", "prompt_cache_key": "high", "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "Hello"},
    "spaces_between_special_tokens": True, "verbosity": "high",
}  # fmt: skip


@pytest.fixture(scope="module")
def curious(tmp_path_factory: pytest.TempPathFactory) -> ModelLanguage:
    """Its template shows every variable that has the name of such a field."""
    variables = " ".join(f"{{{{ {name} }}}}" for name in (*NO_EFFECT, "team", "mode"))
    return build_byte_level(tmp_path_factory.mktemp("curious"), template=CHATML + variables).language


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, 0),
        ({"service_tier": "priority"}, -1),
        ({"service_tier": "fast"}, -1),
        ({"service_tier": "flex"}, 1),
        ({"service_tier": "default"}, 0),
        ({"service_tier": "flex", "priority": -7}, -7),
    ],
)
def test_a_service_tier_stands_for_a_priority(
    curious: ModelLanguage, fields: Mapping[str, object], priority: int
) -> None:
    assert translate_chat(curious, **fields).request.priority == priority
    assert translate_text(curious, **fields).request.priority == priority


@pytest.mark.parametrize("field", NO_EFFECT)
def test_a_field_without_effect_reaches_neither_engine_nor_template(curious: ModelLanguage, field: str) -> None:
    given = {field: NO_EFFECT[field]}
    assert translate_chat(curious, **given) == translate_chat(curious)
    if field in CompletionRequest.model_fields:
        assert translate_text(curious, **given) == translate_text(curious)


def test_what_a_body_asks_to_see() -> None:
    plain, seen = (
        chat(stream=True),
        chat(
            stream=True, n=3, logprobs=True, top_logprobs=4, logit_bias=BIAS, min_p=0.2, priority=7,
            include_stop_str_in_output=True, skip_special_tokens=False, return_token_ids=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        ),
    )  # fmt: skip
    assert (seen.n, seen.logprob_count, seen.min_p, seen.priority) == (3, 4, 0.2, 7)
    assert seen.bias == ((17, 2.0), (5, -50.0))
    asked = [
        (body.include_stop_str_in_output, not body.skip_special_tokens, body.return_token_ids, body.wants_usage)
        for body in (plain, seen)
    ]
    assert asked == [(False,) * 4, (True,) * 4]
    assert (plain.wants_continuous_usage, seen.wants_continuous_usage) == (False, True)
    assert not chat(stream=True, stream_options={"continuous_usage_stats": True}).wants_continuous_usage


def test_logprobs_of_completions_are_a_count_and_with_echo_the_prompts_too() -> None:
    assert [text(logprobs=count).logprob_count for count in (None, 0, 5)] == [None, 0, 5]
    assert [text(logprobs=3, echo=echo).prompt_logprob_count for echo in (False, True)] == [None, 3]
    assert chat(logprobs=True).logprob_count == 0


SCHEMA = {"type": "object", "properties": {"a": {"default": None}}, "required": ["a"]}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"default":null}},"required":["a"]}'
AS_SCHEMA = Guide(GuideKind.JSON_SCHEMA, SCHEMA_TEXT)


def schema_format(**json_schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


@pytest.mark.parametrize("ask", [chat, text])
@pytest.mark.parametrize(
    ("fields", "guide"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Guide(GuideKind.JSON)),
        (schema_format(name="s", schema=SCHEMA, strict=True), AS_SCHEMA),
        (schema_format(name="s", schema=SCHEMA, strict=False, description="It."), AS_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, AS_SCHEMA),
        ({"structured_outputs": {"json": SCHEMA_TEXT}}, AS_SCHEMA),
        ({"structured_outputs": {"json_object": True}}, Guide(GuideKind.JSON)),
        ({"structured_outputs": {"regex": "[a-z]+"}}, Guide(GuideKind.REGEX, "[a-z]+")),
        ({"structured_outputs": {"grammar": "root ::= 'x'"}}, Guide(GuideKind.GRAMMAR, "root ::= 'x'")),
        (
            {"structured_outputs": {"choice": ["yes", "no (at all)", "a|b\\c"]}},
            Guide(GuideKind.REGEX, r"(yes|no \(at all\)|a\|b\\c)"),
        ),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, Guide(GuideKind.REGEX, "a")),
    ],
)
def test_what_an_answer_must_match_becomes_a_guide(
    language: ModelLanguage, ask: Callable[..., Body], fields: Mapping[str, object], guide: Guide | None
) -> None:
    body = ask(**fields)
    assert (body.find_guide(language), body.is_guided) == (guide, guide is not None)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": "json"}, "response_format", "dictionary"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'json_schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "Missing"),
        (schema_format(name="s"), "response_format.json_schema.schema", "Missing"),
        (schema_format(name="s", schema=None), "response_format.json_schema.schema", "Missing"),
        (schema_format(schema={}), "response_format.json_schema.name", "Missing"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "s", "schema": {}}}},
            "response_format.json_schema",
            "only allowed",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "empty"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs.regex", "65536"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "empty"),
        ({"structured_outputs": {"grammar": "a" * 70_000}}, "structured_outputs.grammar", "65536"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice.0", "empty"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json", "valid dictionary"),
        *(
            ({"structured_outputs": {"regex": "a", key: value}}, f"structured_outputs.{key}", "not supported")
            for key, value in (
                ("structural_tag", "x"),
                ("whitespace_pattern", "x"),
                ("disable_any_whitespace", True),
                ("disable_additional_properties", True),
            )
        ),
        ({"structured_outputs": {"choice": ["a"] * 1025}}, "structured_outputs.choice", "at most 1024"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "send one",
        ),
    ],
)
def test_a_bad_guide_is_named(fields: Mapping[str, object], param: str, words: str) -> None:
    for body_type, required in ((ChatCompletionRequest, CHAT), (CompletionRequest, TEXT)):
        error = refuse(body_type, {**required, **fields})
        assert (error.param, words in error.message) == (param, True), error.message


def nested(levels: int) -> dict[str, object]:
    return {"a": nested(levels - 1)} if levels > 1 else {"a": 1}


def holding(values: int) -> dict[str, object]:
    """`values` counts the object itself and its list too."""
    return {"a": [0] * (values - 2)}


def called_with(arguments: object) -> dict[str, object]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": orjson.dumps(arguments).decode()}}
    return {"messages": [{"role": "assistant", "tool_calls": [call]}]}


@pytest.mark.parametrize(
    ("fields_with", "param"),
    [
        (
            lambda made: {"tools": [{"type": "function", "function": {"name": "f", "parameters": made}}]},
            "tools.0.function.parameters",
        ),
        (lambda made: schema_format(name="s", schema=made), "response_format.json_schema.schema"),
        (lambda made: {"structured_outputs": {"json": made}}, "structured_outputs.json"),
        (lambda made: {"chat_template_kwargs": made}, "chat_template_kwargs"),
        (called_with, "messages.0.tool_calls.0.function.arguments"),
    ],
    ids=["parameters", "response_format", "structured_outputs", "chat_template_kwargs", "arguments"],
)
def test_json_of_a_clients_own_has_so_many_values_in_so_many_levels(
    fields_with: Callable[[object], dict[str, object]], param: str
) -> None:
    for most in (holding(32_768), nested(63)):
        chat(**fields_with(most))
    for more, words in ((holding(32_769), "32768 values"), (nested(64), "64 levels")):
        error = refuse_chat(**fields_with(more))
        assert (error.param, words in error.message) == (param, True), error.message


@pytest.mark.parametrize(
    ("fields_with", "param"),
    [
        (lambda text: {"structured_outputs": {"json": {"const": text}}}, "structured_outputs"),
        (lambda text: {"structured_outputs": {"choice": [text]}}, "structured_outputs"),
        (lambda text: schema_format(name="s", schema={"const": text}), "response_format"),
    ],
    ids=["json", "choice", "response_format"],
)
def test_a_guide_has_so_many_characters(
    language: ModelLanguage, fields_with: Callable[[str], dict[str, object]], param: str
) -> None:
    guide = translate_chat(language, **fields_with("x")).request.params.guide
    assert guide is not None
    room = 65_536 - len(guide.text) + 1
    assert translate_chat(language, **fields_with("x" * room)).request.params.guide is not None
    with pytest.raises(InvalidRequest) as caught:
        translate_chat(language, **fields_with("x" * (room + 1)))
    assert (caught.value.param, "65536 characters" in caught.value.message) == (param, True)


def test_the_guide_of_calls_has_no_more_characters_either(language: ModelLanguage) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"description": "x" * 66_000}}}
    with pytest.raises(InvalidRequest, match="65536 characters") as caught:
        translate_chat(language, tools=[tool], tool_choice="required")
    assert caught.value.param == "tool_choice"


def test_sampling_fields_reach_the_engine_request(language: ModelLanguage) -> None:
    sampling: dict[str, Any] = {
        "max_tokens": 7, "min_tokens": 3, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": -5,
        "repetition_penalty": 1.1, "presence_penalty": 0.25, "frequency_penalty": -0.25, "ignore_eos": True,
        "min_p": 0.1, "priority": 2,
    }  # fmt: skip
    others = {"logit_bias": BIAS, "logprobs": True, "top_logprobs": 3, "response_format": {"type": "json_object"}}
    ask = translate_chat(language, **sampling, **others, stop_token_ids=[9, 11], stop=["END", "\n"])
    assert ask.request.params == SamplingParams(
        **sampling, stop_token_ids=(9, 11), logit_bias=((17, 2.0), (5, -50.0)), logprobs=3, guide=Guide(GuideKind.JSON)
    )
    assert presented(ask).stop == ("END", "\n")
    assert ask.request.eos_token_ids == language.eos_token_ids
    assert ask.request.prompt == language.render_chat([USER])


@pytest.mark.parametrize(("asked", "sent"), [(0, 0.0), (1e-46, 0.0), (9e-6, 0.0), (1e-5, 0.01), (0.01, 0.01), (2, 2.0)])
def test_a_temperature_too_small_to_divide_by_is_replaced(language: ModelLanguage, asked: float, sent: float) -> None:
    assert translate_chat(language, temperature=asked).request.params.temperature == sent


def test_defaults_are_openais_but_for_max_tokens_which_is_all_the_room(language: ModelLanguage) -> None:
    ask = translate_chat(language)
    room = language.context_length - len(ask.request.prompt)
    assert ask.request.params == SamplingParams(max_tokens=room)
    assert (presented(ask).stop, presented(ask).stream, presented(ask).include_usage) == ((), False, False)


def test_a_cache_salt_reaches_an_engine_that_heeds_it(language: ModelLanguage) -> None:
    request = translate_chat(language, cache_salt="s" * 1024).request
    assert (request.cache_salt, dict(request.needs)) == ("s" * 1024, {Need.CACHE_SALT: "cache_salt"})
    for wrong in ("", "s" * 1025):
        assert refuse_chat(cache_salt=wrong).param == "cache_salt"


def test_vllms_minus_one_turns_top_k_off(language: ModelLanguage) -> None:
    assert translate_chat(language, top_k=-1).request.params.top_k == 0


def test_max_completion_tokens_is_the_newer_name_of_max_tokens(language: ModelLanguage) -> None:
    for fields in ({}, {"max_tokens": 9}):
        assert translate_chat(language, max_completion_tokens=9, **fields).request.params.max_tokens == 9


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_completion_tokens": 9, "max_tokens": 8}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 5000}, "min_tokens"),
        ({"stop_token_ids": [1024]}, "stop_token_ids"),
        ({"logit_bias": {"1024": 1}}, "logit_bias"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(
    language: ModelLanguage, fields: Mapping[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        translate_chat(language, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("ask", "fields", "param"),
    [
        (translate_chat, {"messages": [{"role": "user", "content": "word " * 2000}]}, "messages"),
        (translate_text, {"prompt": [1] * 1024}, "prompt"),
        (translate_text, {"max_tokens": 1025}, "max_tokens"),
    ],
)
def test_what_does_not_fit_the_context_is_refused(
    language: ModelLanguage, ask: Callable[..., Generations], fields: Mapping[str, object], param: str
) -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        ask(language, **fields)
    assert (caught.value.param, caught.value.code) == (param, "context_length_exceeded")


def test_limits_may_be_met_exactly(language: ModelLanguage) -> None:
    last = language.vocab_size - 1
    edge: dict[str, Any] = {"max_tokens": 5, "min_tokens": 5, "stop_token_ids": [last], "logit_bias": {str(last): 1}}
    params = translate_chat(language, **edge).request.params
    assert (params.min_tokens, params.stop_token_ids, params.logit_bias) == (5, (last,), ((last, 1.0),))
    assert len(translate_text(language, prompt=["a"] * 64, n=2).requests) == 128
    room = language.context_length - len(translate_chat(language).request.prompt)
    assert translate_chat(language, max_tokens=room).request.params.max_tokens == room


def test_a_limit_of_tokens_is_fitted_to_the_room_that_the_prompt_leaves(language: ModelLanguage) -> None:
    room = language.context_length - len(translate_chat(language).request.prompt)
    for fields in ({"max_tokens": room + 1}, {"max_tokens": 32_000}, {"max_completion_tokens": 10**12}):
        assert translate_chat(language, **fields).request.params.max_tokens == room
    ask = translate_text(language, prompt=[[5, 6], [5, 6, 7, 8]], max_tokens=1022)  # vLLM refuses more than 1024
    assert [request.params.max_tokens for request in ask.requests] == [1022, 1020]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (schema_format(name="s", schema={"items": {"uniqueItems": True}}), "response_format"),
        ({"structured_outputs": {"json": {"items": {"uniqueItems": True}}}}, "structured_outputs"),
    ],
)
def test_a_schema_that_no_answer_can_be_held_to_is_refused_by_its_keyword(
    language: ModelLanguage, fields: Mapping[str, object], param: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"'{param}' has a schema with 'uniqueItems' at items") as caught:
        translate_chat(language, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (schema_format(name="s", schema={"enum": ["<|im_end|>"]}), "response_format"),
        ({"structured_outputs": {"choice": ["yes", "<|im_end|>"]}}, "structured_outputs"),
        (
            {"tools": [{"type": "function", "function": {"name": "f<|im_end|>"}}], "tool_choice": "required"},
            "tool_choice",
        ),
    ],
)
def test_no_answer_is_held_to_the_text_of_a_token_of_the_models_own(
    language: ModelLanguage, fields: Mapping[str, object], param: str
) -> None:
    """An engine would end the answer there, or fail."""
    with pytest.raises(InvalidRequest) as caught:
        translate_chat(language, **fields)
    assert (caught.value.param, "'<|im_end|>'" in caught.value.message) == (param, True)


def test_each_prompt_of_a_list_has_its_own_room(language: ModelLanguage) -> None:
    ask = translate_text(language, prompt=[[5, 6], [5, 6, 7, 8]], n=2)
    room = language.context_length
    assert [request.params.max_tokens for request in ask.requests] == [room - 2, room - 2, room - 4, room - 4]
    assert [request.prompt.token_ids for request in ask.requests] == [*[(5, 6)] * 2, *[(5, 6, 7, 8)] * 2]
    assert len({request.request_id for request in ask.requests}) == 4


@pytest.mark.parametrize(("seed", "seeds"), [(7, [7, 8]), (2**63 - 1, [2**63 - 1, -(2**63)]), (None, [None, None])])
def test_a_seed_is_followed_by_its_successors(
    language: ModelLanguage, seed: int | None, seeds: Sequence[int | None]
) -> None:
    ask = translate_text(language, prompt=[[5, 6], [5, 6, 7, 8]], n=2, seed=seed)
    assert [request.params.seed for request in ask.requests] == [*seeds, *seeds]


TOOLS = [{"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, "Hi you. Me"),
        ({"stop": "."}, "Hi you"),
        ({"stop": ["zzz", "."], "include_stop_str_in_output": True}, "Hi you."),
        ({"stop": ".", "skip_special_tokens": False}, "Hi<|im_start|> you"),
        ({"stop": ".", "skip_special_tokens": False, "tools": TOOLS}, "Hi<|im_start|> you"),
        ({"skip_special_tokens": False, "include_stop_str_in_output": True}, "Hi<|im_start|> you. Me<|im_end|>"),
    ],
)
def test_ends_and_special_tokens_are_seen_where_they_are_asked_for(
    language: ModelLanguage, fields: Mapping[str, object], seen: str
) -> None:
    ask = translate_chat(language, **fields)
    decoder = ask.choice(0, ask.group()).decoder
    assert decoder.feed(language.encode_text("Hi<|im_start|> you. Me<|im_end|>").token_ids) + decoder.flush() == seen


def test_a_completion_prompt_may_be_text_or_ids_alone_or_in_a_list(language: ModelLanguage) -> None:
    first, second = language.encode_text("Hello"), language.encode_text("Good bye")
    one, other = list(first.token_ids), list(second.token_ids)
    for alone in ("Hello", ["Hello"], one, [one]):
        assert text(prompt=alone).prompts(language) == [first]
    for several in (["Good bye", "Hello"], [other, one]):
        assert text(prompt=several).prompts(language) == [second, first]


def test_a_completions_special_tokens_may_be_left_out(tmp_path_factory: pytest.TempPathFactory) -> None:
    language = build_sentencepiece(tmp_path_factory.mktemp("sentencepiece")).language
    framed, bare = (text(add_special_tokens=adds).prompts(language)[0].token_ids for adds in (True, False))
    assert framed == (1, *bare)
    assert text().prompts(language)[0].token_ids == framed


RELAYED: list[tuple[dict[str, object], str]] = [
    (message(content=[{"type": "text", "text": "?"}, {"type": "image_url"}]), "messages.0.content.1.type"),
    (message(content=[{"type": "input_audio", "input_audio": {}}]), "messages.0.content.0.type"),
    ({"messages": [USER, {"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages.1.content.0.type"),
    *(
        (message(content=[{"type": kind}]), "messages.0.content.0.type")
        for kind in ("video_url", "audio_url", "image_embeds", "audio_embeds", "prompt_embeds")
    ),
    ({"messages": [{"role": "assistant", "audio": {"id": "a"}}, USER]}, "messages.0.audio"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
]


@pytest.mark.parametrize(("fields", "param"), RELAYED)
def test_what_only_the_relay_lane_can_serve_goes_on_unread(fields: Mapping[str, object], param: str) -> None:
    body = chat(**fields, temperature="as the engine likes it", an_engines_own=1)
    assert (body.relay_field, body.needs(), body.model) == (param, {Need.RELAY: param}, "tiny")


def test_an_unread_body_still_names_its_model() -> None:
    error = refuse(ChatCompletionRequest, {"messages": [USER], "modalities": ["audio"]})
    assert (error.param, "Missing" in error.message) == ("model", True)


@pytest.mark.parametrize("messages", [[0, {"content": [{"type": "file"}]}], "x", [{"content": [7, {"type": "file"}]}]])
def test_a_body_with_a_mistake_before_such_a_part_is_refused(messages: object) -> None:
    assert refuse_chat(messages=messages).param is not None


def test_an_echo_shows_special_tokens_as_well(language: ModelLanguage) -> None:
    prompt = "<|im_start|>user\nHi"
    assert presented(translate_text(language, prompt=prompt, echo=True)).echoes == (prompt,)


def test_an_echo_costs_its_choices_nothing(language: ModelLanguage) -> None:
    """They are made on the event loop, up to 128 of them."""

    def seconds(*, echo: bool) -> float:
        ask = translate_text(language, prompt=[*range(100, 1000)], n=128, echo=echo)
        group, start = ask.group(), time.process_time()
        for index in range(128):
            ask.choice(index, group)
        return time.process_time() - start

    with_echo, without = (min(seconds(echo=echo) for _ in range(3)) for echo in (True, False))
    assert with_echo < 5 * without
