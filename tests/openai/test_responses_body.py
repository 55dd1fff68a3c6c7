"""Bodies of /v1/responses: what each field comes to, how items are shown to a model, what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core import FinishReason, Guide, GuideKind, Need, SamplingParams
from gateway.errors import BackendLost, ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage
from gateway.openai.response_items import seal
from gateway.openai.responses import ResponsePresenter, ResponsesRequest
from gateway.wire.body import parse_body
from gateway.wire.choice import Choice
from gateway.wire.keeper import Kept
from gateway.wire.translate import Generations, translate
from tests.language.small_models import Model
from tests.named_events import fold_response, read_named
from tests.openai.bodies import ENVELOPE
from tests.openai.small_chats import build_open
from tests.openai.test_choice import Recorded

BODY: Mapping[str, object] = {"model": "tiny", "input": "Hello"}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TIME = {"type": "function", "name": "time"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build_open(tmp_path_factory.mktemp("open"))


def ask(language: ModelLanguage, *items: object, **fields: object) -> Generations:
    body = {**BODY, **fields} | ({"input": list(items)} if items else {})
    return translate(parse_body(ResponsesRequest, body), language, ENVELOPE)


def head(asked: Generations) -> dict[str, Any]:
    """What the response repeats of the request."""
    assert isinstance(asked.presenter, ResponsePresenter)
    repeated: dict[str, Any] = orjson.loads(asked.presenter.head + b"}")
    return repeated


def apart(asked: Generations) -> Generations:
    """Without what the response only repeats."""
    assert isinstance(asked.presenter, ResponsePresenter)
    return replace(asked, presenter=replace(asked.presenter, head=b""))


def shown(language: ModelLanguage, *items: object, **fields: object) -> str:
    """The prompt's text."""
    return language.decode(ask(language, *items, **fields).request.prompt.token_ids, shows_special=True)


SCORES = ["message.output_text.logprobs"]
HONOURED: Mapping[str, Mapping[str, object]] = {
    "instructions": {"instructions": "Be brief."},
    "max_output_tokens": {"max_output_tokens": 5},
    "stream": {"stream": True},
    "tools": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
    "parallel_tool_calls": {"tools": [TOOL], "parallel_tool_calls": False},
    "text": {"text": FORM},
    "reasoning": {"reasoning": {"effort": "low"}},
    "include": {"include": SCORES},
    "top_logprobs": {"include": SCORES, "top_logprobs": 3},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "seed": {"seed": 5},
    "stop": {"stop": ["END"]},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {"17": 2}},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "min_tokens": {"min_tokens": 2},
    "ignore_eos": {"ignore_eos": True},
    "stop_token_ids": {"stop_token_ids": [9]},
    "include_stop_str_in_output": {"include_stop_str_in_output": True},
    "skip_special_tokens": {"skip_special_tokens": False},
    "structured_outputs": {"structured_outputs": {"regex": "a+"}},
    "priority": {"priority": 2},
    "service_tier": {"service_tier": "priority"},
    "cache_salt": {"cache_salt": "salt"},
    "chat_template_kwargs": {"chat_template_kwargs": {"colour": "red"}},
}
NO_EFFECT: Mapping[str, object] = {
    "stream_options": {"include_obfuscation": True}, "metadata": {"team": "red"},
    "client_metadata": {"a": 1}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "max_tool_calls": 3,
}  # fmt: skip


@pytest.mark.parametrize("field", HONOURED)
def test_a_field_of_responses_is_honoured(model: Model, field: str) -> None:
    given = HONOURED[field]
    without = {name: value for name, value in given.items() if name != field}
    assert apart(ask(model.language, **given)) != apart(ask(model.language, **without))


@pytest.mark.parametrize("field", NO_EFFECT)
def test_a_field_of_responses_has_no_effect(model: Model, field: str) -> None:
    assert apart(ask(model.language, **{field: NO_EFFECT[field]})) == apart(ask(model.language))


def test_sampling_reaches_the_engine(model: Model) -> None:
    asked = ask(model.language, max_output_tokens=7, temperature=0.5, include=SCORES, top_logprobs=2)
    assert asked.request.params == SamplingParams(max_tokens=7, temperature=0.5, logprobs=2)
    assert dict(asked.request.needs) == {Need.LOGPROBS: "include"}


def test_items_are_shown_as_vllm_shows_them(model: Model) -> None:
    items = (
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "no JSON"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rainy"}]},
    )  # fmt: skip
    assert shown(model.language, *items, instructions="Be brief.") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>Hm</think>Let me see."
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
        '<tool_call>{"name": "weather", "arguments": {}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsunny<|im_end|>\n<|im_start|>tool\nrainy<|im_end|>\n<|im_start|>assistant\n"
    )


