"""A form beside tools: an answer is a call, or it matches the form; the model's first tokens show which it will be."""

from collections.abc import Callable

import orjson
import pytest

from gateway.core import FinishReason, GenerateRequest, Guide, GuideKind, Need
from gateway.errors import BackendLost
from gateway.language import ModelLanguage
from tests.fakes.backend import Script, Step
from tests.openai.streams import fold, read_events
from tests.serving.stack import Stack, Writer, raw_client

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["folded", "streamed"])


def begins(writer: Writer, text: str, *then: Step) -> Callable[[GenerateRequest], Script]:
    """A model that begins with `text`, and held to a form writes that."""

    def script(request: GenerateRequest) -> Script:
        return writer.script(text if request.params.guide is None else '{"a": 5}', *then)

    return script


async def ask(stack: Stack, *, stream: bool, **fields: str) -> dict[str, object]:
    async with raw_client(stack) as client:
        client.ask(stream=stream, tools=TOOLS, response_format=FORM, **fields)
        raw = (await client.answer()).body
    document = fold(read_events(raw), is_chat=True) if stream else orjson.loads(raw)
    choice: dict[str, object] = document["choices"][0]
    return choice


@STREAMED
async def test_an_answer_that_begins_as_a_call_is_one(stack: Stack, writer: Writer, *, stream: bool) -> None:
    stack.low.script = begins(writer, f"\n{CALL}")
    choice = await ask(stack, stream=stream)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert isinstance(message, dict)
    assert message["content"] is None
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert [call.request.params.guide for call in stack.low.calls] == [None]


@STREAMED
@pytest.mark.parametrize("text", ["The weather is nice.", "", "<tool", "\n"], ids=repr)
async def test_any_other_answer_begins_again_held_to_the_form(
    stack: Stack, writer: Writer, text: str, *, stream: bool
) -> None:
    stack.low.script = begins(writer, text)
    choice = await ask(stack, stream=stream)
    assert (choice["message"], choice["finish_reason"]) == (
        {"role": "assistant", "content": '{"a": 5}', "refusal": None},
        "stop",
    )
    await stack.settle()
    first, second = stack.low.calls
    assert first.request.params.guide is None
    assert second.request.params.guide == Guide(GuideKind.JSON_SCHEMA, orjson.dumps(SCHEMA).decode())
    assert first.request.prompt == second.request.prompt
    assert dict(second.request.needs) == {Need.GUIDE: "response_format"}
    if text == "The weather is nice.":  # the others had ended by themselves
        assert stack.counted("low", "begun_again")
        assert stack.counted("low", "stop")


async def test_usage_counts_what_is_shown(stack: Stack, writer: Writer) -> None:
    stack.low.script = begins(writer, "The weather is nice.")
    async with raw_client(stack) as client:
        client.ask(stream=False, tools=TOOLS, response_format=FORM)
        usage = orjson.loads((await client.answer()).body)["usage"]
    assert usage["completion_tokens"] == len(writer.ids('{"a": 5}')) + 1


async def test_an_engine_that_is_lost_before_it_is_known_is_replaced(stack: Stack, writer: Writer) -> None:
    stack.low.script = writer.script("<tool", BackendLost("gone"))
    stack.high.script = writer.script(CALL.removeprefix("<tool"))
    choice = await ask(stack, stream=True)
    assert choice["finish_reason"] in {"tool_calls", "stop"}
    assert len(stack.high.calls) >= 1


async def test_a_required_call_is_made_whatever_the_form_is(
    stack: Stack, writer: Writer, language: ModelLanguage
) -> None:
    stack.low.script = writer.script('{"name": "weather", "arguments": {}}\n</tool_call>', FinishReason.STOP)
    choice = await ask(stack, stream=False, tool_choice="required")
    assert choice["finish_reason"] == "tool_calls"
