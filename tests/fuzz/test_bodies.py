"""That the generator knows the bodies: which fields it sends, and that what it takes for plausible mostly is."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from gateway.errors import InvalidRequest
from gateway.openai.chat import ChatCompletionRequest
from gateway.openai.completions import CompletionRequest
from gateway.openai.generation import Generation, parse_generation
from tests.fuzz.bodies import Document, fields, plausible

BODIES: dict[type[Generation], Document] = {
    ChatCompletionRequest: {"model": "m", "messages": [{"role": "user", "content": "Hello"}]},
    CompletionRequest: {"model": "m", "prompt": "Hello"},
}


@pytest.mark.parametrize("body_type", BODIES)
def test_every_field_is_generated_but_those_that_are_refused_or_relayed(body_type: type[Generation]) -> None:
    strategies, required = fields(body_type)
    assert required == set(BODIES[body_type])
    left_out = set(body_type.model_fields) - set(strategies)
    assert {find_reader(body_type, name) for name in left_out} == {"nobody"}


def find_reader(body_type: type[Generation], name: str) -> str:
    """Nobody for a field that no body type reads: whatever it holds is refused, or the body goes on as it came."""
    try:
        body = parse_generation(body_type, BODIES[body_type] | {name: {"some": "thing"}})
    except InvalidRequest as refused:
        return "nobody" if refused.param == name else name
    return "nobody" if body.relay_field == name else name


@pytest.mark.parametrize("body_type", BODIES)
def test_most_plausible_bodies_are_taken(body_type: type[Generation]) -> None:
    taken = Counter[bool]()

    @seed(1)
    @settings(
        max_examples=200,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(plausible(body_type))
    def take(document: Document) -> None:
        try:
            parse_generation(body_type, document)
        except InvalidRequest:
            taken[False] += 1
        else:
            taken[True] += 1

    take()
    assert taken[True] > taken.total() / 2