def test_reasoning_comes_back_sealed(model: Model) -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": seal("Hm, é")}
    assert "<think>Hm, é</think>" in shown(model.language, {"role": "user", "content": "a"}, sealed)
    with pytest.raises(InvalidRequest) as caught:
        ask(model.language, {**sealed, "encrypted_content": "gAAAA"})
    assert caught.value.param == "input.0.encrypted_content"


def test_a_message_that_was_cut_off_is_continued(model: Model) -> None:
    cut = {"role": "assistant", "content": "Once upon", "status": "incomplete"}
    assert shown(model.language, {"role": "user", "content": "a"}, cut).endswith("assistant\nOnce upon")
    whole = {**cut, "status": "completed"}
    assert shown(model.language, {"role": "user", "content": "a"}, whole).endswith("<|im_start|>assistant\n")


def test_truncation_drops_as_few_of_the_first_turns_as_it_must(model: Model) -> None:
    room = model.language.context_length
    turn = ({"role": "user", "content": "x" * (room // 4)}, {"role": "assistant", "content": "y" * (room // 8)})
    talk = (*turn * 4, {"role": "user", "content": "Last"})
    with pytest.raises(ContextLengthExceeded):
        ask(model.language, *talk)
    kept = shown(model.language, *talk, instructions="Be brief.", truncation="auto")
    assert kept.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nx")
    assert kept.endswith("user\nLast<|im_end|>\n<|im_start|>assistant\n")
    assert kept.count("<|im_start|>user") == 3
    with pytest.raises(ContextLengthExceeded):
        ask(model.language, {"role": "user", "content": "x" * 2 * room}, truncation="auto")


class OneResponse:
    """A Keeper of one response, and of whatever else it is given."""

    def __init__(self) -> None:
        said = {"type": "message", "role": "assistant", "id": "msg_1",
                "content": [{"type": "output_text", "text": "Hi", "annotations": []}]}  # fmt: skip
        asked = {"type": "message", "role": "user", "id": "msg_0", "content": [{"type": "input_text", "text": "Hello"}]}
        self.kept = {"resp_1": Kept(orjson.dumps({"output": [said]}), orjson.dumps([asked]))}

    def keep(self, response_id: str, kept: Kept) -> None:
        self.kept[response_id] = kept

    def find(self, response_id: str) -> Kept:
        return self.kept[response_id]


def test_previous_response_id_puts_that_conversation_first(model: Model) -> None:
    keeper = OneResponse()
    body = parse_body(ResponsesRequest, {**BODY, "input": "And?", "previous_response_id": "resp_1"}).resolve(keeper)
    asked = translate(body, model.language, replace(ENVELOPE, keeper=keeper))
    text = model.language.decode(asked.request.prompt.token_ids, shows_special=True)
    said = "<|im_start|>{}\n{}<|im_end|>\n"
    talk = said.format("user", "Hello") + said.format("assistant", "Hi") + said.format("user", "And?")
    assert text == f"{talk}<|im_start|>assistant\n"
    assert head(asked)["previous_response_id"] == "resp_1"


def test_store_false_keeps_nothing(model: Model) -> None:
    for store in (True, False):
        keeper = OneResponse()
        body = parse_body(ResponsesRequest, {**BODY, "store": store})
        asked = translate(body, model.language, replace(ENVELOPE, keeper=keeper))
        write(model, asked, "Paris")
        assert head(asked)["store"] is store
        assert (head(asked)["id"] in keeper.kept) is store


def test_a_response_repeats_the_request(model: Model) -> None:
    asked = head(ask(model.language, tools=[TOOL], metadata={"a": "b"}, text=FORM, tool_choice="none", store=True))
    assert asked["tools"] == [{**TOOL, "description": None, "strict": None}]
    assert asked["text"]["format"]["schema"] == SCHEMA
    assert (asked["metadata"], asked["tool_choice"], asked["store"]) == ({"a": "b"}, "none", False)


def test_tools_that_are_not_allowed_are_not_shown(model: Model) -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "time"}]}
    text = shown(model.language, tools=[TOOL, TIME], tool_choice=allowed)
    assert ('"time"' in text, '"weather"' in text) == (True, False)
    guide = ask(model.language, tools=[TOOL, TIME], tool_choice=allowed).request.params.guide
    assert guide is not None


def test_a_form_binds_the_text(model: Model) -> None:
    assert ask(model.language, text=FORM).request.params.guide == Guide(
        GuideKind.JSON_SCHEMA, orjson.dumps(SCHEMA).decode()
    )
    json = {"format": {"type": "json_object"}}
    assert ask(model.language, text=json).request.params.guide == Guide(GuideKind.JSON)
    assert ask(model.language, text={"format": {"type": "text"}}).request.params.guide is None


