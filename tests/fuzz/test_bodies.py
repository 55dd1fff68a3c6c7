"""The generator of requests knows every field that a body type reads."""

import pytest

from gateway.anthropic.messages import MessagesRequest
from gateway.errors import InvalidRequest
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.responses import ResponsesRequest
from gateway.wire.body import Body, parse_body
from tests.fuzz.bodies import Document, fields

BODIES: dict[type[Body], Document] = {
    ChatCompletionRequest: {"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
    CompletionRequest: {"model": "m", "prompt": "Hello"},
    MessagesRequest: {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1},
    ResponsesRequest: {"model": "m", "input": "Hello"},
}


@pytest.mark.parametrize("body_type", BODIES)
def test_every_field_is_generated_but_those_that_are_refused_or_relayed(body_type: type[Body]) -> None:
    strategies, required = fields(body_type)
    assert required == set(BODIES[body_type])
    left_out = set(body_type.model_fields) - set(strategies)
    assert left_out
    assert [name for name in left_out if is_read(body_type, name)] == []


def is_read(body_type: type[Body], name: str) -> bool:
    """False for a field whose every value is refused, or makes the body go on as it came."""
    try:
        body = parse_body(body_type, BODIES[body_type] | {name: {"some": "thing"}})
    except InvalidRequest as refused:
        return refused.param != name
    return body.relay_field != name
