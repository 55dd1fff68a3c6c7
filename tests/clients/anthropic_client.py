"""Anthropic's official Python client: `create`, `stream` and `parse`; the tool loop is here."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anthropic
from anthropic.types import Message, ToolUseBlock
from pydantic import BaseModel

from tests.clients.question import MESSAGES, Answer, City, Place, Question, Refused, ToolCall

MAX_TOKENS = 800
COUNTED = {"model", "messages", "system", "tools", "tool_choice"}
REASONS = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request returned: the whole message, and its text in the pieces that came. `counted`: before it."""

    message: Message
    pieces: tuple[str, ...]
    city: BaseModel | None = None
    counted: int | None = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        blocks = (block for block in self.message.content if isinstance(block, ToolUseBlock))
        return tuple(ToolCall(block.id, block.name, block.input) for block in blocks)


class AnthropicClient:
    wire = MESSAGES

    def __init__(self, place: Place) -> None:
        self._client = anthropic.Anthropic(
            base_url=place.url, api_key="-", default_headers={"x-crossover-pin": place.pin}
        )

    def ask(self, question: Question) -> Answer:
        try:
            turns = self._converse(question)
        except anthropic.APIError as error:
            raise refused(error) from error
        return fold(turns)

    def close(self) -> None:
        self._client.close()

    def _converse(self, question: Question) -> list[Turn]:
        messages = [dict(message) for message in question.messages if message["role"] != "system"]
        turns = [self._request(question, messages)]
        while question.weather and turns[-1].calls:
            # The client's own blocks go back as they came, with every field that the gateway put there.
            messages.append({"role": "assistant", "content": turns[-1].message.content})
            results = [weather_result(call, question.weather) for call in turns[-1].calls]
            messages.append({"role": "user", "content": results})
            turns.append(self._request(question, messages))
        if question.then is not None:
            messages.append({"role": "assistant", "content": turns[-1].message.content})
            messages.append({"role": "user", "content": question.then})
            turns.append(self._request(question, messages))
        return turns

    def _request(self, question: Question, messages: list[dict[str, Any]]) -> Turn:
        options: dict[str, Any] = {  # Any: the client's overloads follow no mapping
            "model": question.model,
            "messages": messages,
            "max_tokens": question.max_tokens or MAX_TOKENS,
            "extra_body": {"temperature": question.temperature},  # which the newest models have no more
        }
        system = [message["content"] for message in question.messages if message["role"] == "system"]
        if system:
            options["system"] = system[0]
        if question.tools:
            options["tools"] = [read_tool(tool) for tool in question.tools]
        if (choice := choice_of(question)) is not None:
            options["tool_choice"] = choice
        counted = self._client.messages.count_tokens(**keep(options, COUNTED)).input_tokens if question.counts else None
        if question.thinks:
            options["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if question.as_city:
            options["output_format"] = City
        turn = self._stream(question, options) if question.stream else self._call(question, options)
        return replace(turn, counted=counted)

    def _call(self, question: Question, options: Mapping[str, Any]) -> Turn:  # Any: as above
        messages = self._client.with_options(max_retries=question.retries).messages
        if question.as_city:
            parsed = messages.parse(**options)
            return Turn(parsed, read_texts(parsed), parsed.parsed_output)
        message = messages.create(**options)
        return Turn(message, read_texts(message))

    def _stream(self, question: Question, options: Mapping[str, Any]) -> Turn:  # Any: as above
        messages = self._client.with_options(max_retries=question.retries).messages
        with messages.stream(**options) as stream:
            pieces = tuple(stream.text_stream)
            message = stream.get_final_message()
            return Turn(message, pieces, message.parsed_output if question.as_city else None)


def keep(options: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:  # Any: as above
    return {name: value for name, value in options.items() if name in names}


def read_texts(message: Message) -> tuple[str, ...]:
    return tuple(block.text for block in message.content if block.type == "text" and block.text)


def read_tool(tool: Mapping[str, Any]) -> dict[str, object]:  # Any: JSON
    function = tool["function"]
    return {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}


def choice_of(question: Question) -> dict[str, object] | None:
    if question.choice is None and question.parallel is None:
        return None
    words: dict[str | None, dict[str, object]] = {
        None: {"type": "auto"}, "auto": {"type": "auto"}, "none": {"type": "none"}, "required": {"type": "any"}
    }  # fmt: skip
    choice = words.get(question.choice) or {"type": "tool", "name": question.choice}
    return choice if question.parallel is None else {**choice, "disable_parallel_tool_use": not question.parallel}


def weather_result(call: ToolCall, weather: Mapping[str, str]) -> dict[str, object]:
    assert isinstance(call.arguments, dict), call
    return {"type": "tool_result", "tool_use_id": call.id, "content": weather[call.arguments["city"]]}


def fold(turns: list[Turn]) -> Answer:
    last = turns[-1]
    return Answer(
        pieces=last.pieces,
        finish_reasons=tuple(REASONS[str(turn.message.stop_reason)] for turn in turns),
        prompt_tokens=last.message.usage.input_tokens,
        completion_tokens=last.message.usage.output_tokens,
        calls=tuple(call for turn in turns for call in turn.calls),
        city=None if last.city is None else City.model_validate(last.city).model_dump(),
        counted=last.counted,
        thoughts=tuple(block.thinking for block in last.message.content if block.type == "thinking"),
    )


def refused(error: anthropic.APIError) -> Refused:
    body = error.body if isinstance(error.body, dict) else {}
    shown = body.get("error", {})
    status = getattr(error, "status_code", None)
    status = None if status == 200 else status  # a stream's that failed
    return Refused(type(error).__name__, status, shown.get("type"), None, shown.get("message", ""))
