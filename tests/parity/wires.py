"""Sixty requests each of Messages and of Responses, and what of their answers has to be the same everywhere.

In: the reference model's conversations. Out: bodies, and gists of whole or streamed answers. Knows no server.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from deploy.stacks import MODEL
from tests.named_events import Json, fold_message, fold_response, read_named
from tests.reference_world import CITY_SCHEMA, GET_WEATHER, MULTIPLY, SYSTEMS, Message, conversations

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
MAX_TOKENS = 40
PLAIN = 38  # conversations without tools; the others are below
CITIES = ("Oslo", "Rome", "Cairo", "Paris", "Lima")


@dataclass(frozen=True, slots=True)
class Ask:
    """`tools`: in a chat's form. `choice`: a word of chats, or a tool's name. `schema`: what the text has to match."""

    name: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] = ()
    choice: str | None = None
    schema: Mapping[str, object] | None = None
    max_tokens: int = MAX_TOKENS

    @property
    def is_forced(self) -> bool:
        return self.choice not in {None, "auto", "none"}

    def body(self, path: str) -> Json:
        return _as_messages(self) if path == MESSAGES else _as_responses(self)


@dataclass(frozen=True, slots=True)
class Gist:
    """What the client reads: `calls` by name, with their arguments as JSON. `ended`: in the wire's own words."""

    text: str
    calls: tuple[tuple[str, str], ...]
    ended: str
    prompt_tokens: int
    completion_tokens: int


def list_asks() -> tuple[Ask, ...]:
    return (*_plain(), *_with_tools(), *_others())


def _plain() -> Iterator[Ask]:
    for number, one in enumerate(conversations(seed=26, count=PLAIN)):
        yield Ask(f"conversation {number}", one.messages[:-1])


def _with_tools() -> Iterator[Ask]:
    both = (GET_WEATHER, MULTIPLY)
    for city in CITIES:
        yield Ask(f"weather in {city}", [_user(f"What is the weather in {city}?")], both)
    for one, other in (("Rome", "Cairo"), ("Oslo", "Lima")):
        yield Ask(
            f"weather in {one} and {other}", [_user(f"What is the weather in {one} and {other}?")], both, max_tokens=60
        )
    yield Ask("a product", [_user("What is 6 times 7?")], both)
    yield Ask("no tool needed", [_user("What is the capital of Chile?")], both)
    yield Ask("tools and a system", [{"role": "system", "content": SYSTEMS[0]}, _user("What is 12 + 30?")], both)
    yield Ask("a result", _told("Rome", "rainy", 9), both)
    yield Ask("a result and another question", [*_told("Oslo", "sunny", 21), *_asked_again()], both)
    yield Ask("tools that may not be called", [_user("Hello!")], both, choice="none")
    yield Ask("some call", [_user("What is the weather in Oslo?")], both, choice="required")
    yield Ask("a named call", [_user("What is the weather in Rome?")], both, choice="get_weather")


