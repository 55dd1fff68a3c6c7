"""How long a step takes, as tables."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from engines.physics import EngineModel

ENGINE = EngineModel(
    ((1, 4.0), (9, 6.0)),
    context_ms=0.5,
    prompt_ms=10.0,
    attention_ms=1.0,
    eager_ms=20.0,
    mixed_ms=8.0,
    graph_tokens=100,
)


@pytest.mark.parametrize(
    ("sequences", "context", "prompt_tokens", "squared", "ms"),
    [
        (1, 0, 0, 0.0, 4.0),
        (5, 0, 0, 0.0, 5.0),
        (17, 0, 0, 0.0, 8.0),  # the last line goes on
        (0.2, 0, 0, 0.0, 4.0),
        (5, 2000, 0, 0.0, 6.0),
        (5, 2000, 50, 2500.0, 8.0),  # less than a captured step with prompt tokens takes
        (5, 8000, 90, 0.0, 9.9),
        (5, 0, 96, 0.0, 20.0),  # 101 tokens: no graph is so large
        (5, 0, 3000, 9e6, 44.0),
    ],
)
def test_a_step_takes_what_it_holds_needs_but_no_less_than_its_floor(
    sequences: float, context: float, prompt_tokens: float, squared: float, ms: float
) -> None:
    assert ENGINE.step_ms(sequences, context, prompt_tokens, squared) == pytest.approx(ms)


def test_verified_tokens_count_towards_the_largest_graph() -> None:
    speculating = EngineModel(((1, 4.0),), eager_ms=30.0, verified=4, graph_tokens=512)
    assert speculating.step_ms(128, 0) == 4.0
    assert speculating.step_ms(129, 0) == 30.0


def test_decoding_and_prefill_have_scales_of_their_own() -> None:
    scaled = ENGINE.scaled(2.0, 3.0)
    assert scaled.step_ms(5, 2000) == pytest.approx(12.0)
    assert scaled.step_ms(5, 0, 96) == pytest.approx(60.0)
    assert ENGINE.slowed(10.0).step_ms(5, 2000, 3000, 9e6) == pytest.approx(10 * ENGINE.step_ms(5, 2000, 3000, 9e6))


READ = TypeAdapter(EngineModel).validate_python


def test_json_and_back() -> None:
    assert READ(json.loads(json.dumps(asdict(ENGINE)))) == ENGINE


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"steps_ms": []}, "steps_ms"),
        ({"steps_ms": [[8, 1.0], [1, 2.0]]}, "steps_ms"),
        ({"steps_ms": [[1, 0.0]]}, "steps_ms"),
        ({"prompt_ms": -1.0}, "prompt_ms"),
        ({"prompt_ms": "3"}, "prompt_ms"),
        ({"eager_ms": float("nan")}, "eager_ms"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 1.5}, "replicas"),
        ({"tokens_per_step": 0.5}, "tokens_per_step"),
        ({"prefill_tokens_per_s": 1.0}, "prefill_tokens_per_s"),
    ],
)
def test_a_wrong_number_is_named(change: dict[str, Any], key: str) -> None:  # Any: JSON
    with pytest.raises(ValidationError) as caught:
        READ(json.loads(json.dumps(asdict(ENGINE))) | change)
    assert caught.value.errors()[0]["loc"][0] == key