def test_functions_of_a_namespace_are_shown_under_both_names_and_called_under_their_own(model: Model) -> None:
    agents = {"type": "namespace", "name": "agents", "description": "x", "tools": [TOOL, TIME]}
    asked = ask(model.language, tools=[agents], stream=True)
    text = shown(model.language, tools=[agents])
    assert ('"agents__weather"' in text, '"agents__time"' in text) == (True, True)
    assert head(asked)["tools"][0]["tools"][0]["name"] == "weather"
    answered = fold_response(read_named(write(model, asked, CALL)))
    assert answered["output"] == [
        {
            "type": "function_call", "id": "fc_r100", "status": "completed", "namespace": "agents", "name": "weather",
            "arguments": '{"city": "Rome"}', "call_id": answered["output"][0]["call_id"],
        }
    ]  # fmt: skip
    again = shown(model.language, {"role": "user", "content": "a"}, *answered["output"])
    assert '<tool_call>{"name": "agents__weather"' in again
    named = ask(model.language, tools=[agents], tool_choice={"type": "function", "name": "agents__time"})
    assert named.request.params.guide is not None


CALL = '<tool_call>\n{"name": "agents__weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def write(model: Model, asked: Generations, written: str) -> bytes:
    """The bytes of an answer whose tokens, one at a time, are those of `written`."""
    parts, recorded = asked.choice(0, asked.group()), Recorded()
    sink = Choice(parts.decoder, parts.frames, recorded, parts.details)
    for token_id in [*model.encode(written), model.language.eos_token_ids[0]]:
        sink.tokens([token_id])
    sink.finish(FinishReason.STOP)
    return b"".join(recorded.puts)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_reasoning_text_and_calls_are_items_in_their_order(model: Model, stream: bool) -> None:
    asked = ask(
        model.language, tools=[TOOL], stream=stream, include=["reasoning.encrypted_content"],
        chat_template_kwargs={"enable_thinking": True},
    )  # fmt: skip
    raw = write(model, asked, "Hm, é</think>Let me see." + CALL.replace("agents__", ""))
    answered = fold_response(read_named(raw)) if stream else orjson.loads(raw)
    thought, said, called = answered["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm, é"}]
    assert thought["encrypted_content"] == seal("Hm, é")
    assert said["content"][0]["text"] == "Let me see."
    assert (called["name"], called["arguments"]) == ("weather", '{"city": "Rome"}')
    usage = answered["usage"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    back = shown(model.language, {"role": "user", "content": "a"}, thought, said, called)
    assert "<think>Hm, é</think>Let me see.<tool_call>" in back


def test_a_stream_that_fails_says_so_twice(model: Model) -> None:
    frames = ask(model.language, stream=True).choice(0, ask(model.language).group()).frames
    begun = frames.text("Pa")
    events = read_named(frames.open() + begun + frames.fail(BackendLost("gone")))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    error, failed = events[-2:]
    assert (error["code"], error["message"], error["error"]["code"]) == ("backend_lost", "gone", "backend_lost")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "server_error", "message": "gone"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": []}, "input", "at least 1"),
        ({"input": 5}, "input", "string or a list"),
        ({"input": [{"type": "computer_call"}]}, "input.0.type", "'computer_call'"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", "'item_reference'"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "'user'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content.0.type", "'input_file'"),
        ({"max_output_tokens": 0}, "max_output_tokens", "greater than or equal to 1"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'web_search'"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools.0.type", "'custom'"),
        ({"tool_choice": "required"}, "tool_choice", "'tools' are given"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name", "Missing"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name", "not the name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather", "mode": "auto"}},
         "tool_choice.mode", "does not belong"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "'web_search'"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto",
                                           "tools": [{"type": "function", "name": "f"}]}},
         "tool_choice.tools.0.name", "not the name"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "has a 'schema'"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format", "has a 'schema'"),
        ({"text": FORM, "structured_outputs": {"regex": "a"}}, "structured_outputs", "send one"),
        ({"include": ["everything"]}, "include.0", "message.output_text.logprobs"),
        ({"background": True}, "background", "not supported"),
        ({"n": 2}, "n", "Unrecognized"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_body_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(ResponsesRequest, {**BODY, **fields})
    assert caught.value.param == param
    assert words in caught.value.message


def test_a_picture_goes_on_unread() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,"}
    for item in ({"role": "user", "content": [picture]}, {"type": "function_call_output", "output": [picture]}):
        body = parse_body(ResponsesRequest, {**BODY, "input": [item], "x": 1})
        assert body.relay_field is not None
        assert dict(body.needs()) == {Need.RELAY: body.relay_field}
