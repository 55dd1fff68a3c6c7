"""A chat's messages and tools, in the form in which a model's template and guide get them: no loop, no sockets."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.core import Guide, GuideKind, Need
from gateway.errors import InvalidRequest
from gateway.language import Forced, ModelLanguage, Tool
from gateway.openai.chat import ChatCompletionRequest
from tests.language.small_models import REFERENCE_WEIGHTS, Model, build_byte_level, build_sentencepiece
from tests.openai.bodies import USER, chat, refuse_chat, translate_chat

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, **fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **fields}}


WEATHER, TIME = function("weather", parameters=PARAMETERS, description="Of a city."), function("time")
TOOLS = [WEATHER, TIME]


def call(arguments: object = '{"city": "Rome"}', **fields: object) -> dict[str, object]:
    return {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}, **fields}


SENT_BACK = {"name": "weather", "arguments": '{"city": "Rome"}', "parsed_arguments": {"a": 1}}


def assistant(**fields: object) -> dict[str, object]:
    return {"role": "assistant", **fields}


def user(content: object, **fields: object) -> dict[str, object]:
    return {"role": "user", "content": content, **fields}


def text_of(language: ModelLanguage, body: ChatCompletionRequest) -> str:
    (prompt,) = body.prompts(language)
    return language.decode(prompt.token_ids, shows_special=True)


# Messages


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ({"role": "system", "content": "Be brief.", "name": "boss"}, None),
        ({"role": "developer", "content": "Be brief."}, None),
        ({"role": "tool", "content": "20 C", "tool_call_id": "call_1"}, None),
        ({"role": "tool", "content": "20 C", "tool_call_id": "call_1", "name": "weather"}, None),
        (assistant(content="Hi", name="bot"), None),
        (assistant(content=None), assistant(content=None)),
        (assistant(content=None, refusal="No."), assistant(content="No.")),
        (assistant(content="So", annotations=[], audio=None, function_call=None), assistant(content="So")),
        (
            assistant(content=[{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]),
            assistant(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ),
        *(
            (assistant(content="Hi", **{name: "hm"}), assistant(content="Hi", reasoning="hm", reasoning_content="hm"))
            for name in ("reasoning", "reasoning_content")
        ),
        (assistant(content="Hi", tool_calls=[]), assistant(content="Hi")),
        (assistant(content=None, tool_calls=[call()]), assistant(content=None, tool_calls=[call({"city": "Rome"})])),
        # What the Python client makes of an answer, and sends back with it.
        (assistant(content="{}", parsed={"a": 1}, tool_calls=[]), assistant(content="{}")),
        (
            assistant(tool_calls=[{**call(index=0), "function": SENT_BACK}]),
            assistant(content=None, tool_calls=[call({"city": "Rome"})]),
        ),
        (assistant(tool_calls=[call("")]), assistant(content=None, tool_calls=[call({})])),
        (
            assistant(tool_calls=[call('{"n": 12345678901234567890123}')]),
            assistant(content=None, tool_calls=[call({"n": 12345678901234567890123})]),
        ),
        (
            user([{"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}]),
            user([{"type": "text", "text": "a"}]),
        ),
    ],
)
def test_a_template_gets_a_message_as(message: Mapping[str, object], plain: Mapping[str, object] | None) -> None:
    (read,) = chat(message).messages
    assert read.plain() == (message if plain is None else plain)


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        ({"role": "tool", "content": "20 C"}, "tool_call_id", "Missing"),
        ({"role": "tool", "tool_call_id": "call_1"}, "content", "Missing"),
        ({"role": "tool", "content": [{"type": "refusal"}], "tool_call_id": "c"}, "content.0.type", "only 'text'"),
        (user("x", reasoning="hm"), "reasoning", "Unrecognized"),
        (user("x", tool_call_id="c"), "tool_call_id", "Unrecognized"),
        (assistant(content=5), "content", "string or a list"),
        (assistant(content=[{"type": "refusal"}]), "content.0.refusal", "Missing"),
        (assistant(content="x", function_call={"name": "f", "arguments": ""}), "function_call", "not supported"),
        (assistant(content="x", annotations=[{"type": "url_citation"}]), "annotations", "not supported"),
        (assistant(tool_calls={}), "tool_calls", "valid list"),
        (assistant(tool_calls=[call(id="")]), "tool_calls.0.id", "empty"),
        (assistant(tool_calls=[call(type="custom")]), "tool_calls.0.type", "'custom'"),
        (assistant(tool_calls=[call(place=0)]), "tool_calls.0.place", "Unrecognized"),
        (assistant(tool_calls=[call(["Rome"])]), "tool_calls.0.function.arguments", "string of JSON"),
        (assistant(tool_calls=[call("[" * 100_000)]), "tool_calls.0.function.arguments", "more than 32768 values"),
    ],
)
def test_a_bad_message_is_named_with_its_path(message: object, param: str, words: str) -> None:
    error = refuse_chat(USER, message)
    assert (error.param, words in error.message) == (f"messages.1.{param}", True), error.message


# Tools


def test_tools_are_offered_as_vllms_templates_get_them() -> None:
    plan = chat(tools=[function("weather", parameters=PARAMETERS, strict=True), TIME]).tool_plan
    assert plan is not None
    first, second = plan.definitions
    # Also in this order: a template may write the object as it is.
    shown = {"name": "weather", "description": None, "parameters": PARAMETERS, "strict": True}
    assert json.dumps(first["function"]) == json.dumps(shown)
    assert second == {"type": "function", "function": {"name": "time", "description": None, "parameters": None}}
    assert plan.tools == (Tool("weather", PARAMETERS, None, strict=True), Tool("time"))


@pytest.mark.parametrize("written", ["", "{", '{"a": NaN}', "[1]", '"x"', "null", "[" * 5_000])
def test_what_a_model_wrote_in_place_of_arguments_is_history_and_shown_as_none(written: str) -> None:
    """As in vLLM: a chat with one malformed call would be refused at every later turn."""
    assert chat(USER, assistant(tool_calls=[call(written)])) == chat(USER, assistant(tool_calls=[call("{}")]))


def test_arguments_may_be_an_object_that_is_no_text() -> None:
    assert chat(USER, assistant(tool_calls=[call({"city": "Rome"})])) == chat(USER, assistant(tool_calls=[call()]))


def test_what_changes_nothing_is_taken_and_changes_nothing(language: ModelLanguage) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    bare = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "Ho"}, USER]
    marked = [
        {"role": "user", "id": "m1", "content": [{"type": "text", "text": "Hi", **mark}], **mark},
        {"role": "assistant", "content": "Ho", "id": "", "prefix": False, "reasoning_details": [{"type": "x"}]},
        USER,
    ]
    extra: dict[str, object] = {"verbosity": "high", "mm_processor_kwargs": None, "tools": [], "tool_choice": "auto"}
    stream: dict[str, object] = {"stream": True, "stream_options": {"include_obfuscation": True}}
    plain = translate_chat(language, messages=bare).request
    assert translate_chat(language, messages=marked, **extra, **stream).request == plain
    tool = {**function("time", **mark), **mark}
    assert chat(tools=[tool]).tool_plan == chat(tools=[TIME]).tool_plan


@pytest.mark.parametrize("fields", [{"prefix": True}, {"reasoning_details": ["x"]}, {"id": 5}, {"cache_control": "x"}])
def test_what_would_change_something_is_refused(fields: Mapping[str, object]) -> None:
    assert f"messages.1.{next(iter(fields))}" in str(refuse_chat(USER, assistant(content="x", **fields)).param)


def allowed(mode: str, name: str) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name)]}}


@pytest.mark.parametrize(
    ("choice", "forced", "names"),
    [
        (None, None, ["weather", "time"]),
        ("auto", None, ["weather", "time"]),
        ("required", Forced(), ["weather", "time"]),
        (function("time"), Forced("time"), ["weather", "time"]),
        (allowed("auto", "time"), None, ["time"]),
        (allowed("required", "weather"), Forced(), ["weather"]),
    ],
)
def test_a_tool_choice_says_what_may_be_called_and_whether_it_must(
    choice: object, forced: Forced | None, names: list[str]
) -> None:
    plan = chat(tools=TOOLS, tool_choice=choice).tool_plan
    assert plan is not None
    assert (plan.forced, [tool.name for tool in plan.tools], plan.parallel) == (forced, names, True)
    assert [json.loads(json.dumps(shown))["function"]["name"] for shown in plan.definitions] == names


def test_tools_that_may_not_be_called_are_no_plan() -> None:
    assert chat(tools=TOOLS, tool_choice="none").tool_plan is None
    assert chat().tool_plan is None


def test_a_forced_call_is_guided_and_needs_a_backend_that_can() -> None:
    forced = chat(tools=TOOLS, tool_choice=function("weather"))
    guide = guide_of(forced)
    assert (guide.kind, json.loads(guide.text)) == (GuideKind.JSON_SCHEMA, PARAMETERS)
    assert (forced.is_guided, forced.needs()) == (True, {Need.GUIDE: "tool_choice"})
    free = chat(tools=[function("weather", parameters=PARAMETERS, strict=True)])  # arguments are not held to a schema
    assert free.tool_plan is not None
    assert (free.is_guided, free.tool_plan.guide(None), dict(free.needs())) == (False, None, {})


def guide_of(body: ChatCompletionRequest) -> Guide:
    """The guide for a model whose own form of calls is not known."""
    assert body.tool_plan is not None
    guide = body.tool_plan.guide(None)
    assert guide is not None
    return guide


def test_one_call_at_a_time_is_part_of_the_guide() -> None:
    several, one = (
        json.loads(guide_of(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=may)).text)
        for may in (True, False)
    )
    assert ("maxItems" in several, one["maxItems"]) == (False, 1)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [TIME] * 129}, "tools", "at most 128"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools.0.type", "'custom'"),
        ({"tools": [{"type": "function"}]}, "tools.0.function", "Missing"),
        ({"tools": [TIME, function("")]}, "tools.1.function.name", "empty"),
        ({"tools": [function("f", parameters=[])]}, "tools.0.function.parameters", "valid dictionary"),
        ({"tools": [function("f", parameters={"type": "string"})]}, "tools.0.function.parameters", "an object"),
        ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice", "'required'"),
        ({"tools": TOOLS, "tool_choice": 5}, "tool_choice", "'required'"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.type", "'custom'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "Missing"),
        (
            {"tools": TOOLS, "tool_choice": {**allowed("auto", "time"), **TIME}},
            "tool_choice.allowed_tools",
            "only allowed when",
        ),
        ({"tools": TOOLS, "tool_choice": function("rain")}, "tool_choice.function.name", "not the name"),
        (
            {"tools": TOOLS, "tool_choice": allowed("auto", "rain")},
            "tool_choice.allowed_tools.tools.0.function.name",
            "not the name",
        ),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "only allowed when 'tools'"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", "valid boolean"),
    ],
)
def test_bad_tools_are_named(fields: Mapping[str, object], param: str, words: str) -> None:
    error = refuse_chat(**fields)
    assert (error.param, words in error.message) == (param, True), error.message


def test_a_guide_beside_tools_that_may_not_be_called_is_fine() -> None:
    body = chat(tools=TOOLS, tool_choice="none", response_format={"type": "json_object"})
    assert dict(body.needs()) == {Need.GUIDE: "response_format"}


# Prompts


@pytest.fixture(scope="module")
def toolless(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Its template shows no tools."""
    return build_byte_level(tmp_path_factory.mktemp("toolless"))


