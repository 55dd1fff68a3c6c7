"""Bodies of /v1/messages: what each field comes to, how a conversation is shown to a model, what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.anthropic.messages import CountRequest, MessagesRequest, count_tokens
from gateway.core import FinishReason, Guide, GuideKind, Need, SamplingParams
from gateway.errors import BackendLost, ContextLengthExceeded, InvalidRequest
from gateway.language import ModelLanguage
from gateway.wire.body import Envelope, parse_body
from gateway.wire.choice import Choice
from gateway.wire.translate import Generations, translate
from tests.language.small_models import Model, build_byte_level
from tests.named_events import fold_message, read_named
from tests.openai.small_chats import build_open
from tests.openai.test_choice import Recorded

ENVELOPE = Envelope(request_id="r1", created=1)
USER = {"role": "user", "content": "Hello"}
BODY: Mapping[str, object] = {"model": "tiny", "messages": [USER], "max_tokens": 2000}
TOOL = {"name": "weather", "input_schema": {"properties": {"city": {"type": "string"}}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "schema": SCHEMA}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build_open(tmp_path_factory.mktemp("open"))


def ask(language: ModelLanguage, *messages: object, **fields: object) -> Generations:
    body = {**BODY, **fields} | ({"messages": list(messages)} if messages else {})
    return translate(parse_body(MessagesRequest, body), language, ENVELOPE)


def shown(language: ModelLanguage, *messages: object, **fields: object) -> str:
    """The prompt's text."""
    return language.decode(ask(language, *messages, **fields).request.prompt.token_ids, shows_special=True)


