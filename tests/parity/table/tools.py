"""Functions that a model may call, `tool_choice`, and earlier calls with their results."""

import json

from tests.parity.case import SAME, Case, OnlyVLLM, Same, chat, drawn_greedily, not_in_vllm, system, user, with_fields
from tests.reference_world import CITY_SCHEMA, GET_WEATHER, MULTIPLY

WEATHER, TWO, PRODUCT = "What is the weather in Paris?", "What is the weather in Rome and Oslo?", "What is 12 times 34?"
TOOLS = [GET_WEATHER, MULTIPLY]
CALLED = Same(None, "tool_calls")
TAGS = "Invalid grammar specification: 'triggers'"
ROOM = 64  # tokens; a call takes some 30


def call(call_id: str, name: str, arguments: object) -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def with_arguments(written: str) -> dict[str, object]:
    """A call as a model may have written it."""
    return {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": written}}


def called(*calls: dict[str, object], content: object = None) -> dict[str, object]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(call_id: str, content: object) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def offer(name: str, asked: str | list[object], expected: Same | OnlyVLLM = CALLED, **fields: object) -> Case:
    return with_fields(chat(name, asked, expected), {"tools": TOOLS, "max_tokens": ROOM, **fields})


PARIS_CALL = call("call_1", "get_weather", {"city": "Paris"})
SUNNY = '{"city": "Paris", "sky": "sunny", "celsius": 21}'
RULES = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter in einer Stadt – é 日本",  # noqa: RUF001 - Unicode on its way through the template
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Rome"]},
                "unit": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
            },
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"Unit": {"type": "string", "enum": ["C", "F"]}},
        },
        "strict": True,
    },
}

CITY = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY_SCHEMA}}
CASES: tuple[Case, ...] = (
    offer("a form beside tools, a call", WEATHER, response_format=CITY),
    offer("a form beside tools, an answer", "What is the capital of Chile?", Same(None, "stop"), response_format=CITY),
    offer("tool call", WEATHER),
    offer("tool call of the second tool", PRODUCT),
    offer("two tool calls", TWO),
    not_in_vllm(TAGS, offer("two tool calls, one allowed", TWO, parallel_tool_calls=False)),
    not_in_vllm("tool_choice", offer("tools allowed", WEATHER, tool_choice=allowed("auto", "get_weather"))),
    not_in_vllm(
        "tool_choice", offer("tools allowed and required", WEATHER, SAME, tool_choice=allowed("required", "multiply"))
    ),
    offer("tool call after a system message", [system("Be kind and precise."), user(WEATHER)]),
    offer("tools not needed", "What is the capital of France?", Same("The capital of France is Paris.", "stop")),
    offer("tools forbidden", WEATHER, Same(None, "stop"), tool_choice="none"),
    offer("tool call cut off", WEATHER, Same(None, "length"), max_tokens=12),
    offer("tool call at a stop string", WEATHER, SAME, stop="Paris"),
    drawn_greedily(offer("tool call in every choice", WEATHER, n=2)),
    not_in_vllm(TAGS, offer("tool call with a schema with rules", WEATHER, SAME, tools=[RULES])),
    not_in_vllm(TAGS, offer("required", WEATHER, SAME, tool_choice="required")),
    not_in_vllm(TAGS, offer("named tool", WEATHER, SAME, tool_choice=named("get_weather"))),
    not_in_vllm(
        TAGS,
        offer("named tool with rules", WEATHER, Same(None, "stop"), tools=[RULES], tool_choice=named("get_weather")),
    ),
    offer("tool result", [user(WEATHER), called(PARIS_CALL), result("call_1", SUNNY)], Same(None, "stop")),
    offer(
        "two tool results",
        [
            user(TWO),
            called(
                call("call_1", "get_weather", {"city": "Rome"}),
                call("call_2", "get_weather", {"city": "Oslo"}),
            ),
            result("call_1", '{"city": "Rome", "sky": "cloudy", "celsius": 17}'),
            result("call_2", '{"city": "Oslo", "sky": "snowy", "celsius": 0}'),
        ],
        Same(None, "stop"),
    ),
    offer(
        "a call with Unicode in its arguments",
        [user(WEATHER), called(call("call_1", "get_weather", {"city": "Zürich 日本"})), result("call_1", SUNNY)],
        Same(None, "stop"),
    ),
    *(
        offer(
            f"a call with {what} in place of arguments",
            [user(WEATHER), called(with_arguments(written)), result("call_1", SUNNY)],
            Same(None, "stop"),
        )
        for what, written in {"nothing": "", "half an object": '{"city": "Pa', "an array": "[1]"}.items()
    ),
    offer("log-probabilities of a tool call", WEATHER, OnlyVLLM("logprobs", "logprobs"), logprobs=True, top_logprobs=1),
    offer("token ids of a tool call", WEATHER, return_token_ids=True),
)
