"""The official Python client: `create`, `stream` and `parse`; it has no tool loop, so there is one here."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall

from tests.clients.question import CHAT, Answer, City, Place, Question, Refused, ToolCall


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request returned: the whole completion, and its text in the pieces that came."""

    completion: ChatCompletion
    pieces: tuple[str, ...]

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(read_calls(self.completion.choices[0].message.tool_calls or ()))


class OpenAIClient:
    wire = CHAT

    def __init__(self, place: Place) -> None:
        self._client = openai.OpenAI(
            base_url=f"{place.url}/v1", api_key="-", default_headers={"x-crossover-pin": place.pin}
        )

    def ask(self, question: Question) -> Answer:
        try:
            turns = self._converse(question)
        except openai.APIError as error:
            raise refused(error) from error
        return fold(turns)

    def close(self) -> None:
        self._client.close()

    def _converse(self, question: Question) -> list[Turn]:
        messages = [dict(message) for message in question.messages]
        turns = [self._request(question, messages)]
        while question.weather and turns[-1].calls:
            # The client's own object goes back as it came, with every field that the gateway put there.
            messages.append(turns[-1].completion.choices[0].message)  # type: ignore[arg-type]  # the client takes it
            messages += [weather_result(call, question.weather) for call in turns[-1].calls]
            turns.append(self._request(question, messages))
        if question.then is not None:
            messages.append(turns[-1].completion.choices[0].message)  # type: ignore[arg-type]  # as above
            messages.append({"role": "user", "content": question.then})
            turns.append(self._request(question, messages))
        return turns

    def _request(self, question: Question, messages: list[dict[str, object]]) -> Turn:
        options: dict[str, Any] = {  # Any: the client's overloads follow no mapping
            "model": question.model,
            "messages": messages,
            "temperature": question.temperature,
            "tools": list(question.tools) or openai.omit,
            "tool_choice": choice_of(question.choice),
            "parallel_tool_calls": openai.omit if question.parallel is None else question.parallel,
            "max_completion_tokens": question.max_tokens or openai.omit,
            "response_format": City if question.as_city else openai.omit,
        }
        return self._stream(question, options) if question.stream else self._call(question, options)

    def _call(self, question: Question, options: Mapping[str, Any]) -> Turn:  # Any: as above
        completions = self._client.with_options(max_retries=question.retries).chat.completions
        send = completions.parse if question.as_city else completions.create
        completion: ChatCompletion = send(**options)
        text = completion.choices[0].message.content
        return Turn(completion, (text,) if text else ())

    def _stream(self, question: Question, options: Mapping[str, Any]) -> Turn:  # Any: as above
        completions = self._client.with_options(max_retries=question.retries).chat.completions
        with completions.stream(**options, stream_options={"include_usage": True}) as stream:
            pieces = tuple(event.delta for event in stream if event.type == "content.delta" and event.delta)
            # The final completion, which is parsed, is an error where max_tokens cut the answer.
            completion = stream.get_final_completion() if question.as_city else stream.current_completion_snapshot
            return Turn(completion, pieces)


def choice_of(choice: str | None) -> object:
    if choice is None:
        return openai.omit
    if choice in ("auto", "required", "none"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def read_calls(calls: Iterable[object]) -> Iterable[ToolCall]:
    for call in calls:
        assert isinstance(call, ChatCompletionMessageFunctionToolCall), call
        yield ToolCall(call.id, call.function.name, json.loads(call.function.arguments))


def read_thoughts(completion: ChatCompletion) -> Iterable[str]:
    """The client has no field for them and keeps them as it found them."""
    thoughts = (completion.choices[0].message.model_extra or {}).get("reasoning")
    if thoughts is not None:
        yield thoughts


def weather_result(call: ToolCall, weather: Mapping[str, str]) -> dict[str, object]:
    assert isinstance(call.arguments, dict), call
    return {"role": "tool", "tool_call_id": call.id, "content": weather[call.arguments["city"]]}


def fold(turns: list[Turn]) -> Answer:
    last = turns[-1]
    usage, parsed = last.completion.usage, getattr(last.completion.choices[0].message, "parsed", None)
    assert usage is not None, "no usage"
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return Answer(
        pieces=last.pieces,
        finish_reasons=tuple(turn.completion.choices[0].finish_reason for turn in turns),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        calls=tuple(call for turn in turns for call in turn.calls),
        city=None if parsed is None else City.model_validate(parsed).model_dump(),
        thoughts=tuple(read_thoughts(last.completion)),
    )


def refused(error: openai.APIError) -> Refused:
    return Refused(type(error).__name__, getattr(error, "status_code", None), error.code, error.param, error.message)
