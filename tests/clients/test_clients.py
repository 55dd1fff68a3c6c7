"""The official clients, unchanged but for their base URL: what their users do all day, through either engine."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer

from deploy.launch import Launched
from deploy.stacks import MODEL, WEIGHTS
from tests.clients.conftest import PLACES
from tests.clients.question import CHAT, MESSAGES, RESPONSES, City, Client, Message, Question, Refused
from tests.reference_world import GET_WEATHER, MULTIPLY

COUNTING = ("anthropic-python ", "anthropic-node ")  # clients, at any place
CHILE = {"country": "Chile", "capital": "Santiago"}
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def weather(city: str, sky: str, celsius: int) -> str:
    """The tool's result, in the form that the model has learnt."""
    return json.dumps({"city": city, "sky": sky, "celsius": celsius})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(Path(WEIGHTS) / "tokenizer.json"))


def count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@STREAMED
def test_a_chat_is_answered_with_its_usage(client: Client, tokenizer: Tokenizer, *, stream: bool) -> None:
    asked, text = "What is the capital of France?", "The capital of France is Paris."
    answer = client.ask(Question([user(asked)], stream))
    assert answer.text == text
    assert answer.finish_reasons == ("stop",)
    prompt = f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"
    assert answer.prompt_tokens == count(tokenizer, prompt)
    assert answer.completion_tokens == count(tokenizer, f"{text}<|im_end|>")


@STREAMED
def test_an_earlier_conversation_and_a_system_message_are_understood(client: Client, *, stream: bool) -> None:
    messages: Sequence[Message] = (
        {"role": "system", "content": "Answer briefly."},
        user("Hi"),
        {"role": "assistant", "content": "Hello! How can I help you?"},
        user("Name three colours."),
    )
    assert client.ask(Question(messages, stream)).text == "red, orange, yellow"


@STREAMED
def test_an_answer_that_was_cut_says_so(client: Client, *, stream: bool) -> None:
    answer = client.ask(Question([user("Count to 20.")], stream, max_tokens=5))
    assert answer.finish_reasons == ("length",)
    assert answer.completion_tokens == 5
    assert "1, 2, 3, 4, 5, 6, 7".startswith(answer.text)


@STREAMED
def test_a_tool_round_trip(client: Client, *, stream: bool) -> None:
    question = Question(
        [user("What is the weather in Oslo?")],
        stream,
        tools=[GET_WEATHER, MULTIPLY],
        weather={"Oslo": weather("Oslo", "sunny", 21)},
    )
    answer = client.ask(question)
    assert [(call.name, call.arguments) for call in answer.calls] == [("get_weather", {"city": "Oslo"})]
    assert answer.text == "It is sunny in Oslo, 21 degrees."
    assert answer.finish_reasons == ("tool_calls", "stop")


@pytest.mark.parametrize("client", [place for place in PLACES if str(place.id).startswith(COUNTING)], indirect=True)
def test_a_prompt_is_counted_before_it_is_sent(client: Client) -> None:
    messages = [user("What is the weather in Oslo?")]
    results = {"Oslo": weather("Oslo", "sunny", 21)}
    answer = client.ask(Question(messages, tools=[GET_WEATHER, MULTIPLY], weather=results, counts=True))
    assert answer.counted == answer.prompt_tokens > 100


@STREAMED
def test_a_round_trip_with_two_calls_in_one_answer(client: Client, *, stream: bool) -> None:
    question = Question(
        [user("What is the weather in Rome and Cairo?")],
        stream,
        tools=[GET_WEATHER],
        weather={"Rome": weather("Rome", "rainy", 9), "Cairo": weather("Cairo", "windy", 33)},
    )
    answer = client.ask(question)
    assert [call.arguments for call in answer.calls] == [{"city": "Rome"}, {"city": "Cairo"}]
    assert len({call.id for call in answer.calls}) == 2
    assert answer.text == "It is rainy in Rome, 9 degrees. It is windy in Cairo, 33 degrees."
    assert answer.finish_reasons == ("tool_calls", "stop")


@STREAMED
def test_a_tool_that_is_named_is_called(client: Client, *, stream: bool) -> None:
    """With tool_choice left out, the model answers with a sentence."""
    asked = [user("What is the capital of Chile?")]
    answer = client.ask(Question(asked, stream, tools=[MULTIPLY, GET_WEATHER], choice="get_weather"))
    (call,) = answer.calls
    assert isinstance(call.arguments, dict)
    assert (call.name, set(call.arguments)) == ("get_weather", {"city"})
    # Only OpenAI's chats end a call that was named with another word than one that was chosen.
    assert (answer.text, answer.finish_reasons) == ("", ("stop" if client.wire == CHAT else "tool_calls",))