def _others() -> Iterator[Ask]:
    rng = random.Random(7)
    yield Ask("by a schema", [_user("What is the capital of Japan? Answer in JSON.")], schema=CITY_SCHEMA)
    yield Ask("cut off", [_user("Tell me a story.")], max_tokens=9)
    yield Ask("a call that is cut off", [_user("What is the weather in Cairo?")], (GET_WEATHER,), max_tokens=14)
    yield Ask("more than there is room for", [_user("Count to 20.")], max_tokens=100_000)
    yield Ask("a system alone before", [{"role": "system", "content": rng.choice(SYSTEMS)}, _user("Hi")])
    yield Ask("two of the user's in a row", [_user("Hello!"), _user("What is the capital of Peru?")])
    yield Ask("nasty text", [_user('quote " \\ newline \n tab \t 🙂 <|im_start|> </think>')])


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _told(city: str, sky: str, celsius: int) -> list[Message]:
    call = {"id": "call_1", "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}  # fmt: skip
    result = json.dumps({"city": city, "sky": sky, "celsius": celsius})
    return [
        _user(f"What is the weather in {city}?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": result},
    ]


def _asked_again() -> list[Message]:
    return [{"role": "assistant", "content": "It is sunny in Oslo, 21 degrees."}, _user("Name two colours.")]


def _as_messages(ask: Ask) -> Json:
    body: Json = {"model": MODEL, "max_tokens": ask.max_tokens, "temperature": 0.0, "messages": []}
    for message in ask.messages:
        match message:
            case {"role": "system", "content": text}:
                body["system"] = text
            case {"role": "assistant", "tool_calls": [{"id": call_id, "function": function}]}:
                block = {"type": "tool_use", "id": call_id, "name": function["name"],
                         "input": json.loads(function["arguments"])}  # fmt: skip
                body["messages"].append({"role": "assistant", "content": [block]})
            case {"role": "tool", "tool_call_id": call_id, "content": text}:
                result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
                body["messages"].append({"role": "user", "content": [result]})
            case _:
                body["messages"].append(message)
    if ask.tools:
        body["tools"] = [_as_own_tool(tool) for tool in ask.tools]
    if ask.choice is not None:
        words = {"none": {"type": "none"}, "required": {"type": "any"}}
        body["tool_choice"] = words.get(ask.choice, {"type": "tool", "name": ask.choice})
    if ask.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": ask.schema}}
    return body


def _as_own_tool(tool: Mapping[str, object]) -> Json:
    match tool:
        case {"function": {"name": name, "description": about, "parameters": schema}}:
            return {"name": name, "description": about, "input_schema": schema}
    raise ValueError(tool)


def _as_responses(ask: Ask) -> Json:
    body: Json = {"model": MODEL, "max_output_tokens": ask.max_tokens, "temperature": 0.0, "input": []}
    for message in ask.messages:
        match message:
            case {"role": "assistant", "tool_calls": [{"id": call_id, "function": function}]}:
                call = {"type": "function_call", "call_id": call_id, **function}
                body["input"].append(call)
            case {"role": "tool", "tool_call_id": call_id, "content": text}:
                body["input"].append({"type": "function_call_output", "call_id": call_id, "output": text})
            case _:
                body["input"].append(message)
    if ask.tools:
        body["tools"] = [{"type": "function", **_function(tool)} for tool in ask.tools]
    if ask.choice is not None:
        words = {"none", "required"}
        body["tool_choice"] = ask.choice if ask.choice in words else {"type": "function", "name": ask.choice}
    if ask.schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "city", "schema": ask.schema}}
    return body


def _function(tool: Mapping[str, object]) -> Json:
    function = tool["function"]
    assert isinstance(function, dict)
    return function


def read_gist(path: str, raw: bytes, *, stream: bool) -> Gist:
    """Of a stream the order of its events is checked."""
    if stream:
        folded = (fold_message if path == MESSAGES else fold_response)(read_named(raw))
        return find_gist(path, folded)
    return find_gist(path, orjson.loads(raw))


def find_gist(path: str, answer: Json) -> Gist:
    if path == MESSAGES:
        blocks = answer["content"]
        return Gist(
            text="".join(block["text"] for block in blocks if block["type"] == "text"),
            calls=tuple((block["name"], _sorted(block["input"])) for block in blocks if block["type"] == "tool_use"),
            ended=answer["stop_reason"],
            prompt_tokens=answer["usage"]["input_tokens"],
            completion_tokens=answer["usage"]["output_tokens"],
        )
    items = answer["output"]
    return Gist(
        text="".join(part["text"] for item in items if item["type"] == "message" for part in item["content"]),
        calls=tuple(
            (item["name"], _sorted(_read(item["arguments"]))) for item in items if item["type"] == "function_call"
        ),
        ended=answer["status"],
        prompt_tokens=answer["usage"]["input_tokens"],
        completion_tokens=answer["usage"]["output_tokens"],
    )


def _read(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _sorted(value: object) -> str:
    return json.dumps(value, sort_keys=True)