def test_tools_and_calls_are_in_the_prompt(language: ModelLanguage) -> None:
    answer = {"role": "tool", "content": "20 C", "tool_call_id": "call_1"}
    text = text_of(language, chat(USER, assistant(tool_calls=[call()]), answer, tools=TOOLS))
    shown = text.partition("<tools>")[2].partition("</tools>")[0]
    assert '"name": "weather", "description": "Of a city.", "parameters": {"type": "object"' in shown
    assert '"name": "time"' in shown
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in text
    assert text.endswith("<|im_start|>tool\n20 C<|im_end|>\n<|im_start|>assistant\n")


def test_tools_that_may_not_be_called_are_not_in_the_prompt(language: ModelLanguage) -> None:
    assert text_of(language, chat(tools=TOOLS, tool_choice="none")) == text_of(language, chat())


@pytest.mark.parametrize("choice", ["auto", "required", function("time")])
def test_tools_are_refused_for_a_model_whose_template_shows_none(toolless: Model, choice: object) -> None:
    body = chat(tools=TOOLS, tool_choice=choice)
    with pytest.raises(InvalidRequest) as caught:
        body.prompts(toolless.language)
    assert caught.value.param == "tools"
    assert chat(tools=TOOLS, tool_choice="none").prompts(toolless.language) == chat().prompts(toolless.language)


