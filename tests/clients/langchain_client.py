"""LangChain's chat model for OpenAI's API: `invoke`, `stream`, `bind_tools` and `with_structured_output`."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import openai
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI

from tests.clients.openai_client import refused
from tests.clients.question import CHAT, Answer, City, Place, Question, ToolCall

Model = Runnable[Any, AIMessage]  # Any: whatever LangChain takes for a prompt


class LangChainClient:
    wire = CHAT

    def __init__(self, place: Place) -> None:
        self._place = place

    def ask(self, question: Question) -> Answer:
        try:
            return self._fill(question) if question.as_city else self._converse(question)
        except openai.APIError as error:  # LangChain's own errors are subclasses
            raise refused(error) from error

    def close(self) -> None:
        """LangChain shares its connections among all models."""

    def _model(self, question: Question) -> ChatOpenAI:
        return ChatOpenAI(
            base_url=f"{self._place.url}/v1",
            api_key="-",  # type: ignore[arg-type]  # a SecretStr once pydantic has read it
            model=question.model,
            temperature=question.temperature,
            max_completion_tokens=question.max_tokens,
            max_retries=question.retries,
            stream_usage=True,
            default_headers={"x-crossover-pin": self._place.pin},
        )

    def _converse(self, question: Question) -> Answer:
        model: Model = self._model(question)
        if question.tools:
            model = self._model(question).bind_tools(
                list(question.tools), tool_choice=question.choice, parallel_tool_calls=question.parallel
            )
        messages = convert_to_messages(question.messages)
        turns: list[Sequence[AIMessage]] = []
        while True:
            turns.append(request(model, messages, stream=question.stream))
            last = join(turns[-1])
            if not (question.weather and last.tool_calls):
                return fold(turns)
            messages += [last, *(weather_result(call, question.weather) for call in last.tool_calls)]

    def _fill(self, question: Question) -> Answer:
        form = self._model(question).with_structured_output(City, method="json_schema", include_raw=True)
        messages = convert_to_messages(question.messages)
        with warnings.catch_warnings():
            # Of a stream LangChain serializes the client's parsed object by a type that is not its own.
            warnings.filterwarnings("ignore", "Pydantic serializer warnings")
            parts: list[Any] = list(form.stream(messages)) if question.stream else [form.invoke(messages)]
        raw = [part["raw"] for part in parts if "raw" in part]
        city = next(part["parsed"] for part in reversed(parts) if part.get("parsed") is not None)
        answer = fold([raw])
        return Answer(
            answer.pieces,
            answer.finish_reasons,
            answer.prompt_tokens,
            answer.completion_tokens,
            city=City.model_validate(city).model_dump(),
        )


def request(model: Model, messages: list[BaseMessage], *, stream: bool) -> Sequence[AIMessage]:
    return list(model.stream(messages)) if stream else [model.invoke(messages)]


def join(parts: Sequence[AIMessage]) -> AIMessage:
    whole = parts[0]
    for part in parts[1:]:
        assert isinstance(whole, AIMessageChunk)
        joined = whole + part
        assert isinstance(joined, AIMessageChunk)
        whole = joined
    return whole


def weather_result(call: Mapping[str, Any], weather: Mapping[str, str]) -> ToolMessage:  # Any: LangChain's ToolCall
    return ToolMessage(weather[call["args"]["city"]], tool_call_id=call["id"])


def fold(turns: list[Sequence[AIMessage]]) -> Answer:
    whole = [join(parts) for parts in turns]
    usage = whole[-1].usage_metadata
    assert usage is not None, "no usage"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    calls = [call for message in whole for call in message.tool_calls]
    assert not any(message.invalid_tool_calls for message in whole)
    return Answer(
        pieces=tuple(str(part.text) for part in turns[-1] if part.text),
        finish_reasons=tuple(message.response_metadata["finish_reason"] for message in whole),
        prompt_tokens=usage["input_tokens"],
        completion_tokens=usage["output_tokens"],
        calls=tuple(ToolCall(str(call["id"]), call["name"], call["args"]) for call in calls),
    )
