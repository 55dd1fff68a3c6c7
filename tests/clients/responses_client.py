"""The official Python client's Responses: `create`, `stream` and `parse`; the tool loop is here."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import openai
from openai.types.responses import Response, ResponseFunctionToolCall

from tests.clients.openai_client import refused
from tests.clients.question import RESPONSES, Answer, City, Place, Question, ToolCall


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request returned: the whole response, and its text in the pieces that came."""

    response: Response
    pieces: tuple[str, ...]
    city: object = None

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        found = (item for item in self.response.output if isinstance(item, ResponseFunctionToolCall))
        return tuple(ToolCall(item.call_id, item.name, json.loads(item.arguments)) for item in found)

    @property
    def reason(self) -> str:
        if self.response.status == "incomplete":
            assert self.response.incomplete_details is not None
            assert self.response.incomplete_details.reason == "max_output_tokens"
            return "length"
        assert self.response.status == "completed"
        return "tool_calls" if self.calls else "stop"


class ResponsesClient:
    wire = RESPONSES

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
        items: list[Any] = [dict(message) for message in question.messages]  # Any: JSON, or the client's own items
        turns = [self._request(question, items)]
        while question.weather and turns[-1].calls:
            # The client's own items go back as they came, with every field that the gateway put there.
            items += turns[-1].response.output
            items += [weather_result(call, question.weather) for call in turns[-1].calls]
            turns.append(self._request(question, items))
        if question.then is not None:
            items += [*turns[-1].response.output, {"role": "user", "content": question.then}]
            turns.append(self._request(question, items))
        return turns

    def _request(self, question: Question, items: list[Any]) -> Turn:
        options: dict[str, Any] = {  # Any: the client's overloads follow no mapping
            "model": question.model,
            "input": items,
            "temperature": question.temperature,
            "tools": [{"type": "function", **tool["function"]} for tool in question.tools] or openai.omit,
            "tool_choice": choice_of(question.choice),
            "parallel_tool_calls": openai.omit if question.parallel is None else question.parallel,
            "max_output_tokens": question.max_tokens or openai.omit,
        }
        if question.as_city:
            options["text_format"] = City
        return self._stream(question, options) if question.stream else self._call(question, options)

    def _call(self, question: Question, options: Mapping[str, Any]) -> Turn:  # Any: as above
        responses = self._client.with_options(max_retries=question.retries).responses
        if question.as_city:
            parsed = responses.parse(**options)
            return Turn(parsed, (parsed.output_text,), parsed.output_parsed)
        response: Response = responses.create(**options)
        return Turn(response, (response.output_text,) if response.output_text else ())

    def _stream(self, question: Question, options: Mapping[str, Any]) -> Turn:  # Any: as above
        responses = self._client.with_options(max_retries=question.retries).responses
        with responses.stream(**options) as stream:
            events = list(stream)
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))
        last: Any = events[-1]  # Any: the client's own union of sixty events
        assert last.type in {"response.completed", "response.incomplete"}, last
        pieces = tuple(event.delta for event in events if event.type == "response.output_text.delta")
        return Turn(last.response, pieces, last.response.output_parsed if question.as_city else None)


def read_thoughts(response: Response) -> Iterable[str]:
    for item in response.output:
        if item.type == "reasoning":
            yield "".join(part.text for part in item.content or ())


def choice_of(choice: str | None) -> object:
    if choice is None:
        return openai.omit
    return choice if choice in ("auto", "required", "none") else {"type": "function", "name": choice}


def weather_result(call: ToolCall, weather: Mapping[str, str]) -> dict[str, object]:
    assert isinstance(call.arguments, dict), call
    return {"type": "function_call_output", "call_id": call.id, "output": weather[call.arguments["city"]]}


def fold(turns: list[Turn]) -> Answer:
    last = turns[-1]
    usage = last.response.usage
    assert usage is not None, "no usage"
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    return Answer(
        pieces=last.pieces,
        finish_reasons=tuple(turn.reason for turn in turns),
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        calls=tuple(call for turn in turns for call in turn.calls),
        city=None if last.city is None else City.model_validate(last.city).model_dump(),
        thoughts=tuple(read_thoughts(last.response)),
    )