def test_a_model_without_a_parser_for_its_calls_may_only_be_forced_to_call() -> None:
    language = ModelLanguage.load(REFERENCE_WEIGHTS, tool_parser="none")
    with pytest.raises(InvalidRequest) as caught:
        chat(tools=TOOLS).prompts(language)
    assert caught.value.param == "tools"
    assert len(chat(tools=TOOLS, tool_choice="required").prompts(language)) == 1


def test_the_last_message_may_be_continued(language: ModelLanguage) -> None:
    text = text_of(language, chat(USER, assistant(content="Hello the"), continue_final_message=True))
    assert text.endswith("<|im_start|>assistant\nHello the")


@pytest.mark.parametrize(
    ("fields", "adds"),
    [({}, True), ({"add_generation_prompt": False}, False), ({"continue_final_message": True}, False)],
)
def test_a_template_gets_whether_the_assistants_header_follows(
    tmp_path: Path, fields: Mapping[str, object], adds: bool
) -> None:
    model = build_byte_level(tmp_path, template="{{ add_generation_prompt }} {{ messages[-1].content }}")
    assert text_of(model.language, chat(**fields)) == f"{adds} Hello"


def test_an_empty_text_part_is_a_line_of_its_own(language: ModelLanguage) -> None:
    parts = [{"type": "text", "text": text} for text in ("", "Hello", "")]
    assert "<|im_start|>user\n\nHello\n<|im_end|>" in text_of(language, chat({"role": "user", "content": parts}))


