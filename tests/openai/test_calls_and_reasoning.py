"""Calls and reasoning, from an engine's tokens to a client's JSON, whole and streamed: no loop, no sockets."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.core import FinishReason
from gateway.wire.body import Body
from gateway.wire.choice import Choice
from gateway.wire.translate import translate
from tests.language.small_models import Model, build_byte_level
from tests.openai.bodies import ENVELOPE, chat, text
from tests.openai.streams import fold, read_events
from tests.openai.test_choice import Recorded

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "time"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}
JSON = {"type": "json_object"}
# A template with calls in Hermes' form and an option to think; its tags of reasoning are special tokens.
THINKING = (
    "{% for t in tools or [] %}{{ t | tojson }}{# <tool_call> #}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TIME = '\n<tool_call>\n{"name": "time"}\n</tool_call>'
WITH_USAGE = {"include_usage": True, "continuous_usage_stats": True}
OWN = '{"name": "weather", "arguments": {"city": "Rome"}}'  # what is left to write of a call that has to be made
ROME = ("weather", '{"city": "Rome"}')


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return build_byte_level(tmp_path_factory.mktemp("thinker"), special=["<think>", "</think>"], template=THINKING)


def stream(model: Model, body: Body, written: str, reasoning_field: str = "reasoning") -> list[Any]:
    """The events of a streamed answer."""
    return read_events(write(model, body, written, reasoning_field))


def answer(model: Model, body: Body, written: str, reasoning_field: str = "reasoning") -> Any:  # Any: JSON
    """The one choice of an answer whose tokens, one at a time, are those of `written`."""
    raw = write(model, body, written, reasoning_field)
    whole = fold(read_events(raw), is_chat=True) if body.stream else orjson.loads(raw)
    return whole["choices"][0]


def write(model: Model, body: Body, written: str, reasoning_field: str = "reasoning") -> bytes:
    generations = translate(body, model.language, replace(ENVELOPE, reasoning_field=reasoning_field))
    parts, recorded = generations.choice(0, generations.group()), Recorded()
    sink = Choice(parts.decoder, parts.frames, recorded, parts.details)
    for token_id in [*model.encode(written), model.language.eos_token_ids[0]]:
        sink.tokens([token_id])
    sink.finish(FinishReason.STOP)
    return b"".join(recorded.puts)


def answer_twice(
    model: Model, written: str, reasoning_field: str = "reasoning", **fields: object
) -> tuple[dict[str, Any], str]:
    """The message and its `finish_reason`, the same whole and streamed; of calls name and arguments, not the id."""
    whole, streamed = (
        outline(answer(model, chat(**fields, stream=stream), written, reasoning_field)) for stream in (False, True)
    )
    assert whole == streamed
    return whole


def outline(choice: Any) -> tuple[dict[str, Any], str]:  # Any: JSON
    message = {key: value for key, value in choice["message"].items() if key not in {"role", "refusal"}}
    if "tool_calls" in message:
        message["tool_calls"] = list(name_calls(message["tool_calls"]))
    return message, choice["finish_reason"]


def name_calls(calls: list[Any]) -> Iterator[tuple[str, str]]:  # Any: JSON
    for call in calls:
        assert call["type"] == "function"
        assert len(call["id"]) == len("call_") + 24
        yield call["function"]["name"], call["function"]["arguments"]


@pytest.mark.parametrize(
    "choice", [None, "auto", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}]
)
def test_calls_that_a_model_writes_become_tool_calls(thinker: Model, choice: object) -> None:
    message, reason = answer_twice(thinker, "So.\n" + CALL + TIME, tools=TOOLS, tool_choice=choice)
    assert (message, reason) == ({"content": "So.\n", "tool_calls": [ROME, ("time", "{}")]}, "tool_calls")


def test_calls_beyond_the_one_allowed_are_left_out(thinker: Model) -> None:
    message, reason = answer_twice(thinker, CALL + TIME, tools=TOOLS, parallel_tool_calls=False)
    assert (message, reason) == ({"content": None, "tool_calls": [ROME]}, "tool_calls")


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_where_nothing_may_be_called_a_call_is_text(thinker: Model, fields: Mapping[str, Any]) -> None:
    assert answer_twice(thinker, CALL, **fields) == ({"content": CALL}, "stop")


@pytest.mark.parametrize(
    ("written", "choice", "before"), [(CALL, "auto", 0), ("So.\n" + CALL, "auto", 1), (OWN, NAMED, 0)]
)
def test_a_stream_that_begins_with_a_call_has_no_content(
    thinker: Model, written: str, choice: object, before: int
) -> None:
    body = chat(tools=TOOLS, tool_choice=choice, stream=True, stream_options=WITH_USAGE, return_token_ids=True)
    events = stream(thinker, body, written)
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    assert "role" in deltas[0]
    assert (deltas[0]["content"], len(deltas[0].get("tool_calls", []))) == (("", 0) if before else (None, 1))
    assert all(delta.get("content") for delta in deltas[1:-1] if "tool_calls" not in delta)
    assert "prompt_token_ids" in events[0]
    assert events[0]["usage"]["completion_tokens"] == 0
    assert fold(events, is_chat=True)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_a_stream_that_may_call_and_ends_at_once_is_an_empty_message(thinker: Model) -> None:
    assert answer_twice(thinker, "", tools=TOOLS) == ({"content": ""}, "stop")


@pytest.mark.parametrize(
    ("choice", "written"),
    [("required", '{"name": "wea'), ("required", '{"name": "weather", "argum'), (NAMED, ""), (NAMED, " {")],
)
def test_a_required_call_that_is_cut_off_before_it_began_leaves_no_text(
    thinker: Model, choice: object, written: str
) -> None:
    assert answer_twice(thinker, written, tools=TOOLS, tool_choice=choice)[0] == {"content": ""}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize(("effort", "before"), [("none", ""), ("high", "<think>\n\n</think>\n\n")])
def test_a_call_that_has_to_be_made_begins_in_the_prompt_as_the_model_begins_one(
    thinker: Model, choice: object, effort: str, before: str
) -> None:
    body = chat(tools=TOOLS, tool_choice=choice, reasoning_effort=effort)
    request = translate(body, thinker.language, ENVELOPE).request
    prompt = thinker.language.decode(request.prompt.token_ids, shows_special=True)
    assert prompt.endswith(f"<|im_start|>assistant\n{before}<tool_call>\n")
    assert request.params.guide is not None
    assert '"arguments"' in request.params.guide.text
    free = translate(chat(tools=TOOLS), thinker.language, ENVELOPE).request
    assert thinker.language.decode(free.prompt.token_ids, shows_special=True).endswith("<|im_start|>assistant\n")


def test_calls_that_were_required_end_with_tool_calls(thinker: Model) -> None:
    message, reason = answer_twice(thinker, OWN, tools=TOOLS, tool_choice="required")
    assert (message, reason) == ({"content": None, "tool_calls": [ROME]}, "tool_calls")


def test_the_call_of_a_named_function_ends_with_stop(thinker: Model) -> None:
    message, reason = answer_twice(thinker, OWN, tools=TOOLS, tool_choice=NAMED)
    assert (message, reason) == ({"content": None, "tool_calls": [ROME]}, "stop")


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_has_a_field_of_its_own(thinker: Model, field: str) -> None:
    message, _ = answer_twice(thinker, "<think>Hm.</think>Yes.", field)
    assert message == {"content": "Yes.", field: "Hm."}


def test_a_template_may_have_opened_the_reasoning(thinker: Model) -> None:
    thinks, does_not = (
        answer_twice(thinker, "Hm.</think>Yes.", reasoning_effort=effort)[0] for effort in ("low", "none")
    )
    assert thinks == {"content": "Yes.", "reasoning": "Hm."}
    assert "reasoning" not in does_not


@pytest.mark.parametrize(
    ("fields", "written", "expected"),
    [
        ({"response_format": JSON}, "{}", {"content": "{}"}),
        ({"structured_outputs": {"regex": "a"}}, "a", {"content": "a"}),
        ({"tools": TOOLS, "tool_choice": NAMED}, OWN, {"content": None, "tool_calls": [ROME]}),
    ],
)
def test_an_answer_that_is_held_to_a_form_has_no_reasoning(
    thinker: Model, fields: Mapping[str, Any], written: str, expected: object
) -> None:
    assert answer_twice(thinker, written, reasoning_effort="high", **fields)[0] == expected


def test_a_completion_is_all_text(thinker: Model) -> None:
    choice = answer(thinker, text(skip_special_tokens=False), "<think>Hm.</think>" + CALL)
    assert (choice["text"], choice["finish_reason"]) == ("<think>Hm.</think>" + CALL, "stop")