def refuse(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(MessagesRequest, {**BODY, **fields})
    return caught.value


HONOURED: Mapping[str, Mapping[str, object]] = {
    "system": {"system": "Be brief."},
    "max_tokens": {"max_tokens": 5},
    "stop_sequences": {"stop_sequences": ["END"]},
    "stream": {"stream": True},
    "temperature": {"temperature": 0.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 5},
    "tools": {"tools": [TOOL]},
    "tool_choice": {"tools": [TOOL], "tool_choice": {"type": "any"}},
    "thinking": {"thinking": {"type": "disabled"}},
    "output_config": {"output_config": {"format": FORM}},
    "output_format": {"output_format": FORM},
    "chat_template_kwargs": {"chat_template_kwargs": {"colour": "red"}},
    "cache_salt": {"cache_salt": "salt"},
}
NO_EFFECT: Mapping[str, object] = {
    "metadata": {"user_id": "u"}, "service_tier": "auto", "diagnostics": {"previous_message_id": None},
    "inference_geo": "eu", "speed": "fast", "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}  # fmt: skip


@pytest.mark.parametrize("field", HONOURED)
def test_a_field_of_messages_is_honoured(model: Model, field: str) -> None:
    given = HONOURED[field]
    without = {name: value for name, value in given.items() if name != field}
    assert ask(model.language, **given) != ask(model.language, **without)


@pytest.mark.parametrize("field", NO_EFFECT)
def test_a_field_of_messages_has_no_effect(model: Model, field: str) -> None:
    assert ask(model.language, **{field: NO_EFFECT[field]}) == ask(model.language)


def test_sampling_reaches_the_engine(model: Model) -> None:
    asked = ask(model.language, max_tokens=7, temperature=0.5, top_p=0.9, top_k=40, cache_salt="s")
    assert asked.request.params == SamplingParams(max_tokens=7, temperature=0.5, top_p=0.9, top_k=40)
    assert dict(asked.request.needs) == {Need.CACHE_SALT: "cache_salt"}


def test_a_conversation_is_shown_as_vllm_shows_it(model: Model) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
        {"type": "text", "text": "Be ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "brief."},
    ]
    thought = [
        {"type": "thinking", "thinking": "Hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
    ]
    result = [
        {"type": "text", "text": "Here."},
        {"type": "tool_result", "tool_use_id": "t1", "is_error": False,
         "content": [{"type": "text", "text": "sunny"}, {"type": "text", "text": "21"}]},
    ]  # fmt: skip
    talk = (USER, {"role": "assistant", "content": thought}, {"role": "user", "content": result})
    assert shown(model.language, *talk, system=system) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n<think>Hm</think>Let me see."
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call><|im_end|>\n'
        "<|im_start|>tool\nsunny\n21<|im_end|>\n<|im_start|>user\nHere.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_assistants_own_last_words_are_continued(model: Model) -> None:
    assert shown(model.language, USER, {"role": "assistant", "content": "Once upon"}).endswith(
        "<|im_start|>assistant\nOnce upon"
    )
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    assert shown(model.language, USER, called).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_systems_words_in_between_come_first_where_a_template_takes_them_nowhere_else(
    model: Model, tmp_path: Any
) -> None:
    strict = build_byte_level(
        tmp_path,
        template="{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}"
        "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}",
    )
    talk = (USER, {"role": "system", "content": "Now be brief."}, USER)
    assert shown(strict.language, *talk, system="First.") == "[system]First.Now be brief.[user]Hello[user]Hello"
    assert "user\nHello<|im_end|>\n<|im_start|>system\nNow be brief." in shown(model.language, *talk)


@pytest.mark.parametrize(
    ("choice", "kind"),
    [({"type": "any"}, GuideKind.JSON_SCHEMA), ({"type": "tool", "name": "weather"}, GuideKind.JSON_SCHEMA)],
)
def test_a_call_that_has_to_be_made_is_guided(model: Model, choice: object, kind: GuideKind) -> None:
    asked = ask(model.language, tools=[TOOL], tool_choice=choice)
    assert asked.request.params.guide is not None
    assert asked.request.params.guide.kind is kind
    assert dict(asked.request.needs) == {Need.GUIDE: "tool_choice"}
    assert shown(model.language, tools=[TOOL], tool_choice=choice).endswith("<tool_call>\n")


def test_a_form_binds_the_text(model: Model) -> None:
    for given in ({"output_format": FORM}, {"output_config": {"format": FORM}}):
        guide = ask(model.language, **given).request.params.guide
        assert guide == Guide(GuideKind.JSON_SCHEMA, orjson.dumps(SCHEMA).decode())


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role", "'user'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "string or a list"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]},
         "messages.0.content.0.type", "'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
         "messages.0.content.0.type", "'thinking' here"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
         "messages.0.content.0.tool_use_id", "Missing"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": None}, "max_tokens", "Missing"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1", "empty"),
        ({"stop_sequences": ["a" * 4097]}, "stop_sequences.0", "longer than 4096"),
        ({"stop_sequences": ["a" * 4096] * 5}, "stop_sequences", "16384 characters together"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "at most 16"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens", "1024"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens", "less than 'max_tokens'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools.0.type", "'web_search_20250305'"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "tools.0.input_schema", "object"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "'tools' are given"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "Missing"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name", "not the name"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "weather"}}, "tool_choice.name", "only allowed"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
         "context_management.edits.0.type", "not supported"),
        ({"seed": 5}, "seed", "Unrecognized"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_conversation_is_named(fields: dict[str, Any], param: str, words: str) -> None:
    refused = refuse(**fields)
    assert refused.param == param
    assert words in refused.message


def test_a_picture_goes_on_unread() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    for content in ([picture], [{"type": "tool_result", "tool_use_id": "t", "content": [picture]}]):
        body = parse_body(MessagesRequest, {**BODY, "messages": [{"role": "user", "content": content}], "x": 1})
        assert body.relay_field is not None
        assert body.relay_field.endswith(".type")
        assert dict(body.needs()) == {Need.RELAY: body.relay_field}


def test_tokens_are_counted_however_many_there_are(model: Model) -> None:
    counted = orjson.loads(count_tokens({"model": "tiny", "messages": [USER], "system": "x"}, model.language))
    assert counted == {"input_tokens": len(ask(model.language, system="x").request.prompt)}
    long = {"role": "user", "content": "hello " * model.language.context_length}
    assert orjson.loads(count_tokens({"model": "tiny", "messages": [long]}, model.language))["input_tokens"] > 1000
    with pytest.raises(ContextLengthExceeded):
        ask(model.language, long)
    with pytest.raises(InvalidRequest, match="max_tokens"):
        parse_body_of_count({"max_tokens": 5})


def parse_body_of_count(more: Mapping[str, object]) -> None:
    count_tokens({"model": "tiny", "messages": [USER], **more}, None)  # type: ignore[arg-type]  # it is refused before


def test_every_field_of_the_prompt_counts_too() -> None:
    assert set(CountRequest.model_fields) < set(MessagesRequest.model_fields)


def test_one_call_is_shown_where_others_were_not_to_be_made(model: Model) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    one, several = (ask(model.language, tools=[TOOL], **more) for more in ({"tool_choice": choice}, {}))
    assert one.presenter != several.presenter
    assert replace(one, presenter=several.presenter) == several


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


def write(model: Model, asked: Generations, written: str, reason: FinishReason = FinishReason.STOP) -> bytes:
    """The bytes of an answer whose tokens, one at a time, are those of `written`."""
    parts, recorded = asked.choice(0, asked.group()), Recorded()
    sink = Choice(parts.decoder, parts.frames, recorded, parts.details)
    for token_id in model.encode(written):
        sink.tokens([token_id])
    sink.finish(reason)
    return b"".join(recorded.puts)


def read(raw: bytes, *, stream: bool) -> dict[str, Any]:
    return fold_message(read_named(raw)) if stream else orjson.loads(raw)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_thinking_text_and_calls_are_blocks_in_their_order(model: Model, stream: bool) -> None:
    asked = ask(model.language, tools=[TOOL], stream=stream, chat_template_kwargs={"enable_thinking": True})
    answered = read(write(model, asked, f"Hm, é</think>Let me see.{CALL}"), stream=stream)
    thought, said, called = answered["content"]
    assert thought == {"type": "thinking", "thinking": "Hm, é", "signature": "r1"}
    assert said == {"type": "text", "text": "Let me see."}
    assert (called["name"], called["input"]) == ("weather", {"city": "Rome"})
    assert answered["stop_reason"] == "tool_use"
    back = shown(model.language, USER, {"role": "assistant", "content": answered["content"]})
    assert "<think>Hm, é</think>Let me see.<tool_call>" in back


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("written", "reason", "ended"),
    [
        ("Paris.", FinishReason.STOP, ("end_turn", None)),
        ("Paris", FinishReason.LENGTH, ("max_tokens", None)),
        ("Paris END more", FinishReason.STOP, ("stop_sequence", "END")),
        (CALL[:-30], FinishReason.LENGTH, ("max_tokens", None)),
        (f"{CALL}END", FinishReason.STOP, ("tool_use", None)),
        (f"{CALL[:40]}END", FinishReason.STOP, ("stop_sequence", "END")),
        ("", FinishReason.STOP, ("end_turn", None)),
    ],
)
def test_why_an_answer_ended(
    model: Model, stream: bool, written: str, reason: FinishReason, ended: tuple[str, str | None]
) -> None:
    asked = ask(model.language, tools=[TOOL], stop_sequences=["END"], stream=stream)
    answered = read(write(model, asked, written, reason), stream=stream)
    assert (answered["stop_reason"], answered["stop_sequence"]) == ended
    assert answered["content"]


def test_a_stream_that_fails_says_so(model: Model) -> None:
    frames = ask(model.language, stream=True).choice(0, ask(model.language).group()).frames
    begun = frames.text("Pa")
    *_, last = read_named(frames.open() + begun + frames.fail(BackendLost("gone")))
    assert last == {"type": "error", "error": {"type": "api_error", "message": "gone"}}