def test_special_tokens_may_be_added_to_a_chat(tmp_path: Path) -> None:
    language = build_sentencepiece(tmp_path).language
    (bare,), (framed,) = chat().prompts(language), chat(add_special_tokens=True).prompts(language)
    assert framed.token_ids == (1, *bare.token_ids)


@pytest.mark.parametrize(
    ("fields", "kwargs", "text"),
    [
        ({}, {}, "  1"),
        ({}, {"enable_thinking": False, "x": [{"a": None}]}, ' False [{"a": null}]'),
        ({"reasoning_effort": "none"}, {}, "none False 1"),
        *(
            ({"reasoning_effort": effort}, {}, f"{effort} True 1")
            for effort in ("minimal", "low", "medium", "high", "xhigh", "max")
        ),
        ({"reasoning_effort": "low"}, {"enable_thinking": False, "reasoning_effort": "max"}, "low False 1"),
    ],
)
def test_a_template_gets_the_variables_that_vllms_gets(
    tmp_path: Path, fields: Mapping[str, object], kwargs: Mapping[str, object], text: str
) -> None:
    model = build_byte_level(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ reasoning_effort }} {{ enable_thinking }} {{ x | tojson }}")
    language = ModelLanguage.load(model.directory)
    assert text_of(language, chat(chat_template_kwargs={"x": 1, **kwargs}, **fields)) == text
