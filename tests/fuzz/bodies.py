"""Bodies of generated requests: plausible ones by the body types' own JSON schemas, and damaged ones.

A field that a body type gains is generated from then on, by its type; MEANT has those whose type alone is too loose.
"""

from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from copy import deepcopy
from functools import cache
from typing import Any, TypeAlias

from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from deploy.stacks import MODEL
from tests.fuzz.from_schema import values
from tests.fuzz.guides import any_schema, formats, names, structures
from tests.fuzz.hostile import Strategy, anything, atoms, often, texts
from tests.reference_world import GET_WEATHER, MULTIPLY

Document: TypeAlias = dict[str, Any]  # Any: JSON, of whatever type
Parent: TypeAlias = MutableMapping[Any, Any] | MutableSequence[Any]  # Any: JSON

VOCABULARY = 1024
MOST_TOKENS = 64  # of all choices of a plausible request together: what is tested is not how fast the engines are


class _Lenient(GenerateJsonSchema):
    """Says nothing of what is validated by code alone."""

    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        return {}


# What a person or a program would send, so that most requests reach an engine.

known: Strategy = st.sampled_from((
    "Hello", "What is the capital of France?", "12 + 30", "Count from one to ten.", "What is the weather in Paris?",
    "What is 6 times 7?", "Say hello in Japanese.", "Show me a smile.", "Tell me a story.",
    "The capital of Japan as JSON.",
))  # fmt: skip
questions: Strategy = often((4, known), (2, st.text(min_size=1, max_size=30)), (1, texts))
parts: Strategy = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": questions}), min_size=1, max_size=3)
contents: Strategy = often((3, questions), (1, parts))
calls: Strategy = st.lists(
    st.fixed_dictionaries({
        "id": names,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({
            "name": names,
            "arguments": st.sampled_from(('{"city": "Paris"}', "{}", "", '{"a": [1, null, "é"]}')),
        }),
    }),
    min_size=1,
    max_size=2,
)
messages: Strategy = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": contents}, optional={"name": names}),
    st.fixed_dictionaries({"role": st.sampled_from(("system", "developer")), "content": contents}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": contents}, optional={"reasoning": questions}),
    st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": calls}, optional={"content": st.none()}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": contents, "tool_call_id": names}),
)
conversations: Strategy = often(
    (1, questions.map(lambda question: [{"role": "user", "content": question}])),
    (1, st.lists(messages, min_size=1, max_size=4)),
)
token_ids: Strategy = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)
prompts: Strategy = st.one_of(
    questions, token_ids, st.lists(questions, min_size=1, max_size=3), st.lists(token_ids, min_size=1, max_size=3)
)
tools: Strategy = st.lists(
    st.one_of(
        st.sampled_from((GET_WEATHER, MULTIPLY)),
        st.builds(
            lambda function: {"type": "function", "function": function},
            st.fixed_dictionaries(
                {"name": names}, optional={"parameters": any_schema, "description": questions, "strict": st.booleans()}
            ),
        ),
    ),
    min_size=1,
    max_size=3,
)
MEANT: Mapping[str, Strategy] = {
    "model": st.just(MODEL),
    "messages": conversations,
    "prompt": prompts,
    "max_tokens": st.integers(1, 8),
    "max_completion_tokens": st.integers(1, 8),
    "min_tokens": st.integers(0, 3),
    "n": st.sampled_from((1, 2, 3, 8)),
    "stop": st.one_of(questions, st.lists(questions, max_size=4), st.sampled_from((" ", ".", "e", "the"))),
    "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=5),
    "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1).map(str), st.floats(-100, 100), max_size=4),
    "stream_options": st.fixed_dictionaries(
        {}, optional={"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}
    ),
    "tools": tools,
    "tool_choice": st.one_of(
        st.sampled_from(("none", "auto", "required")),
        names.map(lambda name: {"type": "function", "function": {"name": name}}),
        st.just({"type": "function", "function": {"name": "get_weather"}}),
    ),
    "response_format": formats,
    "structured_outputs": structures,
    "chat_template_kwargs": st.dictionaries(names, anything, max_size=3),
    "tokens": token_ids,
}
blocks: Strategy = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": questions}), min_size=1, max_size=3)
spoken: Strategy = often((3, questions), (1, blocks))
results: Strategy = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": names}, optional={"content": spoken, "is_error": st.booleans()}
)
uses: Strategy = st.one_of(
    st.fixed_dictionaries({
        "type": st.just("tool_use"), "id": names, "name": names,
        "input": st.dictionaries(names, texts, max_size=2),
    }),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": questions}, optional={"signature": names}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": names}),
)  # fmt: skip
turns: Strategy = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(("user", "system")), "content": spoken}),
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(results, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": spoken}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.lists(uses, min_size=1, max_size=2)}),
)
input_parts: Strategy = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(("input_text", "output_text")), "text": questions}), max_size=2
)
items: Strategy = st.one_of(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(("user", "system", "developer", "assistant")),
            "content": often((3, questions), (1, input_parts)),
        },
        optional={"type": st.just("message"), "status": st.sampled_from(("completed", "incomplete"))},
    ),
    st.fixed_dictionaries({
        "type": st.just("function_call"), "call_id": names, "name": names,
        "arguments": st.sampled_from(('{"city": "Paris"}', "{}", "", "[")),
    }),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": names, "output": questions}),
    st.fixed_dictionaries({
        "type": st.just("reasoning"), "summary": st.just([]),
        "content": st.lists(st.fixed_dictionaries({"type": st.just("reasoning_text"), "text": questions}), max_size=2),
    }),
)  # fmt: skip
schemas: Strategy = st.fixed_dictionaries({"type": st.just("json_schema"), "schema": any_schema})
own_tools: Strategy = st.lists(
    st.fixed_dictionaries(
        {"name": names, "input_schema": any_schema}, optional={"description": questions, "strict": st.booleans()}
    ),
    min_size=1,
    max_size=3,
)
WEATHER: Any = GET_WEATHER["function"]  # Any: JSON
OWN_WEATHER = {"name": WEATHER["name"], "input_schema": WEATHER["parameters"]}
# What one endpoint means by a name of others.
MEANT_BY: Mapping[str, Mapping[str, Strategy]] = {
    "Conversation": {
        "messages": often((1, questions.map(lambda text: [{"role": "user", "content": text}])),
                          (1, st.lists(turns, min_size=1, max_size=4))),
        "system": spoken,
        "tools": own_tools,
        "tool_choice": st.sampled_from((
            {"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "get_weather"},
        )),
        "output_config": st.fixed_dictionaries({}, optional={"effort": st.just("low"), "format": schemas}),
        "output_format": schemas,
        "stop_sequences": st.lists(questions.filter(bool), max_size=4),
        "context_management": st.just({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
    },
    "ResponsesRequest": {
        "input": often((1, questions), (1, st.lists(items, min_size=1, max_size=4))),
        "tools": tools.map(lambda offered: [{"type": "function", **tool["function"]} for tool in offered]),
        "tool_choice": st.sampled_from(("none", "auto", "required", {"type": "function", "name": "get_weather"})),
        "text": st.fixed_dictionaries({}, optional={"format": schemas, "verbosity": st.just("low")}),
        "max_output_tokens": st.integers(1, 8),
    },
}  # fmt: skip
# With what else a field is allowed.
COMPANIONS: Mapping[str, Document] = {
    "best_of": {"best_of": 2, "n": 2},
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "tool_choice": {"tools": [GET_WEATHER, MULTIPLY]},
}
COMPANIONS_BY: Mapping[str, Mapping[str, Document]] = {
    "Conversation": {"tool_choice": {"tools": [OWN_WEATHER]}},
    "ResponsesRequest": {
        "tool_choice": {"tools": [{"type": "function", **WEATHER}]},
        "top_logprobs": {"include": ["message.output_text.logprobs"]},
    },
}


@cache
def fields(body_type: type[BaseModel]) -> tuple[Mapping[str, Strategy], frozenset[str]]:
    """What each field of a body type may hold, those left out of which nothing is known; and which are required."""
    schema = body_type.model_json_schema(schema_generator=_Lenient)
    by_type = {name: values(inner, schema.get("$defs", {})) for name, inner in schema["properties"].items()}
    meant = dict(MEANT)
    for kind in body_type.__mro__:
        meant |= MEANT_BY.get(kind.__name__, {})
    strategies = {name: meant.get(name, strategy) for name, strategy in by_type.items() if strategy is not None}
    if schema["properties"].get("prompt", {}).get("type") == "string":  # of /tokenize
        strategies["prompt"] = questions
    return strategies, frozenset(schema.get("required", ())) | {"model"}


@st.composite
def plausible(draw: st.DrawFn, body_type: type[BaseModel]) -> Document:
    strategies, required = fields(body_type)
    optional = sorted(set(strategies) - required)
    more = draw(st.lists(st.sampled_from(optional), unique=True, max_size=5)) if optional else []
    limit = "max_tokens" if "max_tokens" in strategies else "max_output_tokens"
    if limit in strategies and draw(st.integers(0, 99)) < 99:
        more.append(limit)
    document = {name: draw(strategies[name]) for name in sorted({*required, *more})}
    found = dict(COMPANIONS)
    for kind in body_type.__mro__:
        found |= COMPANIONS_BY.get(kind.__name__, {})
    for name, companions in found.items():
        if name in document and draw(st.integers(0, 9)):
            document |= companions
    return _bound(document)


def _bound(document: Document) -> Document:
    """A request is for some tokens, however many choices it makes of them."""
    prompts, n = document.get("prompt"), document.get("n", 1)
    count = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    if isinstance(n, int) and n * count > 1:
        for name in ("max_tokens", "max_completion_tokens"):
            if name in document or name == "max_tokens":
                document[name] = max(1, MOST_TOKENS // (8 * n * count))
    return document


# What happens to a body.


@st.composite
def damaged(draw: st.DrawFn, whole: Strategy, names: Sequence[str], most: int = 3) -> Document:
    """With up to so many things replaced, left out, or added, maybe under one of `names`."""
    document: Document = deepcopy(draw(whole))
    for _ in range(draw(st.integers(1, most))):
        places = list(_places(document))
        if not places:
            break
        parent, key = draw(st.sampled_from(places))
        _damage(draw, parent, key, st.one_of(texts, st.sampled_from(names)))
    if "max_tokens" in names and document.get("max_tokens") is None:
        document["max_tokens"] = 1  # as in _bound
    if "max_output_tokens" in names and document.get("max_output_tokens") is None:
        document["max_output_tokens"] = 1
    return document


def _places(value: object) -> Iterator[tuple[Parent, Any]]:  # Any: an index, or a name
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _damage(draw: st.DrawFn, parent: Parent, key: Any, names: Strategy) -> None:  # Any: an index, or a name
    match draw(st.sampled_from(("without", "more", "other", "other", "other"))):
        case "without":
            del parent[key]
        case "more" if isinstance(parent, MutableSequence):
            parent.insert(key, draw(anything))
        case "more":
            parent[draw(names)] = draw(anything)
        case _:
            parent[key] = draw(_instead_of(parent[key]))


def _instead_of(value: object) -> Strategy:
    return st.one_of(atoms, anything, st.just([value]), texts.map(lambda name: {name: value}), st.just(str(value)))