@STREAMED
def test_some_tool_is_called_where_one_must_be(client: Client, *, stream: bool) -> None:
    question = Question([user("What is the weather in Oslo?")], stream, tools=[GET_WEATHER, MULTIPLY], max_tokens=40)
    answer = client.ask(replace(question, choice="required", parallel=False))
    assert [(call.name, call.arguments) for call in answer.calls] == [("get_weather", {"city": "Oslo"})]
    assert answer.text == ""


@STREAMED
def test_an_answer_by_json_schema(client: Client, *, stream: bool) -> None:
    """Asked for no JSON, the model writes a sentence; only the engine's guide makes it an object."""
    answer = client.ask(Question([user("What is the capital of Chile?")], stream, as_city=True))
    assert isinstance(answer.city, dict)
    assert set(answer.city) == {"country", "capital"}
    assert answer.finish_reasons == ("stop",)


@STREAMED
def test_a_form_beside_tools(request: pytest.FixtureRequest, client: Client, *, stream: bool) -> None:
    """No tool is of use here, so the answer has the form; asked for no JSON, the model writes a sentence."""
    if "ai-sdk-anthropic" in request.node.name:
        pytest.skip("of a model that it does not know this client wants a call in the form's place")
    asked = [user("What is the capital of Chile?")]
    function: Any = GET_WEATHER["function"]  # Any: JSON
    schema = {**function["parameters"], "additionalProperties": False}
    strict = {"type": "function", "function": {**function, "strict": True, "parameters": schema}}
    answer = client.ask(Question(asked, stream, tools=[strict], as_city=True))
    assert answer.calls == ()
    assert isinstance(answer.city, dict)
    assert set(answer.city) == {"country", "capital"}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own, of what it parsed itself
def test_a_parsed_answer_goes_back_as_it_came(embedded_stack: Launched) -> None:
    """The Python client leaves what it parsed in the message that its users append to the next request."""
    with openai.OpenAI(base_url=f"{embedded_stack.url}/v1", api_key="-") as client:
        asked: list[Any] = [user("What is the capital of Chile? Answer in JSON.")]
        parsed = client.chat.completions.parse(model=MODEL, messages=asked, temperature=0, response_format=City)
        asked += [parsed.choices[0].message, user("Name two colours.")]
        answer = client.chat.completions.create(model=MODEL, messages=asked, temperature=0)
    assert parsed.choices[0].message.parsed == City(**CHILE)
    assert answer.choices[0].message.content == "red, orange"


PLAIN = Question([user("Hi")])
LONG = replace(PLAIN, messages=[user("hello " * 2000)])
# The classes are those of each client's own documentation. LangChain has one for prompts that are too long, which its
# agents shorten; it knows them by OpenAI's own words in the message.
REFUSALS = {
    "a bad value": (
        replace(PLAIN, temperature=9),
        (400, "invalid_value", "temperature"),
        ("BadRequestError", "OpenAIInvalidRequestError", "AI_APICallError"),
    ),
    "an unknown model": (
        replace(PLAIN, model="gpt-9"),
        (404, "model_not_found", "model"),
        ("NotFoundError", "OpenAIModelNotFoundError", "AI_APICallError"),
    ),
    "too long a prompt": (
        LONG,
        (400, "context_length_exceeded", "messages"),
        ("BadRequestError", "OpenAIContextOverflowError", "AI_APICallError"),
    ),
}


@STREAMED
@pytest.mark.parametrize(("question", "refusal", "names"), REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_the_clients_own_error_with_the_field(
    request: pytest.FixtureRequest,
    client: Client,
    question: Question,
    refusal: tuple[int, str, str],
    names: Sequence[str],
    *,
    stream: bool,
) -> None:
    if "ai-sdk-anthropic" in request.node.name and refusal[2] == "temperature":
        pytest.skip("this client sends no temperature above 1")
    with pytest.raises(Refused) as caught:
        client.ask(replace(question, stream=stream))
    error, (status, code, param) = caught.value, refusal
    assert error.error in names
    assert error.status == status
    if client.wire == MESSAGES:  # whose errors have no field of their own for the parameter
        assert error.code == {400: "invalid_request_error", 404: "not_found_error"}[status]
        assert param in error.message
        return
    param = "input" if client.wire == RESPONSES and param == "messages" else param
    assert (error.code, error.param) == (code, param)
    assert param in error.message
